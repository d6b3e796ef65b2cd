"""search_spaces.traces: whole blocks parsed by pandas against the same lines parsed one by one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.traces import parsing
from search_spaces.traces.parsing import parse_date
from search_spaces.traces.rows import ArrivalUnit, Columns

NUMBERS = st.one_of(
    st.integers(0, 10**8).map(str),
    st.floats(0, 1e6, allow_nan=False).map(repr),
    st.sampled_from(
        ["1.5e3", "007", " 5", "12 ", "-1", "", "x", "nan", "inf", "1e99", "1e999", "1_0", "9" * 20, '"6"', "1,5"]
    ),
)
LAYOUT = parsing.csv_layout("t,i,o", Columns("t", "i", "o"))


def parsed_both_ways(lines: list[str], unit: ArrivalUnit) -> parsing.Rows | None:
    """The rows of a block at once, checked against the same lines parsed one by one."""
    block = parsing.Block("".join(f"{line}\n" for line in lines).encode(), 2)
    rows = parsing._plain_rows(block, LAYOUT, unit)
    if rows is not None:
        lone = parsing._careful_rows(Path("t"), block, LAYOUT, unit)
        for name in ("nanoseconds", "isl", "osl", "line"):
            np.testing.assert_array_equal(getattr(rows, name), getattr(lone, name))
    return rows


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=6))
@settings(deadline=None, max_examples=100)
def test_blocks_and_lines_agree(rows: list[tuple[str, str, str]]) -> None:
    parsed_both_ways([",".join(row) for row in rows], ArrivalUnit.SECONDS)


def test_plain_lines_are_parsed_as_a_block() -> None:
    rows = parsed_both_ways(["0.25,7,8", "1e3,007, 9"], ArrivalUnit.SECONDS)
    assert rows is not None
    assert (rows.nanoseconds.tolist(), rows.isl.tolist()) == ([250_000_000, 10**12], [7, 7])


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
    rows = parsed_both_ways([f"{text},1,1"], ArrivalUnit.ISO)
    assert parse_date(text) == expected
    assert rows is not None
    assert rows.nanoseconds.tolist() == [expected]


@pytest.mark.parametrize(
    "text", ["2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:00", "2023-1-1 0:0:00"]
)
def test_dates_that_do_not_exist(text: str) -> None:
    assert parse_date(text) is None
    assert parsed_both_ways([f"{text},1,1"], ArrivalUnit.ISO) is None
