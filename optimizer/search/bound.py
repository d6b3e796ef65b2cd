"""What no fleet can avoid, at any load: the work of each flow, requests that miss anyway, and the floor of its cost.

The evaluation (`fleets.pool`, `fleets.evaluate`) accepts no pool that does less, so all of it holds for every
fleet that it could accept. Work: with x the rates at one of n engines, A = sum x osl a and P = sum x e (what prompts
add to the steps of others), and a line b0 + m R <= b(R) below the decode steps of batches up to the limit B,

    R = t sum x osl,  t (1 - P - A) >= b0 + m R      so   P + A + m sum x osl + b0 / t <= 1

and t is at most what keeps the batch within B (t sum x osl <= B), its KV cache within the memory M
(t sum x osl h <= M) and quiet steps within a limit on TPOT (t (1 - P) <= tau):

    slots     n >= sum n x (e + osl (a + m + b0 / B))
    memory    n >= sum n x (e + osl (a + m + b0 h / M))
    tokens    n >= sum n x (e + osl (a + m) / (1 - b0 / tau))

A pool whose quiet steps are longer than tau makes half of the requests with that limit late at least: as many are
longer than the mean of what is normally distributed.

Both are linear, so the cheapest whole engines that do the work and leave no more requests late than the goals permit,
however the demand is routed over however many pools, are a fleet problem like any other, without queues (see
`program`). Its bound holds for every fleet of these engines at the parts of latency limits of the instance. An
engine is a column for each band of its quiet decode steps: within a limit on TPOT it takes more engines, beyond it half
of the requests with that limit are late.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from costmodel.errors import BelowFloorError
from costmodel.first_token import idle_ttft
from costmodel.metric import Metric, Scope, metrics_of
from costmodel.words import join_words, percentage
from optimizer.fleets.fleet import UNMATCHED
from optimizer.loads.instance import COLOCATED, DECODE, LINK_UTILIZATION, PREFILL, Instance, prompt_latency
from optimizer.plans.records import CANDIDATES, MOST_MORE, ROUNDING
from search_spaces.checks import impossible_faults
from search_spaces.enumeration import Enumeration
from search_spaces.files import Fault
from search_spaces.problem import Problem, over_tokens

from .program import Aim, Matrices, aim_of, cheapest, engine_cost, fleet_limits, pool_limits, solve, write_model
from .settings import EngineSettings

LATE_BY_STEPS = 0.5 - ROUNDING
"""Share of requests that is late at steps longer than the limit [1]."""

HANDED = 1.0 - 2.0 * UNMATCHED
"""Share of a flow for which a prefill pool finds decode pools at least."""


def keeping_up(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Engines that one request per second of each flow takes at least, for a pool not to fall behind, (settings, F).

    What `pool_state` calls stable needs, with x the rates at one of n engines, W = sum x osl, R <= B the requests that
    run and t(R) a decode step without KV reads,

        prefill      sum x shared / ranks < 1
        generating   R = W t(R) / (1 - sum x (osl a + e)),   so   n >= sum n x (osl (a + min t(R) / R) + e)

    for t(R) / R falls between the batch limits of the tables, and rises nowhere below the least of them. e is what a
    prompt adds to the steps of others (`prompt_work`). Hand-overs keep the network cards of both ends busy for
    LINK_UTILIZATION of the time at most. Steps and cards work at once: what counts is the one that the whole demand
    keeps busier, for every flow, as one may be short of it for some flows and of the other for the rest.
    """
    tables, flows, shape = instance.tables, instance.flows, settings.shape
    slots = np.minimum.accumulate(tables.decode_base / tables.seqs, axis=1)[shape, settings.seqs]
    later = flows.osl * (tables.attention_slope[shape] + slots[:, None]) + prompt_work(instance, settings)
    steps = np.where((settings.role == PREFILL)[:, None], prefill_work(instance, settings), later)
    cards = sending_work(instance, settings)
    return np.where((cards @ flows.rate > steps @ flows.rate)[:, None], cards, steps)


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines below the decode steps of each setting, all (settings, lines): height b0 [s], rise m [s/request]."""

    height: FloatArray
    rise: FloatArray


def lines_below(instance: Instance, settings: EngineSettings) -> Lines:
    """The lines through any two batch limits, moved down below all steps up to the batch limit of the setting.

    Those that start below nothing say nothing: they are given the height of the flat one, which always does.
    """
    seqs, base = instance.tables.seqs, instance.tables.decode_base[settings.shape]
    most = seqs[settings.seqs]
    first, second = np.triu_indices(seqs.size, 1)
    rise = np.maximum((base[:, second] - base[:, first]) / (seqs[second] - seqs[first]), 0.0)
    rise = np.hstack([np.zeros((settings.size, 1)), rise])
    batch = np.minimum(seqs, most[:, None])
    height = (base[:, None, :] - rise[:, :, None] * batch[:, None, :]).min(axis=2)
    able = height > 0.0
    height, rise = np.where(able, height, height[:, :1]), np.where(able, rise, 0.0)
    return Lines(height, rise * (1.0 - ROUNDING))


def prompt_work(instance: Instance, settings: EngineSettings) -> FloatArray:
    """What a prompt adds at least to the steps of others on colocated engines, 0 elsewhere [s], (settings, flows).

    At the batch where that is least, by itself or with one on each lane, and no more than without any decodes, whom
    alone it gets in the way of; where prompts go first and alone, no more than its tokens of a step that they fill.
    """
    tables, shape, flows = instance.tables, settings.shape, instance.flows
    base = tables.carried * tables.decode_base[:, :, None, None]
    lanes = (tables.pipeline * tables.ranks)[:, None, None, None]
    longer = np.maximum(tables.mixed_base - base, 0.0) / lanes
    alone = np.maximum(tables.mixed_alone - base, 0.0)
    extra = (np.minimum(longer, alone) * tables.chunk_count).min(axis=1)
    extra = np.minimum(extra, tables.prefill_time / lanes[:, 0])[shape, settings.chunk]
    if not tables.carried:
        token_time = tables.full_base.min(axis=1) / (tables.chunks * tables.pipeline[:, None])
        extra = np.minimum(extra, flows.new_tokens * token_time[shape, settings.chunk][:, None])
    return np.where((settings.role == COLOCATED)[:, None], extra, 0.0)


def generating_work(instance: Instance, settings: EngineSettings, tau: float) -> FloatArray:
    """Engines that a request per second takes at least where quiet steps keep within tau [s], (settings, 3, flows).

    Resources: slots, memory, tokens; the line that the whole demand needs most engines by; infinite where no step
    is so short. For settings that generate.
    """
    flows, tables, lines = instance.flows, instance.tables, lines_below(instance, settings)
    slope, most = tables.attention_slope[settings.shape], tables.seqs[settings.seqs][:, None]
    memory = tables.kv_capacity[settings.shape, settings.seqs, settings.chunk] * tables.ranks[settings.shape]
    own = np.where((settings.role == COLOCATED)[:, None], 1.0 - flows.shared / flows.mean_context, 1.0)
    memory_share = own * tables.kv_held[settings.shape] / np.maximum(memory, 1e-300)[:, None]
    load_factors = 1.0 / np.maximum(1.0 - lines.height / tau, 1e-9)
    weight = flows.rate * flows.osl

    def tightest(need: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        at = np.arange(settings.size), need.argmax(axis=1)
        return lines.height[at][:, None], lines.rise[at][:, None], load_factors[at][:, None]

    height, rise, _ = tightest(lines.rise + lines.height / most)
    slots = slope + rise + height / most
    height, rise, _ = tightest(lines.rise * weight.sum() + lines.height * (memory_share @ weight)[:, None])
    memories = slope + rise + height * memory_share
    _, rise, load_factor = tightest(load_factors * ((slope @ weight)[:, None] + lines.rise * weight.sum()))
    tokens = load_factor * (slope + rise)
    work = prompt_work(instance, settings)[:, None] + flows.osl * np.stack([slots, memories, tokens], axis=1)
    slow = np.asarray((lines.height > tau).any(axis=1))
    return np.where(slow[:, None, None], np.inf, work)


def prefill_work(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Prefill engines that a request per second takes at least for the queue not to grow [1], (settings, flows)."""
    tables, at = instance.tables, (settings.shape, settings.chunk)
    lanes = tables.pipeline[settings.shape] * tables.ranks[settings.shape]
    return np.asarray(np.minimum(tables.prefill_shared[at], tables.prefill_time[at]) / lanes[:, None])


