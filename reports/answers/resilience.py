"""What resilience answers: whether a fleet meets its SLOs after a loss, and what spares cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from optimizer.plans.plan import Plan
from optimizer.procurement.resilience import Loss, Resilience
from optimizer.verification.judge import Judgement, Outcome, pool_behind
from reports.document import Column, Document, Section, Table, said, table_of
from reports.numbers import MISSING, hourly, percent, signed_percent
from reports.text import plural
from reports.verdict import waste_sentence
from search_spaces.bounds import RUN_REQUESTS

from .simulation import MARKS, deciding_words

MOST_LINES: Final = 12
"""Of a cell: a narrow terminal makes cells tall, and cuts none."""
UNDECIDED: Final = "Undecided: the goal lies within the 95 % interval of the share, as it does near saturation."
RESULTS: Final = {
    Outcome.MISSES: "The fleet misses an SLO",
    Outcome.MEETS: "The fleet meets every SLO",
    Outcome.UNDECIDED: "It is undecided whether the fleet meets its SLOs",
}
METHOD: Final = (
    "Simulated after the loss, with requests routed to what is left; requests that were running at the loss are left "
    "out. Replicas are on nodes as in the deployment files. Spares against the loss of a node spread each pool evenly "
    "over nodes of its own."
)


def resilience_dict(resilience: Resilience) -> dict[str, Any]:
    """The answer as a record."""
    return {
        "schema": "pdplan.resilience/2",
        "cost_usd_per_hour": resilience.cost,
        "verdict": str(resilience.whole.outcome),
        "held": resilience.whole.proven,
        "whole": _classes(resilience.whole),
        "overloaded": resilience.whole.overload.overloaded,
        "falls_behind": behind(resilience.whole, resilience.pools),
        "losses": [
            {
                "loss": loss.what,
                "number": loss.number,
                "of": loss.of,
                "engines_lost": dict(zip(resilience.pools, loss.lost, strict=True)),
                "engines_left": dict(zip(resilience.pools, loss.left, strict=True)),
                "left_usd_per_hour": loss.price,
                "verdict": str(loss.outcome),
                "held": loss.held,
                "classes": None if loss.judgement is None else _classes(loss.judgement),
                "overloaded": loss.judgement is not None and loss.judgement.overload.overloaded,
                "falls_behind": None
                if loss.judgement is None
                else behind(loss.judgement, pools_left(resilience, loss)),
                "spares_usd_per_hour": loss.spare,
            }
            for loss in resilience.losses
        ],
        "spares_usd_per_hour": {
            unit: {
                "everywhere": resilience.spare_cost(unit, only_where_needed=False),
                "where_needed": resilience.spare_cost(unit, only_where_needed=True),
            }
            for unit in ("replica", "node")
        },
    }


def _classes(judgement: Judgement) -> list[dict[str, Any]]:
    return [
        {
            "name": case.name,
            "goal": case.goal,
            "attainment": case.attainment.share,
            "low": case.attainment.low,
            "high": case.attainment.high,
            "verdict": str(case.outcome),
            "held": case.proven,
        }
        for case in judgement.classes
    ]


def resilience_document(resilience: Resilience, count: int, name: str, other_runs: str = "") -> Document:
    """The answer: which losses the fleet survives, every loss, what N+k costs.

    count: replicas or nodes lost at once; name: of the plan; other_runs: of the same losses in other runs.
    """
    return Document(
        headline=(verdict(resilience),),
        sections=(
            Section(table=losses_table(resilience)),
            Section(sentences=notes(resilience, count, other_runs)),
        ),
        positive=resilience.held,
        about=("Which loss breaks an SLO?", name),
    )


def verdict(resilience: Resilience) -> str:
    """After which losses the fleet meets its SLOs, and after which the runs do not tell."""
    whole = attainment_words(resilience.whole, resilience.pools)
    if resilience.whole.outcome is Outcome.MISSES:
        return f"Even without a loss the fleet misses an SLO: {whole}."
    if resilience.whole.outcome is Outcome.UNDECIDED:
        return f"Even without a loss it is undecided whether the fleet meets its SLOs: {whole}."
    outages = [loss for loss in resilience.losses if loss.judgement is None]
    groups = [("Some requests cannot be served", outages)]
    groups += [
        (result, [loss for loss in resilience.losses if loss.outcome is outcome and loss not in outages])
        for outcome, result in RESULTS.items()
    ]
    return " ".join(
        f"{result} after the loss of {'; or of '.join(loss_name(resilience, loss) for loss in losses)}."
        for result, losses in groups
        if losses
    )


def losses_table(resilience: Resilience) -> Table:
    """Every loss, and the fleet without one."""
    columns = (
        Column("loss", shrink=True, lines=MOST_LINES),
        Column("left", shrink=True, lines=MOST_LINES),
        "#costs",
        Column("meet the SLO", shrink=True, lines=MOST_LINES),
        *("verdict", "#spares against it"),
    )
    whole = resilience.whole
    rows = [
        (
            "none",
            "all",
            hourly(resilience.cost),
            attainment_words(whole, resilience.pools),
            MARKS[whole.outcome],
            MISSING,
        )
    ]
    for loss in resilience.losses:
        shares = "some requests have no replica left"
        if loss.judgement is not None:
            shares = attainment_words(loss.judgement, pools_left(resilience, loss))
        remainder = (_replicas(resilience, loss.left), hourly(loss.price))
        rows.append((loss_name(resilience, loss), *remainder, shares, MARKS[loss.outcome], hourly(loss.spare)))
    return table_of(columns, rows)


def notes(resilience: Resilience, count: int, other_runs: str = "") -> tuple[str, ...]:
    """What N+k costs, what decides the undecided, what other runs showed of the same losses, and how it was found."""
    judgements = [resilience.whole, *(loss.judgement for loss in resilience.losses if loss.judgement is not None)]
    between = [item for item in judgements if item.outcome is Outcome.UNDECIDED]
    return said(
        _spares_sentence(resilience, "replica", count),
        _spares_sentence(resilience, "node", count),
        f"{UNDECIDED} {deciding_words(between, int(RUN_REQUESTS.high))}" if between else "",
        other_runs,
        METHOD,
        _runs(judgements),
    )


def seen_in_the_plan(plan: Plan, count: int) -> str:
    """What the runs that proved a plan showed of one replica fewer; empty where more are lost, or spares idle there."""
    fewer = waste_sentence(plan)
    if not fewer or count > 1 or any(pool.spare_replicas for pool in plan.pools):
        return ""
    return f"In the plan's own runs: {fewer.removeprefix('No spare: ')}"


def _runs(judgements: Sequence[Judgement]) -> str:
    """Say how long the runs are, and why the row without a loss is not the plan's own figure to the digit."""
    lengths = [sum(run.demand.trace.size for run in item.runs) for item in judgements]
    most = f" (up to {max(lengths):,} where fewer do not tell)"
    longer = most if max(lengths) > min(lengths) else ""
    return (
        f"Each row is a run of {plural(min(lengths), 'request')}{longer} with the expected step times; spare replicas "
        "serve too. The plan's own shares come from other runs, in which spare replicas are idle and, with a "
        "confidence, steps are slow. So the row without a loss may differ from them."
    )


