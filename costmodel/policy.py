"""What a serving engine adds to its kernels: how it fills its steps, its CPU work, and its way with requests.

A policy is a set of answers that the simulator's one scheduler reads. All are first come, first served, and let running
requests go before waiting ones, except that an exclusive policy runs waiting prompts before the decodes. Recomputed
requests go to the front of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .accelerator import Origin


@dataclass(frozen=True, slots=True)
class Policy:
    """How an engine fills its next step.

    exclusive_prefill: prompts and decodes never share a step, and prompts go first.
    chunked: a prompt may be computed in parts that fill the token budget; otherwise whole (a prompt longer than the
        budget then goes alone).
    static: no admission before the whole batch has ended; ended requests go on being computed as padding.
    whole_prompt_blocks: blocks of the whole prompt are taken at admission; otherwise chunk by chunk.
    watermark: share of all blocks that admission leaves free [1].
    reserve_output: share of its output for which a newcomer is promised blocks [1]; promises of running requests never
        exceed all blocks, so with 1 nothing is ever preempted.
    admit_after_preemption: new requests may enter in the step in which one was preempted.
    pulls: a decode engine admits a handed-over request at the begin of a step, when it has a sequence and the blocks
        for it, loads its KV meanwhile, and decodes it in the first step that begins after that; until then the KV stays
        on the prefill side. Otherwise the prefill engine sends the KV as soon as it is computed.
    random_lanes: a prefill engine deals prompts to its data-parallel ranks at random, unless it is told otherwise;
        else it keeps them even. Deployment files tell it so, so the simulator keeps them even always; measured runs
        kept the default, which `queues.steady_state` knows.
    """

    exclusive_prefill: bool = False
    chunked: bool = True
    static: bool = False
    whole_prompt_blocks: bool = True
    watermark: float = 0.0
    reserve_output: float = 0.0
    admit_after_preemption: bool = True
    pulls: bool = False
    random_lanes: bool = False


VLLM_V1: Final = Policy(whole_prompt_blocks=False, admit_after_preemption=False, pulls=True)
"""vLLM since 2025: one token budget, running requests first, prompts in chunks, blocks as they are needed. A request
that is handed over gets its blocks at one step, but no tokens of it (WAITING_FOR_REMOTE_KVS in
vllm/v1/core/sched/scheduler.py); the connector reads its KV meanwhile and says at the end of a step what has come,
which the next step schedules."""
SGLANG: Final = Policy(exclusive_prefill=True, reserve_output=0.3, random_lanes=True)
"""SGLang: prompt batches (chunked) before decodes; admission keeps room for part of the output. Its estimate of that
part starts at 0.7 and decays while nothing is preempted; 0.3 is assumed. The decode engine gives a request its memory
before the prompt is computed, the prefill engine writes there, and what has come joins the next decode batch
(DecodePreallocQueue and get_new_prebuilt_batch in sglang/srt/disaggregation/decode.py). The rank that computes a prompt
is its room number, drawn at random, modulo the ranks (`--load-balance-method follow_bootstrap_room`, the default of
prefill engines: sgl-project/sglang, pull requests 15617 and 16110)."""
TRTLLM: Final = Policy(reserve_output=1.0, pulls=True)
"""TensorRT-LLM's in-flight batching with guaranteed no eviction: blocks for the whole output exist at admission.
Running requests take their tokens of a step first, prompts what is left, cut where it ends (`enable_chunked_prefill`;
without it the server refuses prompts beyond max_num_tokens). Source: microBatchScheduler.cpp and capacityScheduler.cpp
of TensorRT-LLM; chunks that do not end a prompt are whole KV blocks there, of any length here. A handed-over request
that fits asks for its KV in one iteration and decodes in one after it has come (_prepare_disagg_gen_init and
_prepare_disagg_gen_transmission_complete in tensorrt_llm/_torch/pyexecutor/py_executor.py)."""

SCHEDULERS: Final = {"vllm": VLLM_V1, "sglang": SGLANG, "trtllm": TRTLLM}
"""How the serving engines of the catalog schedule."""


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


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """One serving engine's way with requests.

    scheduler: how it fills its steps; token_budget: most prompt tokens in a step [token];
    memory_fraction: share of HBM that it takes [1];
    quantized_kv_dtype: KV dtype that it chooses for 8-bit and 4-bit checkpoints;
    overhead: CPU time that a step waits for;
    launch: what launching a kernel of a step with prompts takes, which no CUDA graph replays [s];
    arrival: HTTP, tokenizing and scheduling before a lone prompt starts [s];
    handover: what a disaggregated TTFT has beyond prefill, queue, transfer and decode step [s];
    handover_burst: share of requests after the first wave that find all others' prompts ahead of them at the prefill
    workers [1].
    """

    scheduler: Policy
    token_budget: int
    memory_fraction: float
    quantized_kv_dtype: str
    overhead: EngineOverhead
    launch: float
    arrival: float
    handover: float
    handover_burst: float

    def fixed_ttft(self, handed_over: bool) -> float:
        """Part of a TTFT that no load changes [s]: arrival, and handover of a request that another engine decodes.

        Nothing is busy or held for it, so it takes no capacity: all tokens of a request come later by as much, and in
        a closed loop so does the next request.
        """
        return self.arrival + (self.handover if handed_over else 0.0)
