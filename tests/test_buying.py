"""Buying over time against sums done by hand, and what must hold whatever the prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator import Origin, Price, PriceBasis
from costmodel.errors import InfeasibleError, InputError
from optimizer.fleets.fleet import Fleet
from optimizer.loads.effort import Level
from optimizer.loads.instance import Instance
from optimizer.procurement.buying import (
    BuyingPlan,
    ContractedGpus,
    buy,
    buy_at,
    buying_program,
    commitment_cost,
    gpus_to_rent,
    hourly_price,
    least_use,
    path_of,
    payback_months,
    rental,
)
from optimizer.procurement.levels import Levels, Option, SizedFleet, make_levels, option_within_limits, search_levels
from optimizer.recommend.optimize import optimize
from reports.answers.buying import buying_dict, buying_document, months_table, paths_table
from reports.document import Column
from reports.views import terminal_view
from search_spaces.buying_terms import HOURS_PER_MONTH, Contract, DemandPath, Forecast, Spot, Terms, Tier, load_terms
from search_spaces.loader import load_problem, problem_of
from search_spaces.problem import Billing, Constraints, Problem
from tests.fleet_matrices import lp_text
from tests.golden_files import assert_golden
from tests.optimizer_cases import offer, problem

TEN_PER_GPU = make_levels(np.arange(1.0, 9.0), [[Option((n,))] for n in range(1, 9)])
"""One type: n GPUs serve n requests per second."""
FLAT = (1.0,) * 24
HALF_DAY = (1.0,) * 12 + (0.25,) * 12


def buying_text(found: BuyingPlan, width: int) -> str:
    return terminal_view(buying_document(found), width)


def terms(
    *contracts: Contract,
    rate: float = 4.0,
    months: int = 12,
    by_hour: tuple[float, ...] = FLAT,
    growth: dict[float, float] | float = 0.0,
    decide_every: int = 1,
    levels: int = 8,
) -> Terms:
    """growth: one, or the probability of each."""
    on_demand = Contract(0, Tier.ON_DEMAND, running=2.0)
    chances = growth if isinstance(growth, dict) else {growth: 1.0}
    paths = tuple(DemandPath(f"{each:+.0%}", each, chance) for each, chance in sorted(chances.items()))
    forecast = Forecast(months, rate, paths, by_hour, levels)
    return Terms(forecast, (on_demand, *contracts), draw=(1000.0,), decide_every=decide_every, electricity="$0.1/kWh")


def reserved(price: float) -> Contract:
    return Contract(0, Tier.RESERVED_1, monthly=price * HOURS_PER_MONTH, term=12)


def bought(stated: Terms, levels: Levels = TEN_PER_GPU, given: Problem | None = None) -> BuyingPlan:
    return buy_at(given or problem(), stated, levels)


def counts(found: BuyingPlan, tier: Tier) -> int:
    taken = (*found.now, *found.expected.later)
    return sum(one.count for one in taken if one.contract.tier is tier)


@pytest.mark.parametrize(("price", "taken"), [(0.99, 4), (1.01, 1), (2.01, 0)])
def test_peak_gpus_are_reserved_if_the_price_ratio_is_below_their_share_of_use(price: float, taken: int) -> None:
    """One GPU is in use all day, three more for half of it: those pay below half of the on-demand price."""
    found = bought(terms(reserved(price), by_hour=HALF_DAY))
    assert counts(found, Tier.RESERVED_1) == taken
    hand = taken * price + 2.0 * max(1 - taken, 0) + (0.0 if taken == 4 else 3 * 2.0 / 2)
    assert found.total == pytest.approx(hand * HOURS_PER_MONTH * 12)
    assert found.on_demand == pytest.approx((2.0 + 3.0) * HOURS_PER_MONTH * 12)


def test_a_purchase_pays_from_the_month_in_which_rent_exceeds_what_it_loses() -> None:
    """$24,000 over 24 months are $1,000 a month, hosting $100, power $0.10/h; on demand is $1,460 a month."""
    purchase = Contract(0, Tier.PURCHASE, running=0.1, monthly=100.0, once=24_000.0, life=24.0)
    found = bought(terms(purchase))
    assert counts(found, Tier.PURCHASE) == 4
    assert found.total == pytest.approx(4 * 12 * (1000 + 100 + 0.1 * HOURS_PER_MONTH))
    dearer = bought(terms(replace(purchase, once=32_000.0)))
    assert counts(dearer, Tier.PURCHASE) == 0


def next_month(price: float) -> Contract:
    """Reserved now for the second of two months."""
    return Contract(0, Tier.RESERVED_1, monthly=price * HOURS_PER_MONTH, term=1, delay=1)


@pytest.mark.parametrize(("price", "level"), [(1.9, 2), (1.7, 2), (1.5, 3), (1.3, 3), (1.1, 4), (0.7, 5), (0.3, 6)])
def test_the_level_reserved_is_the_newsvendor_quantile(price: float, level: int) -> None:
    """2 to 6 GPUs are needed, each as likely: P(need >= n) = 1, 1, 0.8, 0.6, 0.4, 0.2: n pays above p / 2."""
    growth = {0.5 * k: 0.2 for k in range(5)}
    found = bought(terms(next_month(price), rate=2.0, months=2, growth=growth, decide_every=2))
    chance = [1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    assert level == sum(share > price / 2.0 for share in chance)
    assert sum(one.count for one in found.now) == level
    assert found.total == pytest.approx((2 * 2.0 + level * price + 2.0 * sum(chance[level:])) * HOURS_PER_MONTH)
    assert found.gap == pytest.approx(0.0, abs=2e-3)


def test_what_is_signed_hedges() -> None:
    """4 GPUs with a chance of 0.6, else 1: at 0.75 of the rent the 2nd to 4th do not pay, though 4 are expected."""
    found = bought(terms(next_month(1.5), months=2, growth={-0.75: 0.4, 0.0: 0.6}, decide_every=2))
    assert [one.count for one in found.now] == [1]
    assert found.total == pytest.approx((4 * 2.0 + 1.5 + 0.6 * 3 * 2.0) * HOURS_PER_MONTH)
    assert found.hindsight == pytest.approx((4 * 2.0 + 0.6 * 4 * 1.5 + 0.4 * 1.5) * HOURS_PER_MONTH)
    told = " ".join(buying_text(found, 100).split())
    assert "Knowing the growth beforehand would save $657.00 on average." in told


TWO_TYPES = make_levels(
    np.array([1.0, 2.0, 4.0, 8.0]), [[Option((2 * n, 0)), Option((0, 3 * n)), Option((n, n))] for n in (1, 2, 4, 7)]
)


@settings(max_examples=15)
@given(
    st.lists(st.floats(0.3, 3.0), min_size=4, max_size=4), st.integers(0, 3), st.floats(0.5, 1.0), st.floats(-0.1, 0.15)
)
def test_a_cheaper_tier_never_raises_the_total(prices: list[float], which: int, cut: float, growth: float) -> None:
    def at(now: list[float]) -> Terms:
        contracts = (
            Contract(0, Tier.ON_DEMAND, running=now[0]),
            Contract(0, Tier.RESERVED_1, monthly=now[1] * HOURS_PER_MONTH, term=12),
            Contract(1, Tier.ON_DEMAND, running=now[2]),
            Contract(1, Tier.PURCHASE, running=0.1, monthly=now[3] * HOURS_PER_MONTH),
        )
        return Terms(Forecast(6, 2.0, (DemandPath("expected", growth),), HALF_DAY, 8), contracts, (700.0, 400.0))

    two = problem(offers=(offer("H100"), offer("A100-80")))
    before = bought(at(prices), TWO_TYPES, two)
    after = bought(at([price * (cut if k == which else 1.0) for k, price in enumerate(prices)]), TWO_TYPES, two)
    assert after.bound <= before.total * (1 + 1e-9)
    assert after.total <= before.total * (1 + 2e-3)
    assert before.bound <= before.total
    assert before.total <= before.on_demand * (1 + 1e-9)


def test_golden_programme() -> None:
    stated = terms(reserved(1.5), by_hour=HALF_DAY, months=2, growth={-0.75: 0.25, 0.0: 0.75})
    levels = make_levels(np.array([1.0, 4.0]), [[Option((1,))], [Option((4,)), Option((3,))]])
    paths = [path_of(stated, levels, path.growth) for path in stated.forecast.paths]
    program, _ = buying_program(stated, levels, paths, stated.forecast.probabilities)
    assert_golden("buying.lp", lp_text(program))


def dollars(text: str) -> float:
    return float(text.replace("$", "").replace(",", ""))


def test_every_total_is_the_sum_of_what_stands_above_it() -> None:
    """With a band, a contract of each kind, and 3 owned GPUs."""
    contracts = (
        reserved(1.325),
        Contract(0, Tier.PURCHASE, running=0.1, monthly=100.0, once=16_000.0, life=24.0, delay=2),
        Contract(0, Tier.SPOT, running=1.0, spot=Spot(0.95, 1, 0.99)),
        Contract(0, Tier.OWNED, running=0.2, monthly=50.0, held=1),
    )
    growth = {-0.05: 0.3, 0.0: 0.4, 0.0595: 0.3}
    found = bought(terms(*contracts, growth=growth, by_hour=HALF_DAY, decide_every=3))
    table = months_table(found)
    totals = [dollars(row[4]) for row in table.rows]
    assert totals[-1] == pytest.approx(sum(totals[:-1]), abs=0.5 * len(totals))
    assert totals[-1] == pytest.approx(found.expected.total, abs=0.51)
    assert table.columns[4] == Column("cost", "right")
    for row in table.rows:
        assert dollars(row[4]) == pytest.approx(sum(map(dollars, row[5:])), abs=3.0)
    rows = paths_table(found).rows
    mean = sum(0.01 * float(row[2].removesuffix(" %")) * dollars(row[4]) for row in rows[:-1])
    assert dollars(rows[-1][4]) == pytest.approx(mean, abs=2.0)
    assert found.total == pytest.approx(mean, abs=2.0)
    most = int(found.levels.most[:, 0].max())
    shown = " ".join(buying_text(found, 100).split())
    assert f"on spot (with the spares for {most} GPUs)" in shown
    assert "+5.95 % a month" in shown
    assert "$1.325/h" in shown


def test_spot_quotes_of_ones_own_that_no_contract_has_are_said_to_be_unused() -> None:
    quote = Price(1.45, 1.45, 1.45, 1, Origin.STATED, "quotes.csv", "2026-11-01", PriceBasis.SPOT)
    stated = offer("H100")
    stated = replace(stated, accelerator=replace(stated.accelerator, other_prices=(quote,)))
    spot = Contract(0, Tier.SPOT, running=1.0, spot=Spot(0.95, 1, 0.99))
    found = [bought(terms(*contracts), given=problem(offers=(stated,))) for contracts in ((), (spot,))]
    shown = [" ".join(buying_text(purchase, 100).split()) for purchase in found]
    assert ["Your spot quotes of H100 are not used: the terms need spot" in text for text in shown] == [True, False]


# --- fleets that a simulation refutes ---------------------------------------------------------------------------------


def rented(monkeypatch: pytest.MonkeyPatch, looks: int, judge: Callable[[float, int], str], rate: float = 20.0) -> Any:
    """A purchase of two months on demand; judge: what simulation says of a fleet, by the rate and its replicas."""

    def look(instance: Instance, fleet: Fleet, *_most: int) -> tuple[float, str]:
        fault = judge(instance.problem.workload.request_rate, sum(pool.replicas for pool in fleet.pools))
        return (0.5 if fault else 1.0), fault

    monkeypatch.setattr("optimizer.procurement.buying.look", look)
    return buy(problem(), terms(rate=rate, months=2, by_hour=HALF_DAY, levels=4), looks=looks)


def test_a_purchase_does_without_fleets_that_were_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    by_formula = rented(monkeypatch, 0, lambda _rate, _replicas: "")
    least, peak = by_formula.levels.options[-1][0].gpus[0], by_formula.levels.rates[-1]
    miss = "misses when simulated"
    purchase = rented(monkeypatch, 40, lambda rate, count: miss if count <= least and rate > 0.99 * peak else "")
    assert (by_formula.held, by_formula.missed) == ([], [])
    assert purchase.levels.options[-1][0].gpus[0] > least
    assert purchase.total > by_formula.total
    assert (purchase.missed, len(purchase.held)) == ([], purchase.fleets)
    record, shown = buying_dict(purchase)["fleets"], " ".join(buying_text(purchase, 100).split())
    assert (record["used"], record["simulated"]) == (purchase.fleets, purchase.fleets)
    assert record["refuted"]
    assert "were simulated at the request rate that they are bought for" in shown
    assert "Simulated and ruled out: " in shown
    assert "by formula, not simulated" in " ".join(buying_text(by_formula, 100).split())


def test_where_every_fleet_for_a_rate_misses_that_of_the_next_higher_rate_serves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    miss, peak = "misses when simulated", 400.0
    most = rented(monkeypatch, 0, lambda _rate, _count: "", peak).levels.options[-1][0].gpus[0]
    purchase = rented(monkeypatch, 40, lambda rate, count: miss if rate < peak and count < most else "", peak)
    assert (purchase.levels.rates.tolist(), purchase.missed) == ([peak], [])
    assert {sized_fleet.fleet.rate for sized_fleet in purchase.held} == {peak}
    assert "This purchase misses the SLO" not in buying_text(purchase, 100)
    hopeless = rented(monkeypatch, 40, lambda rate, _count: miss if rate > 10.0 else "")
    assert hopeless.missed
    assert "no fleet that was tried for this rate or a higher one meets it" in " ".join(
        buying_text(hopeless, 100).split()
    )


# --- what one GPU costs under a contract, and the headroom of spot, against sums done by hand


def test_a_term_is_paid_to_its_end() -> None:
    assert commitment_cost(reserved(1.0), 6, 12) == pytest.approx(12 * HOURS_PER_MONTH)
    assert commitment_cost(Contract(0, Tier.PURCHASE, once=1000.0, life=20.0), 2, 12) == pytest.approx(500.0)
    assert hourly_price(reserved(1.5), 12) == pytest.approx(1.5)
    assert not ContractedGpus(reserved(1.0), 0, 1).in_force(12)


def test_months_of_payback_and_least_use_by_hand() -> None:
    """$14,600 against $2/h: $1,460 a month are ten months; with $460 hosting 14.6, at half of the hours never less."""
    purchase = Contract(0, Tier.PURCHASE, once=14_600.0, life=48.0)
    assert payback_months(purchase, 2.0) == pytest.approx(10.0)
    assert payback_months(replace(purchase, monthly=460.0), 2.0) == pytest.approx(14.6)
    assert payback_months(replace(purchase, running=2.0), 2.0) == float("inf")
    interest = replace(purchase, interest=0.01)
    months = payback_months(interest, 2.0)
    assert sum(1460.0 / 1.01**month for month in range(1, 11)) < 14_600 < 1460 * (1 - 1.01**-months) / 0.01 + 1e-6
    assert 10.0 < months < 11.0
    assert least_use(replace(purchase, monthly=460.0), 2.0, 24) == pytest.approx((14_600 / 48 + 460) / 1460)
    assert least_use(reserved(1.5), 2.0, 24) == pytest.approx(0.75)


def test_interest_makes_the_charge_an_annuity() -> None:
    """12 payments of the annuity at 1 % a month, discounted, are the price."""
    contract = Contract(0, Tier.PURCHASE, once=1000.0, life=12.0, interest=0.01)
    assert sum(contract.charge / 1.01**month for month in range(1, 13)) == pytest.approx(1000.0)
    assert commitment_cost(contract, 0, 6) == pytest.approx(6 * contract.charge)
    assert replace(contract, interest=0.0).charge == pytest.approx(1000.0 / 12)


def test_headroom_of_spot_is_the_binomial_one() -> None:
    """P(Bin(n, 0.9) >= 3) is 0.729, 0.948, 0.991: five run so that three are there in 99 % of the time."""
    assert gpus_to_rent(3, Spot(0.9, 1, 0.99)).tolist() == [0, 2, 4, 5]
    assert gpus_to_rent(8, Spot(0.9, 8, 0.99)).tolist() == [0] + [16] * 8
    contract = Contract(0, Tier.SPOT, running=0.5, spot=Spot(0.9, 1, 0.99))
    cost, _ = rental([Contract(0, Tier.ON_DEMAND, running=2.0), contract], 0, 3)
    assert cost.tolist() == [0.0, 1.0, 2.0, 2.5]


@given(st.integers(1, 60), st.floats(0.5, 1.0), st.floats(0.5, 1.0), st.floats(0.5, 0.9999))
def test_more_availability_never_needs_more_gpus(most: int, first: float, second: float, target: float) -> None:
    low, high = sorted((first, second))
    assert (gpus_to_rent(most, Spot(low, 1, target)) >= gpus_to_rent(most, Spot(high, 1, target))).all()


# --- the terms of buying: the block of the workload file, a file of their own, options, and what is wrong in them


BLOCK = """
procurement:
  demand: {months: 6, growth: 0.1, low: 0.0, high: 0.1}
  electricity: {usd_per_kwh: 0.2}
  accelerators:
    - {name: H100, reserved_1_year: $2/h, owned: {gpus: 2, hosting_usd_per_month: 10}}
    - {name: B200, reserved_1_year: $3/h}
