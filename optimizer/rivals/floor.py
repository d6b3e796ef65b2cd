"""What no fleet can cost less than, whatever its engines promise: work has to be done, and in time.

`unavoidable` says how many engines a request per second of each length takes at least, and which requests an engine
makes late even when it idles. Both are linear, so the cheapest whole engines that do the work and leave no more
requests late than the goals permit, however the demand is routed over however many pools, are a fleet problem like any
other, without queues. The evaluation accepts no fleet that does less (`fewer.still_holds`), so the bound of this
problem holds for every fleet of these engines that it could accept, at the parts of latency limits of the instance.
An engine is a column for each band of its quiet decode steps: within a limit on TPOT it takes more engines, beyond it
half of the requests with that limit are late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from optimizer.loads.instance import DECODE, PREFILL, Instance, Settings
from optimizer.solver.blocks import Work, relax
from optimizer.solver.fleet_model import Aim, aim_of, engine_cost, fleet_limits, pool_limits
from optimizer.solver.matrices import Matrices
from optimizer.solver.whole import least

from .by_evaluation import BoolArray, Evaluated, FloatArray, IntArray
from .unavoidable import WITHIN, generating_work, late_first_tokens, late_tokens, prefill_work, sending_work

WORK = Work(nodes=200, provable=400, gap=1e-4, time_limit=20.0)
"""Effort for the bound; it holds wherever the work ends."""

RESOURCES = ("slots", "memory", "tokens", "link")
"""What engines can run out of; prompts on prefill engines take slots."""

LEVELS = 3
"""Limits on TPOT between which bands of decode steps are told apart; more limits are left out."""

MOST_MORE = 100.0
"""Times the demand up to which it is asked how much more could be served."""

SLACK = 1e-8
"""Share of requests beyond a goal that the evaluation lets be late, and a little more [1]."""

Engines = tuple[IntArray, IntArray, FloatArray, FloatArray]
"""Role and shape, what the demand takes (engines, resources, flows), and its late share (engines, flows)."""


def least_cost(known: Evaluated, seconds: float = WORK.time_limit, ceiling: float = np.inf) -> float | None:
    """Bound on the cost of any fleet of these engines that could hold [$/h]; None where none can be.

    seconds: that it may take; it holds wherever the work ends. ceiling: cost above which it is of no interest [$/h].
    """
    matrices, aim = floor_matrices(known), aim_of(known.instance.problem)
    work = replace(WORK, time_limit=min(WORK.time_limit, seconds))
    bound = least(matrices, aim, work, ceiling * aim.cost_weight) / aim.cost_weight if matrices.size else np.inf
    return float(bound) if np.isfinite(bound) else None


def least_per_demand(known: Evaluated) -> float | None:
    """Bound on the cost of any fleet per demand that it could serve, this or a larger one [$/h]; None without any.

    With fractions of engines the cost is convex in the demand, so that per demand it is least at the least.
    """
    matrices, aim = floor_matrices(known), aim_of(known.instance.problem)
    prices = relax(matrices, aim, WORK.time_limit) if matrices.size else None
    return None if prices is None else float(prices.objective / aim.cost_weight)


def most_volume(known: Evaluated, seconds: float = WORK.time_limit) -> float | None:
    """Multiple of the demand, from once to MOST_MORE times, that no fleet within the limits exceeds; None if unknown.

    seconds: that it may take; it holds wherever the work ends.
    """
    matrices = floor_matrices(known)
    if not matrices.size:
        return None
    work = replace(WORK, time_limit=min(WORK.time_limit, seconds))
    most = -least(matrices, Aim(0.0, 1.0, 1.0, MOST_MORE), work)
    return float(most) if 1.0 - SLACK <= most < MOST_MORE else None


def floor_matrices(known: Evaluated) -> Matrices:
    """One column for each engine in a role and band, that does of everything what the best of its settings does."""
    instance = known.instance
    problem, flows = instance.problem, instance.flows
    parts = [_merged(instance, *part) for part in _bands(instance, known.settings)]
    role, shape, need, late = (np.concatenate(some) for some in zip(*parts, strict=True))
    share = np.bincount(flows.slo, flows.share, len(problem.slos))
    permitted: FloatArray = np.array([1.0 - slo.attainment + SLACK for slo in problem.slos]) * share
    return Matrices(
        role=role,
        domain=instance.tables.group[role, shape],
        pool=np.arange(role.size),
        replicas=np.ones(role.size, dtype=np.int64),
        price=engine_cost(instance)[shape],
        need=need * flows.rate,
        late=_counted_once(role, late, np.asarray(flows.share <= permitted[flows.slo])) * flows.share,
        slo=flows.slo,
        permitted=permitted,
        resources=RESOURCES,
        domains=instance.tables.pairing.prefill.shape[1],
        pairing=instance.tables.pairing,
        limits=tuple(replace(limit, weight=limit.weight[shape]) for limit in fleet_limits(instance)),
        spares=problem.constraints.spare_replicas,
        pool_limits=pool_limits(problem, role),
    )


def _bands(instance: Instance, settings: Settings) -> Iterator[tuple[Settings, FloatArray, FloatArray]]:
    """Settings with what they need, (settings, resources, flows), and what is late: prefill engines, then each band."""
    flows, prefills = instance.flows, settings.role == PREFILL
    limits = np.unique(flows.tpot[(flows.osl > 1.0) & np.isfinite(flows.tpot)]) * WITHIN
    some = np.unique(limits[np.linspace(0, limits.size - 1, min(limits.size, LEVELS)).astype(np.int64)])
    first, later, unserved = settings.take(prefills), settings.take(~prefills), late_first_tokens(instance, settings)
    time, nothing = prefill_work(instance, first), np.zeros((first.size, flows.isl.size))
    yield first, np.stack([time, nothing, nothing, sending_work(instance, first)], axis=1), unserved[prefills]
    for above, tau in zip([0.0, *some], [*some, np.inf], strict=True):
        need = generating_work(instance, later, tau)
        need = np.concatenate([need, sending_work(instance, later)[:, None]], axis=1)
        yield later, need, np.minimum(unserved[~prefills] + late_tokens(instance, later, above), 1.0)


def _merged(instance: Instance, settings: Settings, need: FloatArray, late: FloatArray) -> Engines:
    """The best of the settings of each engine in a role, and only those that can serve everything."""
    key, member = np.unique(np.stack([settings.role, settings.shape]), axis=1, return_inverse=True)
    least = np.full((key.shape[1], *need.shape[1:]), np.inf)
    fewest = np.ones((key.shape[1], instance.flows.isl.size))
    np.minimum.at(least, member.ravel(), need)
    np.minimum.at(fewest, member.ravel(), late)
    able = np.isfinite(least).all(axis=(1, 2))
    return key[0, able], key[1, able], least[able], fewest[able]


def _counted_once(role: IntArray, late: FloatArray, small: BoolArray) -> FloatArray:
    """The late share, of small flows (flows,) on decode engines only where no prefill engine makes them late.

    A flow all of which is late counts once, however often it is; one that may not be late as a whole never is.
    """
    twice = small & (late[role == PREFILL] > 0.0).any(axis=0)
    return np.where((role == DECODE)[:, None] & twice, 0.0, late)
