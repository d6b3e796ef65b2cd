"""Buying over time: which GPUs to reserve or buy now, which later and what to rent, when the growth is uncertain.

A stochastic programme (`buying_program`) chooses; what is reported is the exact cost, hour by hour (`Dispatcher.bill`):
owned, reserved and bought GPUs serve first, by their running cost; what they lack is rented, spot with its headroom or
on demand, in whole GPUs and whole fleets. The gap lies between the two. The bound knows no fleets but those of the
levels. Fleets that a choice counts on are simulated at the rate that they are bought for, and the choice is made again
without those that miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.errors import InfeasibleError
from costmodel.units import HOURS_PER_DAY, KILO
from optimizer.loads.effort import Progress, silent
from optimizer.plans.records import CANDIDATES, MOST_LOOKS, OPTIMAL_GAP
from optimizer.search.program import Builder, Program, solve
from optimizer.search.search import smallest_batches
from optimizer.verification.bench import look
from search_spaces.bounds import PRICE
from search_spaces.buying_terms import HOURS_PER_MONTH, Contract, Spot, Terms, Tier
from search_spaces.problem import Problem

from .levels import Levels, Option, SizedFleet, level_rates, levels_without, search_levels

# What a contract costs.


@dataclass(frozen=True, slots=True)
class ContractedGpus:
    """GPUs taken under a contract; month: of the decision; first: of the use."""

    contract: Contract
    month: int
    count: int

    @property
    def first(self) -> int:
        """First month in which they serve."""
        return self.month + self.contract.delay

    def in_force(self, month: int) -> bool:
        """Whether they serve in a month."""
        term = self.contract.term
        return self.first <= month and (term is None or month < self.first + term)


def value_lost(contract: Contract, month: int, months: int) -> float:
    """Value that one GPU bought in a month loses up to the horizon [$]."""
    months_left = months - month - contract.delay
    return contract.once if contract.life is None else contract.charge * min(months_left, contract.life)


def fees(contract: Contract, month: int, months: int) -> float:
    """Hosting of one GPU up to the horizon, or what reserving it costs for the whole term, also beyond it [$]."""
    months_left = months - month - contract.delay
    return contract.monthly * (months_left if contract.term is None else contract.term)


def commitment_cost(contract: Contract, month: int, months: int) -> float:
    """What one GPU taken in a month costs up to the horizon, used or not [$]."""
    return value_lost(contract, month, months) + fees(contract, month, months)


def hourly_price(contract: Contract, months: int) -> float:
    """What one GPU in use all the time costs under a contract, held from the first month on [$/h]."""
    if contract.rented:
        spot = contract.spot
        return contract.running / (1.0 if spot is None else spot.availability)
    held = contract.term or max(months - contract.delay, 1)
    return contract.running + commitment_cost(contract, 0, max(months, held + contract.delay)) / held / HOURS_PER_MONTH


def least_use(contract: Contract, rent: float, months: int) -> float:
    """Share of the hours from which one GPU under a contract costs less than rented by the hour [1]; infinite: never.

    u (p - running) = fixed, fixed: its price in use all the time less `running`; p: `rent` [$/h].

    >>> least_use(Contract(0, Tier.RESERVED_1, monthly=730.0, term=12), 2.0, 24)
    0.5
    """
    fixed, saved = hourly_price(contract, months) - contract.running, rent - contract.running
    return fixed / saved if saved > 0.0 else math.inf


def payback_months(contract: Contract, rent: float) -> float:
    """Months after which a GPU bought has saved its whole price against renting [months]; infinite: never.

    C = s (1 - (1 + r)^-m) / r, and C = s m where r is 0; s = (p - running) 730 h - monthly: saved in a month.
    C: its price [$]; r: interest [1/month]; p: `rent` [$/h].

    >>> payback_months(Contract(0, Tier.PURCHASE, once=14_600.0), 2.0)
    10.0
    """
    saved = (rent - contract.running) * HOURS_PER_MONTH - contract.monthly
    if saved <= contract.once * contract.interest:
        return math.inf
    if contract.interest == 0.0:
        return contract.once / saved
    return -math.log1p(-contract.once * contract.interest / saved) / math.log1p(contract.interest)


def gpus_to_rent(most: int, spot: Spot) -> IntArray:
    """GPUs to rent so that m of them are there with the target's probability, for every m = 0 .. most.

    The least whole instances n with P(Bin(n, availability) >= those of m) >= target: each is there independently of
    the others. With 90 %, two run so that one is there in 99 % of the time: 1 - 0.1^2 = 0.99.

    >>> gpus_to_rent(1, Spot(0.9, 1, 0.98)).tolist(), gpus_to_rent(3, Spot(1.0, 2, 0.98)).tolist()
    ([0, 2], [0, 2, 2, 4])
    """
    whole = -(-np.arange(most + 1) // spot.instance)
    needed = [0]
    there = np.zeros(int(whole[-1]) + 2)  # chance of exactly 0, 1, .. instances; the last cell holds all above
    there[0] = 1.0
    running = 0
    while len(needed) <= whole[-1]:
        running += 1
        grown = (1.0 - spot.availability) * there
        grown[1:] += spot.availability * there[:-1]
        grown[-1] += spot.availability * there[-1]
        there = grown
        at_least = there[::-1].cumsum()[::-1]
        while len(needed) <= whole[-1] and at_least[len(needed)] >= spot.target:
            needed.append(running)
    return np.array(needed, dtype=np.int64)[whole] * spot.instance


def rental(contracts: Sequence[Contract], offer: int, most: int) -> tuple[FloatArray, IntArray]:
    """The cheapest rent of every number of GPUs of an offer up to `most`, on demand and spot.

    cost(m) = min_j spot_price x rented(j) + price (m - j)
    Returns it, (most + 1,) [$/h], and the GPUs that are paid for, (most + 1, contracts).
    """
    count = np.arange(most + 1)
    price, firm = next(
        (contract.running, k)
        for k, contract in enumerate(contracts)
        if contract.offer == offer and contract.rented and contract.spot is None
    )
    cost, paid = np.asarray(price * count, np.float64), np.zeros((most + 1, len(contracts)), np.int64)
    paid[:, firm] = count
    for k, contract in enumerate(contracts):
        if contract.offer == offer and contract.spot is not None:
            rented = gpus_to_rent(most, contract.spot)
            saved = contract.running * rented - cost
            best = np.minimum.accumulate(saved)
            spot = np.maximum.accumulate(np.where(saved <= best, count, 0))
            cost, paid[:, firm], paid[:, k] = cost + best, count - spot, rented[spot]
    return cost, paid


# The plan.


@dataclass(frozen=True, slots=True)
class FleetCheck:
    """A simulated fleet: share of its requests within their SLOs [1], and how it misses ("" if it does not).

    used: whether the plan uses it; after the last round a plan may still use fleets that missed.
    """

    fleet: SizedFleet
    attainment: float
    fault: str
    used: bool = False


@dataclass(frozen=True, slots=True)
class BuyingPlan:
    """The answer: commitments of the first month, and an outcome for every path of the forecast.

    bound: least expected cost of any choice [$]; fleets: those that it uses; looks: all that were simulated, those
    that it avoids because they missed included.
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
        """Fleets that it uses and that met the SLO."""
        return [item for item in self.looks if item.used and not item.fault]

    @property
    def missed(self) -> list[FleetCheck]:
        """Fleets that it uses although they missed."""
        return [item for item in self.looks if item.used and item.fault]

    @property
    def refuted(self) -> list[FleetCheck]:
        """Fleets that missed and that it avoids."""
        return [item for item in self.looks if item.fault and not item.used]

    @property
    def total(self) -> float:
        """Expected cost over the horizon [$]."""
        return self._mean([outcome.total for outcome in self.outcomes])

    @property
    def on_demand(self) -> float:
        """Expected cost of renting all that is not owned on demand, by the hour [$]."""
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
    """Choose what to reserve and buy for a forecast; what is owned is a contract of the terms too.

    looks: fleets that are simulated at most, of those that serve some hour of some path. Where one misses, fleets and
    commitments are chosen again without it. CANDIDATES times, another fleet is searched for its rate. After that, the
    rate gets a fleet of a higher rate. `BuyingPlan.missed` has what still misses.
    Raises InfeasibleError when no fleet serves the highest rate of the forecast.
    """
    rates_ahead, chances = terms.forecast.every_rate
    rates, prices = level_rates(rates_ahead, terms.forecast.levels, chances), _prices(problem, terms)
    looked: dict[tuple[object, ...], FleetCheck] = {}
    for number in count():
        misses = [item for item in looked.values() if item.fault]
        refuted_fleets = [miss.fleet for miss in misses]
        if number <= CANDIDATES:
            levels = search_levels(problem, rates, prices, progress or silent, refuted_fleets)
        elif (fewer := levels_without(levels, refuted_fleets, problem, prices)) is not None:
            levels = fewer
        else:
            break
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
        for place, sized_fleet in enumerate(new):
            label = f"simulating {sized_fleet.gpus} at {sized_fleet.rate:.3g} req/s"
            (progress or silent)(label, 0.5 + 0.5 * place / len(new))
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
    """Fleets that serve some hour, by rate level from the highest, then by the hours that they serve."""
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
    renter = tuple(contract for contract in terms.contracts if contract.tier in {Tier.ON_DEMAND, Tier.OWNED})
    rent = Dispatcher(replace(terms, contracts=renter), levels)
    sunk = sum(contract.held * contract.monthly * terms.forecast.months for contract in terms.contracts)
    outcomes = []
    for path, counts in zip(paths, best, strict=True):
        bill, sure = dispatcher.bill(path, dispatcher.commitments(counts)), np.ones(1)
        plans = () if len(paths) == 1 else (dispatcher.plan([path], sure)[0], nothing[:1])
        hindsight = min([bill.total, *(dispatcher.cost(plan, [path], sure) for plan in plans)])
        later = dispatcher.commitments(np.where(first, 0, counts))
        outcomes.append(replace(bill, later=later, best=hindsight, all_rented=rent.bill(path, ()).total))
    return BuyingPlan(
        problem=problem,
        terms=terms,
        levels=levels,
        now=dispatcher.commitments(np.where(first, best[0], 0)),
        outcomes=tuple(outcomes),
        bound=min(bound + sunk, dispatcher.cost(best, paths, chances)),
    )


def path_of(terms: Terms, levels: Levels, growth: float) -> FloatArray:
    """Hours at each level in each month, (months, levels) [h], if the rate grows by this factor per month [1]."""
    level = levels.level_of(terms.forecast.rates(growth))
    hours = np.zeros((terms.forecast.months, levels.rates.size))
    np.add.at(hours, (np.arange(terms.forecast.months)[:, None], level), HOURS_PER_MONTH / HOURS_PER_DAY)
    return hours


def starts_of(terms: Terms) -> list[ContractedGpus]:
    """One GPU under every contract, in every month in which it can be signed."""
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
    first month; best: the least with hindsight, all_rented: all that is not owned on demand, by the hour [$].
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
        """The sum of all parts, (months, contracts) [$]."""
        return np.asarray(self.value + self.fees + self.by_hour)

    @property
    def total(self) -> float:
        """The total [$]."""
        return float(self.by_month.sum())


class Dispatcher:
    """Chooses options and contracts hour by hour, and caches what a number of GPUs costs beside given capacities.

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
        """Commitments of this many GPUs at each start."""
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
        """The cheapest option of a level, and the GPUs paid for under each contract; capacity: GPUs held under each."""
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
