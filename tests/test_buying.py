"""Buying over time against sums done by hand, and what must hold whatever the prices."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InfeasibleError, InputError
from optimizer.procurement.buying import (
    Bought,
    Commitment,
    buy,
    buy_at,
    buying_program,
    commitment_cost,
    hourly_price,
    path_of,
)
from optimizer.procurement.dispatch import Dispatcher, rental
from optimizer.procurement.fleet_levels import (
    MOST_OPTIONS,
    Levels,
    Option,
    level_rates,
    make_levels,
    search_levels,
    within_limits,
)
from optimizer.procurement.spot_headroom import gpus_to_rent, instances_needed
from optimizer.solver.program import lp_text
from reports.buying_text import buying_dict, buying_text
from search_spaces.buying_terms import HOURS_PER_MONTH, Contract, Forecast, Spot, Terms, Tier, load_terms
from search_spaces.problem import Billing, Constraints, Problem
from tests.optimizer_cases import offer, problem

TEN_PER_GPU = make_levels(np.arange(1.0, 9.0), [[Option((n,), (f"{n} x H100",))] for n in range(1, 9)])
"""One type: n GPUs serve n requests per second."""
FLAT = (1.0,) * 24
HALF_DAY = (1.0,) * 12 + (0.25,) * 12


def terms(
    *contracts: Contract,
    rate: float = 4.0,
    months: int = 12,
    by_hour: tuple[float, ...] = FLAT,
    growth: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Terms:
    on_demand = Contract(0, Tier.ON_DEMAND, running=2.0)
    forecast = Forecast(months, rate, growth, by_hour, levels=8)
    return Terms(forecast, (on_demand, *contracts), draw=(1000.0,), decide_every=1)


def reserved(price: float, years: int = 1) -> Contract:
    tier = Tier.RESERVED_1 if years == 1 else Tier.RESERVED_3
    return Contract(0, tier, monthly=price * HOURS_PER_MONTH, term=12 * years)


def bought(stated: Terms, levels: Levels = TEN_PER_GPU, given: Problem | None = None) -> Bought:
    return buy_at(given or problem(), stated, levels)


def counts(found: Bought, tier: Tier) -> int:
    return sum(one.count for one in found.commitments if one.contract.tier is tier)


@pytest.mark.parametrize(("price", "taken"), [(1.99, 4), (2.01, 0)])
def test_flat_demand_is_reserved_if_that_is_cheaper_than_on_demand(price: float, taken: int) -> None:
    found = bought(terms(reserved(price)))
    assert counts(found, Tier.RESERVED_1) == taken
    assert found.bill.total == pytest.approx(4 * min(price, 2.0) * HOURS_PER_MONTH * 12)
    assert found.gap == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("price", "taken"), [(0.99, 4), (1.01, 1), (2.01, 0)])
def test_peak_gpus_are_reserved_if_the_price_ratio_is_below_their_share_of_use(price: float, taken: int) -> None:
    """One GPU is in use all day, three more for half of it: those pay below half of the on-demand price."""
    found = bought(terms(reserved(price), by_hour=HALF_DAY))
    assert counts(found, Tier.RESERVED_1) == taken
    hand = taken * price + 2.0 * max(1 - taken, 0) + (0.0 if taken == 4 else 3 * 2.0 / 2)
    assert found.bill.total == pytest.approx(hand * HOURS_PER_MONTH * 12)
    assert found.on_demand == pytest.approx((2.0 + 3.0) * HOURS_PER_MONTH * 12)
    assert found.fixed == pytest.approx(8.0 * HOURS_PER_MONTH * 12)


def test_a_purchase_pays_from_the_month_in_which_rent_exceeds_what_it_loses() -> None:
    """$24,000 over 24 months are $1,000 a month, hosting $100, power $0.10/h; on demand is $1,460 a month."""
    purchase = Contract(0, Tier.PURCHASE, running=0.1, monthly=100.0, once=24_000.0, life=24.0)
    found = bought(terms(purchase))
    assert counts(found, Tier.PURCHASE) == 4
    assert found.bill.total == pytest.approx(4 * 12 * (1000 + 100 + 0.1 * HOURS_PER_MONTH))
    dearer = bought(terms(replace(purchase, once=32_000.0)))
    assert counts(dearer, Tier.PURCHASE) == 0


def test_delivery_leaves_the_first_months_to_rent() -> None:
    found = bought(terms(Contract(0, Tier.PURCHASE, monthly=100.0, delay=3)))
    assert [one.first for one in found.commitments] == [3]
    assert found.bill.by_month[:3].sum() == pytest.approx(3 * 4 * 2.0 * HOURS_PER_MONTH)


def test_owned_gpus_cost_power_and_hosting_only_and_serve_first() -> None:
    owned = Contract(0, Tier.OWNED, running=0.2, monthly=50.0, held=3)
    found = bought(terms(owned))
    assert found.bill.total == pytest.approx(12 * (3 * 50 + (3 * 0.2 + 1 * 2.0) * HOURS_PER_MONTH))
    assert found.on_demand == pytest.approx(12 * (3 * 50 + 4 * 2.0 * HOURS_PER_MONTH))


def test_a_term_is_paid_to_its_end() -> None:
    assert commitment_cost(reserved(1.0), 6, 12) == pytest.approx(12 * HOURS_PER_MONTH)
    assert commitment_cost(Contract(0, Tier.PURCHASE, once=1000.0, life=20.0), 2, 12) == pytest.approx(500.0)
    assert hourly_price(reserved(1.5), 12) == pytest.approx(1.5)
    assert not Commitment(reserved(1.0), 0, 1).in_force(12)


def test_growth_that_does_not_come_costs_what_was_reserved_for_it() -> None:
    """Four GPUs are reserved; were the rate to fall by half a month, hindsight would rent what is needed."""
    found = bought(terms(reserved(1.0), growth=(-0.5, 0.0, 0.0)))
    assert counts(found, Tier.RESERVED_1) == 4
    assert found.low.cost == pytest.approx(4 * 1.0 * HOURS_PER_MONTH * 12)
    used = (4 + 2 + 1) * 2.0 + 9 * 2.0  # on demand; one is always needed
    least = min(used, 12 * 1.0 + (3 + 1) * 2.0)
    assert found.low.best == pytest.approx(least * HOURS_PER_MONTH)
    assert found.low.regret == pytest.approx(found.low.cost - found.low.best)
    assert found.high.regret == pytest.approx(0.0)


def test_headroom_of_spot_is_the_binomial_one() -> None:
    """P(Bin(n, 0.9) >= 3) is 0.729, 0.948, 0.991: five run so that three are there in 99 % of the time."""
    assert instances_needed(3, 0.9, 0.99) == (0, 2, 4, 5)
    assert gpus_to_rent(8, 0.9, 0.99, 8).tolist() == [0] + [16] * 8
    contract = Contract(0, Tier.SPOT, running=0.5, spot=Spot(0.9, 1, 0.99))
    mixed = rental([Contract(0, Tier.ON_DEMAND, running=2.0), contract], 3)
    assert mixed.cost.tolist() == [0.0, 1.0, 2.0, 2.5]


def test_spot_below_the_headroom_is_not_rented() -> None:
    dear = Contract(0, Tier.SPOT, running=1.9, spot=Spot(0.9, 1, 0.99))
    assert rental([Contract(0, Tier.ON_DEMAND, running=2.0), dear], 5).spot.tolist() == [0] * 6


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.floats(0.5, 1.0), st.floats(0.5, 1.0), st.floats(0.5, 0.9999))
def test_more_availability_never_needs_more_gpus(most: int, first: float, second: float, target: float) -> None:
    low, high = sorted((first, second))
    assert all(
        a >= b for a, b in zip(instances_needed(most, low, target), instances_needed(most, high, target), strict=True)
    )


TWO_TYPES = make_levels(
    np.array([1.0, 2.0, 4.0, 8.0]),
    [[Option((2 * n, 0), ()), Option((0, 3 * n), ()), Option((n, n), ())] for n in (1, 2, 4, 7)],
)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.floats(0.3, 3.0), min_size=4, max_size=4),
    st.integers(0, 3),
    st.floats(0.5, 1.0),
    st.floats(-0.1, 0.15),
)
def test_a_cheaper_tier_never_raises_the_total(prices: list[float], which: int, cut: float, growth: float) -> None:
    def at(now: list[float]) -> Terms:
        contracts = (
            Contract(0, Tier.ON_DEMAND, running=now[0]),
            Contract(0, Tier.RESERVED_1, monthly=now[1] * HOURS_PER_MONTH, term=12),
            Contract(1, Tier.ON_DEMAND, running=now[2]),
            Contract(1, Tier.PURCHASE, running=0.1, monthly=now[3] * HOURS_PER_MONTH),
        )
        return Terms(Forecast(6, 2.0, (growth,) * 3, HALF_DAY, 8), contracts, (700.0, 400.0))

    two = problem(offers=(offer("H100"), offer("A100-80")))
    before = bought(at(prices), TWO_TYPES, two)
    after = bought(at([price * (cut if k == which else 1.0) for k, price in enumerate(prices)]), TWO_TYPES, two)
    assert after.bound <= before.bill.total * (1 + 1e-9)
    assert after.bill.total <= before.bill.total * (1 + 2e-3)
    assert before.bound <= before.bill.total
    assert before.bill.total <= before.on_demand * (1 + 1e-9)


def test_the_programme_finds_what_trying_everything_finds() -> None:
    stated = terms(reserved(1.1), by_hour=HALF_DAY, growth=(0.03, 0.03, 0.03))
    found = bought(stated)
    levels, best = TEN_PER_GPU, float("inf")
    rates = stated.forecast.rates(0.03)
    need = levels.level_of(rates) + 1
    for count in range(7):
        rented = np.maximum(need - count, 0).sum() * 2.0 * HOURS_PER_MONTH / 24
        best = min(best, rented + count * 1.1 * HOURS_PER_MONTH * 12)
    assert found.bill.total <= best * (1 + 1e-9)
    assert found.bound <= best * (1 + 1e-9)


def test_two_fleets_side_by_side_serve_the_sum_of_their_rates() -> None:
    levels = make_levels(np.array([1.0, 2.0, 3.0]), [[Option((1, 0), ("a",)), Option((0, 1), ("b",))], [], []])
    assert {one.gpus for one in levels.options[2]} == {(3, 0), (2, 1), (1, 2), (0, 3)}
    assert levels.options[2][0].pools in {("a",) * 3, ("b",) * 3, ("a", "a", "b"), ("a", "b", "b"), ("b", "b", "a")}


def test_level_rates_cover_the_highest() -> None:
    rates = np.linspace(1.0, 50.0, 200)
    assert level_rates(rates, 6)[-1] == 50.0
    assert level_rates(rates, 1).tolist() == [50.0]
    levels = Levels(level_rates(rates, 6), ())
    assert (levels.rates[levels.level_of(rates)] >= rates * (1 - 1e-9)).all()


def test_of_very_many_mixes_the_cheapest_are_kept() -> None:
    found = [[Option(tuple(int(k == t) for k in range(4)), (f"{t}",)) for t in range(4)]] + [[] for _ in range(11)]
    levels = make_levels(np.arange(1.0, 13.0), found, [[1.0, 2.0, 3.0, 4.0]])
    assert len(levels.options[-1]) == MOST_OPTIONS
    assert levels.options[-1][0].gpus == (12, 0, 0, 0)


def test_golden_programme() -> None:
    stated = terms(reserved(1.5), by_hour=HALF_DAY, months=2)
    levels = make_levels(np.array([1.0, 4.0]), [[Option((1,), ())], [Option((4,), ()), Option((3,), ())]])
    path = path_of(stated, levels, 0.0)
    program, _ = buying_program(stated, levels, path, [(stated.contracts[1], 0), (stated.contracts[1], 1)])
    golden = Path(__file__).parent / "golden" / "buying.lp"
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        golden.write_text(lp_text(program), "utf-8")
    assert lp_text(program) == golden.read_text("utf-8")


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
    assert within_limits(few, Option((2,), ("a",)))
    assert not within_limits(few, Option((3,), ("a",)))
    assert not within_limits(few, Option((2,), ("a",) * 4))
    assert not within_limits(problem(offers=(offer(inventory=2),)), Option((3,), ("a",)))
    assert not within_limits(problem(constraints=Constraints(budget=5.0)), Option((2,), ("a",)))
    levels = search_levels(problem(constraints=Constraints(max_gpus=2)), np.array([4.0, 8.0, 400.0]), [[3.0]])
    assert [max((one.gpus[0] for one in options), default=0) for options in levels.options] == [1, 1, 0]
    nodes = search_levels(problem(offers=(offer(billing=Billing.NODE),)), np.array([4.0]), [[3.0]])
    assert [one.gpus for one in nodes.options[0]] == [(8,)]


def test_a_forecast_that_no_fleet_carries_is_infeasible() -> None:
    few = problem(constraints=Constraints(max_gpus=1))
    with pytest.raises(InfeasibleError, match="no fleet meets the SLOs at 400/s, the highest rate of the forecast"):
        buy(few, terms(rate=400.0))


def test_own_gpus_stay_off_where_renting_costs_less() -> None:
    owned = Contract(0, Tier.OWNED, running=3.0, held=4)
    dispatcher = Dispatcher((Contract(0, Tier.ON_DEMAND, running=2.0), owned), TEN_PER_GPU)
    assert dispatcher.use(0, 4, {owned: 4}).used[owned] == 0


def test_text_and_json_say_the_same_figures() -> None:
    found = bought(terms(reserved(1.0), growth=(-0.05, 0.0, 0.05)))
    told, data = buying_text(found, 100), buying_dict(found)
    assert told.startswith(
        "Commit to 4 × H100 reserved 1 year in month 1; rent the rest by the hour. 12 months cost $35,040"
    )
    assert data["total_usd"] == pytest.approx(35_040)
    assert sum(sum(month["usd"].values()) for month in data["by_month"]) == pytest.approx(data["total_usd"])
    assert data["wrong_forecast"]["low"]["regret_usd"] >= 0.0
    assert data["energy_kwh"] == pytest.approx(4 * HOURS_PER_MONTH * 12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerators: [{name: H10O, owned: {gpus: 8}}]", "'H10O' is not in the workload file; did you mean 'H100'?"),
        ("demand: {growth: 0.1, low: 0.2}", "needs low <= growth <= high, but has 0.2, 0.1 and 0.1"),
        ("demand: {by_hour: [1, 2]}", "has 2 rates, but a day has 24 hours"),
        ("demand: {month: 3}", "is not a known key; did you mean 'months'?"),
        ("accelerators: [{name: H100, spot: {price: 1}}]", "interruptions_per_day: is missing"),
        (
            "accelerators: [{name: H100, spot: {price: 1, interruptions_per_day: 100, recovery: 1h}}]",
            "is away more than half of the time",
        ),
        ("accelerators: [{name: H100}, {name: H100}]", "H100 stands twice"),
    ],
)
def test_faults_of_the_terms_are_told_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as error:
        load_terms(path, problem())
    assert message in str(error.value)
    assert "terms.yaml:1:" in str(error.value)


def test_terms_are_read_with_their_units(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(
        "electricity: {usd_per_kwh: 0.2, pue: 1.5, grams_co2_per_kwh: 300}\n"
        "accelerators:\n"
        "  - name: h100\n"
        "    on_demand: $3/h\n"
        "    spot: {price: 1.5, interruptions_per_day: 6, recovery: 40min}\n"
        "    purchase: {capex_usd: 30000, power: 1.2kW, hosting_usd_per_month: 90}\n",
        "utf-8",
    )
    stated = load_terms(path, problem())
    rent, spot, purchase = stated.contracts
    assert (rent.running, spot.running) == (3.0, 1.5)
    assert spot.spot is not None
    assert spot.spot.availability == pytest.approx(6 / 7)
    assert purchase.running == pytest.approx(1.2 * 1.5 * 0.2)
    assert (purchase.monthly, purchase.once, purchase.life) == (90, 30_000, 48)
    assert stated.draw == (1800.0,)
    assert stated.grams_per_kwh == 300
