"""Mooncake's experiments: disaggregation with a shared prefix cache against vLLM, 16 nodes of 8 A800, Llama-3-70B.

    python -m benchmarks.studies.mooncake DATA

The conversation trace is theirs (DATA/traces); the synthetic one is drawn here with the published means and hit share.
Prefixes are found by the traces' block hashes, in each engine's memory and in a store that all prefill nodes share.
Requests count if TTFT <= 30 s and the mean of the longest tenth of their gaps between tokens is within the TBT limit.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from costmodel.accelerator import Accelerator, Link
from costmodel.engine import Role
from costmodel.policy import VLLM_V0, VLLM_V1, Policy
from costmodel.simulator import (
    FirstToken,
    HandOver,
    KvStore,
    Pages,
    Result,
    Router,
    SimulatedFleet,
    SimulatedPool,
    make_trace,
    simulate,
)
from costmodel.simulator.trace import gamma_arrivals
from costmodel.units import TERA
from search_spaces.models import load_model

from .common import GOAL, FloatArray, IntArray, a100, engine_pool, gamma_lengths, highest_rate, table

MODEL, NODES, GPUS = "Llama-3.1-70B", 16, 8
BLOCK = 512
"""Tokens of one hashed block."""
LONGEST, CHUNK = 131_072, 512
"""Context window, which an engine without chunks must take in one step, and vLLM 0.5's chunk [token]."""
LAYERS = 80
NETWORK = 4 * 25e9 / GPUS
"""Four cards of 200 Gb/s per node, as one GPU's share [byte/s]."""
NVLINK = 200e9
"""Of an A800, each way [byte/s]."""
STORE = 1.0 * TERA * NODES
"""DRAM of the shared prefix cache [byte]; assumed: 1 TB a node."""
STORE_READ = 87e9
"""What a node reads from the store [byte/s]: their transfer engine over four cards of 200 Gb/s."""
TTFT = 30.0
TBT = (0.1, 0.2, 0.3)
PUBLISHED_SPLIT = (8, 8)
SPLITS = tuple((prefill, NODES - prefill) for prefill in (5, 8, 11, 12, 13, 14, 15))
SPLIT_LIMITS = (10.0, 0.1)
"""TTFT and TBT limits of their sweep over P:D [s]."""
SPLIT_REQUESTS = 3_000
LOG_ROWS = 400
"""Rows of the step log per request, more than any of these runs needs."""
THEIRS = {"conversation": (4.98, 1.57, 0.59), "synthetic": (0.62, 0.40, 0.28)}
"""Gains in the share of requests within both limits, at the three TBT limits."""


Shares = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """A trace: arrival [s], prompt and output [token], and the hashes of each prompt's blocks."""

    arrival: FloatArray
    isl: IntArray
    osl: IntArray
    hashes: Sequence[Sequence[int]]

    def at(self, speed: float) -> Load:
        """The same requests, so many times as fast."""
        return replace(self, arrival=self.arrival / speed)


