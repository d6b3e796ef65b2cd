"""A fleet in operation: after a loss of replicas or nodes, and scaled over a day.

Loss: the requests go to the remaining engines and are simulated there. Engines stand on nodes as the deployment files
place them: in the plan's order, each on the first node of its type with room. The pools of a stage share each flow in
proportion to the engines that they have left; an engine hands KV over only within its own domain.

Day: the fleet keeps its size, is scaled ahead by the daily profile, or is scaled on load. Hour h needs the fewest
replicas of each pool that meet every goal at its rate, with unchanged routing. An engine takes a start-up time before
it serves. Scaled ahead, it starts that much earlier: running(t) = max need over [t, t + start-up]. Scaled on load, it
is that much late: serving(t) = min need over [t - start-up, t]. Requests meanwhile meet the smaller fleet; what it
cannot serve queues up (a fluid queue: backlog' = arrivals - capacity) and makes all arrivals late until the queue has
cleared. Released replicas stop at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from costmodel.units import DAY, SECONDS_PER_HOUR
from costmodel.words import plural
from optimizer.fleets.evaluate import evaluate, keeps_goals, replicas_at
from optimizer.fleets.fleet import (
    Fleet,
    bisection,
    first_fit,
    fleet_cost,
    fleet_gpus,
    largest_load,
    offer_costs,
    offer_prices,
)
from optimizer.loads.effort import Progress, silent
from optimizer.loads.instance import Instance
from optimizer.plans.records import HALVING_RUNS, Outcome
from optimizer.verification.bench import LIFETIMES, Slice, in_system
from optimizer.verification.judge import MOST_JUDGED, Judgement, until_decided
from search_spaces.problem import Billing

EngineCounts = tuple[int, ...]
"""Engines of every pool of a fleet."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A simultaneous loss; what: "replica" or "node"; number: how many; of: the pool or the accelerator.

    lost, left: engines by pool; everything: whether no other replica, or node of that type, is there.
    price: of what is left [$/h]; judgement: of it; None where some requests have no engine any more, serves_none:
    where none has.
    spare: price of what has to be added so that any such loss of the same pool or type leaves what is needed [$/h].
    """

    what: str
    number: int
    of: str
    lost: dict[str, int]
    left: dict[str, int]
    everything: bool
    price: float
    judgement: Judgement | None
    spare: float
    serves_none: bool = False

    @property
    def outcome(self) -> Outcome:
        """Whether the remaining fleet meets every goal; it misses if some requests have no engine any more."""
        return Outcome.MISSES if self.judgement is None else self.judgement.outcome

    @property
    def held(self) -> bool:
        """Whether every goal is shown to be met."""
        return self.outcome is Outcome.MEETS


@dataclass(frozen=True, slots=True)
class Resilience:
    """Every loss of k replicas of a pool, and of k nodes; pools: their names; cost: of the fleet [$/h]."""

    pools: tuple[str, ...]
    whole: Judgement
    cost: float
    losses: tuple[Loss, ...]

    @property
    def held(self) -> bool:
        """Whether every goal is shown to be met, without a loss and after each."""
        return self.whole.proven and all(loss.held for loss in self.losses)

    def spare_cost(self, unit: str, *, only_where_needed: bool) -> float:
        """What N+k costs more [$/h]: for every pool or type, or for those whose loss breaks an SLO or is undecided."""
        losses = [loss for loss in self.losses if loss.what == unit and not (only_where_needed and loss.held)]
        return sum({loss.of: loss.spare for loss in losses}.values())


def resilience(
    instance: Instance,
    fleet: Fleet,
    *,
    count: int = 1,
    spares: Sequence[int] | None = None,
    requests: int,
    seed: int = 0,
    volume: float = 1.0,
    progress: Progress | None = None,
) -> Resilience:
    """Take `count` replicas from each pool in turn, then `count` nodes, and simulate what is left.

    spares: engines of every pool beyond those that the demand needs, at work like the others; default: none. requests:
    of each run, more where these are too few to tell (`judge_long`).
    """
    needed_engines = tuple(pool.replicas for pool in fleet.pools)
    engines = needed_engines if spares is None else tuple(map(sum, zip(needed_engines, spares, strict=True)))
    fleet, run = fleet.resized(engines), partial(judge_long, instance, requests=requests, seed=seed, volume=volume)

    @cache
    def judged(engines_left: EngineCounts) -> Judgement | None:
        fewer = fleet_left(instance, fleet, engines_left)
        return None if fewer is None else run(fewer)

    def with_judgements(cases: Sequence[Loss], start: float, end: float) -> list[Loss]:
        losses = []
        for number, case in enumerate(cases):
            label = f"{case.of} without {plural(case.number, case.what)}"
            (progress or silent)(label, start + (end - start) * number / len(cases))
            roles = {pool.role for pool, remaining in zip(fleet.pools, case.left.values(), strict=True) if remaining}
            serves_none = Role.COLOCATED not in roles and not {Role.PREFILL, Role.DECODE} <= roles
            losses.append(replace(case, judgement=judged(tuple(case.left.values())), serves_none=serves_none))
        return losses

    whole = run(fleet)
    losses = with_judgements(list(_replica_losses(instance, fleet, count, needed_engines)), 0.0, 0.5)
    enough = tuple(
        loss.left[loss.of] if loss.held else engines for loss, engines in zip(losses, needed_engines, strict=True)
    )
    losses += with_judgements(list(_node_losses(instance, fleet, count, enough)), 0.5, 1.0)
    return Resilience(tuple(pool.name for pool in fleet.pools), whole, fleet_cost(instance, fleet), tuple(losses))


def judge_long(instance: Instance, fleet: Fleet, *, requests: int, seed: int = 0, volume: float = 1.0) -> Judgement:
    """Simulate `requests` requests of the demand, times `volume`, or more where these do not tell if a pool keeps up.

    A run starts empty, so it lasts LIFETIMES / 2 of a mean request at least. Where requests pile up, yet are in time,
    it is made longer until that ends or the queue has made them late. Where a goal lies within its interval, other runs
    are added, up to HALVING_RUNS.
    """
    fill_requests = math.ceil(LIFETIMES / 2.0 * in_system(instance, volume))
    requests = max(requests, min(fill_requests, MOST_JUDGED))
    whole = Slice.whole(instance, fleet, requests, seed, volume)
    while True:
        judgement = whole.judged(requests, until_decided(requests, most=HALVING_RUNS * requests))
        is_late = judgement.overloaded and not judgement.missed and len(judgement.runs) == 1
        if not is_late or requests >= MOST_JUDGED:
            return replace(judgement, rate=instance.problem.workload.request_rate * volume)
        requests = min(2 * requests, MOST_JUDGED)


def _loss(instance: Instance, fleet: Fleet, lost_engines: Sequence[int], **about: Any) -> Loss:
    """A loss of so many engines of every pool, not judged yet; about: its other fields."""
    lost_by_pool = dict(zip([pool.name for pool in fleet.pools], lost_engines, strict=True))
    left_by_pool = {pool.name: pool.replicas - lost_by_pool[pool.name] for pool in fleet.pools}
    price = fleet_cost(instance, fleet.resized(list(left_by_pool.values())))
    return Loss(lost=lost_by_pool, left=left_by_pool, price=price, judgement=None, **about)


def _replica_losses(instance: Instance, fleet: Fleet, count: int, needed_engines: EngineCounts) -> Iterator[Loss]:
    """The loss of `count` replicas of each pool, or of all if there are fewer."""
    engines = [pool.replicas for pool in fleet.pools]
    for index, pool in enumerate(fleet.pools):
        more = [*engines[:index], max(needed_engines[index] + count, pool.replicas), *engines[index + 1 :]]
        spare = fleet_cost(instance, fleet.resized(more)) - fleet_cost(instance, fleet)
        number, everything = min(count, pool.replicas), pool.replicas <= count
        about = {"what": "replica", "number": number, "of": pool.name, "everything": everything, "spare": spare}
        yield _loss(instance, fleet, [number * (k == index) for k in range(len(engines))], **about)


def _node_losses(instance: Instance, fleet: Fleet, count: int, enough: EngineCounts) -> Iterator[Loss]:
    """The loss of `count` neighboring nodes of each type, or of all if there are fewer; those alike are taken once.

    enough: engines of each pool that are shown to serve the demand, with all of the other pools.
    """
    for offer, nodes in nodes_of(instance, fleet).items():
        name, number = instance.problem.offers[offer].accelerator.name, min(count, len(nodes))
        spare, everything = _node_spare_cost(instance, fleet, offer, count, enough), len(nodes) <= count
        windows = [nodes[start : start + number] for start in range(len(nodes) - number + 1)]
        pools = [[pool for pool, _ in set[tuple[int, int]]().union(*window)] for window in windows]
        about = {"what": "node", "number": number, "of": name, "everything": everything, "spare": spare}
        for engines in dict.fromkeys(tuple(np.bincount(pool, minlength=len(fleet.pools)).tolist()) for pool in pools):
            yield _loss(instance, fleet, engines, **about)


def nodes_of(instance: Instance, fleet: Fleet) -> dict[int, list[set[tuple[int, int]]]]:
    """Nodes of each offer and the engines on them, as (pool, number)."""
    offers, gpus = (column.astype(int).tolist() for column in (instance.tables.offer, instance.tables.gpus))
    sizes = [offer.accelerator.node_size for offer in instance.problem.offers]
    engines = [(index, number, pool.shape) for index, pool in enumerate(fleet.pools) for number in range(pool.replicas)]
    places = first_fit((offers[shape], gpus[shape], sizes[offers[shape]]) for *_, shape in engines)
    nodes: dict[int, dict[int, set[tuple[int, int]]]] = {}
    for (index, number, shape), (numbers, _) in zip(engines, places, strict=True):
        for node in numbers:
            nodes.setdefault(offers[shape], {}).setdefault(node, set()).add((index, number))
    return {offer: list(by_number.values()) for offer, by_number in nodes.items()}


def engines_against_nodes(needed: int, on_node: int, count: int) -> tuple[int, int]:
    """Engines of a pool and nodes for it so that any `count` nodes less leave `needed` engines: (engines, nodes).

    on_node: engines that fit on a node. They are spread evenly over `count` more nodes than needed ones fill:
    least N with N - k ceil(N / M) >= n, M = ceil(n / e) + k.

    Nine engines, eight to a node, take three nodes of five, five and four:

    >>> engines_against_nodes(9, 8, 1), engines_against_nodes(2, 8, 1), engines_against_nodes(3, 1, 2)
    ((14, 3), (4, 2), (5, 5))
    """
    nodes = -(-needed // on_node) + count
    engines = needed + count
    while engines - count * -(-engines // nodes) < needed:
        engines += 1
    return engines, nodes


def _node_spare_cost(instance: Instance, fleet: Fleet, offer: int, count: int, enough: EngineCounts) -> float:
    """Price of the engines more, each pool on nodes of its own, that make up for any `count` nodes of a type [$/h]."""
    offer_terms = instance.problem.offers[offer]
    size, more, nodes = offer_terms.accelerator.node_size, [pool.replicas for pool in fleet.pools], 0
    for index, pool in enumerate(fleet.pools):
        if int(instance.tables.offer[pool.shape]) == offer:
            gpus = int(instance.tables.gpus[pool.shape])
            engines, pool_nodes = engines_against_nodes(enough[index], max(size // gpus, 1), count)
            more[index] = max(engines, pool.replicas)
            nodes += pool_nodes * -(-gpus // size)
    if offer_terms.billing is Billing.NODE:
        bought = fleet_gpus(instance, fleet)
        bought[offer] = nodes * size
        return max(float((offer_prices(instance.problem, bought) - offer_costs(instance, fleet))[offer]), 0.0)
    return fleet_cost(instance, fleet.resized(more)) - fleet_cost(instance, fleet)


def fleet_left(instance: Instance, fleet: Fleet, engines: Sequence[int]) -> Fleet | None:
    """The fleet with its remaining engines and requests routed to them; None if some requests have no engine.

    route'_p = w_p route_p / sum w route over the pools of the stage, w_p: share of its engines that a pool has left.
    """
    routes = rerouted(
        np.array([pool.route for pool in fleet.pools]),
        [pool.role for pool in fleet.pools],
        [int(instance.tables.domain[pool.shape]) for pool in fleet.pools],
        np.array([n / pool.replicas for n, pool in zip(engines, fleet.pools, strict=True)]),
    )
    if routes is None:
        return None
    pools = zip(fleet.resized(engines).pools, routes, strict=True)
    return Fleet(tuple(replace(pool, route=route) for pool, route in pools if pool.replicas))


def rerouted(route: FloatArray, roles: list[Role], domains: list[int], left: FloatArray) -> FloatArray | None:
    """Shares of every flow for each pool, (pools, flows), when pools keep `left` of their engines [1]; None: no way."""
    decode = np.array([role is Role.DECODE for role in roles])
    prefill = np.array([role is Role.PREFILL for role in roles])
    stages = [(prefill & here, decode & here) for here in (np.array(domains) == d for d in np.unique(domains))]
    weight = route * left[:, None]
    for senders, takers in stages:
        lost_flows = (weight[takers].sum(axis=0) <= 0.0) & (route[takers].sum(axis=0) > 0.0)
        weight[np.ix_(senders, lost_flows)] = 0.0
    first = weight[~decode].sum(axis=0)
    if (first <= 0.0).any():
        return None
    shares = np.where(decode[:, None], 0.0, weight / first)
    for senders, takers in stages:
        total = np.maximum(weight[takers].sum(axis=0), 1e-300)
        shares[takers] = weight[takers] / total * shares[senders].sum(axis=0)
    return shares


# --- a day -----------------------------------------------------------------------------------------------------------

Stretch = tuple[float, int, IntArray]
"""A stretch of the day: share of an hour [1], the hour, and the replicas, (pools,)."""


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of a day: what the fleet needs then, as the JSON document has it.

    replicas: of each pool; attainment: of each class with these [1]; low, high: its 95 % interval, itself by formula.
    carried: whether the whole fleet may meet every goal at this rate; settled: whether its runs tell.
    """

    hour: int
    rate_rps: float
    replicas: dict[str, int]
    usd_per_hour: float
    attainment: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    carried: bool
    settled: bool