"""
FILE = """
model: Llama-3.1-8B
workload: {request_rate: 10/s, lengths: {histogram: [{isl: 500, osl: 200, share: 1}]}}
slo: {ttft: 1s, tpot: 50ms}
accelerators: [H100]
search: quick
"""


def test_a_forecast_beyond_the_limits_names_them() -> None:
    limited = problem(constraints=Constraints(budget=4.0, max_gpus=1))
    with pytest.raises(InfeasibleError, match=r"highest rate of the forecast, .* states \(budget, max_gpus\)$"):
        buy(limited, terms(rate=200.0))


def test_the_terms_stand_in_the_workload_file_and_options_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(FILE + BLOCK, "utf-8")
    given = load_problem(path, {"procurement.electricity.pue": "1.1"})
    stated = load_terms(given)
    assert [(one.growth, one.probability) for one in stated.forecast.paths] == [(0.0, 0.3), (0.1, 0.7)]
    owned = next(one for one in stated.contracts if one.tier is Tier.OWNED)
    assert owned.running == pytest.approx(given.offers[0].accelerator.tdp / 1000 * 1.1 * 0.2)
    assert stated.unused == ("B200",)
    assert {one.source for one in stated.contracts if one.committed} == {"workload file, procurement"}
    again = load_terms(problem_of(given.inputs, "echo", tmp_path))
    assert again == stated
    (tmp_path / "quotes.csv").write_text("accelerator,usd_per_hour,date\nH100,2,2026-10-01\n", "utf-8")
    quoted = load_terms(load_problem(path, {"prices": "quotes.csv"}))
    assert quoted.contracts[0].source == "your own on-demand price, 2026-10-01"
    (tmp_path / "quotes.csv").write_text("accelerator,usd_per_hour,date\n" + "H100,2,2026-10-01\n" * 2, "utf-8")
    several = load_terms(load_problem(path, {"prices": "quotes.csv"})).contracts[0].source
    assert several == "your own on-demand price, median over providers of 2 quotes, 2026-10-01"
    changed = load_terms(given, None, {"months": 3, "high": 0.2})
    assert changed.forecast.months == 3
    assert changed.forecast.paths[-1].growth == 0.2
    with pytest.raises(InputError, match=r"with --high, demand: .* but low is 0%, growth 10% and high -50%"):
        load_terms(given, None, {"high": -0.5})
    other = tmp_path / "terms.yaml"
    other.write_text("demand: {months: 9}\n", "utf-8")
    both = load_terms(given, other)
    assert (both.forecast.months, len(both.forecast.paths)) == (9, 1)
    assert any(one.tier is Tier.OWNED for one in both.contracts)


HOSTED = """
procurement:
  demand: {months: 1}
  electricity: {usd_per_kwh: 0.2, pue: 1.5}
  accelerators: {name: H100, owned: {gpus: 1, power: 1kW, hosting_usd_per_month: 73}}
