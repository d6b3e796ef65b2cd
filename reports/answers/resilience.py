"""What resilience answers: whether a fleet meets its SLOs after a loss, and what spares cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from optimizer.plans.plan import Plan
from optimizer.procurement.resilience import Loss, Resilience
from optimizer.verification.judge import Judgement, Outcome, pool_behind
from reports.answer_charts import Share, draw_shares
from reports.document import Chart, Document, Section, Table, said, table_of
from reports.numbers import MISSING, hourly, percent, signed_percent
from reports.table import Column
from reports.text import plural
from reports.verdict import waste_sentence
from reports.words import misses_used
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


def resilience_dict(found: Resilience) -> dict[str, Any]:
    """The answer as a record."""
    return {
        "schema": "pdplan.resilience/2",
        "cost_usd_per_hour": found.cost,
        "verdict": str(found.whole.outcome),
        "held": found.whole.proven,
        "whole": _classes(found.whole),
        "overloaded": found.whole.overload.overloaded,
        "falls_behind": behind(found.whole, found.pools),
        "losses": [
            {
                "loss": one.what,
                "number": one.number,
                "of": one.of,
                "engines_lost": dict(zip(found.pools, one.lost, strict=True)),
                "engines_left": dict(zip(found.pools, one.left, strict=True)),
                "left_usd_per_hour": one.price,
                "verdict": str(one.outcome),
                "held": one.held,
                "classes": None if one.judgement is None else _classes(one.judgement),
                "overloaded": one.judgement is not None and one.judgement.overload.overloaded,
                "falls_behind": None if one.judgement is None else behind(one.judgement, pools_left(found, one)),
                "spares_usd_per_hour": one.spare,
            }
            for one in found.losses
        ],
        "spares_usd_per_hour": {
            what: {
                "everywhere": found.spare_cost(what, only_where_needed=False),
                "where_needed": found.spare_cost(what, only_where_needed=True),
            }
            for what in ("replica", "node")
        },
    }


def _classes(judgement: Judgement) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "goal": one.goal,
            "attainment": one.attainment.share,
            "low": one.attainment.low,
            "high": one.attainment.high,
            "verdict": str(one.outcome),
            "held": one.proven,
        }
        for one in judgement.classes
    ]


def resilience_document(found: Resilience, count: int, name: str, seen: str = "") -> Document:
    """The answer: which losses the fleet survives, every loss, what N+k costs.

    count: replicas or nodes lost at once; name: of the plan; seen: of the same losses in other runs.
    """
    return Document(
        headline=(verdict(found),),
        sections=(
            Section(charts=(_chart(found),)),
            Section(table=losses_table(found)),
            Section(sentences=notes(found, count, seen)),
        ),
        positive=found.held,
        about=("Which loss breaks an SLO?", name),
    )


def verdict(found: Resilience) -> str:
    """After which losses the fleet meets its SLOs, and after which the runs do not tell."""
    whole = attained(found.whole, found.pools)
    if found.whole.outcome is Outcome.MISSES:
        return f"Even without a loss the fleet misses an SLO: {whole}."
    if found.whole.outcome is Outcome.UNDECIDED:
        return f"Even without a loss it is undecided whether the fleet meets its SLOs: {whole}."
    stopped = [loss for loss in found.losses if loss.judgement is None]
    groups = [("Some requests cannot be served", stopped)]
    groups += [
        (result, [loss for loss in found.losses if loss.outcome is outcome and loss not in stopped])
        for outcome, result in RESULTS.items()
    ]
    return " ".join(
        f"{result} after the loss of {'; or of '.join(named(found, loss) for loss in losses)}."
        for result, losses in groups
        if losses
    )


def losses_table(found: Resilience) -> Table:
    """Every loss, and the fleet without one."""
    columns = (
        Column("loss", shrink=True, lines=MOST_LINES),
        Column("left", shrink=True, lines=MOST_LINES),
        "#costs",
        Column("meet the SLO", shrink=True, lines=MOST_LINES),
        *("verdict", "#spares against it"),
    )
    whole = found.whole
    rows = [("none", "all", hourly(found.cost), attained(whole, found.pools), MARKS[whole.outcome], MISSING)]
    for loss in found.losses:
        shares = "some requests have no replica left"
        if loss.judgement is not None:
            shares = attained(loss.judgement, pools_left(found, loss))
        left = (_replicas(found, loss.left), hourly(loss.price))
        rows.append((named(found, loss), *left, shares, MARKS[loss.outcome], hourly(loss.spare)))
    return table_of(columns, rows)


def notes(found: Resilience, count: int, seen: str = "") -> tuple[str, ...]:
    """What N+k costs, what decides the undecided, what other runs showed of the same losses, and how it was found."""
    judged = [found.whole, *(loss.judgement for loss in found.losses if loss.judgement is not None)]
    between = [item for item in judged if item.outcome is Outcome.UNDECIDED]
    return said(
        _spares_sentence(found, "replica", count),
        _spares_sentence(found, "node", count),
        f"{UNDECIDED} {deciding_words(between, int(RUN_REQUESTS.high))}" if between else "",
        seen,
        METHOD,
        _runs(judged),
    )


def seen_in_the_plan(plan: Plan, count: int) -> str:
    """What the runs that proved a plan showed of one replica fewer; empty where more are lost, or spares idle there."""
    fewer = waste_sentence(plan)
    if not fewer or count > 1 or any(pool.spare_replicas for pool in plan.pools):
        return ""
    return f"In the plan's own runs: {fewer.removeprefix('No spare: ')}"


def _runs(judged: Sequence[Judgement]) -> str:
    """Say how long the runs are, and why the row without a loss is not the plan's own figure to the digit."""
    lengths = [sum(run.demand.trace.size for run in item.runs) for item in judged]
    most = f" (up to {max(lengths):,} where fewer do not tell)"
    longer = most if max(lengths) > min(lengths) else ""
    return (
        f"Each row is a run of {plural(min(lengths), 'request')}{longer} with the expected step times; spare replicas "
        "serve too. The plan's own shares come from other runs, in which spare replicas are idle and, with a "
        "confidence, steps are slow. So the row without a loss may differ from them."
    )


