"""Policies of schedulers: those of the catalog's engines, and others of other simulators and of studies."""

from __future__ import annotations

from typing import Final

from costmodel.engine import Policy
from search_spaces.engines import SUPPORT

STATIC: Final = Policy(exclusive_prefill=True, chunked=False, static=True, reserve_output=1.0)
"""Static batching: a batch enters together, runs until its longest request ends, then the next one enters."""
VLLM_V0: Final = Policy(exclusive_prefill=True, chunked=False, watermark=0.01)
"""vLLM before 2025: whole prompts first, decodes when no prompt can enter; preempts the youngest."""
SARATHI: Final = Policy(watermark=0.01)
"""Sarathi-Serve: all decodes, then started prompts, then new ones, up to the chunk size; blocks of a prompt at once."""

SCHEDULERS: Final = {name: support.scheduler for name, support in SUPPORT.items()}
VLLM_V1: Final = SCHEDULERS["vllm"]

POLICIES: Final = {"static": STATIC, "vllm_v0": VLLM_V0, "sarathi": SARATHI, **SCHEDULERS}
"""All policies by name."""
