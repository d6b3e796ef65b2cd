"""search_spaces.traces: dates with and without fractions and offsets."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.traces.reader import parse_date


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
    assert parse_date(text) == expected
