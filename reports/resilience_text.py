"""What a fleet does after a loss, and what spares cost: as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from optimizer.plans.plan import Plan
from optimizer.procurement.resilience import Loss, Resilience
from optimizer.verification.judge import Judgement, Outcome, pool_behind
from search_spaces.bounds import RUN_REQUESTS

from .answers.simulation import deciding_words
from .numbers import MISSING, hourly, percent, signed_percent
from .page_charts import Table
from .simulation_sentences import waste_sentence
from .table import Column, render_table
from .text import plural, wrap

MOST_LINES: Final = 12
"""Of a cell: a narrow terminal makes cells tall, and cuts none."""
UNDECIDED: Final = (
    "Undecided: the goal lies within the 95 % interval of the simulated share, as happens near saturation."
)
METHOD: Final = (
    "Simulated after the loss, requests re-routed to what is left; requests that were running when it happened are "
    "not in it. Replicas stand on nodes as the deployment files place them. Against nodes, each pool is spread evenly "
    "over nodes of its own."
)


def resilience_dict(found: Resilience) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
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


def resilience_text(found: Resilience, count: int, width: int, seen: str = "") -> str:
    """The verdict first, then every loss, then what N+k costs; seen: of the same losses in other runs."""
    table = losses_table(found)
    columns = [
        Column("loss", shrink=True, lines=MOST_LINES),
        Column("left", shrink=True, lines=MOST_LINES),
        Column("costs", "right"),
        Column("meet the SLO", shrink=True, lines=MOST_LINES),
        Column("verdict"),
        Column("spares against it", "right"),
    ]
    blocks = ["\n".join(wrap(verdict(found), width)), render_table(table.rows, columns, width)]
    return "\n\n".join([*blocks, *("\n".join(wrap(text, width)) for text in notes(found, count, seen))])


def verdict(found: Resilience) -> str:
    """Which losses the fleet bears, and of which the runs do not tell."""
    whole = attained(found.whole, found.pools)
    if found.whole.outcome is Outcome.MISSES:
        return f"Even without a loss the fleet misses an SLO: {whole}."
    if found.whole.outcome is Outcome.UNDECIDED:
        return f"Even without a loss it is undecided whether the fleet meets its SLOs: {whole}."
    borne, broken, undecided = (
        [named(found, one) for one in found.losses if one.outcome is outcome] for outcome in Outcome
    )
    if len(borne) == len(found.losses):
        return f"Each loss alone leaves every SLO met: {'; '.join(borne)}."
    if len(broken) == len(found.losses):
        return f"Each of these losses alone misses an SLO: {'; '.join(broken)}."
    said = (
        ("An SLO is missed with the loss of", broken),
        ("Every SLO is met with the loss of", borne),
        ("Undecided with the loss of", undecided),
    )
    return " ".join(f"{what} {'; or of '.join(losses)}." for what, losses in said if losses)


def losses_table(found: Resilience) -> Table:
    """Every loss, and the fleet without one."""
    rows = [
        ("none", "all", hourly(found.cost), attained(found.whole, found.pools), _holds(found.whole.outcome), MISSING)
    ]
    for one in found.losses:
        told = "some requests have no replica left"
        if one.judgement is not None:
            told = attained(one.judgement, pools_left(found, one))
        left, spare = (_engines(found, one.left), hourly(one.price)), hourly(one.spare)
        rows.append((named(found, one), *left, told, _holds(one.outcome), spare))
    return Table(("loss", "left", "#costs", "meet the SLO", "verdict", "#spares against it"), tuple(rows))


def notes(found: Resilience, count: int, seen: str = "") -> list[str]:
    """What N+k costs, what decides the undecided, what other runs showed of the same losses, and how it was found."""
    nodes = "node" if count == 1 else f"{count} nodes"
    replicas = f"{plural(count, 'replica')} of any pool"
    told = f"N+{count} against the loss of {replicas}: {_extra(found, 'replica')}. "
    told += f"Against the loss of any {nodes}: {_extra(found, 'node')}."
    judged = [found.whole, *(one.judgement for one in found.losses if one.judgement is not None)]
    between = [one for one in judged if one.outcome is Outcome.UNDECIDED]
    undecided = [f"{UNDECIDED} {deciding_words(between, int(RUN_REQUESTS.high))}"] if between else []
    return [told, *undecided, *([seen] if seen else []), METHOD, _runs(judged)]


def seen_in_the_plan(plan: Plan, count: int) -> str:
    """What the runs that proved a plan showed of one replica less; empty where more are lost, or spares idle there."""
    said = waste_sentence(plan)
    if not said or count > 1 or any(pool.spare_replicas for pool in plan.pools):
        return ""
    return f"In the plan's own runs: {said[:1].lower()}{said[1:]}"


def _runs(judged: Sequence[Judgement]) -> str:
    """Say how long the runs are, and why the row without a loss is not the plan's own figure to the digit."""
    lengths = [sum(run.demand.trace.size for run in one.runs) for one in judged]
    long = plural(min(lengths), "request")
    if max(lengths) > min(lengths):
        long += f", or of up to {max(lengths):,} where fewer do not tell whether a pool falls behind,"
    return (
        f"Each row is a run of {long} with the expected step times, in which spare replicas serve too. The plan's own "
        "shares come from several other runs, with spare replicas idle, and from slow step times if it "
        "has a confidence; so the row without a loss may differ from them."
    )


def named(found: Resilience, one: Loss) -> str:
    """A loss in words, such as "1 node of H100 (2 × colocated-1)"."""
    everything = (", its only one" if one.number == 1 else ", all it has") if one.everything else ""
    if one.what == "replica":
        return f"{plural(one.number, 'replica')} of {one.of}{everything}"
    return f"{plural(one.number, 'node')} of {one.of}{everything} ({_engines(found, one.lost)})"


def _engines(found: Resilience, engines: tuple[int, ...]) -> str:
    """Engines by pool."""
    return ", ".join(f"{n} × {name}" for n, name in zip(engines, found.pools, strict=True) if n) or "none"


def _extra(found: Resilience, what: str) -> str:
    """What spares cost more, where a loss misses an SLO and everywhere; once where that is the same."""
    needed, every = (found.spare_cost(what, only_where_needed=where) for where in (True, False))
    more = [f"{hourly(spare)} more ({signed_percent(spare / found.cost)})" for spare in (needed, every)]
    if more[0] == more[1]:
        return more[0]
    whole = "in every pool" if what == "replica" else "for every type"
    return f"{more[0]} where a loss misses an SLO, {more[1]} {whole}"


def _holds(outcome: Outcome) -> str:
    return str(outcome)


def pools_left(found: Resilience, one: Loss) -> list[str]:
    """The pools that have an engine left after a loss."""
    return [name for name, n in zip(found.pools, one.left, strict=True) if n]


def behind(judgement: Judgement, pools: Sequence[str]) -> str | None:
    """Which of the pools that were simulated falls behind its arrivals; None where all keep up."""
    number = pool_behind(judgement)
    return None if number is None else pools[number]


def attained(judgement: Judgement, pools: Sequence[str]) -> str:
    """Share of every class in time, with its goal, and the pool that falls behind; pools: those simulated."""
    shares = ", ".join(
        f"{one.name} {percent(one.attainment.share)} (goal {percent(one.goal)})" for one in judgement.classes
    )
    late = behind(judgement, pools)
    return shares if late is None else f"{shares}, overloaded: {late} falls behind"
