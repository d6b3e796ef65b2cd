"""Explanations: why an engine config is excluded or how it ranks, and what a feature of engines saves.

A config is checked against every feasibility rule and ranked by the cheapest fleet that has it; a feature is valued by
the cheapest fleet without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from costmodel.arrays import BoolArray
from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError, name_list, nearest_name, shortened
from costmodel.words import dearer
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.evaluate import evaluate, utilization
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import (
    COLOCATED,
    DECODE,
    PREFILL,
    ROLES,
    Instance,
    Resource,
    as_planned,
    planned_instance,
)
from optimizer.plans.plan import Worth
from optimizer.plans.records import ROUNDING, EnginePool
from optimizer.search.bound import possible_instance
from optimizer.search.search import FleetSearch, Picks, cheapest_held, evaluated
from optimizer.search.settings import EngineSettings, make_settings
from search_spaces.catalog import normalized_name
from search_spaces.enumeration import (
    HAND_OVER_RULES,
    RULES,
    Shape,
    end_of,
    hand_over_refusals,
    refusals,
)
from search_spaces.fields import Reader, choice
from search_spaces.problem import Goal, Offer, Problem, SearchSpace
from search_spaces.search_space import DEGREES, DTYPES, RANGES
from search_spaces.sources import parse_value

from .changed_problem import by_formula

PARTNERS = {PREFILL: (PREFILL, DECODE), DECODE: (PREFILL, DECODE), COLOCATED: (COLOCATED,)}
"""By role of an engine: the roles of the pools of a fleet that has it."""

FEATURES: Final = ("chunked prefill", "batching", "disaggregation")
"""Features that are turned off, one at a time, to see what they save."""


SETTINGS: Mapping[str, Reader] = {"role": choice(*Role), **RANGES}
"""Settings of an engine config on a command line (`gpu=H100,tp=4,role=decode`)."""
SHORT = {"gpu": "accelerator"} | dict(zip(("tp", "pp", "ep", "dp"), DEGREES, strict=True))
KEYS: Mapping[str, str] = SHORT | {name: name for name in ("accelerator", *SETTINGS)}
"""What may be written, and the setting that it means."""


@dataclass(frozen=True, slots=True)
class EngineQuery:
    """An engine config that somebody asks about.

    stated: settings by the key of the search section, and its role; assumed: what the others are taken for. Degrees are
    1, precisions the model section's, or the first of the space if it lacks that, drafted tokens as few as the space
    has, and anything else whatever the space has.
    """

    shape: Shape
    stated: Mapping[str, Any] = field(hash=False)
    assumed: Mapping[str, int | str] = field(hash=False)

    @property
    def role(self) -> Role | None:
        """The role that is asked about; None: any of the space."""
        return self.stated.get("role")


def engine_query(problem: Problem, offer: int, stated: Mapping[str, Any]) -> EngineQuery:
    """The config of an offer, by its number in the problem, with these settings."""
    space, usual = problem.full_space, dict[str, Any](dict.fromkeys(DEGREES, 1))
    for name in DTYPES:
        own, choices = getattr(problem, name), getattr(space, name)
        usual[name] = own if own in choices else choices[0]
    settings = {"speculative_tokens": space.speculative_tokens[0], **usual, **stated}
    split = Parallelism(*(settings[name] for name in DEGREES))
    shape = Shape(offer, split, *(settings[name] for name in (*DTYPES, "speculative_tokens")))
    return EngineQuery(shape, stated, {name: value for name, value in usual.items() if name not in stated})


def parse_query(pairs: Mapping[str, str], problem: Problem) -> EngineQuery:
    """Read the settings of one engine config; degrees that are left out are 1.

    Raises InputError for all unknown settings and values, one a line, each with those that are allowed.
    """
    settings: dict[str, Any] = {}
    faults: list[str] = []
    for key, text in pairs.items():
        try:
            name = KEYS[choice(*KEYS).read(key)]
            if name in settings:
                raise InputError(f"states {name} twice")
            settings[name] = None  # stated, whatever it is worth
            settings[name] = _offer(text, problem) if name == "accelerator" else SETTINGS[name].read(parse_value(text))
        except InputError as error:
            faults.append(f"--config {key}={shortened(text)}: {error}")
    if "accelerator" not in settings:
        faults.append("--config names no accelerator; add gpu=NAME, such as gpu=H100")
    if faults:
        raise InputError("\n".join(faults))
    return engine_query(problem, settings.pop("accelerator"), settings)


def _offer(name: str, problem: Problem) -> int:
    names = [offer.accelerator.name for offer in problem.offers]
    offers = {normalized_name(offer): index for index, offer in enumerate(names)}
    if normalized_name(name) in offers:
        return offers[normalized_name(name)]
    near = nearest_name(name, names)
    hint = f"; did you mean {near}?" if near else ""
    raise InputError(f"is not among the accelerators of the workload file: {name_list(names)}{hint}")


@dataclass(frozen=True, slots=True)
class Ruling:
    """A feasibility rule, and the reason why it refuses the config; None if it does not."""

    rule: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The cheapest fleet of one or two pools that has the config in a role.

    cost [$/h] and pools of that fleet, None and empty where there is none; rank of it among the `of` engines of
    that role that are tried, 1 is the best, whose fleet costs `best` [$/h]; binding: what the config's pool uses most,
    and used: the busy share of that [1], as in a plan; search: of the config's settings, and its possible partners.
    """

    role: Role
    cost: float | None
    pools: tuple[EnginePool, ...]
    rank: int | None
    of: int
    best: float | None
    binding: Resource | None
    used: float | None
    search: FleetSearch
    config: EngineQuery


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one config; unsearched: its settings outside the search space, with the range that lacks them.

    offer: the GPUs that it runs on.
    """

    offer: Offer
    rulings: tuple[Ruling, ...]
    unsearched: dict[str, tuple[int | str, ...]]
    standings: tuple[Standing, ...]

    @property
    def feasible(self) -> bool:
        """Whether no rule refuses the config."""
        return all(ruling.reason is None for ruling in self.rulings)

    @property
    def cost(self) -> float:
        """Cost of the cheapest fleet that has the config in any role, infinite where there is none [$/h]."""
        return min((row.cost for row in self.standings if row.cost is not None), default=np.inf)


def explain_each(problem: Problem, configs: Sequence[EngineQuery]) -> list[Explanation]:
    """Check configs against every rule, and rank each feasible one by the cheapest fleet that has it.

    Settings outside the search space are tried all the same, and named; a search space is priced once, for all configs
    within it.
    """
    searches: dict[SearchSpace, FleetSearch] = {}
    return [_explain(problem, config, searches) for config in configs]


def _explain(problem: Problem, config: EngineQuery, searches: dict[SearchSpace, FleetSearch]) -> Explanation:
    wider, unsearched_settings = _wider_problem(problem, config)
    offer, shape = wider.offers[config.shape.offer], config.shape
    reasons = dict(refusals(wider, shape))
    rulings = tuple(Ruling(name, reasons.get(name)) for name in RULES)
    if any(ruling.reason is not None for ruling in rulings):
        return Explanation(offer, rulings, unsearched_settings, ())
    if wider.space not in searches:
        searches[wider.space] = evaluated(planned_instance(wider))
    roles = wider.space.roles if config.role is None else (config.role,)
    standings = tuple(_standing(searches[wider.space], config, role) for role in roles)
    return Explanation(offer, rulings, unsearched_settings, standings)


def _wider_problem(problem: Problem, config: EngineQuery) -> tuple[Problem, dict[str, tuple[int | str, ...]]]:
    """The problem with the settings of a config in its search space, and the ranges that they were not in."""
    space = problem.full_space
    settings = dict.fromkeys(DEGREES, 1) | {name: value for name, value in config.stated.items() if name != "role"}
    missing = {name: getattr(space, name) for name, value in settings.items() if value not in getattr(space, name)}
    wider = {
        name: tuple(sorted({*values, settings[name]}, key=DTYPES[name].index if name in DTYPES else None))
        for name, values in missing.items()
    }
    roles = space.roles if config.role is None else tuple(role for role in Role if role in {*space.roles, config.role})
    gpus = max(space.max_gpus_per_engine, config.shape.parallelism.gpus)
    return replace(problem, space=replace(space, roles=roles, max_gpus_per_engine=gpus, **wider)), missing


def explain_pair(problem: Problem, prefill: EngineQuery, decode: EngineQuery) -> tuple[Ruling, ...]:
    """The verdict of every hand-over rule on a prefill and a decode config."""
    ends = [end_of(problem, config.shape) for config in (prefill, decode)]
    refusals = dict(hand_over_refusals(problem, *ends))
    return tuple(Ruling(name, refusals.get(name)) for name in HAND_OVER_RULES)


def _standing(space: FleetSearch, config: EngineQuery, role: Role) -> Standing:
    """The rank of the config among the engines of one role."""
    instance, number = space.instance, ROLES.index(role)
    in_role = space.settings.role == number
    engines = np.unique(space.settings.shape[in_role])
    rivals = engines[engines != instance.tables.shapes.index(config.shape)]
    best = _cheapest_with(space, in_role, role)
    own = FleetSearch.of(instance, _with_config(instance, config, number))
    cheapest = _cheapest_with(own, own.settings.role == number, role)
    if cheapest is None:
        least = None if best is None else best[1]
        return Standing(role, None, (), None, rivals.size + 1, least, None, None, own, config)
    fleet, cost = own.fleet(cheapest[0]), cheapest[1]
    least = cost if best is None else min(best[1], cost)
    rivals_in_role = in_role & (space.settings.shape == rivals[:, None])  # its own settings are none
    rank = 1 + sum(_cheapest_with(space, rival, role, cost) is not None for rival in rivals_in_role)
    binding, used = _busiest(instance, fleet, role)
    pools = tuple(engine_pools(instance, fleet))
    return Standing(role, cost, pools, rank, rivals.size + 1, least, binding, used, own, config)


def _with_config(instance: Instance, config: EngineQuery, role: int) -> EngineSettings:
    """The settings of a config in a role, and those of every possible partner."""
    tables, settings = instance.tables, make_settings(instance, every_limit=True)
    shape = tables.shapes.index(config.shape)
    own = (settings.shape == shape) & (settings.role == role)
    seqs, chunk = (config.stated.get(name) for name in ("max_num_seqs", "max_num_batched_tokens"))
    if seqs is not None and role != PREFILL:
        own &= tables.seqs[settings.seqs] == seqs
    several = role == COLOCATED or (role == PREFILL and tables.pipeline[shape] > 1.0)  # budgets are searched
    if chunk is not None and several:
        own &= tables.chunks[settings.chunk] == chunk
    largest = np.array([tables.limits_of(number)[-1] for number in range(len(tables.shapes))])
    partner = (settings.role != role) & ((settings.role != DECODE) | (settings.seqs == largest[settings.shape]))
    return settings.take(own | partner)


def _cheapest_with(
    space: FleetSearch, eligible: BoolArray, role: Role, below: float = np.inf
) -> tuple[Picks, float] | None:
    """The cheapest fleet of one or two pools, below a cost [$/h], with one of the eligible settings in a role."""
    number = ROLES.index(role)
    partners = np.isin(space.settings.role, PARTNERS[number]) & (space.settings.role != number)
    return cheapest_held(space, space.instance.problem, below, eligible | partners)


def _busiest(instance: Instance, fleet: Fleet, role: Role) -> tuple[Resource, float]:
    """The resource that the pool of the config's role uses most, and its utilization, as a plan states them."""
    states = evaluate(instance, fleet).states
    pool, state = next((pool, at) for pool, at in zip(fleet.pools, states, strict=True) if pool.role is role)
    used = utilization(instance, pool, state)
    first = max(used, key=lambda name: used[name])
    return Resource(first), used[first]


