"""Why an engine config is out, or where it ranks: every feasibility rule, and the best fleet that has the config."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.words import join_words
from optimizer.fleets.build_plan import fleet_cost, pool_line
from optimizer.fleets.error_bars import planned_instance
from optimizer.fleets.fleet import Fleet, make_fleet
from optimizer.loads.columns import ROLES, Columns, Grid, make_columns
from optimizer.loads.instance import Instance
from optimizer.loads.loads import RESOURCES, Resource, column_loads
from optimizer.solver.fleet_model import COLOCATED, DECODE, PREFILL
from optimizer.solver.search import plan_blocks
from optimizer.solver.simple_plans import SimplePlan, Totals, price_space, simple_plans
from optimizer.solver.split import with_best_split
from search_spaces.engines import load_engine_overhead
from search_spaces.enumeration import RULES
from search_spaces.pairs import END_RULES, end_of, pair_refusal
from search_spaces.problem import Problem
from search_spaces.wanted import Wanted, with_wanted

BoolArray = NDArray[np.bool_]

PARTNERS = {PREFILL: (PREFILL, DECODE), DECODE: (PREFILL, DECODE), COLOCATED: (COLOCATED,)}
"""Roles of the pools of a fleet that has an engine of the key's role."""

IN_WORDS = {
    Resource.TIME: "time to compute prompts",
    Resource.QUEUE: "the queue of prompts",
    Resource.SLOTS: "max_num_seqs",
    Resource.KV_MEMORY: "memory for the KV cache",
    Resource.ATTENTION_TIME: "attention time within the TPOT limit",
    Resource.LINK: "the network card",
}


@dataclass(frozen=True, slots=True)
class Ruling:
    """A feasibility rule and why it refuses the config; None: it does not."""

    rule: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The cheapest fleet of one or two pools that has the config in a role.

    cost [$/h] of that fleet, None where there is none; pools: its pools in words; rank of it among `of` engines of
    that role, 1 is the best, whose fleet costs `best` [$/h]; binding: what the config's pool runs out of first, and
    used: how much of that the demand takes [1]; why: in a sentence.
    """

    role: Role
    cost: float | None
    pools: tuple[str, ...]
    rank: int | None
    of: int
    best: float | None
    binding: str | None
    used: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is to be said of one config; unsearched: settings of it, and the range of the search that lacks them."""

    rulings: tuple[Ruling, ...]
    unsearched: dict[str, tuple[int | str, ...]]
    standings: tuple[Standing, ...]

    @property
    def feasible(self) -> bool:
        """Whether no rule refuses the config."""
        return all(ruling.reason is None for ruling in self.rulings)


def explain(problem: Problem, wanted: Wanted) -> Explanation:
    """Check a config against every rule; where it can be, rank it by the cheapest fleet that it is part of.

    Settings outside the search space are tried all the same, and named.
    """
    wider, unsearched = with_wanted(problem, wanted)
    shape = wanted.shape(wider)
    rulings = tuple(Ruling(name, rule(wider, shape)) for name, rule in RULES.items())
    if any(ruling.reason is not None for ruling in rulings):
        return Explanation(rulings, unsearched, ())
    overhead = load_engine_overhead(wider.engine, wider.engine_changes)
    instance = with_best_split(planned_instance(wider, overhead))
    columns, totals = price_space(instance, make_columns(instance, Grid()))
    roles = wider.space.roles if wanted.role is None else (wanted.role,)
    standings = tuple(_standing(instance, (columns, totals), wanted, role) for role in roles)
    return Explanation(rulings, unsearched, standings)


def explain_pair(problem: Problem, prefill: Wanted, decode: Wanted) -> tuple[Ruling, ...]:
    """What every rule on a hand-over says of a prefill and a decode config."""
    ends = [end_of(problem, wanted.shape(problem)) for wanted in (prefill, decode)]
    return tuple(Ruling(name, rule(problem, *ends)) for name, rule in END_RULES.items())


def _standing(instance: Instance, priced: tuple[Columns, Totals], wanted: Wanted, role: Role) -> Standing:
    """Where the config stands among the engines of one role."""
    columns, _ = priced
    number = ROLES.index(role)
    mine = _mask(instance, columns, wanted, number)
    own = _best_fleet(instance, priced, mine, number)
    costs = {
        int(shape): fleet_cost(instance, found[0])
        for shape in np.unique(columns.shape[columns.role == number])
        if (found := _best_fleet(instance, priced, (columns.shape == shape) & (columns.role == number), number))
    }
    best = min(costs.values(), default=None)
    if own is None:
        why = _why_none(instance, priced, mine, wanted, role)
        return Standing(role, None, (), None, len(costs), best, None, None, why)
    fleet, column = own
    cost = fleet_cost(instance, fleet)
    rank = 1 + sum(other < cost * (1.0 - 1e-9) for other in costs.values())
    binding, used = _binding(instance, fleet, columns.take(np.array([column])), role)
    lines = tuple(pool_line(instance, pool) for pool in fleet.pools)
    why = _why_rank(cost, best if best is not None else cost, binding, used)
    return Standing(role, cost, lines, rank, len(costs), best, binding, used, why)