def loss_name(resilience: Resilience, loss: Loss) -> str:
    """A loss in words, such as "1 node of H100 (2 × colocated-1)"."""
    everything = (", its only one" if loss.number == 1 else ", all it has") if loss.everything else ""
    if loss.what == "replica":
        return f"{plural(loss.number, 'replica')} of {loss.of}{everything}"
    return f"{plural(loss.number, 'node')} of {loss.of}{everything} ({_replicas(resilience, loss.lost)})"


def _replicas(resilience: Resilience, replicas: tuple[int, ...]) -> str:
    """Replicas by pool."""
    return ", ".join(f"{n} × {name}" for n, name in zip(replicas, resilience.pools, strict=True) if n) or "none"


def _spares_sentence(resilience: Resilience, unit: str, count: int) -> str:
    """What spares against a loss cost more: where it breaks an SLO, and everywhere; once where that is the same."""
    where_needed, everywhere = (resilience.spare_cost(unit, only_where_needed=where) for where in (True, False))
    loss = f"the loss of any {unit if count == 1 else plural(count, unit)}"
    where = "in every pool" if unit == "replica" else "for every GPU type"
    extra = [
        f"{hourly(spare)} more ({signed_percent(spare / resilience.cost)})" for spare in (where_needed, everywhere)
    ]
    if not everywhere:
        return f"The fleet needs no more spares against {loss}."
    if not where_needed:
        return f"No spares are needed against {loss}; {where} they would cost {extra[1]}."
    also = f" where it breaks an SLO, {extra[1]} {where}" if where_needed != everywhere else ""
    return f"Spares against {loss} (N+{count}) cost {extra[0]}{also}."


def pools_left(resilience: Resilience, loss: Loss) -> list[str]:
    """The pools that have a replica left after a loss."""
    return [name for name, n in zip(resilience.pools, loss.left, strict=True) if n]


def behind(judgement: Judgement, pools: Sequence[str]) -> str | None:
    """Which of the pools that were simulated falls behind its arrivals; None where all keep up."""
    number = pool_behind(judgement)
    return None if number is None else pools[number]


def attainment_words(judgement: Judgement, pools: Sequence[str]) -> str:
    """Share of every class that meets its SLO, its goal, and the pool that falls behind; pools: those simulated."""
    shares = ", ".join(
        f"{case.name} {percent(case.attainment.share)} (goal {percent(case.goal)})" for case in judgement.classes
    )
    late = behind(judgement, pools)
    return shares if late is None else f"{shares}, overloaded: {late} falls behind"
