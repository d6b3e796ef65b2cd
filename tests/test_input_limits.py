"""The edge of the input: bounds of every number, and a histogram too long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from search_spaces import bounds
from search_spaces.schema import json_schema
from tests.workload_texts import SOUND, load, refusal

pytestmark = pytest.mark.usefixtures("folder")

# --- numbers --------------------------------------------------------------------------------------------------------

ABSURD = [
    ("workload.request_rate", 1e300, "must be at least 1e-06/s and at most 1000000/s"),
    ("workload.prefix_hit_share", 0.9999999999999999, "at most 0.999999"),
    ("workload.lengths.histogram.0.isl", 1e300, "at most 16,777,216 tokens"),
    ("slo.e2e", "1e30s", "at most 7d"),
    ("slo.attainment", 0.9999999999999999, "must be at least 0.01 and at most 0.999999"),
    ("accelerators.0", {"name": "H100", "inventory": 1e300}, "at most 10,000,000 GPUs"),
    ("search", {"max_num_batched_tokens": [1]}, "must be at least 16 and at most 1,048,576 tokens"),
    ("search", {"max_gpus_per_engine": 1e300}, "at most 4,096 GPUs"),
    ("objective", {"goal": "max_goodput_per_dollar", "min_volume": 1e-9}, "must be at least 0.001 and at most 1,000"),
    ("constraints.power", "1e30W", "at most 100000MW"),
]


@pytest.mark.parametrize(("key", "value", "words"), ABSURD, ids=lambda value: str(value)[:40])
def test_an_absurd_number_is_refused_with_its_range(key: str, value: Any, words: str) -> None:
    said = refusal(SOUND, {key: value})
    assert said.startswith(f"w.yaml (overridden by {key}")
    assert f"): {key}" in said
    assert "is out of range" in said
    assert words in said


def test_every_number_of_the_schema_is_bounded_both_ways() -> None:
    def unbounded(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [found for index, item in enumerate(node) for found in unbounded(item, f"{path}.{index}")]
        if not isinstance(node, dict):
            return []
        open_ended = node.get("type") in ("number", "integer") and not {"minimum", "maximum"} <= node.keys()
        return [path] * open_ended + [found for key in node for found in unbounded(node[key], f"{path}.{key}")]

    assert unbounded(json_schema(), "") == []


# --- how many -------------------------------------------------------------------------------------------------------


def table(rows: int) -> str:
    return "isl,osl,share\n" + "".join(f"{100 + k % 5000},{50 + k % 777},{1 / rows:.12f}\n" for k in range(rows))


def test_a_long_histogram_is_merged_and_keeps_its_means() -> None:
    rows = 20_000
    Path("h.csv").write_text(table(rows))
    started = time.process_time()
    workload = load(SOUND, {"workload.lengths": {"histogram": "h.csv"}}).workload
    assert time.process_time() - started < 5
    assert workload.share.size == bounds.BUCKETS.high
    assert workload.share @ workload.isl == pytest.approx(sum(100 + k % 5000 for k in range(rows)) / rows)
    assert workload.share @ workload.osl == pytest.approx(sum(50 + k % 777 for k in range(rows)) / rows)
    assert workload.max_tokens == max(150 + k % 5000 + k % 777 for k in range(rows))
