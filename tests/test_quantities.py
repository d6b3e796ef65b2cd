"""Quantities: every unit, the round trip, and the words of each refusal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.quantities import Kind, QuantityError, format_quantity, parse


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("500ms", Kind.DURATION, 0.5),
        ("1.5 s", Kind.DURATION, 1.5),
        ("3min", Kind.DURATION, 180.0),
        ("5 µs", Kind.DURATION, 5e-6),
        ("2", Kind.DURATION, 2.0),
        ("80GiB", Kind.SIZE, 80 * 2**30),
        ("80GB", Kind.SIZE, 80e9),
        ("400Gb/s", Kind.BANDWIDTH, 50e9),
        ("10/s", Kind.RATE, 10.0),
        ("600/min", Kind.RATE, 10.0),
        ("36000 req/h", Kind.RATE, 10.0),
        ("50kW", Kind.POWER, 50e3),
        ("$2.50/h", Kind.PRICE, 2.5),
        ("2.5 $/h", Kind.PRICE, 2.5),
    ],
)
def test_a_quantity_is_read_in_base_units(text: object, kind: Kind, value: float) -> None:
    assert parse(text, kind) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "50MS",
            Kind.DURATION,
            "'50MS' has the unit 'MS', but a duration is in ns, us, ms, s, min, h or d; did you mean 'ms'?",
        ),
        ("1:30", Kind.DURATION, "'1:30' is not a duration; write for example 500ms, 2s or 3min"),
        (True, Kind.DURATION, "true is not a duration; write for example 500ms, 2s or 3min"),
        (math.nan, Kind.RATE, "nan is not a finite number; write for example 10/s or 600/min"),
        ("50 kw", Kind.POWER, "'50 kw' has the unit 'kw', but a power is in W, kW or MW; did you mean 'kW'?"),
        ("1,000", Kind.RATE, "'1,000' has a comma; write a decimal point, and thousands closed up: 10/s or 600/min"),
    ],
)
def test_what_is_not_a_quantity_is_refused_with_the_allowed_units(text: object, kind: Kind, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text, kind)
    assert str(caught.value) == message


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(list(Kind)), st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_formatting_and_reading_back_is_exact(kind: Kind, value: float) -> None:
    assert parse(format_quantity(value, kind), kind) == value


def test_a_quantity_is_shown_in_the_unit_that_reads_best() -> None:
    assert format_quantity(180.0, Kind.DURATION) == "3min"
    assert format_quantity(80 * 2**30, Kind.SIZE) == "80GiB"
    assert format_quantity(50e3, Kind.POWER) == "50kW"
    assert format_quantity(450e9, Kind.BANDWIDTH) == "450GB/s"
    assert format_quantity(10.0, Kind.RATE) == "10/s"