# --- features -------------------------------------------------------------------------------------------------------


def worths(problem: Problem) -> list[Worth]:
    """What each feature saves, by formula; empty if the objective is not least cost, or no fleet is found."""
    base = formula_price(problem) if problem.objective.goal is Goal.MIN_COST else None
    if base is None:
        return []
    possible = [name for name in FEATURES if name != "disaggregation" or Role.COLOCATED in problem.space.roles]
    prices = [(name, formula_price(without_feature(name, problem))) for name in possible]
    return [
        Worth(feature=name, with_usd_per_hour=base, without_usd_per_hour=price, sentence=_worth(name, base, price))
        for name, price in prices
    ]


def without_feature(feature: str, problem: Problem) -> Problem:
    """The problem without one of FEATURES: prompts in one chunk, requests one by one, or colocated engines only."""
    longest = 2 ** math.ceil(math.log2(problem.workload.max_tokens))
    space = {
        "chunked prefill": replace(problem.space, max_num_batched_tokens=(longest,)),
        "batching": replace(problem.space, max_num_seqs=(1,)),
        "disaggregation": replace(problem.space, roles=(Role.COLOCATED,)),
    }
    return replace(problem, space=space[feature])


def formula_price(problem: Problem) -> float | None:
    """Price of the cheapest fleet that holds by formula [$/h]; None where none was found."""
    try:
        solution = by_formula(as_planned(possible_instance(problem)))
    except InputError:  # no engine of what is left is possible at all
        return None
    return None if solution is None else fleet_cost(solution.instance, solution.fleet)


def _worth(name: str, base: float, price: float | None) -> str:
    if price is None:
        return f"Without {name} no fleet of the search space is found that meets the SLOs."
    if price <= base * (1.0 + ROUNDING):
        return f"Without {name} a fleet of the same price meets the SLOs."
    return f"Without {name} the cheapest fleet costs {dearer(price, base)}."