"""


def test_optimize_and_buy_price_owned_gpus_alike(tmp_path: Path) -> None:
    """1 kW x 1.5 x $0.20/kWh and $73 a month are $0.40 an hour, for the budget and in the price of fleet and month."""
    path = tmp_path / "workload.yaml"
    owning = FILE.replace("[H100]", "[{name: H100, owned: 1, inventory: 0}]") + "constraints: {budget: $0.41/h}"
    path.write_text(owning + HOSTED, "utf-8")
    given = load_problem(path)
    assert [one.owned_usd_per_hour for one in given.offers if one.owned] == [pytest.approx(0.4)]
    mine = next(one for one in load_terms(given).contracts if one.tier is Tier.OWNED)
    assert hourly_price(mine, 1) == pytest.approx(mine.running + mine.monthly / HOURS_PER_MONTH) == pytest.approx(0.4)
    plan, bought = optimize(given, level=Level.QUICK), buy(given, load_terms(given))
    assert dict(plan.gpus) == {"H100": 1}
    assert plan.cost_usd_per_hour == pytest.approx(0.4)
    assert bought.total / HOURS_PER_MONTH == pytest.approx(0.4)
    assert bought.on_demand == pytest.approx(bought.total)
    peaks = [pool for month in buying_dict(bought)["by_month"] for pool in month["peak_fleet"]]
    assert {pool["usd_per_hour"] for pool in peaks} == {None}  # it depends on the contract


# --- which GPUs serve which rate: fleets searched for at every rate of a forecast, alone or side by side

A, B = (SizedFleet(0, Mock(), Fleet(())) for _ in range(2))


def test_fleets_are_searched_for_every_rate() -> None:
    two = problem(offers=(offer("H100"), offer("A100-80")))
    levels = search_levels(two, np.array([4.0, 40.0]), [[3.0, 2.0], [2.0, 3.0]])
    for options in levels.options:
        assert any(one.gpus[0] == 0 for one in options)
        assert any(one.gpus[1] == 0 for one in options)
    least = [min(sum(one.gpus) for one in options) for options in levels.options]
    assert least[0] < least[1]


def test_fleets_side_by_side_keep_the_limits_of_the_problem() -> None:
    few = problem(
        constraints=Constraints(max_gpus=2, power=5000.0, max_pools=3),
        offers=(offer(inventory=9, billing=Billing.NODE),),
    )
    assert option_within_limits(few, Option((2,), (A,)))
    assert not option_within_limits(few, Option((3,), (A,)))
    assert not option_within_limits(problem(offers=(offer(inventory=2),)), Option((3,), (A,)))
    assert not option_within_limits(problem(constraints=Constraints(budget=5.0)), Option((2,), (A,)))
    levels = search_levels(problem(constraints=Constraints(max_gpus=2)), np.array([4.0, 8.0, 400.0]), [[3.0]])
    assert [max((one.gpus[0] for one in options), default=0) for options in levels.options] == [1, 1, 0]
    nodes = search_levels(problem(offers=(offer(billing=Billing.NODE),)), np.array([4.0]), [[3.0]])
    assert [one.gpus for one in nodes.options[0]] == [(8,)]
    (one, *_) = levels.options[0]
    beside = len(one.pools)
    for most, fits in ((4 * beside, True), (4 * beside - 1, False)):
        counted = problem(constraints=Constraints(max_pools=most))
        assert option_within_limits(counted, replace(one, fleets=4 * one.fleets)) is fits
