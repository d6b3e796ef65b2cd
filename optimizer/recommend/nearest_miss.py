"""Where no fleet meets the SLOs: the fleet that comes nearest, and what would have to give for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from costmodel.engine import Role
from costmodel.metric import Metric
from costmodel.words import join_words
from optimizer.fleets.binding import amount, binding, fleet_bindings
from optimizer.fleets.build_plan import engine_pools, fleet_cost, fleet_gpus
from optimizer.fleets.error_bars import planned_instance
from optimizer.fleets.evaluate import evaluate, predict_misses
from optimizer.fleets.fleet import Fleet
from optimizer.loads.diagnose import with_fewer_misses, with_looser_slos, without_limits
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late, never
from optimizer.plans.plan import Alternative, Binding, Status
from optimizer.rivals.leanest import at_best_split
from optimizer.verification.bench import Verdict
from search_spaces.problem import Goal, Slo

from .formula_search import cheapest_by_formula
from .judged import goal_missed
from .lifting import least_demand, lifts
from .rival_rows import overall

ROUNDING = 1e-9
"""Relative excess of a limit that is none."""


@dataclass(frozen=True, slots=True)
class Held:
    """The cheapest fleet that holds of an instance, in which its limits are split as the fleet keeps them.

    verdict: how it did when it was simulated; None by formula.
    """

    instance: Instance
    fleet: Fleet
    verdict: Verdict | None = None


Solve = Callable[[Instance], Held | None]


@dataclass(frozen=True, slots=True)
class Miss:
    """What is in the way: the nearest fleets, and limits by how much each would have to give.

    kept: a fleet that keeps every limit after all, where the search for the nearest one came by it.
    """

    rows: list[Alternative]
    shortfalls: list[Binding]
    kept: Held | None = None


def describe_miss(instance: Instance, solve: Solve, late: Late = never) -> Miss:
    """The nearest fleet without one of the limits on it, or SLOs loosened, or goals lowered, and what each takes.

    solve: finds the cheapest fleet of an instance. Without any fleet whatever, or once it is late, nothing is named.
    """
    return (
        without_a_limit(instance, solve, late)
        or _with_looser_latencies(instance, solve, late)
        or _with_lower_goals(instance, solve, late)
        or Miss([], [])
    )


def without_a_limit(instance: Instance, solve: Solve, late: Late = never) -> Miss | None:
    """The nearest fleet without each limit on it, or without all where no single one would do; None without any."""
    found: list[tuple[Held, list[Binding]]] = []
    for lift in lifts(least_demand(instance.problem)):
        if late() or (found and lift.all_at_once):
            break
        planned = planned_instance(lift.problem, instance.overhead)
        held = solve(lift.priced(planned))
        if held is None:
            continue
        held = replace(held, instance=replace(planned, flows=held.instance.flows))
        broken = _broken_limits(instance, held)
        if broken:
            found.append((held, broken))
        elif instance.problem.objective.goal is Goal.MIN_COST:
            return Miss([], [], held)
    if not found:
        return None
    either = " Any one of these limits relaxed is enough." if len(found) > 1 else ""
    rows = [_miss(held, "without the limits on the fleet", f"{_needs(broken)}{either}") for held, broken in found]
    return Miss(rows, sorted((row for _, broken in found for row in broken), key=lambda row: row.slack))


def _broken_limits(instance: Instance, held: Held) -> list[Binding]:
    """Limits of the instance that a fleet of the unlimited one breaks, the worst first."""
    free, fleet = held.instance, held.fleet
    rows = fleet_bindings(instance, fleet_cost(free, fleet), fleet_gpus(free, fleet))
    rows = [row for row in rows if row.slack < -ROUNDING] + _pool_limit(instance, fleet)
    return sorted(rows, key=lambda row: row.slack)


def _needs(rows: Sequence[Binding]) -> str:
    """What a fleet needs beyond the limits, in words."""
    short = [
        f"{amount(row.used, row.unit)} of {row.where} where the inventory has {amount(row.limit, row.unit)}"
        if row.constraint == "inventory"
        else f"{amount(row.used, row.unit)} where {row.constraint} allows {amount(row.limit, row.unit)}"
        for row in rows
    ]
    return f"It needs {join_words(short)}."


FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Factors by which limits on latency are loosened."""


