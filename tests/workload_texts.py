"""A sound workload.yaml as text, what it states, and what is said of one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from search_spaces.loader import load_problem
from search_spaces.problem import Problem

SOUND = """\
name: chat
model: {name: Llama-3.1-70B, weight_dtype: bf16}
workload:
  request_rate: 10/s
  lengths:
    histogram:
      - {isl: 500, osl: 100, share: 0.4}
      - {isl: 3000, osl: 300, share: 0.6}
slo: {ttft: 2s, tpot: 50ms, attainment: 0.9}
accelerators: [H100, {name: H200, inventory: 64}]
objective: min_cost
"""


def load(text: str, overrides: dict[str, Any] | None = None) -> Problem:
    Path("w.yaml").write_text(text, encoding="utf-8")
    return load_problem(Path("w.yaml"), overrides)


def refusal(text: str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load(text, overrides)
    return str(caught.value)