@dataclass(frozen=True, slots=True)
class Day:
    """A fleet scaled over a day, as the JSON document has it.

    simulated_requests: for each rate and fleet, 0: all is by formula. fixed, ahead, on_load, saved: cost of a day kept
    whole, scaled ahead and on load, and what scaling ahead saves [$]. late_share: of the day's requests, those that
    meet a fleet smaller than their hour needs, or its queue [1]. longest_start_up_s: up to which scaling on load keeps
    every goal over the day; attainment_on_load: of each class over the day [1].
    """

    start_up_s: float
    simulated_requests: int
    fixed_usd_per_day: float
    ahead_usd_per_day: float
    on_load_usd_per_day: float
    saved_usd_per_day: float
    late_share: float
    longest_start_up_s: float
    attainment_on_load: dict[str, float]
    hours: tuple[Hour, ...]


def autoscale(
    instance: Instance,
    fleet: Fleet,
    volume: FloatArray,
    start_up: float,
    least: int = 1,
    *,
    requests: int = 0,
    progress: Progress | None = None,
) -> Day:
    """Scale a fleet over a day.

    volume (hours,): rate of each hour over the rate that the fleet is for [1]; start_up: from the decision to the first
    request [s]; least: replicas that every pool keeps; requests: simulated for each rate and fleet, more where these
    are too few to tell (`judge_long`), 0: by formula.
    """
    tell = progress or silent
    scaler = _Scaled(instance, fleet, volume, requests)
    needs: dict[float, IntArray] = {}
    for number, level in enumerate(dict.fromkeys(volume.tolist())):
        tell(f"replicas at {level * instance.problem.workload.request_rate:.3g} req/s", number / volume.size)
        needs[level] = scaler.need(level, least)
    need = np.array([needs[level] for level in volume.tolist()])
    attainment, late = scaler.over(_stretches(need, start_up, ahead=False), need)
    tell("longest start-up time", 1.0)
    fixed, ahead = fleet_cost(instance, fleet) * volume.size, scaler.cost(_stretches(need, start_up, ahead=True))
    return Day(
        start_up_s=start_up,
        simulated_requests=requests,
        fixed_usd_per_day=fixed,
        ahead_usd_per_day=ahead,
        on_load_usd_per_day=scaler.cost(_stretches(need, 0.0, ahead=True)),
        saved_usd_per_day=fixed - ahead,
        late_share=late,
        longest_start_up_s=longest_start_up(
            lambda time: keeps_goals(instance, scaler.over(_stretches(need, time, ahead=False), need)[0])
        ),
        attainment_on_load=_by_class(instance, attainment),
        hours=tuple(scaler.hour(number, need[number]) for number in range(volume.size)),
    )