def _with_looser_latencies(instance: Instance, solve: Solve, late: Late) -> Miss | None:
    """The nearest fleet once one latency limit, or else all, are loosened; with the limits that it then breaks.

    All together are loosened only where no single one would do, however far: the report names what is in the way.
    """
    slos = instance.problem.slos
    limited = [metric for metric in Metric if any(metric in slo.limits for slo in slos)]
    alone: list[tuple[Metric, ...]] = [(metric,) for metric in limited]
    enough = [names for names in alone if not late() and by_formula(_loosened(instance, FACTORS[-1], names), late)]
    for factor in FACTORS:
        for names in enough or [tuple(limited)]:
            if late():
                return None
            held = solve(_loosened(instance, factor, names))
            if held is None:
                continue
            rows = [
                binding(
                    name,
                    slo.name,
                    limit * factor,
                    limit,
                    "s",
                    f"{name.upper()} of {slo.name} is too tight: {limit:g} s.",
                )
                for slo in slos
                for name in names
                if (limit := slo.limits.get(name)) is not None
            ]
            broken = _broken_limits(instance, held)
            why = f"{join_words([name.upper() for name in names])} {'is' if len(names) == 1 else 'are'} too tight."
            why = f"{why} {_needs(broken)}" if broken else why
            return Miss([_miss(held, f"with {join_words(names)} x {factor:g}", why)], [*rows, *broken])
    return None


def _loosened(instance: Instance, factor: float, names: Sequence[Metric]) -> Instance:
    """The instance without limits on the fleet, and the latency limits of these names multiplied by `factor`."""
    free = without_limits(least_demand(instance.problem))
    return planned_instance(with_looser_slos(free, factor, names), instance.overhead)


def _with_lower_goals(instance: Instance, solve: Solve, late: Late) -> Miss | None:
    """The nearest fleet once more requests may miss."""
    free = without_limits(least_demand(instance.problem))
    for factor in (2.0, 5.0, 20.0, 100.0, 1e3, 1e6):
        held = None if late() else solve(planned_instance(with_fewer_misses(free, factor), instance.overhead))
        if held is not None:
            rows = [*_goals_missed(held, free.slos), *_broken_limits(instance, held)]
            return Miss([_miss(held, "with lower goals", "Too few requests keep their SLO.")], rows)
    return None


def _goals_missed(held: Held, slos: Sequence[Slo]) -> list[Binding]:
    """How far the attainment of each class that misses its goal is from it; simulated, as far as it is proven."""
    if held.verdict is None:
        reached = [float(share) for share in predict_misses(held.instance, held.fleet).attainment]
    else:
        reached = [one.attainment.low for one in held.verdict.judgement.classes]
    pairs = zip(slos, reached, strict=True)
    return [goal_missed(slo.name, got, slo.attainment) for slo, got in pairs if got < slo.attainment]


def by_formula(instance: Instance, late: Late = never) -> Held | None:
    """The cheapest fleet that holds by formula; late: once it is, none is looked for."""
    if late():
        return None
    known = at_best_split(instance, late)
    fleet = cheapest_by_formula(known)
    return Held(known.instance, fleet) if fleet.pools else None


def _pool_limit(instance: Instance, fleet: Fleet) -> list[Binding]:
    """The limits on the number of pools that a fleet breaks: the user's, and what the target's router can serve."""
    limits, pools = instance.problem.constraints, len(fleet.pools)
    rows = []
    if limits.max_pools is not None and pools > limits.max_pools:
        sentence = f"{pools} pools are needed where max_pools allows {limits.max_pools}."
        rows.append(binding("max_pools", "fleet", float(pools), float(limits.max_pools), "pools", sentence))
    if limits.gateway is not None and not limits.gateway.allows([pool.role for pool in fleet.pools]):
        apart = any(pool.role is Role.PREFILL for pool in fleet.pools)
        most = 2 * limits.gateway.apart if apart else limits.gateway.colocated
        router = f"the router of {instance.problem.target or 'any target'}"
        sentence = f"{pools} pools are needed where {router} serves {most}."
        rows.append(binding("gateway", "fleet", float(pools), float(most), "pools", sentence))
    return rows


def _miss(held: Held, label: str, why: str) -> Alternative:
    instance, fleet, verdict = held.instance, held.fleet, held.verdict
    return Alternative(
        kind="nearest_miss",
        label=label,
        status=Status.FEASIBLE,
        cost_usd_per_hour=fleet_cost(instance, fleet),
        bound_usd_per_hour=None,
        gap=None,
        pools=engine_pools(instance, fleet),
        attainment=evaluate(instance, fleet).overall if verdict is None else overall(instance, verdict),
        why_not=why,
        simulated=verdict is not None,
    )
