"""What a fleet is predicted to deliver: latency distributions, attainment, and the load at which it breaks.

The laws of `costmodel` at the loads that the fleet really has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from types import MappingProxyType

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from costmodel.first_token import Entry, Ttft, card_wait, hand_over_waits, hidden_transfer, idle_ttft
from costmodel.metric import METRICS, OWN_FIELDS, Metric, Scope
from costmodel.prefix_cache import TierReads
from costmodel.queues.decode import Steps
from costmodel.queues.waits import StepsAhead, step_in_progress
from optimizer.loads.instance import LINK_UTILIZATION, Instance, Resource
from optimizer.plans.records import (
    ALIKE,
    MOST_MORE,
    NOTABLE,
    QUANTILES,
    ROUNDING,
    TOLERANCE,
    ClassLatencies,
    Quantiles,
)
from search_spaces.problem import whole_limit

from .fleet import Fleet, FleetPool, fewest_replicas, fleet_cost, hand_over_mix, largest_load
from .pool import PoolState, pool_state

SLICES = 32
"""Slices of the time of a whole request, over which the distribution of its decode time is summed."""
NEGLIGIBLE_SHARE = 1e-12
"""A slice in which no larger share of the requests ends is skipped [1]."""
RATE_MARGIN = 1.0 + NOTABLE
"""Rate at which a fleet must keep up, over the planned one: a run shows nothing about a queue nearer its capacity, as
that forgets a wave only after 1 / (1 - rho)^2 requests, here 400 [1]."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a fleet delivers, by formula, with its pools in these states; each field is computed on first use.

    late_first, late_later, full (flows,): share of each flow's requests that miss their SLO because the first token is
    late, because later tokens are late by any metric, or because no batch slot or KV memory is free [1].
    """

    instance: Instance
    fleet: Fleet
    states: tuple[PoolState, ...]

    @cached_property
    def stable(self) -> bool:
        """Whether no pool falls behind."""
        return all(state.stable for state in self.states)

    @cached_property
    def first_tokens(self) -> list[_FirstToken]:
        """TTFT at each pool that computes prompts; the equation: `costmodel.first_token`."""
        instance, pairs, first = self.instance, list(zip(self.fleet.pools, self.states, strict=True)), []
        decodes = [(pool, state) for pool, state in pairs if pool.role is Role.DECODE]
        mixes = iter(hand_over_mix(instance, self.fleet))
        for pool, state in pairs:
            if state.wait is None or pool.role is Role.DECODE:
                continue
            prompt = state.latency * instance.tables.first_token_of(pool.role, pool.shape)
            transfer, later, met, step, formed = None, np.zeros(1), 0.0, 0.0, 0.0
            if pool.role is Role.PREFILL:
                transfer, later = _handed_over(instance, (pool, state), decodes, next(mixes))
            elif state.steps is not None:
                stages = float(instance.tables.pipeline[pool.shape])
                met, step = float(step_in_progress(state.running)), state.steps.quiet / stages
                formed = step if instance.policy.scheduler.forms_ahead(stages) else 0.0
            ahead = (
                StepsAhead((1.0 - state.under_way) * met, step, formed),
                StepsAhead(state.under_way, state.lane_step, formed),
            )
            ttft = Ttft(idle_ttft(instance.policy, prompt, transfer), state.wait, ahead, later)
            first.append(_FirstToken(pool.route, ttft, instance.flows.missed, state.hit_chance, state.reads))
        return first

    @cached_property
    def later_tokens(self) -> list[_LaterTokens]:
        """Later tokens at each pool that generates them."""
        pairs = zip(self.fleet.pools, self.states, strict=True)
        makers = ((pool, state) for pool, state in pairs if pool.role is not Role.PREFILL)
        gaps = self.instance.flows.gaps
        return [_LaterTokens(pool.route, state.steps, gaps) for pool, state in makers if state.steps is not None]

    def exceeds(self, metric: Metric, limit: FloatArray) -> FloatArray:
        """P(metric > limit) of each flow over all pools; limit (..., flows) or (..., 1) [s]."""
        scope, flows = METRICS[metric].scope, self.instance.flows
        if scope is Scope.WHOLE:
            return reduce(add, self._late_whole(whole_limit({metric: limit}, flows.osl)))
        pools = self.first_tokens if scope is Scope.FIRST else self.later_tokens
        late = np.zeros(np.broadcast_shapes(limit.shape, flows.isl.shape))
        return reduce(add, (pool.exceeds(metric, limit) for pool in pools), late)

    def _late_whole(self, time: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Share of each flow that takes longer than `time` (..., flows) [s], most of it for its first or later tokens.

        P(F + G > t), F the TTFT and G = (OSL - 1) TPOT, taken as independent: over slices of what G leaves of t, with
        edges at t (k / SLICES)^2, narrow where little is left. A request without later tokens leaves all of t.
        """
        finite = np.isfinite(time)
        if not finite.any():
            return np.zeros(time.shape), np.zeros(time.shape)
        places = ((np.arange(SLICES + 1) / SLICES) ** 2)[:, None]
        edges = np.where(finite, time, 1.0)[..., None, :] * places
        later = self.exceeds(Metric.TPOT, (edges[..., -1:, :] - edges) / np.maximum(self.instance.flows.gaps, 1e-12))
        later[..., -1, :] = 1.0
        remaining = np.concatenate([(edges[..., 1:-1, :] + edges[..., :-2, :]) / 2.0, edges[..., -1:, :]], axis=-2)
        share = np.diff(later, axis=-2)
        slices = np.flatnonzero(share.max(axis=(*range(share.ndim - 2), -1)) > NEGLIGIBLE_SHARE)
        late = np.zeros(share.shape)
        late[..., slices, :] = share[..., slices, :] * self.exceeds(Metric.TTFT, remaining[..., slices, :])
        most = places[1:] > 0.5
        by_later = later[..., 0, :] + np.where(most, 0.0, late).sum(axis=-2)
        return finite * np.where(most, late, 0.0).sum(axis=-2), finite * by_later

    @cached_property
    def late_whole(self) -> tuple[FloatArray, FloatArray]:
        """Share of each flow that takes too long as a whole, due to its first token and to later ones, (flows,) [1]."""
        return self._late_whole(self.instance.flows.whole)

    @cached_property
    def late_first(self) -> FloatArray:
        """See above."""
        return self._late(Scope.FIRST, self.late_whole[0])

    @cached_property
    def late_later(self) -> FloatArray:
        """See above."""
        return self._late(Scope.LATER, self.late_whole[1])

    def _late(self, scope: Scope, late: FloatArray) -> FloatArray:
        """Share of each flow that is `late` or exceeds a limit of this scope, (flows,): the largest of these shares."""
        for metric, limit in self.instance.flows.limits.items():
            if METRICS[metric].scope is scope:
                late = np.maximum(late, self.exceeds(metric, limit * (1.0 + METRICS[metric].rounding)))
        return late

    @cached_property
    def full(self) -> FloatArray:
        """See above."""
        pairs = zip(self.fleet.pools, self.states, strict=True)
        shares = (pool.route * state.full for pool, state in pairs if pool.role is not Role.PREFILL)
        return sum(shares, np.zeros(self.instance.flows.isl.size))

    @cached_property
    def flow_attainment(self) -> FloatArray:
        """Share of each flow's requests within all their SLOs, (flows,) [1]; 0 in a fleet that falls behind."""
        if not self.stable:
            return np.zeros(self.instance.flows.isl.size)
        return np.clip(1.0 - self.late_first - self.late_later - self.full, 0.0, 1.0)

    @cached_property
    def attainment(self) -> FloatArray:
        """The same of each class, (classes,)."""
        return class_attainment(self.instance, self.flow_attainment)

    @property
    def overall(self) -> float:
        """The same of all requests."""
        share = self.instance.flows.share
        return float(share @ self.flow_attainment / share.sum())

    @property
    def holds(self) -> bool:
        """Whether every class keeps its attainment goal."""
        return self.goal_share >= 1.0

    @property
    def goal_share(self) -> float:
        """Share of its goal that the worst class reaches [1]; 0 for a fleet that falls behind.

        At 1 or more the fleet meets its goals, but for rounding, and would keep up at RATE_MARGIN times the rate. If
        only later tokens make it miss, the share counts these alone, whatever the TTFT.
        """
        if not self.stable:
            return 0.0
        late = self.late_later + self.full
        goal_share = min(self._goal_share(late), 1.0 / max(RATE_MARGIN * self.busiest, ROUNDING))
        return goal_share if goal_share < 1.0 else self._goal_share(late + self.late_first)

    @property
    def busiest(self) -> float:
        """Load of the busiest resource of all pools over its capacity [1]."""
        return max(busiest(self.instance, *pair) for pair in zip(self.fleet.pools, self.states, strict=True))

    def _goal_share(self, late: FloatArray) -> float:
        attainment = class_attainment(self.instance, np.clip(1.0 - late, 0.0, 1.0))
        return float(((attainment + 1e-9) / class_goals(self.instance)).min())

    @cached_property
    def ttft(self) -> FloatArray:
        """Quantiles of TTFT of each class, then of all requests, (classes + 1, quantiles) [s]."""
        return self.quantiles(Metric.TTFT)

    @cached_property
    def tpot(self) -> FloatArray:
        """The same of TPOT."""
        return self.quantiles(Metric.TPOT)

    def quantiles(self, metric: Metric) -> FloatArray:
        """Quantiles of any metric, by bisection; 0 for a class whose requests do not have it.

        A single class is all requests: rows that are alike are looked at once.
        """
        scope, flows = METRICS[metric].scope, self.instance.flows
        rows = np.array([*_class_shares(self.instance), flows.share])  # of each class, and of all requests
        rows = rows * (flows.osl > 1.0) if scope is Scope.LATER else rows
        first = max((pool.most for pool in self.first_tokens), default=0.0) + 1.0  # [s], beyond the longest
        later = max((pool.steps.most for pool in self.later_tokens), default=0.0) + 1.0
        most = {Scope.FIRST: first, Scope.LATER: later, Scope.WHOLE: first + float(flows.gaps.max()) * later}
        shares, alike = np.unique(rows, axis=0, return_inverse=True)
        total = shares.sum(axis=1)
        tail_share = (1.0 - np.array(QUANTILES)) * total[:, None]
        low, high = np.zeros(tail_share.shape), np.full(tail_share.shape, most[scope])
        for _ in range(40):
            middle = (low + high) / 2.0
            above = np.einsum("rf,rqf->rq", shares, self.exceeds(metric, middle[:, :, None])) > tail_share
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.asarray(np.where(total[:, None] > 0.0, high, 0.0)[alike.ravel()])

    @property
    def classes(self) -> list[ClassLatencies]:
        """What each SLO class gets, in the type of a simulated one."""
        limited = self.instance.flows.limits
        metrics = {metric: self.quantiles(metric) for metric in limited if metric not in OWN_FIELDS}
        return [
            ClassLatencies(
                name=slo.name,
                attainment=float(self.attainment[k]),
                ttft_s=Quantiles.of(self.ttft[k]),
                tpot_s=Quantiles.of(self.tpot[k]),
                metrics={metric: Quantiles.of(values[k]) for metric, values in metrics.items() if metric in slo.limits},
            )
            for k, slo in enumerate(self.instance.problem.slos)
        ]


