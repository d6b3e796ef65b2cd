"""What is simulated: pools of engines, each with its policy, limits, step times and links.

How long a step takes, a step model tells the event loop in numbers of one of three kinds, which `step_times` evaluates:

- coefficients: prefill = a + b sum(p) + c sum(p^2), decode = a + b sum(context + 1) + c batch (`CoefficientSteps`);
- tables: dense[tokens] + prefill[chunk][past] + decode[batch][context], looked up (`TableSteps`);
- grids: the same three, interpolated linearly, which is how pdplan's own cost model arrives (`cost_steps`).

Between two events the batch stays, and all three kinds are affine in the total context over a known range; that is
what makes a run of decode steps a closed form.

A policy is a set of answers; `scheduler` is the one scheduler that reads them. All policies are first come, first
served, and let running requests go before waiting ones, except that an exclusive policy runs waiting prompts before the
decodes. Recomputed requests go to the front of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import InputError

FloatArray = NDArray[np.float64]
UNLIMITED: Final = 1 << 60
"""A limit that nothing reaches [token or block]."""
STAGES: Final = 16
"""Most pipeline stages of an engine."""
AFFINE: Final = 0.5
"""Share of a prompt that an engine must have to get it for that [1]: `affinityThreshold` of llm-d's router, which the
deployment files state; assumed."""
COEFFICIENTS, TABLES, GRIDS = 0, 1, 2
"""Kinds of step numbers."""
SCALARS = ("a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2", "share", "constant", "step", "token", "large")
OFFSETS = 11
"""Table offsets of a `StepRecord`."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Least work of one engine's steps, all its GPUs together; the default, without a roofline, is no work.

    flop = token_flop x tokens + row_flop x rows + pair_flop x pairs + decode_flop x decodes + context_flop x context;
    bytes = step_bytes + capped_bytes x min(tokens, knee) + token_bytes x tokens + row_bytes x rows
    + reach_bytes x reach + decode_bytes x decodes + context_bytes x context (see `StepContent`).
    peak [FLOP/s], bandwidth [byte/s]: the vendor's, of the GPUs of one pipeline stage; 0: no floors.

    The bounds are linear, so the work of a whole run follows from sums of whole numbers, which are the same whether
    decode steps are taken one by one or in closed form; and a step's own numbers give the floors of its time.
    """

    peak: float = 0.0
    bandwidth: float = 0.0
    knee: int = 1
    token_flop: float = 0.0
    row_flop: float = 0.0
    pair_flop: float = 0.0
    decode_flop: float = 0.0
    context_flop: float = 0.0
    step_bytes: float = 0.0
    capped_bytes: float = 0.0
    token_bytes: float = 0.0
    row_bytes: float = 0.0
    reach_bytes: float = 0.0
    decode_bytes: float = 0.0
    context_bytes: float = 0.0


class StepContent(NamedTuple):
    """What one step holds, or many steps together.

    steps; tokens: new ones, of prompts and decodes; capped: sum over steps of min(tokens, knee); rows: prompts and
    decodes; pairs: query-key pairs of the prompt chunks, q p + q (q + 1) / 2; reach: sum of q + p over chunks; decodes;
    context: of all decodes together. q: tokens of a chunk, p: those before it.
    """

    steps: int
    tokens: int
    capped: int
    rows: int
    pairs: int
    reach: int
    decodes: int
    context: int


def least_flop(work: StepWork, held: StepContent) -> float:
    """FLOP that the steps need [FLOP]."""
    return (
        work.token_flop * held.tokens
        + work.row_flop * held.rows
        + work.pair_flop * held.pairs
        + work.decode_flop * held.decodes
        + work.context_flop * held.context
    )


def least_bytes(work: StepWork, held: StepContent) -> float:
    """HBM traffic that the steps need [byte]."""
    return (
        work.step_bytes * held.steps
        + work.capped_bytes * held.capped
        + work.token_bytes * held.tokens
        + work.row_bytes * held.rows
        + work.reach_bytes * held.reach
        + work.decode_bytes * held.decodes
        + work.context_bytes * held.context
    )


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step model as numbers: its kind, scalars, and tables one after another (`offsets` says where each begins).

    work: the least that a step does; without it no work is counted and no floor checked.
    """

    kind: int
    scalars: Mapping[str, float]
    offsets: tuple[int, ...] = (0,)
    data: FloatArray = field(default_factory=lambda: np.zeros(0))
    work: StepWork = field(default_factory=StepWork)


class StepModel(Protocol):
    """How long an engine step takes."""

    def numbers(self) -> StepNumbers:
        """The model for the event loop."""


