"""search_spaces.traces: formats, arrivals, lengths, prefixes, and the workload made from them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_spaces.traces.reader import NANOSECONDS, parse_date
from search_spaces.traces.summary import TraceSummary, read_trace
from tests.trace_files import AZURE, Write, jsonl, mooncake

# Formats --------------------------------------------------------------------------------------------------------------


def test_azure_2024_with_offsets_and_whole_seconds(write: Write) -> None:
    path = write(
        AZURE
        + "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        + "2024-05-10 00:00:01+00:00,100,7\n"
        + "2024-05-10 02:00:03.5+02:00,1,1\n"
    )
    rows = read_trace(path).rows
    origin = parse_date("2024-05-10 00:00:00")
    assert origin is not None
    assert ((rows.nanoseconds - origin) / NANOSECONDS).tolist() == [0.00993, 1.0, 3.5]
    assert rows.isl.tolist() == [2162, 100, 1]
    assert rows.osl.tolist() == [5, 7, 1]
    assert rows.line.tolist() == [2, 3, 4]


# Arrivals -------------------------------------------------------------------------------------------------------------


def arrivals_csv(times: list[float]) -> str:
    return "arrival,isl,osl\n" + "".join(f"{time},10,10\n" for time in times)


def test_out_of_order_is_sorted_and_noted(write: Write) -> None:
    straight = read_trace(write(arrivals_csv([0, 1, 3, 7, 8])))
    summary = read_trace(write(arrivals_csv([1, 0, 3, 8, 7])))
    assert summary.out_of_order == 2
    assert summary.arrivals == straight.arrivals
    assert summary.notes[0].startswith("2 arrivals are earlier than the line before")


def test_tied_clock_by_hand(write: Write) -> None:
    """Counts 4, 0, 2 per step of 5 s (an empty step between): mean 2, variance 8/3, dispersion 4/3."""
    arrivals = read_trace(write(arrivals_csv([0, 0, 0, 0, 10, 10, 15, 15]))).arrivals
    assert arrivals.quantum == 5.0
    counts = np.array([4, 0, 2, 2])
    assert arrivals.dispersion == pytest.approx(counts.var() / counts.mean())
    assert arrivals.burstiness == pytest.approx(math.sqrt(counts.var() / counts.mean()))
    assert arrivals.mean_rate == pytest.approx(8 / 20)
    assert arrivals.tie_share == pytest.approx(5 / 7)


def test_peak_rates_by_hand(write: Write) -> None:
    # One request per 10 s for two hours from 01:30 on, and 50 more in one second.
    start = datetime(2024, 1, 1, 1, 30, tzinfo=UTC)
    moments = [start + timedelta(seconds=10 * i) for i in range(720)]
    moments += [start + timedelta(seconds=1800 + i / 50) for i in range(50)]
    text = "arrival,isl,osl\n" + "".join(f"{moment:%Y-%m-%d %H:%M:%S.%f},1,1\n" for moment in sorted(moments))
    arrivals = read_trace(write(text)).arrivals
    assert arrivals.peak_rate[10] == pytest.approx(5.1)
    assert arrivals.peak_rate[3600] == pytest.approx((360 + 50) / 3600)


# Lengths --------------------------------------------------------------------------------------------------------------


SERVABLE = [f"{second},{10 + second},5" for second in range(1, 41)]
"""A request a second; two rows may be left out beside them."""


@pytest.mark.parametrize(
    ("row", "fault"), [("0,10,0", "osl is 0"), ("0,10,", "osl is missing"), ("0,10,16777217", "osl is 16777217")]
)
def test_rows_that_no_engine_can_serve_are_left_out_counted_and_noted(write: Write, row: str, fault: str) -> None:
    sound = read_trace(write("\n".join(["arrival,isl,osl", *SERVABLE]) + "\n", "sound.csv"))
    summary = read_trace(write("\n".join(["arrival,isl,osl", row, *SERVABLE]) + "\n"))
    assert (summary.requests, summary.dropped, summary.mean_isl) == (40, 1, sound.mean_isl)
    assert summary.request_rate == sound.request_rate  # of the rows that are served: the first comes a second later
    assert summary.burstiness == sound.burstiness
    assert summary.notes[0] == f"1 of 41 rows cannot be served (line 2: {fault}); no figure counts them."


# Prefixes -------------------------------------------------------------------------------------------------------------


def test_prefix_hits_by_hand(write: Write) -> None:
    text = jsonl(
        mooncake(0, 1000, 1, [1, 2]),  # nothing known: 0
        mooncake(1000, 1000, 1, [1, 2]),  # both blocks, the second filled to 488: 1000
        mooncake(2000, 1536, 1, [1, 3, 2]),  # 2 was seen, but 3 breaks the prefix: 512
        mooncake(3000, 1100, 1, [1, 3, 9]),  # 1024
        mooncake(4000, 512, 1, [7]),
    )
    summary = read_trace(write(text, "m.jsonl"))
    assert summary.prefix_hit_share == pytest.approx((1000 + 512 + 1024) / (1000 + 1000 + 1536 + 1100 + 512))


@given(prompts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_prefix_hits_against_a_plain_set(write: Write, prompts: list[list[int]]) -> None:
    found, seen = 0, set[int]()
    for ids in prompts:
        found += next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
    rows = (mooncake(second, 512 * len(ids), 1, ids) for second, ids in enumerate(prompts))
    assert read_trace(write(jsonl(*rows), "m.jsonl")).prefix_hit_share == found / sum(map(len, prompts))


# Workload -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(write: Write) -> TraceSummary:
    random = np.random.default_rng(3)
    times = np.cumsum(random.exponential(0.5, 500))
    isl, osl = random.integers(1, 9000, 500), random.integers(1, 900, 500)
    rows = zip(times.tolist(), isl.tolist(), osl.tolist(), strict=True)
    return read_trace(write("arrival,isl,osl\n" + "".join(f"{t:.6f},{i},{o}\n" for t, i, o in rows)))


def test_workload_takes_the_trace_unless_told_otherwise(small: TraceSummary) -> None:
    own = small.to_workload(buckets=20)
    assert own.isl.size == 20
    assert own.request_rate == small.request_rate
    assert own.burstiness == small.burstiness
    assert own.max_tokens == small.max_tokens
    assert own.mean_isl == pytest.approx(small.mean_isl, rel=1e-9)
    told = small.to_workload(request_rate=10.0, burstiness=2.0, prefix_hit_share=0.3)
    assert (told.request_rate, told.burstiness, told.prefix_hit_share) == (10.0, 2.0, 0.3)