def evaluate(instance: Instance, fleet: Fleet, loads: FloatArray | float = 1.0) -> Evaluation:
    """Evaluate a fleet whose pools each get `loads` (pools,) times the demand that is routed to them."""
    pool_loads = np.broadcast_to(np.asarray(loads, dtype=np.float64), len(fleet.pools))
    pairs = zip(fleet.pools, pool_loads, strict=True)
    return Evaluation(instance, fleet, tuple(pool_state(instance, pool, float(load)) for pool, load in pairs))


def class_goals(instance: Instance) -> FloatArray:
    """Attainment that each class asks for [1], (classes,)."""
    return np.array([slo.attainment for slo in instance.problem.slos])


def class_attainment(instance: Instance, flow_attainment: FloatArray) -> FloatArray:
    """Attainment of each class, (..., classes), from that of each flow, (..., flows) [1]."""
    weight = _class_shares(instance)
    return np.asarray((flow_attainment @ weight.T) / weight.sum(axis=1))


def keeps_goals(instance: Instance, attainment: FloatArray) -> bool:
    """Whether every class has the attainment, (classes,) [1], that it asks for."""
    return bool((attainment >= class_goals(instance) - 1e-9).all())


def holds_at(instance: Instance, fleet: Fleet, loads: FloatArray | float = 1.0) -> bool:
    """Whether every class keeps its goal when each pool gets `loads` (pools,) times the demand routed to it."""
    return evaluate(instance, fleet, loads).holds


