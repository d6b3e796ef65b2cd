"""What one GPU costs under a contract, and the headroom of spot, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.contracts import (
    HOURS_PER_MONTH,
    Contract,
    ContractedGpus,
    Spot,
    Tier,
    commitment_cost,
    gpus_to_rent,
    hourly_price,
    least_use,
    payback_months,
    rental,
)


def reserved(price: float) -> Contract:
    return Contract(0, Tier.RESERVED_1, monthly=price * HOURS_PER_MONTH, term=12)


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
    assert payback_months(purchase, 2.0, use=0.5) == pytest.approx(20.0)
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


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.floats(0.5, 1.0), st.floats(0.5, 1.0), st.floats(0.5, 0.9999))
def test_more_availability_never_needs_more_gpus(most: int, first: float, second: float, target: float) -> None:
    low, high = sorted((first, second))
    assert (gpus_to_rent(most, Spot(low, 1, target)) >= gpus_to_rent(most, Spot(high, 1, target))).all()
