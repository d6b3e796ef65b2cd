"""Numbers are rounded once, in one place, and never lie: no -0, no rounding to all or nothing, no NaN."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.numbers import (
    duration,
    hourly,
    money,
    monthly,
    percent,
    power_of_two,
    quantity,
    rate,
    round_significant,
    si,
    signed_percent,
    significant,
)

WRITERS = (duration, hourly, money, percent, rate, signed_percent, significant)


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_not_known_is_a_dash(write) -> None:
    assert write(None) == "–"
    assert write(math.nan) == "–"
    assert write(math.inf) == "∞"


@given(st.floats(-1e12, 1e12))
@settings(deadline=None, max_examples=100)
def test_minus_zero_and_exponents_are_never_written(value: float) -> None:
    for write in WRITERS:
        text = write(value)
        assert not text.startswith("-0 ")
        assert text not in {"-0", "-$0", "-0 s", "-0 %"}
        assert "e+" not in text


@given(st.floats(1e-9, 1e9))
@settings(deadline=None, max_examples=100)
def test_three_digits_keep_the_value_within_half_a_per_cent(value: float) -> None:
    assert float(significant(value).replace(",", "")) == pytest.approx(value, rel=0.0051)
    assert round_significant(value) == pytest.approx(value, rel=0.0051)


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
@settings(deadline=None, max_examples=100)
def test_a_share_between_is_never_written_as_all_or_nothing(share: float) -> None:
    assert percent(share) not in {"0 %", "100 %"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000412, "412 µs"), (0.5852, "585 ms"), (0.99951, "1 s"), (2.1, "2.1 s"), (119.6, "1.99 min"), (5400, "90 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.965, "1", "96.5 %"), (30, "$/h", "$30.00/h"), (0.6, "s", "600 ms"), (7000, "W", "7 kW"), (6, "GPU", "6 GPUs")],
)
def test_quantities_follow_their_unit(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_prices_and_prefixes() -> None:
    assert [money(v) for v in (0, 0.0123, 9.916, 999.999, 29492)] == ["$0", "$0.0123", "$9.92", "$1,000", "$29,492"]
    assert monthly(40.4) == "$29,492"
    assert [si(v, "B/s") for v in (0, 999.9, 5.1e9, 4.8e12)] == ["0 B/s", "1 kB/s", "5.1 GB/s", "4.8 TB/s"]
    assert [power_of_two(v) for v in (256, 1024, 131072)] == ["256", "1k", "128k"]