@dataclass(frozen=True, slots=True)
class CoefficientSteps:
    """Fitted step times [s], as DistServe's simulator uses them.

    prefill = (a + b sum(q) + c sum(q (q + 2 p))) stage_share + prefill_constant + overhead, q new tokens after p
    cached ones; the chunks of a prompt add up to its square.
    decode = (a + b (sum(context) + batch) + c batch) stage_share + overhead; `large` holds from `large_batch` on.
    overhead = overhead_step + overhead_token x tokens of context in the step.
    A step with both costs its prefill plus the decodes without their constant a: the weights are read once.
    """

    prefill_abc: tuple[float, float, float]
    small: tuple[float, float, float]
    large: tuple[float, float, float] = (0.0, 0.0, 0.0)
    large_batch: int = 1 << 60
    stage_share: float = 1.0
    prefill_constant: float = 0.0
    overhead_step: float = 0.0
    overhead_token: float = 0.0

    def numbers(self) -> StepNumbers:
        """The coefficients for the event loop."""
        scalars = {
            "share": self.stage_share,
            "constant": self.prefill_constant,
            "step": self.overhead_step,
            "token": self.overhead_token,
            "large": float(self.large_batch),
        }
        for letter, values in (("a", self.prefill_abc), ("b", self.small), ("c", self.large)):
            scalars |= {f"{letter}{k}": value for k, value in enumerate(values)}
        return StepNumbers(COEFFICIENTS, scalars)


