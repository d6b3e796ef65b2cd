"""search_spaces.traces: exact figures of the public traces, and the histograms that are shipped of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from search_spaces.traces.summary import compact_rows, read_trace
from tests.trace_files import CODE, CONV, MOONCAKE

# The public traces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "format_", "requests", "isl", "osl", "longest"),
    [
        (CONV, "azure", 19_366, 1154.697, 211.126, 14_089),
        (CODE, "azure", 8_819, 2047.848, 27.883, 7_841),
        (MOONCAKE, "mooncake", 12_031, 12_035.06, 342.62, 126_527),
    ],
)
def test_public_traces(
    data: Path, name: str, format_: str, requests: int, isl: float, osl: float, longest: int
) -> None:
    summary = read_trace(data / "traces" / name)
    assert (summary.format, summary.requests, summary.max_tokens) == (format_, requests, longest)
    assert summary.mean_isl == pytest.approx(isl, abs=0.006)
    assert summary.mean_osl == pytest.approx(osl, abs=0.006)
    assert (summary.dropped, summary.out_of_order) == (0, 0)
    buckets = summary.bucketed(48)
    assert buckets.isl.size == 48
    assert float(buckets.share @ buckets.isl) == pytest.approx(summary.mean_isl, rel=1e-9)
    assert float(buckets.share @ buckets.osl) == pytest.approx(summary.mean_osl, rel=1e-9)
    own_isl, own_osl = summary.rows.isl, summary.rows.osl
    assert float(buckets.share @ buckets.isl**2) == pytest.approx((own_isl**2).mean(), rel=0.02)
    assert float(buckets.share @ buckets.osl**2) == pytest.approx((own_osl**2).mean(), rel=0.02)
    assert float(buckets.share @ (buckets.isl * buckets.osl)) == pytest.approx((own_isl * own_osl).mean(), rel=0.005)
    mix = summary.to_workload()
    assert mix.share.sum() == pytest.approx(1.0)
    assert min(mix.isl.min(), mix.osl.min()) >= 1.0
    assert mix.max_tokens >= int((mix.isl + mix.osl).max())


def test_mooncake_prefix_hits_and_quantised_clock(data: Path) -> None:
    summary = read_trace(data / "traces" / MOONCAKE)
    assert summary.prefix_hit_share == pytest.approx(0.374, abs=0.0005)
    assert summary.block_tokens == 512
    arrivals = summary.arrivals
    assert arrivals.quantum == pytest.approx(3.0, abs=0.001)
    assert arrivals.tie_share > 0.9
    assert arrivals.mean_rate == pytest.approx(12_031 / (3536.999 + 3.0), rel=1e-4)
    assert arrivals.burstiness == pytest.approx(1.05, abs=0.01)
    assert "the clock steps by 3 s" in summary.notes[0]


@pytest.mark.parametrize(("name", "buckets"), [("chat", CONV), ("code", CODE), ("long-context", MOONCAKE)])
def test_shipped_histograms_are_those_of_the_traces(root: Path, data: Path, name: str, buckets: str) -> None:
    expected = compact_rows(read_trace(data / "traces" / buckets).bucketed(48))
    shipped = np.loadtxt(root / "examples" / "histograms" / f"{name}.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(shipped, np.array(expected), atol=0.011)  # the second decimal may be a tie
    assert round(float(shipped[:, 2].sum()), 9) == 1.0
