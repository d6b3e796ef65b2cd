"""search_spaces.traces: the fast parsers against slow and plain ones."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.traces import csv_rows, source
from search_spaces.traces.rows import Columns
from search_spaces.traces.timestamps import parse_date, parse_dates

NUMBERS = st.one_of(
    st.integers(0, 10**8).map(str),
    st.floats(0, 1e6, allow_nan=False).map(repr),
    st.sampled_from(["1.5e3", "007", " 5", "12 ", "-1", "", "x", "nan", "inf", "1e99", '"6"', "1,5"]),
)


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=6))
@settings(deadline=None, max_examples=100)
def test_fast_and_careful_parsing_agree(rows: list[tuple[str, str, str]]) -> None:
    layout = csv_rows.csv_layout("t,i,o", Columns("t", "i", "o"))
    block = source.Block("".join(",".join(row) + "\n" for row in rows).encode(), 2)
    fast = csv_rows._fast_rows(block, layout, csv_rows.ArrivalUnit.SECONDS)
    if fast is not None:
        slow = csv_rows._careful_rows(Path("t"), block, layout, csv_rows.ArrivalUnit.SECONDS)
        for name in ("nanoseconds", "isl", "osl", "line"):
            np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))


@given(
    moment=st.datetimes(datetime(1970, 1, 2), datetime(2111, 12, 31)),
    digits=st.integers(0, 9),
    zone=st.sampled_from(["", "Z", "+00:00", "-07:30", "+05:45"]),
    mark=st.sampled_from([" ", "T"]),
)
@settings(deadline=None, max_examples=100)
def test_dates_agree_with_the_standard_library(moment: datetime, digits: int, zone: str, mark: str) -> None:
    fraction = f"{moment.microsecond:06}789"[:digits]
    text = f"{moment:%Y-%m-%d}{mark}{moment:%H:%M:%S}" + (f".{fraction}" if digits else "") + zone
    whole = datetime.fromisoformat(f"{moment:%Y-%m-%dT%H:%M:%S}" + (zone or "Z"))
    expected = round(whole.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)
    buffer = np.frombuffer(text.encode(), dtype=np.uint8)
    fast = parse_dates(buffer, np.array([0]), np.array([buffer.size]))
    assert parse_date(text) == expected
    assert fast is not None
    assert fast.tolist() == [expected]


@pytest.mark.parametrize(
    "text", ["2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:00", "2023-1-1 0:0:00"]
)
def test_dates_that_do_not_exist(text: str) -> None:
    buffer = np.frombuffer(text.encode(), dtype=np.uint8)
    assert parse_date(text) is None
    assert parse_dates(buffer, np.array([0]), np.array([buffer.size])) is None
