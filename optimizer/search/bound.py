"""The floor of the cost: no fleet at all, of any shape, that the evaluation accepts costs less.

What engines cannot avoid (`work`) is linear, so the cheapest whole engines that do the work and leave no more requests
late than the goals permit, however the demand is routed over however many pools, are a fleet problem like any other,
without queues (see `program`). Its bound holds for every fleet of these engines at the parts of latency limits of the
instance. An engine is a column for each band of its quiet decode steps: within a limit on TPOT it takes more engines,
beyond it half of the requests with that limit are late.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from optimizer.loads.instance import DECODE, PREFILL, Instance
from optimizer.plans.records import CANDIDATES, MOST_MORE, ROUNDING

from .program import Aim, Matrices, aim_of, cheapest, engine_cost, fleet_limits, pool_limits, solve, write_model
from .settings import EngineSettings
from .work import generating_work, late_first_tokens, late_tokens, prefill_work, sending_work


def least_cost(
    instance: Instance, settings: EngineSettings, seconds: float = math.inf, ceiling: float = np.inf
) -> float | None:
    """Bound on the cost of any fleet of these engines that could hold [$/h]; None where none can be.

    seconds: that it may take; it holds wherever the work ends. ceiling: cost above which it is of no interest [$/h].
    """
    matrices, aim = floor_matrices(instance, settings), aim_of(instance.problem)
    bound = cheapest(matrices, aim, ceiling * aim.cost_weight, time_limit=seconds).bound
    return bound / aim.cost_weight if math.isfinite(bound) else None


def least_per_demand(instance: Instance, settings: EngineSettings) -> float | None:
    """Bound on the cost of any fleet per demand that it could serve, this or a larger one [$/h]; None without any.

    With fractions of engines the cost is convex in the demand, so that per demand it is least at the least.
    """
    matrices, aim = floor_matrices(instance, settings), aim_of(instance.problem)
    solution = solve(write_model(matrices, aim).program, relaxed=True) if matrices.size else None
    return None if solution is None or not solution.x.size else solution.objective / aim.cost_weight


def most_volume(
    instance: Instance, settings: EngineSettings, seconds: float = math.inf, least: float = 1.0
) -> float | None:
    """Multiple of the demand, from `least` to MOST_MORE times as many, that no fleet within the limits exceeds.

    None if unknown. seconds: that it may take; it holds wherever the work ends.
    """
    aim = Aim(0.0, 1.0 / least, least, least * MOST_MORE)
    most = -cheapest(floor_matrices(instance, settings), aim, time_limit=seconds).bound * least
    return float(most) if 1.0 - ROUNDING <= most / least < MOST_MORE else None


def floor_matrices(instance: Instance, settings: EngineSettings) -> Matrices:
    """One column for each engine in a role and band, that does of everything what the best of its settings does.

    Those that another one beats are left out.
    """
    problem, flows = instance.problem, instance.flows
    arrays = (settings.role, settings.shape, settings.seqs, settings.chunk, flows.rate, flows.ttft, flows.tpot)
    key = instance.tables.alike, flows.alike, instance.policy, *(array.tobytes() for array in arrays)
    role, shape, need, late = _columns(_Unpriced(key, instance, settings))
    share = np.bincount(flows.slo, flows.share, len(problem.slos))
    miss_limit: FloatArray = np.array([1.0 - slo.attainment + ROUNDING for slo in problem.slos]) * share
    # A flow all of which is late counts once, however often it is; one that may not be late as a whole never is.
    twice = (flows.share <= miss_limit[flows.slo]) & (late[role == PREFILL] > 0.0).any(axis=0)
    matrices = Matrices(
        role=role,
        domain=instance.tables.group[role, shape],
        price=engine_cost(instance)[shape],
        need=need * flows.rate,
        late=np.where((role == DECODE)[:, None] & twice, 0.0, late) * flows.share,
        slo=flows.slo,
        permitted=miss_limit,
        talks=instance.tables.hands_over,
        limits=tuple(replace(limit, weight=limit.weight[shape]) for limit in fleet_limits(instance)),
        spares=problem.constraints.spare_replicas,
        pool_limits=pool_limits(problem, role),
    )
    return matrices.undominated()


@dataclass(frozen=True, slots=True)
class _Unpriced:
    """Settings of an instance; key: of all of it but prices and limits."""

    key: tuple[object, ...]
    instance: Instance = field(compare=False)
    settings: EngineSettings = field(compare=False)


@lru_cache(maxsize=1)  # a large one, for scenarios that differ in prices alone
def _columns(work: _Unpriced) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Role, shape, need and late of each column: what scenarios that differ in prices alone share."""
    parts = [_merged(work.instance, *part) for part in _bands(work.instance, work.settings)]
    role, shape, need, late = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return role, shape, need, late


def _bands(instance: Instance, settings: EngineSettings) -> Iterator[tuple[EngineSettings, FloatArray, FloatArray]]:
    """Settings with what they need, (settings, resources, flows), and what is late: prefill engines, then each band."""
    flows, prefills = instance.flows, settings.role == PREFILL
    limits = np.unique(flows.tpot[(flows.osl > 1.0) & np.isfinite(flows.tpot)]) * (1.0 + ROUNDING)
    bands = np.unique(limits[np.linspace(0, limits.size - 1, min(limits.size, CANDIDATES)).astype(np.int64)])
    first, later, late_first = settings.take(prefills), settings.take(~prefills), late_first_tokens(instance, settings)
    time, nothing = prefill_work(instance, first), np.zeros((first.size, flows.isl.size))
    yield first, np.stack([time, nothing, nothing, sending_work(instance, first)], axis=1), late_first[prefills]
    for above, tau in zip([0.0, *bands], [*bands, np.inf], strict=True):
        need = generating_work(instance, later, tau)
        need = np.concatenate([need, sending_work(instance, later)[:, None]], axis=1)
        yield later, need, np.minimum(late_first[~prefills] + late_tokens(instance, later, above), 1.0)


def _merged(
    instance: Instance, settings: EngineSettings, need: FloatArray, late: FloatArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """The best of the settings of each engine in a role that can serve everything: role, shape, need, late."""
    key, member = np.unique(np.stack([settings.role, settings.shape]), axis=1, return_inverse=True)
    least = np.full((key.shape[1], *need.shape[1:]), np.inf)
    fewest = np.ones((key.shape[1], instance.flows.isl.size))
    np.minimum.at(least, member.ravel(), need)
    np.minimum.at(fewest, member.ravel(), late)
    able = np.isfinite(least).all(axis=(1, 2))
    return key[0, able], key[1, able], least[able], fewest[able]