def named(found: Resilience, loss: Loss) -> str:
    """A loss in words, such as "1 node of H100 (2 × colocated-1)"."""
    everything = (", its only one" if loss.number == 1 else ", all it has") if loss.everything else ""
    if loss.what == "replica":
        return f"{plural(loss.number, 'replica')} of {loss.of}{everything}"
    return f"{plural(loss.number, 'node')} of {loss.of}{everything} ({_replicas(found, loss.lost)})"


def _replicas(found: Resilience, replicas: tuple[int, ...]) -> str:
    """Replicas by pool."""
    return ", ".join(f"{n} × {name}" for n, name in zip(replicas, found.pools, strict=True) if n) or "none"


def _spares_sentence(found: Resilience, what: str, count: int) -> str:
    """What spares against a loss cost more: where it breaks an SLO, and everywhere; once where that is the same."""
    needed, every = (found.spare_cost(what, only_where_needed=where) for where in (True, False))
    loss = f"the loss of any {what if count == 1 else plural(count, what)}"
    where = "in every pool" if what == "replica" else "for every GPU type"
    extra = [f"{hourly(spare)} more ({signed_percent(spare / found.cost)})" for spare in (needed, every)]
    if not every:
        return f"The fleet needs no more spares against {loss}."
    if not needed:
        return f"No spares are needed against {loss}; {where} they would cost {extra[1]}."
    also = f" where it breaks an SLO, {extra[1]} {where}" if needed != every else ""
    return f"Spares against {loss} (N+{count}) cost {extra[0]}{also}."


def pools_left(found: Resilience, loss: Loss) -> list[str]:
    """The pools that have a replica left after a loss."""
    return [name for name, n in zip(found.pools, loss.left, strict=True) if n]


def behind(judgement: Judgement, pools: Sequence[str]) -> str | None:
    """Which of the pools that were simulated falls behind its arrivals; None where all keep up."""
    number = pool_behind(judgement)
    return None if number is None else pools[number]


def attained(judgement: Judgement, pools: Sequence[str]) -> str:
    """Share of every class that meets its SLO, its goal, and the pool that falls behind; pools: those simulated."""
    shares = ", ".join(
        f"{one.name} {percent(one.attainment.share)} (goal {percent(one.goal)})" for one in judgement.classes
    )
    late = behind(judgement, pools)
    return shares if late is None else f"{shares}, overloaded: {late} falls behind"


def _chart(found: Resilience) -> Chart:
    """Attainment of the class with the least room, after each loss."""
    rows = [_share("no loss", found.whole)]
    goal = max(case.goal for case in found.whole.classes)
    rows += [
        Share(named(found, loss), 0.0, goal, "no replica left")
        if loss.judgement is None
        else _share(named(found, loss), loss.judgement)
        for loss in found.losses
    ]
    held = sum(loss.held for loss in found.losses)
    return Chart(
        title=f"{held} of {len(found.losses)} losses leave every SLO met",
        caption="Share of requests that meet the SLO, of the class with the least room; the line is its goal.",
        drawing=draw_shares(rows, "; ".join(f"{row.label} {row.note}" for row in rows)),
        table=table_of(("loss", "#SLO met", "#goal"), [(row.label, row.note, percent(row.goal)) for row in rows]),
    )


def _share(label: str, judgement: Judgement) -> Share:
    """The class with the least room."""
    worst = max(judgement.classes, key=lambda item: misses_used(item.attainment.share, item.goal))
    note = f"{percent(worst.attainment.share)}{', overloaded' if judgement.overload.overloaded else ''}"
    return Share(label, worst.attainment.share, worst.goal, note)
