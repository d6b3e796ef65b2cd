"""Files of every kind that cannot be read: each is told in a sentence with its line, as `bad_files.yaml` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from costmodel.errors import InputError
from search_spaces.benchmark_results import read_results
from search_spaces.catalog import load_catalog
from search_spaces.demand import read_histogram
from search_spaces.traces.summary import read_trace

CASES: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "bad_files.yaml").read_text("utf-8"))
READERS: Mapping[str, Callable[[Path], object]] = {
    "trace.csv": read_trace,
    "trace.jsonl": read_trace,
    "catalog.yaml": load_catalog,
    "quotes.csv": lambda path: load_catalog(prices=str(path)),
    "histogram.csv": read_histogram,
    "results.json": lambda path: read_results([path]),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, case: dict[str, str]) -> None:
    path = tmp_path / case["file"]
    path.write_text(case["text"], "utf-8", newline="")
    with pytest.raises(InputError) as caught:
        READERS[case["file"]](path)
    message = str(caught.value)
    assert case["says"] in message
    assert str(path) in message
    assert "\n" not in message or case["file"] in {"catalog.yaml", "quotes.csv"}  # the line, or all faults