def still_holds(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet keeps every goal, and its network cards carry what is handed over."""
    handing = (pool for pool in fleet.pools if pool.role is not Role.COLOCATED)
    busy = (card_use(instance, pool, pool.route * instance.flows.rate) for pool in handing)
    return all(share <= LINK_UTILIZATION * (1.0 + 1e-9) for share in busy) and holds_at(instance, fleet)


def card_use(instance: Instance, pool: FleetPool, rate: FloatArray) -> float:
    """Busy share of the network cards of a pool that hands over requests (flows,) [1/s], or takes them in [1]."""
    tables = instance.tables
    return float(rate @ tables.kv_transferred[pool.shape]) / (pool.replicas * float(tables.links[pool.shape]))


def replicas_at(instance: Instance, fleet: Fleet, volume: float, least: int = 1) -> IntArray:
    """Fewest replicas of each pool that meet every goal at `volume` times the demand; all replicas if none do."""
    replicas = tuple(pool.replicas for pool in fleet.pools)
    if not holds_at(instance, fleet, volume):
        return np.array(replicas)
    prices = [fleet_cost(instance, Fleet((pool,))) for pool in fleet.pools]
    return np.array(
        fewest_replicas(
            replicas, prices, lambda counts: holds_at(instance, fleet.resized(np.array(counts)), volume), least
        )
    )


def worst_share(instance: Instance, fleet: Fleet, volume: float = 1.0) -> float:
    """Share of its goal that the worst class reaches at `volume` times the demand, whatever makes it miss [1]."""
    return float((evaluate(instance, fleet, volume).attainment / class_goals(instance)).min())


def goodput_volume(instance: Instance, fleet: Fleet) -> float:
    """Highest multiple of the demand at which every class keeps its goal, routing unchanged."""
    return largest_load(lambda volume: holds_at(instance, fleet, volume)) if fleet.pools else 0.0


@dataclass(frozen=True, slots=True)
class PoolHeadroom:
    """Headroom of one pool: it meets every goal up to `load` times its present load; `resource` runs out first.

    metrics: that the classes limit which miss their goal beyond that.
    """

    load: float
    resource: Resource
    metrics: frozenset[Metric]


def pool_headroom(
    instance: Instance, fleet: Fleet, index: int, volume: float = 1.0, *, others: float = 1.0
) -> PoolHeadroom:
    """Raise the load of one pool until a goal is missed; others: share of their loads that the other pools get [1]."""

    def loads(factor: float) -> FloatArray:
        return np.where(np.arange(len(fleet.pools)) == index, volume * factor, volume * others)

    most = largest_load(lambda factor: holds_at(instance, fleet, loads(factor)), most=MOST_MORE)
    before = evaluate(instance, fleet, loads(1.0 if most >= 1.0 else 0.5 * most)) if most > 0.0 else None
    after = evaluate(instance, fleet, loads(max(most, ALIKE) * (1.0 + TOLERANCE / 2.0)))
    slos = instance.problem.slos
    missed_slos = [slo for slo, share in zip(slos, after.attainment, strict=True) if share < slo.attainment] or slos
    metrics = frozenset(metric for slo in missed_slos for metric in slo.limits)
    return PoolHeadroom(most, _first_to_give(instance, fleet, index, before, after), metrics)


def _first_to_give(
    instance: Instance, fleet: Fleet, index: int, before: Evaluation | None, after: Evaluation
) -> Resource:
    """The resource whose share of misses grows most between two loads of a pool, or from none to the second."""

    def grown(reason: str) -> float:
        more = getattr(after, reason) - (0.0 if before is None else getattr(before, reason))
        return float(instance.flows.share @ more)

    pool, state = fleet.pools[index], after.states[index]
    if pool.role is Role.PREFILL:
        return Resource.TIME
    memory_is_less = state.memory >= state.running / instance.tables.seqs[pool.seqs]
    fuller = Resource.KV_MEMORY if memory_is_less else Resource.SLOTS  # of which less is left
    growth = {fuller: grown("full"), Resource.ATTENTION_TIME: grown("late_later")}
    if pool.role is Role.COLOCATED:
        growth[Resource.TIME] = grown("late_first")
    return max(growth, key=lambda resource: growth[resource])


def utilization(instance: Instance, pool: FleetPool, state: PoolState) -> dict[str, float]:
    """Utilization of each resource of a pool: prompt servers, request slots, KV memory, network cards [1]."""
    tables = instance.tables
    used: dict[Resource, float] = {}
    if pool.role is not Role.DECODE:
        used[Resource.TIME] = state.utilization
    if pool.role is not Role.PREFILL:
        used[Resource.SLOTS] = state.running / float(tables.seqs[pool.seqs])
        used[Resource.KV_MEMORY] = state.memory
    if pool.role is not Role.COLOCATED:
        used[Resource.LINK] = card_use(instance, pool, state.rate)
    return {str(resource): float(use) for resource, use in used.items()}


def busiest(instance: Instance, pool: FleetPool, state: PoolState) -> float:
    """Load of the busiest resource of a pool over its capacity; of prompts as if every step were full [1]."""
    load = {} if state.wait is None else {str(Resource.TIME): state.wait.load}
    return max((utilization(instance, pool, state) | load).values())


def _class_shares(instance: Instance) -> FloatArray:
    """Share of each flow in each class, (classes, flows)."""
    flows = instance.flows
    return np.asarray(flows.share * (flows.slo == np.arange(len(instance.problem.slos))[:, None]))


FIRST_FORMULAS: Mapping[Metric, Callable[[Ttft, FloatArray], FloatArray]] = MappingProxyType(
    {Metric.TTFT: Ttft.exceeds}
)
"""By metric of the first token: P(metric > limit), from (TTFT of the pool, limit)."""
LATER_FORMULAS: Mapping[Metric, Callable[[Steps, FloatArray, FloatArray], FloatArray]] = MappingProxyType(
    {Metric.TPOT: lambda steps, limit, _: steps.exceeds(limit), Metric.ITL_P99: Steps.tail_exceeds}
)
"""By metric of later tokens: P(metric > limit), from (decode steps of the pool, limit, gaps per request)."""


@dataclass(frozen=True, slots=True)
class _LaterTokens:
    """Later tokens at one pool.

    weight (flows,): share of the flow served here; gaps (flows,): between the tokens of a request, some have none.
    """

    weight: FloatArray
    steps: Steps
    gaps: FloatArray

    def exceeds(self, metric: Metric, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit, (flows,)."""
        return np.asarray(self.weight * (self.gaps > 0.0) * LATER_FORMULAS[metric](self.steps, limit, self.gaps))


@dataclass(frozen=True, slots=True)
class _FirstToken:
    """TTFT at one pool; weight (flows,): share of the flow served here.

    hit_chance (flows,): chance that a request finds its history; else it is one of the flow at `missed`. reads: of
    those whose history comes from the tier below GPU memory, which is TTFT later.
    """

    weight: FloatArray
    ttft: Ttft
    missed: IntArray
    hit_chance: FloatArray | None = None
    reads: TierReads | None = None

    @property
    def most(self) -> float:
        """The longest that TTFT can be [s]."""
        return self.ttft.most + (0.0 if self.reads is None else self.reads.longest)

    def exceeds(self, metric: Metric, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit, (flows,)."""
        late = FIRST_FORMULAS[metric](self.ttft, limit)
        if self.hit_chance is not None:
            waiting = np.zeros(1)  # how much more of those are late that wait for their history
            if self.reads is not None:
                read_late = FIRST_FORMULAS[metric](self.ttft, limit - self.reads.seconds)
                waiting = self.reads.chance * (read_late - late)
            late = self.hit_chance * late + (1.0 - self.hit_chance) * late[..., self.missed] + waiting
        return np.asarray(self.weight * late)


def _handed_over(
    instance: Instance,
    sender: tuple[FleetPool, PoolState],
    decodes: Sequence[tuple[FleetPool, PoolState]],
    mix: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Transfer of each flow that no step hides (flows,), and what else follows their prompts (points,) [s]."""
    tables, (pool, state) = instance.tables, sender
    intake = np.array([to.route for to, _ in decodes]).reshape(len(decodes), mix.shape[-1]) * mix
    intake = intake[:, instance.flows.source]
    links = np.array([tables.link[to.shape] for to, _ in decodes])
    shares = intake / np.maximum(intake.sum(axis=0), 1e-12)
    seconds = tables.kv_transferred[pool.shape] / np.clip(links @ shares, 1.0, tables.link[pool.shape])
    sent, scv = tables.kv_transferred[pool.shape], instance.flows.arrival_scv
    together = 1.0 if state.wait is None else state.wait.together
    ranks = float(pool.replicas * tables.ranks[pool.shape])
    cards = [card_wait(state.rate, sent / tables.link[pool.shape], ranks, scv, together)]
    entries, decode_shares = [], shares @ state.rate / max(float(state.rate.sum()), 1e-300)
    for (to, at), decode_share in zip(decodes, decode_shares, strict=True):
        ranks = float(to.replicas * tables.ranks[to.shape])
        card = card_wait(at.rate, sent / tables.link[to.shape], ranks, scv, 1.0)
        cards.append(replace(card, chance=card.chance * float(decode_share)))
        step = 0.0 if at.steps is None else at.steps.met(at.rate)
        entries.append(Entry(max(float(step_in_progress(at.running)), 1e-12), step, float(decode_share)))
    loading = float(instance.policy.scheduler.pulls)
    return np.maximum(seconds - hidden_transfer(entries, loading), 0.0), hand_over_waits(cards, entries, loading)