@dataclass(frozen=True, slots=True)
class TableSteps:
    """Step time [s] = dense[tokens] + prefill[chunk][past] + decode[batch][context], as Vidur looks it up.

    dense, shape (tokens + 1,): all that depends on the number of tokens in the step; chunk = round(sqrt(sum of squared
    chunks)), past = sum of tokens cached before each chunk, rounded up to 64 each; context = mean context of the
    decodes, rounded down to a token and then up to 64. prefill, decode: shape (rows, contexts / 64). The factors apply
    where a step holds more than one prompt, or more than one decode.
    """

    dense: FloatArray
    prefill_attention: FloatArray
    decode_attention: FloatArray
    prefill_factor: float = 1.0
    decode_factor: float = 1.0

    def numbers(self) -> StepNumbers:
        """The tables for the event loop."""
        rows, columns = self.prefill_attention.shape
        scalars = {
            "a0": float(columns),
            "a1": float(rows),
            "a2": float(self.decode_attention.shape[0]),
            "b0": self.prefill_factor,
            "b1": self.decode_factor,
        }
        parts = (self.dense, self.prefill_attention.ravel(), self.decode_attention.ravel())
        offsets = tuple(int(start) for start in np.cumsum([0, parts[0].size, parts[1].size]))
        return StepNumbers(TABLES, scalars, offsets, np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Policy:
    """How an engine fills its next step.

    exclusive_prefill: prompts and decodes never share a step, and prompts go first.
    chunked: a prompt may be computed in parts that fill the token budget; otherwise whole (a prompt longer than the
        budget then goes alone).
    static: no admission before the whole batch has ended; ended requests go on being computed as padding.
    padded_budget: a batch of n prompts counts n x longest tokens, not their sum.
    whole_prompt_blocks: blocks of the whole prompt are taken at admission; otherwise chunk by chunk.
    watermark: share of all blocks that admission leaves free [1].
    reserve_output: share of its output for which a newcomer is promised blocks [1]; promises of running requests never
        exceed all blocks, so with 1 nothing is ever preempted.
    admit_after_preemption: new requests may enter in the step in which one was preempted.
    spare_block: a decode needs one free block even if its last one has room.
    partial_prompt_ends: a prompt that is preempted half-way counts as ending there, the rest as output (Vidur).
    pulls: a decode engine admits a handed-over request at the begin of a step, loads its KV meanwhile, and decodes it
        in the first step that begins after that; otherwise the prefill engine sends the KV as soon as it is computed.
    """

    name: str
    exclusive_prefill: bool = False
    chunked: bool = True
    static: bool = False
    padded_budget: bool = False
    whole_prompt_blocks: bool = True
    watermark: float = 0.0
    reserve_output: float = 0.0
    admit_after_preemption: bool = True
    spare_block: bool = False
    partial_prompt_ends: bool = False
    pulls: bool = False


STATIC: Final = Policy("static", exclusive_prefill=True, chunked=False, static=True, reserve_output=1.0)
"""Static batching: a batch enters together, runs until its longest request ends, then the next one enters."""
VLLM_V0: Final = Policy("vllm_v0", exclusive_prefill=True, chunked=False, watermark=0.01)
"""vLLM before 2025: whole prompts first, decodes when no prompt can enter; preempts the youngest."""
VLLM_V1: Final = Policy("vllm_v1", whole_prompt_blocks=False, admit_after_preemption=False, pulls=True)
"""vLLM since 2025: one token budget, running requests first, prompts in chunks, blocks as they are needed. A request
that is handed over gets its blocks at one step, but no tokens of it (WAITING_FOR_REMOTE_KVS in
vllm/v1/core/sched/scheduler.py); the connector reads its KV meanwhile and says at the end of a step what has come,
which the next step schedules."""
SARATHI: Final = Policy("sarathi", watermark=0.01)
"""Sarathi-Serve: all decodes, then started prompts, then new ones, up to the chunk size; blocks of a prompt at once."""
SGLANG: Final = Policy("sglang", exclusive_prefill=True, reserve_output=0.3)
"""SGLang: prompt batches (chunked) before decodes; admission keeps room for part of the output. Its estimate of that
part starts at 0.7 and decays while nothing is preempted; 0.3 is assumed. The decode engine gives a request its memory
before the prompt is computed, the prefill engine writes there, and what has come joins the next decode batch
(DecodePreallocQueue and get_new_prebuilt_batch in sglang/srt/disaggregation/decode.py)."""
TRTLLM: Final = Policy("trtllm", reserve_output=1.0, pulls=True)
"""TensorRT-LLM's in-flight batching with guaranteed no eviction: blocks for the whole output exist at admission.
Running requests take their tokens of a step first, prompts what is left, cut where it ends (`enable_chunked_prefill`;
without it the server refuses prompts beyond max_num_tokens). Source: microBatchScheduler.cpp and capacityScheduler.cpp
of TensorRT-LLM; chunks that do not end a prompt are whole KV blocks there, of any length here. A handed-over request
that fits asks for its KV in one iteration and decodes in one after it has come (_prepare_disagg_gen_init and
_prepare_disagg_gen_transmission_complete in tensorrt_llm/_torch/pyexecutor/py_executor.py)."""

POLICIES: Final = {policy.name: policy for policy in (STATIC, VLLM_V0, VLLM_V1, SARATHI, SGLANG, TRTLLM)}
"""All policies by name."""
SCHEDULERS: Final = {"vllm": VLLM_V1, "sglang": SGLANG, "trtllm": TRTLLM}
"""How the serving engines of the catalog schedule."""


class Router(StrEnum):
    """How a pool's router chooses an engine; see `loop`."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    LEAST_KV = "least_kv"
    LENGTH_AWARE = "length_aware"
    PREFIX_AFFINE = "prefix_affine"


class FirstToken(StrEnum):
    """Where the first output token of a handed-over request is made.

    decode: by the first decode step, so TTFT = queue + prefill + KV transfer + first decode step;
    prefill: by the prefill engine, and the decode engine makes the others;
    repeated: TTFT ends with the prefill, and the decode engine makes all tokens (DistServe's simulator).
    """

    DECODE = "decode"
    PREFILL = "prefill"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine.

    max_num_seqs: requests running at once; max_num_batched_tokens: tokens in a step; long_prefill_threshold: most
    tokens of one prompt in a step; kv_blocks of block_size tokens; decode_token_cap: most tokens of context that one
    decode step reads, beyond which the decodes take turns (0: none; needs unlimited blocks).
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_threshold: int = UNLIMITED
    kv_blocks: int = UNLIMITED
    block_size: int = 16
    decode_token_cap: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal engines with one role.

    pipeline: stages, each with an equal share of the step's time; as many micro-batches are in flight.
    kv_seconds_per_token: time that the KV of one token needs on the engine's links (all its NICs) [s/token].
    nics: links each way; one hand-over uses one of them, and several go side by side.
    first_token: time until the first token of a prompt over that of its steps (`Accelerator.in_engine`) [1].
    prefix_cache: whether prompts find the KV of earlier ones, where the trace has hash blocks.
    """

    role: Role
    steps: StepModel
    policy: Policy
    limits: Limits = field(default_factory=Limits)
    replicas: int = 1
    pipeline: int = 1
    router: Router = Router.LEAST_LOADED
    kv_seconds_per_token: float = 0.0
    nics: int = 1
    prefix_cache: bool = True
    first_token: float = 1.0


@dataclass(frozen=True, slots=True)
class HandOver:
    """How KV gets from prefill to decode engines.

    latency: of every hand-over [s]; layers: sent one by one while the prefill goes on; 1: after the prefill.
    pull: a decode engine fetches the KV when it has a sequence and the blocks for it; until then it stays on the
    prefill side. max_coming: most hand-overs that are on their way to one decode engine or wait in its queue, others
    stay on the prefill side (0: no limit).
    """

    latency: float = 0.0
    layers: int = 1
    first_token: FirstToken = FirstToken.DECODE
    pull: bool = False
    max_coming: int = 0


@dataclass(frozen=True, slots=True)
class KvStore:
    """A store of KV in DRAM or SSD that all engines share (`store`).

    pages: capacity in hash blocks of the trace; seconds_per_token: of reads, all engines together;
    engine_seconds_per_token: of the reads of one engine; latency: of one read [s].
    """

    pages: int
    seconds_per_token: float = 0.0
    engine_seconds_per_token: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pools, and how KV moves between them.

    prompt_yields: tokens that a finished prompt makes on a colocated engine, 1 or 0 (0 only to follow DistServe's
    simulator, where TTFT ends with the prompt and all tokens follow). store: None without one.
    """

    pools: tuple[Pool, ...]
    hand_over: HandOver = field(default_factory=HandOver)
    prompt_yields: int = 1
    store: KvStore | None = None


def check_fleet(fleet: Fleet) -> None:
    """Raise InputError for the first pool that cannot be simulated."""
    if not fleet.pools:
        raise InputError("simulator: a fleet needs at least one pool; found none")
    roles = {pool.role for pool in fleet.pools}
    if roles == {Role.DECODE}:
        raise InputError("simulator: a fleet needs a prefill or a colocated pool; found decode pools only")
    if (Role.PREFILL in roles) != (Role.DECODE in roles):
        raise InputError("simulator: prefill and decode pools come together; found only one of the two")
    if fleet.hand_over.max_coming < 0:
        raise InputError(f"simulator: max_coming {fleet.hand_over.max_coming} of the hand-over must be 0 or more")
    if fleet.store is not None and fleet.store.pages < 1:
        raise InputError(f"simulator: the KV store's {fleet.store.pages} pages must be 1 or more")
    for number, pool in enumerate(fleet.pools):
        _check_pool(pool, f"simulator: pool {number}")


def _check_pool(pool: Pool, where: str) -> None:
    limits = pool.limits
    for name, value in (
        ("replicas", pool.replicas),
        ("pipeline", pool.pipeline),
        ("nics", pool.nics),
        ("max_num_seqs", limits.max_num_seqs),
        ("max_num_batched_tokens", limits.max_num_batched_tokens),
        ("long_prefill_threshold", limits.long_prefill_threshold),
        ("kv_blocks", limits.kv_blocks),
        ("block_size", limits.block_size),
    ):
        if value < 1:
            raise InputError(f"{where}: {name} {value} must be 1 or more")
    if pool.pipeline > STAGES:
        raise InputError(f"{where}: pipeline {pool.pipeline} is above the {STAGES} stages that the simulator keeps")
    alone = pool.policy.exclusive_prefill and not pool.policy.static and pool.pipeline == 1
    if limits.decode_token_cap and not (alone and limits.kv_blocks >= UNLIMITED):
        raise InputError(
            f"{where}: decode_token_cap needs unlimited kv_blocks, one pipeline stage, and a policy that runs prompts "
            f"apart and is not static; found {pool.policy.name}"
        )
    if not pool.policy.exclusive_prefill and limits.max_num_batched_tokens < limits.max_num_seqs:
        raise InputError(
            f"{where}: max_num_batched_tokens {limits.max_num_batched_tokens} must be at least max_num_seqs "
            f"{limits.max_num_seqs}, for every decode takes a token of each step"
        )


def check_pages(fleet: Fleet, tokens: int) -> None:
    """Raise InputError for the first pool that cannot cache hash blocks of so many tokens."""
    for number, pool in enumerate(fleet.pools):
        if not caches(pool):
            continue
        limits = pool.limits
        if tokens % limits.block_size:
            raise InputError(
                f"simulator: pool {number}: hash blocks of {tokens} tokens must be whole KV blocks of "
                f"{limits.block_size}"
            )
        if pool.policy.static or limits.decode_token_cap:
            raise InputError(
                f"simulator: pool {number}: prefix_cache needs a policy that is not static and no decode_token_cap; "
                f"found {pool.policy.name}"
            )


def caches(pool: Pool) -> bool:
    """Whether the pool's engines cache prefixes: those that compute prompts, unless switched off."""
    return pool.prefix_cache and pool.role is not Role.DECODE