def _by_class(instance: Instance, shares: FloatArray) -> dict[str, float]:
    return dict(zip((slo.name for slo in instance.problem.slos), shares.tolist(), strict=True))


def _stretches(need: IntArray, start_up: float, *, ahead: bool) -> Iterator[Stretch]:
    """The day with engines started ahead, or on load; need (hours, pools): replicas, of days that repeat.

    Ahead, all run that any hour within the start-up time will need; on load, those serve that every hour needed.
    """
    hours, sign = len(need), 1 if ahead else -1
    whole, rest = divmod(start_up, SECONDS_PER_HOUR)
    rest /= SECONDS_PER_HOUR
    longest = min(int(whole), hours)
    for hour in range(hours):
        for share, span in ((1.0 - rest, longest), (rest, longest + 1))[::sign]:
            rows = need[(hour + sign * np.arange(span + 1)) % hours]
            yield share, hour, rows.max(axis=0) if ahead else rows.min(axis=0)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A fleet with fewer replicas at the rates of a day; each attainment and limit is computed once."""

    instance: Instance
    fleet: Fleet
    volume: FloatArray
    requests: int
    _attained: dict[tuple[float, tuple[int, ...]], FloatArray] = field(default_factory=dict)
    _limits: dict[tuple[int, ...], float] = field(default_factory=dict)

    def need(self, volume: float, least: int) -> IntArray:
        """Replicas that meet every goal: those of the formula, plus one of each pool until the simulation is sure."""
        full = np.array([pool.replicas for pool in self.fleet.pools])
        replicas = replicas_at(self.instance, self.fleet, volume, least)
        while (replicas < full).any() and not keeps_goals(self.instance, self.attained(volume, replicas)[1]):
            replicas = np.minimum(replicas + 1, full)
        return replicas

    def hour(self, number: int, replicas: IntArray) -> Hour:
        """An hour with the replicas that it needs."""
        volume, fleet = float(self.volume[number]), self.fleet.resized(replicas)
        shares = self.attained(volume, replicas)
        attainment, low, high = (_by_class(self.instance, row) for row in shares)
        proven, possible = keeps_goals(self.instance, shares[1]), keeps_goals(self.instance, shares[2])
        return Hour(
            hour=number,
            rate_rps=volume * self.instance.problem.workload.request_rate,
            replicas={pool.name: pool.replicas for pool in fleet.pools},
            usd_per_hour=fleet_cost(self.instance, fleet),
            attainment=attainment,
            low=low,
            high=high,
            carried=possible,
            settled=proven or not possible,
        )

    def attained(self, volume: float, replicas: IntArray) -> FloatArray:
        """Attainment in the long run and its interval, (3, classes): share, low, high; the same by formula [1]."""
        key = volume, tuple(replicas.tolist())
        if key not in self._attained:
            self._attained[key] = self._judged(volume, self.fleet.resized(replicas))
        return self._attained[key]

    def _judged(self, volume: float, fleet: Fleet) -> FloatArray:
        if volume == 0.0:
            return np.ones((3, len(self.instance.problem.slos)))
        misses = evaluate(self.instance, fleet, volume)
        if not self.requests or not misses.stable:
            return np.stack([misses.attainment, misses.attainment, misses.attainment])
        judgement = judge_long(self.instance, fleet, requests=self.requests, volume=volume)
        rows = np.array([[item.attainment, item.attainment_low, item.attainment_high] for item in judgement.classes])
        return np.asarray(rows.T * [number not in judgement.late for number in range(len(rows))])

    def limit(self, replicas: IntArray) -> float:
        """Highest volume that replicas serve without a queue that grows for ever [1]."""
        key = tuple(replicas.tolist())
        if key not in self._limits:
            smaller = self.fleet.resized(replicas)
            self._limits[key] = largest_load(lambda volume: evaluate(self.instance, smaller, volume).stable)
        return self._limits[key]

    def cost(self, stretches: Iterator[Stretch]) -> float:
        """Cost of the replicas that are paid for over a day [$]."""
        paid = ((share, self.fleet.resized(replicas)) for share, _, replicas in stretches if share)
        return sum(share * fleet_cost(self.instance, fleet) for share, fleet in paid)

    def over(self, stretches: Iterator[Stretch], need: IntArray) -> tuple[FloatArray, float]:
        """Share of the day's requests within the SLO, (classes,), and share that meets a small fleet or its queue."""
        total, late, backlog = np.zeros(len(self.instance.problem.slos)), 0.0, 0.0
        day = list(stretches)
        for number, (share, hour, replicas) in enumerate([*day, *day]):  # the first day leaves its queue at midnight
            volume = float(self.volume[hour])
            wait_share, backlog = queue_share(volume, self.limit(replicas), share, backlog)
            if number >= len(day) and share:
                small = bool((replicas < need[hour]).any())
                late += share * volume * (1.0 if small else wait_share)
                total += share * volume * (1.0 - wait_share) * self.attained(volume, replicas)[0]
        return np.asarray(total / self.volume.sum()), float(late / self.volume.sum())


def queue_share(volume: float, most: float, time: float, backlog: float) -> tuple[float, float]:
    """Share of a stretch in which a queue stands [1], and what is left of it at the end; a fluid queue.

    volume: arrivals, most: that can be served, both in the same unit per hour; time [h]; backlog: at the beginning.

    A quarter of an hour at twice the capacity is cleared in as much at half of it:

    >>> queue_share(2.0, 1.0, 0.25, 0.0), queue_share(0.5, 1.0, 1.0, 0.25)
    ((1.0, 0.25), (0.5, 0.0))
    """
    queue = backlog + (volume - most) * time
    if queue > 0.0 or time == 0.0:
        return 1.0, max(queue, 0.0)
    return (backlog / (most - volume) / time if backlog > 0.0 else 0.0), 0.0


def longest_start_up(good: Callable[[float], bool]) -> float:
    """The longest start-up time that is good, up to a day [s], to a second; 0 where none is."""
    return float(bisection(0, int(DAY) + 1, good)[0])