def conversation(data: Path, requests: int | None = None) -> Load:
    """Their trace; its arrivals are quantised to 3 s."""
    with gzip.open(data / "traces" / "mooncake_conversation_trace.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:requests]
    return Load(
        np.array([row["timestamp"] / 1e3 for row in rows]),
        np.array([row["input_length"] for row in rows]),
        np.array([max(1, row["output_length"]) for row in rows]),
        [row["hash_ids"] for row in rows],
    )


def synthetic(requests: int = 4_000, rate: float = 4.3, seed: int = 0) -> Load:
    """Poisson arrivals of short chats (two in five) and of questions on long documents, each asked three times.

    Means 15,300 / 149 tokens, about two thirds of the prompt tokens seen before (theirs: 15,325 / 149, 66 %).
    """
    rng = np.random.default_rng([seed, 9])
    asks = rng.random(requests) < 0.6
    documents = rng.permutation(np.arange(int(asks.sum())) // 3)
    pages = gamma_lengths(documents.max() + 1, 25_000.0, 0.45, 100_000, seed + 11) // BLOCK
    chat = gamma_lengths(requests, 400.0, 1.2, 4_096, seed + 12)
    isl, hashes, fresh, asked = chat.copy(), [], int(pages.sum()), 0
    first = np.concatenate([[0], np.cumsum(pages)])
    for request in range(requests):
        known: list[int] = []
        if asks[request]:
            document = documents[asked]
            asked += 1
            known = list(range(first[document], first[document + 1]))
            isl[request] = BLOCK * len(known) + min(chat[request], BLOCK)
        new = -(-isl[request] // BLOCK) - len(known)
        hashes.append([*known, *range(fresh, fresh + new)])
        fresh += new
    osl = np.where(
        asks,
        gamma_lengths(requests, 48.0, 1.3, 2_000, seed + 13),
        gamma_lengths(requests, 300.0, 0.7, 2_000, seed + 14),
    )
    return Load(gamma_arrivals(requests, rate, seed=seed), isl, osl, hashes)


def a800() -> Accelerator:
    """An A100 whose NVLink has two thirds of the bandwidth."""
    gpu = a100()
    return replace(gpu, name="A800-80", scale_up=Link(NVLINK, gpu.scale_up.latency))


@cache
def node(role: Role, policy: Policy, budget: int) -> SimulatedPool:
    """One node: tensor parallel over its eight GPUs."""
    return engine_pool(
        load_model(MODEL),
        role,
        policy,
        tensor=GPUS,
        gpu=a800(),
        budget=budget,
        longest=LONGEST,
        link=0.0 if role is Role.COLOCATED else NETWORK,
        router=Router.LENGTH_AWARE if role is Role.PREFILL else Router.ROUND_ROBIN,
    )


def vllm(chunk: int | None = None, *, caching: bool = False) -> SimulatedFleet:
    """A node is an instance; caching: each keeps the prefixes that its own memory has room for."""
    policy, budget = (VLLM_V0, LONGEST) if chunk is None else (VLLM_V1, chunk)
    return SimulatedFleet((replace(node(Role.COLOCATED, policy, budget), replicas=NODES, prefix_cache=caching),))


def mooncake(prefill: int, decode: int, *, caching: bool = True) -> SimulatedFleet:
    """Prefill nodes that take whole prompts and share a store of prefixes, KV sent layer by layer, decode nodes."""
    size = load_model(MODEL).kv_bytes_per_token("bf16")
    pools = (
        replace(node(Role.PREFILL, VLLM_V0, 8_192), replicas=prefill, prefix_cache=caching),
        replace(node(Role.DECODE, VLLM_V0, 256), replicas=decode, router=Router.LEAST_LOADED),
    )
    store = KvStore(int(STORE / (size * BLOCK)), size / (STORE_READ * NODES), size / STORE_READ) if caching else None
    return SimulatedFleet(pools, HandOver(layers=LAYERS, first_token=FirstToken.PREFILL), store=store)


def longest_tenth(result: Result) -> FloatArray:
    """Mean of the longest 10 % of each request's gaps between tokens [s]; 0 with less than two tokens.

    Read off the step log: a request makes its tokens after the first in the last OSL - 1 decode steps of its engine
    before it ends, and its first gap begins at its first token, wherever it waits then. A run of steps in one row
    counts with its mean; what a preempted request loses lies in its first gap.
    """
    engine = np.where(result.decode_engine >= 0, result.decode_engine, result.engine)
    log = result.steps_log[result.steps_log[:, 4] > 0]
    found = np.zeros(result.trace.size)
    for lane in np.unique(engine[engine >= 0]):
        rows = log[log[:, 0] == lane]
        end, steps = rows[:, 2], rows[:, 6]
        each, made = (end - rows[:, 1]) / steps, np.cumsum(steps)
        begun = rows[:, 1] + each
        for request in np.flatnonzero((engine == lane) & (result.trace.osl > 1) & result.finished):
            high = int(np.searchsorted(end, result.finish[request] * (1.0 + 1e-12), side="right"))
            gaps_left = made[high - 1] - (result.trace.osl[request] - 1)
            low = int(np.searchsorted(made, gaps_left, side="right"))
            before = np.concatenate([[result.first[request]], end[low : high - 1]])
            gaps = np.concatenate([begun[low:high] - before, each[low:high]])
            count = np.concatenate([np.ones(high - low), steps[low:high] - 1.0])
            found[request] = _mean_of_largest(gaps, count, np.ceil(0.1 * count.sum()))
    return found


def _mean_of_largest(values: FloatArray, count: FloatArray, most: float) -> float:
    order = np.argsort(-values)
    upto = np.minimum(np.cumsum(count[order]), most)
    return float(values[order] @ np.diff(upto, prepend=0.0) / most)


def capacity(result: Result, limits: Sequence[float] = TBT, ttft: float = TTFT) -> Shares:
    """Share of requests within the TTFT and each TBT limit."""
    in_time = result.finished & (result.ttft <= ttft)
    tbt = longest_tenth(result)
    return tuple(float((in_time & (tbt <= limit)).mean()) for limit in limits)


def run(load: Load, fleet: SimulatedFleet) -> Result:
    """Simulate, with the step log that `longest_tenth` reads."""
    counts = np.array([len(one) for one in load.hashes])
    pages = Pages(np.concatenate([np.asarray(one, dtype=np.int64) for one in load.hashes]), counts, BLOCK)
    trace = make_trace(load.arrival, load.isl, load.osl, pages=pages)
    return simulate(trace, fleet, log_rows=LOG_ROWS * load.isl.size)


def systems() -> dict[str, SimulatedFleet]:
    """vLLM, with a prefix cache in each node's memory, in chunks; Mooncake, and without hits."""
    return {
        "vLLM": vllm(),
        "own cache": vllm(caching=True),
        "chunks": vllm(CHUNK),
        "Mooncake": mooncake(*PUBLISHED_SPLIT),
        "no hits": mooncake(*PUBLISHED_SPLIT, caching=False),
    }


def split_rate(load: Load, prefill: int, decode: int) -> float:
    """Highest rate at which 90 % of requests are within the limits of their sweep over P:D [1/s]."""
    ttft, tbt = SPLIT_LIMITS
    fleet, rate = mooncake(prefill, decode), load.isl.size / float(load.arrival[-1])
    return rate * highest_rate(lambda speed: capacity(run(load.at(speed), fleet), (tbt,), ttft)[0] >= GOAL, 0.04)


def _shares(values: Shares) -> str:
    return " ".join(f"{value:.0%}" for value in values)


def _gains(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.0%}" for value in values)


def main() -> None:
    """Print the shares of requests within the limits, then the rates by P:D."""
    loads = {"conversation": conversation(Path(sys.argv[1])), "synthetic": synthetic()}
    rows: list[tuple[object, ...]] = []
    for name, speed in (("conversation", 1.0), ("conversation", 2.0), ("synthetic", 1.0)):
        load = loads[name].at(speed)
        found = {system: capacity(run(load, fleet)) for system, fleet in systems().items()}
        gains = [one / other - 1.0 for one, other in zip(found["Mooncake"], found["vLLM"], strict=True)]
        rows.append((name, f"{speed:g} x", *map(_shares, found.values()), _gains(gains), _gains(THEIRS[name])))
    print("share of requests with TTFT <= 30 s and TBT <= 100, 200, 300 ms; Mooncake has 8 prefill and 8 decode nodes")
    print(table(("trace", "rate", "vLLM", "own cache", "chunks", "Mooncake", "no hits", "gain", "theirs"), rows))
    print(
        "req/s at which 90 % have TTFT <= 10 s and TBT <= 100 ms, by prefill and decode nodes (theirs: best near 8P 8D)"
    )
    fewer = [conversation(Path(sys.argv[1]), SPLIT_REQUESTS), synthetic(SPLIT_REQUESTS)]
    by_split = [(f"{p}P {d}D", *(f"{split_rate(load, p, d):.2f}" for load in fewer)) for p, d in SPLITS]
    print(table(("nodes", *loads), by_split))


if __name__ == "__main__":
    main()
