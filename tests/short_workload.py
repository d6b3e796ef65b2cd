"""A short workload.yaml, with or without overrides: what it states, and what is said of one that is not sound."""

from __future__ import annotations

from typing import Any

from search_spaces.problem import Problem
from tests import workload_texts

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
    return workload_texts.load(text, overrides)


def refusal(overrides: dict[str, Any] | None = None, text: str = SOUND) -> str:
    return workload_texts.refusal(text, overrides)
