"""What a serving engine adds to its kernels: CPU work, and its way with requests, as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .accelerator import Origin


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """CPU time that the GPU waits for.

    step: per engine step, whatever is in it [s]; per_request: per request in the step, of one data-parallel rank [s];
    0 where the engine deals with its requests while the GPU computes.
    """

    step: float
    per_request: float
    origin: Origin
    source: str


NO_OVERHEAD = EngineOverhead(0.0, 0.0, Origin.ASSUMED, "kernels alone")
"""For comparison with measured kernels, where no scheduler runs."""


class Scheduler(StrEnum):
    """Who gets the next step."""

    TOKEN_BUDGET = "token_budget"  # noqa: S105 - tokens of text
    """One budget of tokens a step: running requests first, prompt chunks fill the rest (vLLM V1, TensorRT-LLM)."""
    PREFILL_FIRST = "prefill_first"
    """Waiting prompts run before any decode goes on (SGLang)."""


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """One serving engine's way with requests.

    token_budget: most prompt tokens in a step [token]; memory_fraction: share of HBM that it takes [1];
    quantized_kv_dtype: KV dtype that it chooses for 8-bit and 4-bit checkpoints;
    overhead: CPU time that a step waits for;
    launch: what launching a kernel of a step with prompts takes, which no CUDA graph replays [s];
    arrival: HTTP, tokenizing and scheduling before a lone prompt starts [s];
    handover: what a disaggregated TTFT has beyond prefill, queue, transfer and decode step [s];
    handover_burst: share of requests after the first wave that find all others' prompts ahead of them at the prefill
    workers [1];
    hand_over_steps: decode steps that pass while a decode worker loads the KV of a request (`policy.Policy.pulls`)
    [1].
    """

    scheduler: Scheduler
    token_budget: int
    memory_fraction: float
    quantized_kv_dtype: str
    overhead: EngineOverhead
    launch: float
    arrival: float
    handover: float
    handover_burst: float
    hand_over_steps: float = 0.0

    def fixed_ttft(self, handed_over: bool) -> float:
        """Part of a TTFT that no load changes [s]: arrival, and handover of a request that another engine decodes.

        Nothing is busy or held for it, so it takes no capacity: all tokens of a request come later by as much, and in
        a closed loop so does the next request.
        """
        return self.arrival + (self.handover if handed_over else 0.0)