def _mask(instance: Instance, columns: Columns, wanted: Wanted, role: int) -> BoolArray:
    """The columns that are the config in a role."""
    tables = instance.tables
    shape = tables.shapes.index(wanted.shape(instance.problem))
    mine = (columns.shape == shape) & (columns.role == role)
    if wanted.max_num_seqs is not None and role != PREFILL:
        mine &= tables.seqs[columns.seqs] == wanted.max_num_seqs
    if wanted.max_num_batched_tokens is not None and role == COLOCATED:
        mine &= tables.chunks[columns.chunk] == wanted.max_num_batched_tokens
    return np.asarray(mine)


def _best_fleet(
    instance: Instance, priced: tuple[Columns, Totals], mine: BoolArray, role: int
) -> tuple[Fleet, int] | None:
    """The cheapest fleet of one or two pools that has one of the columns `mine`, and that column, if there is one."""
    columns, totals = priced
    partners = np.isin(columns.role, PARTNERS[role]) & (columns.role != role)
    index = np.flatnonzero(mine | partners)
    if not mine.any():
        return None
    some = columns.take(index)
    plans: list[SimplePlan] = simple_plans(instance, some, totals.take(index))
    if not plans:
        return None
    column = next(int(index[place]) for place in plans[0].columns if some.role[place] == role)
    return make_fleet(instance, plan_blocks(instance, some, plans[0])), column


def _binding(instance: Instance, fleet: Fleet, column: Columns, role: Role) -> tuple[str, float]:
    """What the pool of the config's role runs out of first, and the share of it that the whole demand takes."""
    used = column_loads(instance, column).load[0] @ instance.flows.rate
    pool = next(pool for pool in fleet.pools if pool.role is role)
    used = used * int(column.replicas[0]) / pool.replicas
    first = int(np.argmax(used))
    return IN_WORDS[RESOURCES[first]], float(used[first])


def _why_rank(cost: float, best: float, binding: str, used: float) -> str:
    full = f"its pool takes {used:.0%} of what it may of {binding}"
    if cost <= best * (1.0 + 1e-9):
        return f"no engine of this role makes a cheaper fleet; {full}"
    return f"its fleet costs ${cost - best:,.2f}/h more than the best (+{cost / best - 1.0:.1%}); {full}"


def _why_silent(instance: Instance, shape: int, role: Role) -> str:
    """Why an engine cannot hand over, or take in: what keeps it from another one just like it."""
    problem, shapes = instance.problem, instance.tables.shapes
    own = shapes[shape]
    pairs = [(own, own), *((own, other) if role is Role.PREFILL else (other, own) for other in shapes)]
    return next(reason for pair in pairs if (reason := pair_refusal(problem, *pair)) is not None)


def _why_none(instance: Instance, priced: tuple[Columns, Totals], mine: BoolArray, wanted: Wanted, role: Role) -> str:
    """Why no fleet of one or two pools with the config holds."""
    totals = priced[1]
    tables, flows = instance.tables, instance.flows
    shape = tables.shapes.index(wanted.shape(instance.problem))
    step, limit = float(tables.decode_base[shape].min()), float(flows.tpot.max())
    if not mine.any():
        partners = tables.talks[shape] if role is Role.PREFILL else tables.talks[:, shape]
        if role is not Role.COLOCATED and not partners.any():
            return "no engine of the search space can talk to it: " + _why_silent(instance, shape, role)
        if step >= limit:
            return (
                f"its shortest decode step, {step * 1e3:,.4g} ms, is not below the TPOT limit of {limit * 1e3:,.4g} ms"
            )
        return "one engine of it already costs over three times the best fleet, or exceeds a limit of the fleet"
    late = float(totals.late[mine].max(axis=1).min())
    if late > 1.0:
        return f"at its best setting {late:,.3g} times as many requests miss their SLO as may"
    if not np.isfinite(totals.busiest[mine]).any():
        return "some requests of the demand fit in none of its settings"
    limits = [name for name in ("budget", "power", "max_gpus", "max_pools") if _limited(instance, name)]
    held = join_words(limits) if limits else "the inventory or the links of its possible partners"
    return f"no fleet with it that serves the whole demand keeps {held}"


def _limited(instance: Instance, name: str) -> bool:
    return getattr(instance.problem.constraints, name) is not None
