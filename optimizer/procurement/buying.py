"""Buying over time: which GPUs to reserve or buy now, which later and what to rent, when the growth is uncertain.

A stochastic programme (`buying_program`) chooses; what is reported is the exact cost, hour by hour (`Dispatcher.bill`):
owned, reserved and bought GPUs serve first, by their running cost; what they lack is rented, spot with its headroom or
on demand, in whole GPUs and whole fleets. The gap lies between the two. The bound knows no fleets but those of the
levels. Fleets that a choice counts on are simulated at the rate that they are bought for, and the choice is made again
without those that miss.

Which fleets serve which rate of a forecast: searched for at each level, alone or side by side.

A fleet serves every lower rate too, and what neither the rate nor a price changes is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.errors import InfeasibleError
from costmodel.units import HOURS_PER_DAY, KILO
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.fleet import Fleet
from optimizer.fleets.purchase import classes_apart, fleet_gpus, paid_gpus
from optimizer.fleets.purchase import within_limits as gpus_within_limits
from optimizer.loads.effort import Progress, silent
from optimizer.loads.instance import Instance, as_planned, at_volume, make_instance
from optimizer.plans.records import CANDIDATES, MOST_LOOKS, OPTIMAL_GAP, QUICK_CANDIDATES, ROUNDING, EnginePool
from optimizer.search.bound import check_floors, check_shapes
from optimizer.search.mixtures import of_class, or_mixed
from optimizer.search.program import Builder, Program, solve
from optimizer.search.search import (
    Engines,
    FleetSearch,
    cheapest_held,
    engines_of,
    is_refuted,
    priced,
    smallest_batches,
    without_prices,
)
from optimizer.search.settings import make_settings
from optimizer.verification.bench import fleet_key, look
from search_spaces.bounds import PRICE
from search_spaces.contracts import (
    HOURS_PER_MONTH,
    ContractedGpus,
    Terms,
    Tier,
    commitment_cost,
    fees,
    gpus_to_rent,
    hourly_price,
    rental,
    value_lost,
)
from search_spaces.problem import Problem


@dataclass(frozen=True, slots=True)
class FleetCheck:
    """A fleet that was simulated: share of its requests within their SLOs [1], and how it misses, "" where it holds.

    used: whether the plan counts on it; one that did not hold in the last round still counts on some that missed.
    """

    fleet: SizedFleet
    attainment: float
    fault: str
    used: bool = False


@dataclass(frozen=True, slots=True)
class BuyingPlan:
    """The answer: commitments of the first month, and an outcome for every path of the forecast.

    bound: least expected cost of any choice [$]; fleets: that it counts on; looks: those that were simulated, and
    others that it does without therefore.
    """

    problem: Problem
    terms: Terms
    levels: Levels
    now: tuple[ContractedGpus, ...]
    outcomes: tuple[Bill, ...]
    bound: float
    fleets: int = 0
    looks: tuple[FleetCheck, ...] = ()

    @property
    def held(self) -> list[FleetCheck]:
        """Fleets that it counts on and that met the SLO."""
        return [item for item in self.looks if item.used and not item.fault]

    @property
    def missed(self) -> list[FleetCheck]:
        """Fleets that it counts on although they missed."""
        return [item for item in self.looks if item.used and item.fault]

    @property
    def refuted(self) -> list[FleetCheck]:
        """Fleets that missed and that it does without."""
        return [item for item in self.looks if item.fault and not item.used]

    @property
    def total(self) -> float:
        """Expected cost over the horizon [$]."""
        return self._mean([outcome.total for outcome in self.outcomes])

    @property
    def on_demand(self) -> float:
        """Expected cost of renting everything on demand, by the hour [$]."""
        return self._mean([outcome.all_rented for outcome in self.outcomes])

    @property
    def hindsight(self) -> float:
        """Expected cost if the path were known before the first month [$]."""
        return self._mean([outcome.best for outcome in self.outcomes])

    @property
    def energy(self) -> float:
        """Expected electricity of all GPUs in use, rented ones too, with the overhead of their site [kWh]."""
        watts = np.array(self.terms.draw)
        return self._mean(
            [sum(row.hours * float(watts @ row.option.gpus) for row in bill.hours) / KILO for bill in self.outcomes]
        )

    @property
    def gap(self) -> float:
        """Share of the expected cost that other commitments could save at most [1]."""
        return 1.0 - self.bound / self.total if self.total > 0.0 else 0.0

    @property
    def expected(self) -> Bill:
        """The outcome of the expected path."""
        return self.outcomes[self.terms.forecast.expected]

    def _mean(self, values: Sequence[float]) -> float:
        return float(self.terms.forecast.probabilities @ np.array(values))


def buy(problem: Problem, terms: Terms, progress: Progress | None = None, looks: int = 0) -> BuyingPlan:
    """Choose what to reserve and buy for a forecast; what is owned is a contract of the terms here.

    looks: fleets that are simulated at most, of those that serve some hour of some path. Where one misses, fleets and
    commitments are chosen again without it, CANDIDATES times at most; what still misses is said (`BuyingPlan.missed`).
    Raises InfeasibleError when no fleet serves the highest rate of the forecast.
    """
    problem = replace(problem, offers=tuple(replace(offer, owned=0) for offer in problem.offers))
    rates_ahead, chances = terms.forecast.every_rate
    rates, prices = level_rates(rates_ahead, terms.forecast.levels, chances), _prices(problem, terms)
    looked: dict[tuple[object, ...], FleetCheck] = {}
    for _ in range(1 + CANDIDATES):
        misses = [item for item in looked.values() if item.fault]
        levels = search_levels(problem, rates, prices, progress or silent, [miss.fleet for miss in misses])
        if not all(levels.options):
            fault = f"no fleet meets the SLOs at {float(rates_ahead.max()):.4g}/s, the highest rate of the forecast"
            limits = [
                name for name in ("budget", "power", "max_gpus") if getattr(problem.constraints, name) is not None
            ]
            limits += ["inventory"] * any(offer.inventory is not None for offer in problem.offers)
            fault += f", within the limits that the workload file states ({', '.join(limits)})" if limits else ""
            for miss in misses[-1:]:
                fault += f": a fleet of {miss.fleet.gpus} at {miss.fleet.rate:.4g}/s {miss.fault}"
            raise InfeasibleError(fault)
        plan = buy_at(problem, terms, levels, progress)
        fleets = _serving(plan.outcomes)
        new = [sized_fleet for key, sized_fleet in fleets.items() if key not in looked][: max(looks - len(looked), 0)]
        for number, sized_fleet in enumerate(new):
            label = f"simulating {sized_fleet.gpus} at {sized_fleet.rate:.3g} req/s"
            (progress or silent)(label, 0.5 + 0.5 * number / len(new))
            problem_then = sized_fleet.instance.problem
            load = replace(problem_then.workload, request_rate=sized_fleet.rate)
            here = replace(sized_fleet.instance, problem=replace(problem_then, workload=load))
            # with the limits of pdplan optimize
            seen = look(here, smallest_batches(sized_fleet.instance, sized_fleet.fleet))
            looked[sized_fleet.key] = FleetCheck(sized_fleet, *seen)
        all_looks = [looked[key] for key in dict.fromkeys((*fleets, *looked)) if key in looked]
        plan = replace(
            plan, fleets=len(fleets), looks=tuple(replace(item, used=item.fleet.key in fleets) for item in all_looks)
        )
        if not plan.missed:
            break
    return plan


def _prices(problem: Problem, terms: Terms) -> list[list[float]]:
    """Price sets to search with [$/h]: on demand, and each offer at its cheapest contract held all the time."""
    ways = [[item for item in terms.contracts if item.offer == offer] for offer in range(len(problem.offers))]
    rent = [next(item.running for item in way if item.tier is Tier.ON_DEMAND) for way in ways]
    # never free: prices are divided by each other [$/h]
    least = [max(min(hourly_price(item, terms.forecast.months) for item in way), PRICE.low) for way in ways]
    return [rent] if np.allclose(np.array(least) / least[0], np.array(rent) / rent[0]) else [rent, least]


def _serving(outcomes: Sequence[Bill]) -> dict[tuple[object, ...], SizedFleet]:
    """Fleets that serve some hour: those of the highest level first, then of the most hours."""
    rows: dict[tuple[object, ...], tuple[int, float, SizedFleet]] = {}
    for hours in (hours for outcome in outcomes for hours in outcome.hours):
        for sized_fleet in hours.option.fleets:
            level, sum_of_hours, first = rows.get(sized_fleet.key, (hours.level, 0.0, sized_fleet))
            rows[sized_fleet.key] = max(level, hours.level), sum_of_hours + hours.hours, first
    return {key: row[2] for key, row in sorted(rows.items(), key=lambda item: (-item[1][0], -item[1][1]))}


def buy_at(problem: Problem, terms: Terms, levels: Levels, progress: Progress | None = None) -> BuyingPlan:
    """The same with the fleets of every level given."""
    (progress or silent)("choosing commitments", 0.5)
    dispatcher, chances = Dispatcher(terms, levels), terms.forecast.probabilities
    paths = [path_of(terms, levels, path.growth) for path in terms.forecast.paths]
    joint, bound = dispatcher.plan(paths, chances)
    nothing = np.zeros_like(joint)
    best = min((joint, nothing), key=lambda plan: dispatcher.cost(plan, paths, chances))
    first = np.array([start.month == 0 for start in dispatcher.starts], dtype=np.bool_)
    renter = tuple(contract for contract in terms.contracts if contract.tier is Tier.ON_DEMAND)
    rent = Dispatcher(replace(terms, contracts=renter), levels)
    sunk = sum(contract.held * contract.monthly * terms.forecast.months for contract in terms.contracts)
    outcomes = []
    for path, counts in zip(paths, best, strict=True):
        bill, sure = dispatcher.bill(path, dispatcher.commitments(counts)), np.ones(1)
        plans = () if len(paths) == 1 else (dispatcher.plan([path], sure)[0], nothing[:1])
        hindsight = min([bill.total, *(dispatcher.cost(plan, [path], sure) for plan in plans)])
        later = dispatcher.commitments(np.where(first, 0, counts))
        outcomes.append(replace(bill, later=later, best=hindsight, all_rented=rent.bill(path, ()).total + sunk))
    return BuyingPlan(
        problem=problem,
        terms=terms,
        levels=levels,
        now=dispatcher.commitments(np.where(first, best[0], 0)),
        outcomes=tuple(outcomes),
        bound=min(bound + sunk, dispatcher.cost(best, paths, chances)),
    )


def path_of(terms: Terms, levels: Levels, growth: float) -> FloatArray:
    """Hours at each level in each month when the rate grows so fast per month [1], (months, levels) [h]."""
    level = levels.level_of(terms.forecast.rates(growth))
    hours = np.zeros((terms.forecast.months, levels.rates.size))
    np.add.at(hours, (np.arange(terms.forecast.months)[:, None], level), HOURS_PER_MONTH / HOURS_PER_DAY)
    return hours


def starts_of(terms: Terms) -> list[ContractedGpus]:
    """One GPU under every contract to decide on, in every month in which that can be done."""
    return [
        ContractedGpus(contract, month, 1)
        for contract in terms.contracts
        if contract.committed
        for month in range(0, terms.forecast.months - contract.delay, terms.decide_every)
    ]


def buying_program(
    terms: Terms, levels: Levels, paths: Sequence[FloatArray], probabilities: FloatArray
) -> tuple[Program, IntArray]:
    """What to reserve and buy while the growth is not known: a two-stage stochastic integer programme.

    Paths p of the demand with probabilities q_p. The commitments of the first month are the same on all of them; later
    ones are made when the path is known, and so is what is rented.
    n_k whole: GPUs taken under contract k now;  n_pks whole: in month s on path p;  u_pmlk >= 0: in use in month m at
    level l of the rate;  y_pmlo 0 or 1: fleet o serves then
    min  sum cost_k0 n_k + sum_p q_p (sum cost_ks n_pks + sum hours_pml running_k u_pmlk)
    sum_o y_pmlo = 1;  sum_{k of t} u_pmlk >= sum_o gpus_ot y_pmlo;  u_pmlk <= sum n_k + n_pks in force in month m
    Birge and Louveaux, Introduction to Stochastic Programming, section 1.1. Spot GPUs need the least headroom of any
    number that a level uses here, so that the bound is one.

    paths: hours at each level in each month, (months, levels) [h]. Returns the programme and its commitments, (paths,
    starts).
    """
    builder, starts = Builder(), starts_of(terms)
    commitments = _commitments(builder, terms, levels, probabilities)
    running = _running(terms, levels)
    for path, (hours, chance) in enumerate(zip(paths, probabilities.tolist(), strict=True)):
        for month, level in np.argwhere(hours).tolist():
            name = f"{path}_{month}_{level}"
            cost = chance * hours[month, level] * running[level]
            use = _serve(builder, terms, levels.options[level], name, cost)
            for k, contract in enumerate(terms.contracts):
                if contract.committed:
                    row = builder.rows([f"held{name}_{k}"], -np.inf, 0.0)
                    builder.entries(row, use[k], 1.0)
                    in_force = [start.contract == contract and start.in_force(month) for start in starts]
                    builder.entries(row, commitments[path, in_force], -1.0)
    return builder.build(), commitments


def _commitments(builder: Builder, terms: Terms, levels: Levels, probabilities: FloatArray) -> IntArray:
    """Variables of the commitments, (paths, starts): of the first month the same on every path."""
    starts, months, most = starts_of(terms), terms.forecast.months, levels.most.max(axis=0)
    cost = np.array([commitment_cost(start.contract, start.month, months) for start in starts])
    upper = np.array([most[start.contract.offer] for start in starts])
    names = np.array([f"n{terms.contracts.index(start.contract)}_{start.month}" for start in starts])
    first = np.array([start.month == 0 for start in starts], dtype=np.bool_)
    variables = np.zeros((probabilities.size, len(starts)), dtype=np.int64)
    variables[:, first] = builder.variables(names[first].tolist(), cost[first], upper[first], whole=True)
    for path, chance in enumerate(probabilities.tolist()):
        later = [f"{name}_{path}" for name in names[~first]]
        variables[path, ~first] = builder.variables(later, chance * cost[~first], upper[~first], whole=True)
    return variables


def _serve(builder: Builder, terms: Terms, options: Sequence[Option], name: str, cost: FloatArray) -> IntArray:
    """One option serves an hour, from GPUs that are rented or held; returns those in use, (contracts,).

    cost: of one GPU of each contract in use then [$].
    """
    shares = builder.variables([f"y{name}_{o}" for o in range(len(options))], 0.0, 1.0, whole=True)
    builder.entries(builder.rows([f"serve{name}"], 1.0, 1.0), shares, 1.0)
    held_gpus = [float(contract.held) for contract in terms.contracts]
    upper = np.where([contract.tier is Tier.OWNED for contract in terms.contracts], held_gpus, np.inf)
    use = builder.variables([f"u{name}_{k}" for k in range(upper.size)], cost, upper)
    need = builder.rows([f"need{name}_{t}" for t in range(len(terms.draw))], 0.0, np.inf)
    builder.entries(need[[contract.offer for contract in terms.contracts]], use, 1.0)
    gpus = np.array([option.gpus for option in options], dtype=np.float64).T
    builder.entries(need[:, None], shares[None, :], -gpus)
    return use


def _running(terms: Terms, levels: Levels) -> FloatArray:
    """Running cost of every contract at every level, (levels, contracts) [$/h].

    Of spot with the least headroom that any number which the options of the level use needs.
    """
    cost = np.tile([contract.running for contract in terms.contracts], (levels.rates.size, 1))
    for k, contract in enumerate(terms.contracts):
        if contract.spot is not None:
            most = levels.most[:, contract.offer]
            spot = gpus_to_rent(int(most.max()), contract.spot)
            headroom = np.minimum.accumulate(spot[1:] / np.arange(1, spot.size))
            cost[:, k] *= np.append(1.0, headroom)[most]
    return cost


# --- the bill ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hours:
    """One level of the rate in one month: hours at it [h], and the option that serves."""

    month: int
    level: int
    hours: float
    option: Option


@dataclass(frozen=True, slots=True)
class Bill:
    """What a path of the demand costs [$], each share of it (months, contracts).

    value: lost by GPUs bought, fees: hosting and reservations, both in equal shares over the months of service;
    by_hour: rent of rented GPUs, electricity of others. Of a plan's path also: later: what is committed to after the
    first month; best: the least with hindsight, all_rented: everything on demand, by the hour [$].
    """

    value: FloatArray
    fees: FloatArray
    by_hour: FloatArray
    hours: tuple[Hours, ...]
    later: tuple[ContractedGpus, ...] = ()
    best: float = 0.0
    all_rented: float = 0.0

    @property
    def by_month(self) -> FloatArray:
        """All together, (months, contracts) [$]."""
        return np.asarray(self.value + self.fees + self.by_hour)

    @property
    def total(self) -> float:
        """All of it [$]."""
        return float(self.by_month.sum())


class Dispatcher:
    """Chooses options and contracts hour by hour; remembers what a number of GPUs costs beside given capacities.

    A path that the demand may take is hours at each level in each month, (months, levels) [h]. A plan for some paths is
    how many GPUs are taken at each of the `starts` on each, (paths, starts).
    """

    def __init__(self, terms: Terms, levels: Levels) -> None:
        self.terms, self.levels, self.starts = terms, levels, starts_of(terms)
        self._running = np.array([contract.running for contract in terms.contracts])
        self._rentals = [rental(terms.contracts, k, int(most)) for k, most in enumerate(levels.most.max(axis=0))]
        order = np.argsort(self._running, kind="stable")
        offers = np.array([-1 if contract.rented else contract.offer for contract in terms.contracts])[order]
        self._own = [order[offers == offer] for offer in range(len(self._rentals))]
        self._uses: dict[tuple[int, int, tuple[int, ...]], tuple[float, IntArray]] = {}

    def commitments(self, counts: IntArray) -> tuple[ContractedGpus, ...]:
        """So many GPUs at each start."""
        starts = zip(self.starts, counts.tolist(), strict=True)
        return tuple(replace(start, count=count) for start, count in starts if count)

    def cost(self, plan: IntArray, paths: Sequence[FloatArray], probabilities: FloatArray) -> float:
        """Expected cost of a plan [$]."""
        rows = zip(paths, map(self.commitments, plan), strict=True)
        return float(probabilities @ np.array([self.bill(*row).total for row in rows]))

    def plan(self, paths: Sequence[FloatArray], probabilities: FloatArray) -> tuple[IntArray, float]:
        """The programme's plan, and the least that any would cost [$].

        The programme thinks spot dearer in no number than it is, and may lean on it too much, so that it is asked
        without spot too, and the exact cost decides. The bound leaves out what owned GPUs cost in use or not.
        """
        firm = replace(self.terms, contracts=tuple(item for item in self.terms.contracts if item.spot is None))
        plans, bounds = [], []
        for case in [self.terms] if len(firm.contracts) == len(self.terms.contracts) else [self.terms, firm]:
            program, variables = buying_program(case, self.levels, paths, probabilities)
            solution = solve(program, gap=OPTIMAL_GAP, nodes=MOST_LOOKS)
            shape = len(paths), len(self.starts)
            plan = np.round(solution.x[variables]).astype(np.int64) if solution.x.size else np.zeros(shape, np.int64)
            plans.append(plan)
            bounds.append(max(solution.bound, 0.0))
        return min(plans, key=lambda plan: self.cost(plan, paths, probabilities)), bounds[0]

    def bill(self, path: FloatArray, commitments: Sequence[ContractedGpus]) -> Bill:
        """The exact cost of a path."""
        contracts, months = self.terms.contracts, len(path)
        value, fee, by_hour = np.zeros((3, months, len(contracts)))
        capacity = np.tile([contract.held for contract in contracts], (months, 1))
        fee += [contract.held * contract.monthly for contract in contracts]
        for commitment in commitments:
            contract, count = commitment.contract, commitment.count
            k, serves = contracts.index(contract), [month for month in range(months) if commitment.in_force(month)]
            capacity[serves, k] += count
            value[serves, k] += count * value_lost(contract, commitment.month, months) / len(serves)
            fee[serves, k] += count * fees(contract, commitment.month, months) / len(serves)
        hours: list[Hours] = []
        for month, level in np.argwhere(path).tolist():
            option, paid = self.cheapest(level, capacity[month])
            by_hour[month] += path[month, level] * self._running * paid
            hours.append(Hours(month, level, float(path[month, level]), option))
        return Bill(value, fee, by_hour, tuple(hours))

    def cheapest(self, level: int, capacity: IntArray) -> tuple[Option, IntArray]:
        """The option of a level that costs least, and GPUs paid for of each contract; capacity: held of each."""
        rows = [
            (option, [self.use(offer, need, capacity) for offer, need in enumerate(option.gpus)])
            for option in self.levels.options[level]
        ]
        option, uses = min(rows, key=lambda row: sum(cost for cost, _ in row[1]))
        return option, np.sum([paid for _, paid in uses], axis=0)

    def use(self, offer: int, need: int, capacity: IntArray) -> tuple[float, IntArray]:
        """The least cost of `need` GPUs of an offer [$/h], and GPUs paid for of each contract, (contracts,)."""
        own = self._own[offer]
        held_gpus = capacity[own]
        key = offer, need, tuple(held_gpus.tolist())
        if key not in self._uses:
            rent, rented_gpus = self._rentals[offer]
            running = np.append(0.0, np.cumsum(np.repeat(self._running[own], held_gpus)[:need]))
            total = running + rent[need - np.arange(running.size)]
            used = total.size - 1 - int(np.argmin(total[::-1]))
            paid = rented_gpus[need - used].copy()
            paid[own] = np.clip(used - (np.cumsum(held_gpus) - held_gpus), 0, held_gpus)
            self._uses[key] = float(total[used]), paid
        return self._uses[key]


# --- which fleets serve which rate -----------------------------------------------------------------------------------

MOST_OPTIONS = 100
"""Fleets of one level that are kept, of QUICK_CANDIDATES times as many of the cheapest."""


@dataclass(frozen=True, slots=True, eq=False)
class SizedFleet:
    """A fleet of one or two pools, and the instance at the rate that it is sized for; group: which requests it serves.

    All requests are group 0, or each SLO class is a group where no pool may serve two.
    """

    group: int
    instance: Instance
    fleet: Fleet

    @property
    def rate(self) -> float:
        """Arrivals that it is sized for [1/s]."""
        return float(self.instance.flows.rate.sum())

    @property
    def gpus(self) -> str:
        """Its GPUs in words, such as "4 H100 + 2 H200"."""
        offers, count = self.instance.problem.offers, fleet_gpus(self.instance, self.fleet).tolist()
        return " + ".join(f"{n} {offer.accelerator.name}" for offer, n in zip(offers, count, strict=True) if n)

    @property
    def pools(self) -> tuple[EnginePool, ...]:
        """Its pools, as every record of a fleet states them."""
        return tuple(engine_pools(self.instance, self.fleet))

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from every other."""
        return self.group, self.rate, fleet_key(self.fleet)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve a level of the rate: GPUs of each offer that are paid for, and the fleets side by side."""

    gpus: tuple[int, ...]
    fleets: tuple[SizedFleet, ...] = ()

    @property
    def pools(self) -> tuple[EnginePool, ...]:
        """The pools of all its fleets."""
        return tuple(pool for sized_fleet in self.fleets for pool in sized_fleet.pools)


@dataclass(frozen=True, slots=True)
class Levels:
    """Rates, ascending [1/s], and for each the ways to serve it; those of higher rates serve lower ones too."""

    rates: FloatArray
    options: tuple[tuple[Option, ...], ...]

    @property
    def most(self) -> IntArray:
        """GPUs of each offer that any option of a level takes, (levels, offers)."""
        return np.array([np.max([option.gpus for option in options], axis=0) for options in self.options])

    def level_of(self, rates: FloatArray) -> IntArray:
        """Number of the lowest level that serves each rate."""
        return np.searchsorted(self.rates * (1.0 + ROUNDING), rates).astype(np.int64)

    def excess(self, rates: FloatArray, weight: FloatArray) -> float:
        """By how much the levels that serve these rates are above them, Σ w u(r) / Σ w r − 1 [1]."""
        return float(self.rates[self.level_of(rates)] @ weight / (rates @ weight)) - 1.0


MOST_RATES = 1000
"""Rates among which levels are chosen; of more, neighbors count as the highest of them."""


def level_rates(rates: FloatArray, count: int, weight: FloatArray | None = None) -> FloatArray:
    """At most `count` of the given rates, such that the next higher of them exceed the rates least [1/s].

    Levels u_1 < … < u_k minimize Σ_r w_r (u(r) − r), u(r) the lowest level that serves r, w its weight (None: 1).
    Dynamic programming over the sorted rates: C_m(j) = min_i<j C_m−1(i) + u_j × weight from i to j is the least sum of
    levels over the rates up to u_j with m levels.

    >>> level_rates(np.array([1.0, 3.0, 3.0]), 4).tolist(), level_rates(np.array([1.0, 3.9, 4.0, 9.0]), 3).tolist()
    ([1.0, 3.0], [1.0, 4.0, 9.0])
    """
    distinct = np.unique(rates[rates > 0.0])
    level = distinct[:: -max(1, -(-distinct.size // MOST_RATES))][::-1] if distinct.size > count else distinct
    if level.size <= count:
        return level
    until = np.cumsum(np.bincount(np.searchsorted(level, rates), weight, level.size))
    cost, between = level * until, np.tril(until[:, None] - until, -1)
    below: list[IntArray] = []
    for _ in range(count - 1):
        total = np.where(between > 0.0, cost + level[:, None] * between, np.inf)
        below.append(total.argmin(axis=1))
        cost = total.min(axis=1)
    chosen = [level.size - 1]
    for lower in reversed(below):
        chosen.append(int(lower[chosen[-1]]))
    return level[chosen[::-1]]


def make_levels(
    rates: FloatArray,
    fleets: Sequence[Sequence[Option]],
    prices: Sequence[Sequence[float]] | None = None,
    fits: Callable[[Option], bool] = lambda _option: True,
) -> Levels:
    """Levels from the fleets found at each rate.

    A fleet serves every lower rate too, and two fleets side by side serve the sum of their rates, for each gets a
    random part of the arrivals. One that needs as much of every type as another one is left out, and of very many the
    dearest. prices: sets of $/h of one GPU of each type by which they are ranked; None: all alike. fits: whether two
    fleets side by side are within the limits on a fleet.
    """
    usable = [
        _best([option for options in fleets[level:] for option in options], prices) for level in range(rates.size)
    ]
    for level in range(rates.size):
        pairs = (
            side_by_side(pair)
            for low in range(level)
            for pair in product(
                usable[low], usable[int(np.searchsorted(rates, (rates[level] - rates[low]) * (1.0 - ROUNDING)))]
            )
        )
        usable[level] = _best([*usable[level], *filter(fits, pairs)], prices)
    return Levels(rates, tuple(usable))


def side_by_side(options: Sequence[Option]) -> Option:
    """Several options as one."""
    gpus = (sum(counts) for counts in zip(*(option.gpus for option in options), strict=True))
    return Option(tuple(gpus), tuple(sized_fleet for option in options for sized_fleet in option.fleets))


def _best(options: Sequence[Option], prices: Sequence[Sequence[float]] | None) -> tuple[Option, ...]:
    """Options that no other one beats in every type, the cheapest at some set of prices first, not too many."""
    first = {option.gpus: option for option in reversed(options)}
    if not first:
        return ()
    gpus = np.array(list(first), dtype=np.float64)
    cost = gpus @ np.atleast_2d(np.ones(gpus.shape[1]) if prices is None else np.array(prices)).T
    dearness = (cost / np.maximum(cost.min(axis=0), 1e-12)).min(axis=1)
    order = np.lexsort((*gpus.T, dearness))[: QUICK_CANDIDATES * MOST_OPTIONS]
    gpu_rows = gpus[order]
    beaten = (gpu_rows[:, None, :] >= gpu_rows[None, :, :]).all(axis=2).sum(axis=1) > 1
    return tuple(first[tuple(row)] for row in gpu_rows[~beaten][:MOST_OPTIONS].astype(int).tolist())


def within_limits(problem: Problem, option: Option) -> bool:
    """Whether an option is within every limit of the problem; its pools are counted as they are, none merged."""
    pools_fit = problem.constraints.fits(pool.role for sized_fleet in option.fleets for pool in sized_fleet.fleet.pools)
    return pools_fit and bool(gpus_within_limits(problem, np.array(option.gpus)))


def search_levels(
    problem: Problem,
    rates: FloatArray,
    prices: Sequence[Sequence[float]],
    progress: Progress = silent,
    misses: Sequence[SizedFleet] = (),
) -> Levels:
    """Search for the cheapest fleet at each rate, by formula: of all types together, and of one or two pools of each.

    Of so many for each SLO class where no pool may serve two. rates: ascending [1/s]; prices: sets of $/h of one GPU
    of each offer; the cheapest fleet at each set is found. misses: fleets that did not hold when simulated; neither do
    they at higher rates. Raises InputError where no engine can exist, or keep the SLOs even when idle.
    """
    markets = [market for usd in prices for market in _markets(problem, usd)]
    groups = [(instance, make_settings(instance)) for instance in _groups(problem)]
    fleets: list[list[Option]] = []
    for number, rate in enumerate(rates.tolist()):
        progress(f"fleets for {rate:.3g} req/s", 0.5 * number / rates.size)
        apart = []
        for group, (instance, settings) in enumerate(groups):
            search = FleetSearch.of(at_volume(instance, rate), settings)
            out = [
                engines_of(miss.instance, miss.fleet)
                for miss in misses
                if miss.group == group
                and miss.rate <= rate * miss.instance.problem.workload.request_rate * (1.0 + ROUNDING)
            ]
            cheapest = (_cheapest(group, search, market, out) for market in markets)
            apart.append({option.gpus: option for option in cheapest if option is not None}.values())
        together = [side_by_side(options) for options in product(*apart)]
        gpus = [paid_gpus(problem, np.array(option.gpus)).astype(int).tolist() for option in together]
        paid = (replace(option, gpus=tuple(row)) for option, row in zip(together, gpus, strict=True))
        fleets.append([option for option in paid if within_limits(problem, option)])
    return make_levels(rates, fleets, prices, lambda option: within_limits(problem, option))


def _markets(problem: Problem, prices: Sequence[float]) -> list[Problem]:
    """The problem with all offers at some prices, then with each alone."""
    priced_offers = zip(problem.offers, prices, strict=True)
    offers = [replace(offer, usd_per_hour=usd, tier_usd_per_hour=0.0) for offer, usd in priced_offers]
    alone = [[offer if offer is own else replace(offer, inventory=0) for offer in offers] for own in offers]
    return [replace(problem, offers=tuple(stock)) for stock in (offers, *(alone if len(offers) > 1 else ()))]


def _groups(problem: Problem) -> list[Instance]:
    """The instance of each group of requests at 1 request/s in all."""
    free = without_prices(replace(problem, workload=replace(problem.workload, request_rate=1.0)))
    whole = make_instance(free)
    check_shapes(free, whole.enumeration)
    check_floors(whole)
    classes = range(len(problem.slos)) if classes_apart(problem) else ()
    groups = [of_class(whole, k, Fleet(()), later=0) for k in classes] or [whole]
    return [as_planned(group) for group in groups]


def _cheapest(group: int, search: FleetSearch, market: Problem, known_misses: Sequence[Engines]) -> Option | None:
    """The cheapest fleet of a group on a market; of one that has all types a mixture too, unless that was refuted."""
    cheapest = cheapest_held(search.without(known_misses), market)
    if cheapest is None:
        return None
    fleet = search.fleet(cheapest[0])
    if all(offer.inventory != 0 for offer in market.offers):
        mixture = or_mixed(replace(search, instance=priced(search.instance, market)), fleet)
        missed = is_refuted(engines_of(search.instance, mixture), known_misses)
        fleet = fleet if missed or len(mixture.pools) == len(fleet.pools) else mixture
    sized_fleet = SizedFleet(group, search.instance, fleet)
    return Option(tuple(fleet_gpus(search.instance, fleet).tolist()), (sized_fleet,))
