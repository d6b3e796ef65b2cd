"""The floor of the cost of any fleet, and limits on latency that even an idle engine cannot keep.

The floor: the work that engines cannot avoid (`work`) is linear. So the fewest dollars for whole engines that do the
work, with no more late requests than the goals permit, under any routing over any number of pools, are a mixed-integer
program without queues (see `program`). Its bound is valid for every fleet of these engines. An engine has one column
for each band of its quiet decode steps: within a limit on TPOT it takes more engines, beyond it half of the requests
with that limit are late.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.errors import BelowFloorError
from costmodel.metric import METRICS, Metric, Scope, metrics_of
from costmodel.words import join_words, percentage
from optimizer.loads.instance import DECODE, PREFILL, Instance, make_instance
from optimizer.plans.records import CANDIDATES, MOST_MORE, ROUNDING
from search_spaces.enumeration import Enumeration, enumerate_shapes, impossible_faults
from search_spaces.files import Fault
from search_spaces.problem import Problem, over_tokens

from .program import Aim, Matrices, aim_of, cheapest, engine_cost, fleet_limits, pool_limits, solve, write_model
from .settings import (
    EngineSettings,
    fastest_prompt,
    generating_work,
    late_first_tokens,
    late_tokens,
    prefill_work,
    sending_work,
)

SHOWN_DIGITS = 4
"""Digits of a time in a message."""


def least_cost(
    instance: Instance, settings: EngineSettings, seconds: float = math.inf, ceiling: float = np.inf
) -> float | None:
    """Lower bound on the cost of any fleet of these engines that meets the SLOs [$/h]; None if no fleet can.

    seconds: time limit; the bound is valid wherever the work ends. ceiling: costs above it are of no interest [$/h].
    """
    matrices, aim = floor_matrices(instance, settings), aim_of(instance.problem)
    bound = cheapest(matrices, aim, ceiling * aim.cost_weight, time_limit=seconds).bound
    return bound / aim.cost_weight if math.isfinite(bound) else None


def least_per_demand(instance: Instance, settings: EngineSettings) -> float | None:
    """Lower bound on cost per multiple of the demand served, at this demand or more [$/h]; None if no fleet can.

    With fractions of engines the cost is convex in the demand, so that per demand it is least at the least.
    """
    matrices, aim = floor_matrices(instance, settings), aim_of(instance.problem)
    solution = solve(write_model(matrices, aim).program, relaxed=True) if matrices.size else None
    return None if solution is None or not solution.x.size else solution.objective / aim.cost_weight


def most_volume(
    instance: Instance, settings: EngineSettings, seconds: float = math.inf, least: float = 1.0
) -> float | None:
    """Multiple of the demand, from `least` to MOST_MORE times that, which no fleet within the limits exceeds.

    None if unknown. seconds: time limit; the bound is valid wherever the work ends.
    """
    aim = Aim(0.0, 1.0 / least, least, least * MOST_MORE)
    most = -cheapest(floor_matrices(instance, settings), aim, time_limit=seconds).bound * least
    return float(most) if 1.0 - ROUNDING <= most / least < MOST_MORE else None


def floor_matrices(instance: Instance, settings: EngineSettings) -> Matrices:
    """One column per engine, role and band, which needs for each flow what the best of its settings needs.

    Columns that another one dominates are left out.
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
    """Settings of an instance; key: digest of everything except prices and limits."""

    key: tuple[object, ...]
    instance: Instance = field(compare=False)
    settings: EngineSettings = field(compare=False)


