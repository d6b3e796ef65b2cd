"""A short workload.yaml, with or without overrides: what it states, and what is said of one that is not sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from search_spaces.loader import load_problem
from search_spaces.problem import Problem

SOUND = """\
model: Llama-3.1-8B
workload:
  request_rate: 2/s
  lengths:
    histogram:
      - {isl: 500, osl: 100, share: 0.5}
      - {isl: 1500, osl: 200, share: 0.5}
slo: {ttft: 2s, tpot: 50ms}
accelerators: [H100]
search: quick
"""


def load(overrides: dict[str, Any] | None = None, text: str = SOUND) -> Problem:
    Path("w.yaml").write_text(text, encoding="utf-8")
    return load_problem(Path("w.yaml"), overrides)


def refusal(overrides: dict[str, Any] | None = None, text: str = SOUND) -> str:
    with pytest.raises(InputError) as caught:
        load(overrides, text)
    return str(caught.value)