def sending_work(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Engines whose network cards a hand-over per second takes, 0 on colocated ones [1], (settings, flows)."""
    sent = instance.tables.kv_transferred / (LINK_UTILIZATION * instance.tables.links[:, None])
    return np.where((settings.role == COLOCATED)[:, None], 0.0, sent[settings.shape])


def late_tokens(instance: Instance, settings: EngineSettings, above: float) -> FloatArray:
    """Share of each flow that is late for TPOT where quiet steps are longer than `above` [s], (settings, flows)."""
    flows, step = instance.flows, instance.tables.decode_base.min(axis=1)[settings.shape][:, None]
    limit = flows.tpot * (1.0 + ROUNDING)
    late = ((step > limit) | (above >= limit)) & (flows.osl > 1.0)
    return np.where(late & (settings.role != PREFILL)[:, None], LATE_BY_STEPS, 0.0)


def late_first_tokens(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Whether each flow misses TTFT even on idle engines, 0 or 1; 0 on decode engines, (settings, flows)."""
    flows, policy = instance.flows, instance.policy
    fastest = np.where(
        (settings.role == COLOCATED)[:, None],
        idle_ttft(policy, _colocated_prompt(instance)[settings.shape, settings.chunk]),
        idle_ttft(policy, *_handed_over(instance, settings)),
    )
    late = fastest > flows.ttft * (1.0 + ROUNDING)
    return np.where(late & (settings.role != DECODE)[:, None], 1.0, 0.0)


def _handed_over(instance: Instance, settings: EngineSettings) -> tuple[FloatArray, FloatArray]:
    """Prompt, and hand-over with the first step, on idle engines that may talk [s], (settings, flows)."""
    tables, at = instance.tables, (settings.shape, settings.chunk)
    alone = np.minimum(tables.prefill_alone[at], tables.prefill_time[at])
    chunks = instance.flows.chunks_of(tables.rank_chunks[at])
    prompt = prompt_latency(alone, chunks, tables.pipeline[settings.shape])
    takes = np.zeros(tables.pipeline.size, dtype=np.bool_)
    takes[settings.shape[settings.role == DECODE]] = True
    step = np.where(tables.talks & takes, tables.decode_base.min(axis=1), np.inf).min(axis=1, initial=np.inf)
    step = np.where(np.isfinite(step), HANDED * step, 0.0)
    after = tables.kv_transferred / tables.link[:, None] + step[:, None]
    return prompt, after[settings.shape]


def _colocated_prompt(instance: Instance) -> FloatArray:
    """Prompt on an idle colocated engine [s], (shapes, token budgets, flows): see `_Mixed.turns` of `fleets.pool`."""
    tables = instance.tables
    base = tables.carried * tables.decode_base[:, :, None, None]
    stages = tables.pipeline[:, None, None]
    steps = np.maximum(np.minimum(tables.mixed_alone, tables.mixed_base) - base, 0.0)
    count = instance.flows.chunks_of(tables.rank_chunks)
    whole = (count[:, None] * base + steps * tables.chunk_count).min(axis=1) / stages
    mixed_latency = whole + tables.decode_base.min(axis=1)[:, None, None] * (1.0 - 1.0 / stages)
    return np.asarray(np.minimum(mixed_latency, prompt_latency(tables.prefill_alone, count, tables.pipeline[:, None])))


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


# --- limits that no engine can keep ----------------------------------------------------------------------------------


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


def check_floors(instance: Instance) -> None:
    """Raise BelowFloorError for every SLO below what the fastest idle engine can do for the share that it must hold.

    The last fault of a class also says how low its other limits can be, so that none is a surprise later.
    """
    faults = []
    for _, rows in groupby(floors(instance), lambda floor: floor.k):
        own = list(rows)
        broken = [Fault(("slo", floor.k, floor.metric), floor.why) for floor in own if floor.broken]
        others = [
            f"{floor.metric.upper()} {_least_time(floor.least)}" for floor in own if not floor.broken and floor.least
        ]
        if broken and others:
            broken[-1] = replace(broken[-1], sentence=f"{broken[-1].sentence}; least possible: {join_words(others)}")
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
        floor, work = token, "a decode step of one request"
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
        yield Floor(k, metric, limit, floor, f"{why}{_least_time(floor)} for {work}")


def _least_time(seconds: float) -> str:
    """The least possible time, rounded up: the one that a reader copies is possible."""
    digit = 10.0 ** (math.floor(math.log10(seconds)) - 3)
    return _time(math.ceil(seconds / digit) * digit, seconds)


def _time(seconds: float, least: float) -> str:
    """A time in the unit in which the least possible one is shown."""
    return f"{seconds:,.4g} s" if least >= 1.0 else f"{1e3 * seconds:,.4g} ms"


def fastest_prompt(instance: Instance) -> FloatArray:
    """Shortest time in which any engine of the space computes a prompt of each flow when it is idle [s], (flows,)."""
    if Role.COLOCATED in instance.problem.space.roles:
        return np.asarray(_colocated_prompt(instance).min(axis=(0, 1)))
    table = instance.tables
    chunks = instance.flows.chunks_of(table.rank_chunks)
    return np.asarray(prompt_latency(table.prefill_alone, chunks, table.pipeline[:, None]).min(axis=(0, 1)))


def _share_quantile(values: FloatArray, share: FloatArray, goal: float) -> int:
    """Index of the smallest value that covers `goal` of the shares, which sum to 1."""
    order = np.argsort(values, kind="stable")
    return int(order[min(int(np.searchsorted(np.cumsum(share[order]), goal - 1e-12)), order.size - 1)])


def without_limits(problem: Problem) -> Problem:
    """The same problem with all the GPUs, money and power one could wish for."""
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    return replace(problem, offers=offers, constraints=problem.constraints.lifted)


def with_looser_slos(problem: Problem, factor: float, limits: Collection[tuple[int, Metric]] | None = None) -> Problem:
    """The same problem with these limits on latency multiplied by `factor`: of a class, on a metric; None: with all."""

    def looser(number: int, metric: Metric, limit: float) -> float:
        return limit * factor if limits is None or (number, metric) in limits else limit

    slos = (
        replace(slo, limits={metric: looser(number, metric, limit) for metric, limit in slo.limits.items()})
        for number, slo in enumerate(problem.slos)
    )
    return replace(problem, slos=tuple(slos))
