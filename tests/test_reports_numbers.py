"""Numbers are rounded once, in one place, and never lie: no -0, no rounding to all or nothing, no NaN."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.numbers import duration, hourly, money, percent, rate, signed_percent, significant

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


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
@settings(deadline=None, max_examples=100)
def test_a_share_between_is_never_written_as_all_or_nothing(share: float) -> None:
    assert percent(share) not in {"0 %", "100 %"}