@lru_cache(maxsize=1)  # a large one, for scenarios that differ in prices alone
def _columns(work: _Unpriced) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Role, shape, need and late of each column: scenarios that differ only in prices share them."""
    pieces = [_merged(work.instance, *band) for band in _bands(work.instance, work.settings)]
    role, shape, need, late = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
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


# --- limits that no engine can keep -----------------------------------------------------------------------------------


def check_shapes(problem: Problem, enumeration: Enumeration) -> None:
    """Raise InputError when no engine of the space can exist, with what each accelerator lacks."""
    if not enumeration.shapes:
        raise problem.refusal(list(impossible_faults(problem)))


@dataclass(frozen=True, slots=True)
class Floor:
    """What an idle engine needs at least for a limit of class `k`.

    metric, limit [s]: of the limit; least: of any engine [s]; why: a limit below it is not possible.
    """

    k: int
    metric: Metric
    limit: float
    least: float
    why: str

    @property
    def broken(self) -> bool:
        """Whether no engine can keep the limit, even an idle one."""
        return self.limit < self.least


def possible_instance(problem: Problem) -> Instance:
    """The instance of a problem, with expected step times.

    Raises InputError where no engine can exist, and BelowFloorError where physics forbids an SLO.
    """
    check_shapes(problem, enumerate_shapes(problem))
    instance = make_instance(problem)
    check_floors(instance)
    return instance


def check_floors(instance: Instance) -> None:
    """Raise BelowFloorError for every SLO below what the fastest idle engine can do for the share that it must hold.

    The last fault of a class also says how low its other limits can be, so that none is a surprise later.
    """
    faults = []
    for _, rows in groupby(floors(instance), lambda floor: floor.k):
        own = list(rows)
        broken = [Fault(("slo", floor.k, floor.metric), floor.why) for floor in own if floor.broken]
        least_times = [
            f"{floor.metric.upper()} {_least_time(floor.least)}" for floor in own if not floor.broken and floor.least
        ]
        if broken and least_times:
            hint = f"its other limits can be as low as {join_words(least_times)}"
            broken[-1] = replace(broken[-1], sentence=f"{broken[-1].sentence}; {hint}")
        faults += broken
    if faults:
        raise BelowFloorError(str(instance.problem.refusal(faults)))


def floors(instance: Instance) -> list[Floor]:
    """The floor of every limit on latency, class by class."""
    # A batch limit bounds the requests that run from above alone, so one may run by itself whatever the limits are.
    prompt, step = fastest_prompt(instance), float(instance.tables.decode_base.min())
    return [floor for k in range(len(instance.problem.slos)) for floor in _floors(instance, k, prompt, step)]


def _floors(instance: Instance, k: int, prompt: FloatArray, step: float) -> Iterator[Floor]:
    """Those of class `k`; prompt (flows,), step: the shortest of any engine [s]."""
    flows, slo = instance.flows, instance.problem.slos[k]
    own = flows.slo == k
    share, later = flows.share[own] / flows.share[own].sum(), flows.gaps[own]
    token = step if share[later > 0.0].sum() > 1.0 - slo.attainment else 0.0
    times = {Metric.TTFT: prompt[own]}
    times |= {m: (prompt[own] + later * step) / over_tokens(m, flows.osl[own]) for m in metrics_of(Scope.WHOLE)}
    for metric, limit in slo.limits.items():
        floor = token if METRICS[metric].scope is Scope.LATER else 0.0
        work = "a decode step of one request"
        if metric in times:
            at = _share_quantile(times[metric], share, slo.attainment)
            floor, longer = float(times[metric][at]), float(share[times[metric] >= times[metric][at]].sum())
            these = "all requests are" if longer > 1.0 - ROUNDING else f"{percentage(longer, 2)} of requests are"
            lengths = f"{flows.isl[own][at]:,.0f} input"
            lengths += f" and {flows.osl[own][at]:,.0f} output" * (metric is not Metric.TTFT)
            work = (
                f"a request of {lengths} tokens; {these} at least that long, but only "
                f"{percentage(1.0 - slo.attainment, 2)} may miss the SLO"
            )
        why = f"{_time(limit, floor)} of class {slo.name} is not possible: the fastest engine, idle, needs "
        yield Floor(k, metric, limit, floor, f"{why}{_least_time(floor)} for {work}" if floor else "")


def _least_time(seconds: float) -> str:
    """The least possible time, rounded up: the one that a reader copies is possible."""
    digit = 10.0 ** (math.floor(math.log10(seconds)) + 1 - SHOWN_DIGITS)
    return _time(math.ceil(seconds / digit) * digit, seconds)


def _time(seconds: float, least: float) -> str:
    """A time in the unit in which the least possible one is shown."""
    return f"{seconds:,.{SHOWN_DIGITS}g} s" if least >= 1.0 else f"{1e3 * seconds:,.{SHOWN_DIGITS}g} ms"


def _share_quantile(values: FloatArray, share: FloatArray, goal: float) -> int:
    """Index of the smallest value at which the cumulative share reaches `goal`; shares sum to 1."""
    order = np.argsort(values, kind="stable")
    return int(order[min(int(np.searchsorted(np.cumsum(share[order]), goal - 1e-12)), order.size - 1)])
