"""The pools of `tail_model.py`: chosen ones, which the tail model was made with, and drawn ones, which it never saw."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.engine import Role  # noqa: E402
from costmodel.workload import Workload  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.problem import Balancing  # noqa: E402

MIXES = {"fixed": ((2000.0, 200.0, 1.0),), "two": ((500.0, 300.0, 0.7), (6000.0, 100.0, 0.3))}
"""Lengths of our own beside those of the examples: (isl, osl, share)."""
LOGNORMAL = {
    "questions": ((300.0, 1.0), (250.0, 0.8)),
    "documents": ((4000.0, 0.8), (300.0, 0.6)),
    "agents": ((2500.0, 1.2), (120.0, 1.0)),
    "reasoning": ((800.0, 0.7), (900.0, 0.7)),
}
"""Log-normal lengths of the drawn pools: median [token] and sigma of ISL and OSL, independent."""
LENGTHS, STRIDE = 37, 10
"""As many equally likely pairs stand for them, so that no quantile judged falls between two; every 10th OSL in turn."""
LONGEST = 16_000.0
"""Where they are cut off [token]."""
HOSTS = (
    ("Qwen3-8B", "A10G", 2),
    ("Llama-3.1-8B", "L4", 2),
    ("Mistral-7B", "RTX-PRO-6000", 1),
    ("gpt-oss-20b", "H100", 1),
    ("Qwen3-8B", "H100", 1),
    ("Qwen3-32B", "H20", 2),
    ("Qwen3-32B", "H200", 1),
    ("Qwen3-30B-A3B", "A100-80", 2),
    ("Qwen2.5-72B", "H100", 4),
    ("Qwen2.5-72B", "MI300X", 2),
    ("Llama-3.1-70B", "B200", 2),
    ("Mixtral-8x7B", "H100-PCIe", 2),
)
"""Model, GPU and tensor-parallel degree of the drawn pools, none of which is among the chosen ones."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pool under test; cv: coefficient of variation of the gaps between arrivals [1]."""

    role: Role
    mix: str
    model: str
    gpu: str
    tensor: int
    pipeline: int
    servers: int
    utilization: float
    cv: float
    seqs: int = 128
    chunk: int = 8192
    engine: str = "vllm"
    balancing: Balancing = Balancing.LEAST_TOKENS

    @property
    def kind(self) -> str:
        """Role, arrivals, and whether the engine is a pipeline."""
        return f"{self.role}{', pipelined' if self.pipeline > 1 else ''}, {'bursty' if self.cv > 1.0 else 'Poisson'}"

    @property
    def name(self) -> str:
        """Its settings in one line."""
        split = f"TP{self.tensor}" + (f"PP{self.pipeline}" if self.pipeline > 1 else "")
        limits = f"{self.seqs}/{self.chunk}" if self.role is not Role.PREFILL else f"{self.chunk}"
        return (
            f"{self.servers:>2}x {self.gpu} {split} {limits} {self.engine} {self.model} {self.mix} "
            f"CV {self.cv:g} at {self.utilization:g}"
        )


PREFILL, DECODE, COLOCATED = Role.PREFILL, Role.DECODE, Role.COLOCATED
SMALL, MIDDLE, LARGE = "Llama-3.1-8B", "Qwen3-32B", "Llama-3.1-70B"
CASES = (
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.3, 1.0),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.6, 1.0),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.8, 1.0),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 1, 0.5, 1.0),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 2, 0.7, 1.0),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 4, 0.7, 1.0),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 8, 0.8, 1.0),
    Case(PREFILL, "chat", SMALL, "A100-80", 1, 1, 16, 0.85, 1.0),
    Case(PREFILL, "chat", SMALL, "L40S", 1, 1, 64, 0.9, 1.0),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 1, 0.6, 1.0),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 3, 0.8, 1.0),
    Case(PREFILL, "code", MIDDLE, "L40S", 4, 1, 6, 0.75, 1.0),
    Case(PREFILL, "code", MIDDLE, "A100-80", 2, 1, 12, 0.9, 1.0),
    Case(PREFILL, "long-context", LARGE, "H200", 4, 1, 2, 0.5, 1.0),
    Case(PREFILL, "long-context", LARGE, "B200", 2, 1, 4, 0.7, 1.0),
    Case(PREFILL, "two", SMALL, "H100", 1, 1, 2, 0.85, 1.0, chunk=2048),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 2, 0.5, 2.0),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 8, 0.7, 2.0),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 4, 0.6, 3.0),
    Case(PREFILL, "code", MIDDLE, "L40S", 4, 1, 16, 0.8, 3.0),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.6, 2.0),
    Case(PREFILL, "long-context", LARGE, "H200", 4, 1, 4, 0.6, 2.0),
    Case(PREFILL, "chat", LARGE, "H100", 2, 2, 2, 0.6, 1.0),
    Case(PREFILL, "long-context", LARGE, "H200", 2, 2, 2, 0.6, 1.0),
    Case(PREFILL, "code", MIDDLE, "A100-80", 1, 2, 4, 0.7, 2.0),
    Case(DECODE, "chat", LARGE, "H100", 4, 1, 1, 0.5, 1.0),
    Case(DECODE, "chat", LARGE, "H200", 2, 1, 4, 0.7, 1.0),
    Case(DECODE, "chat", LARGE, "H200", 2, 1, 16, 0.85, 1.0, seqs=64),
    Case(DECODE, "code", MIDDLE, "A100-80", 2, 1, 2, 0.6, 1.0, seqs=64),
    Case(DECODE, "fixed", SMALL, "H100", 1, 1, 1, 0.3, 1.0),
    Case(DECODE, "two", SMALL, "L40S", 1, 1, 8, 0.7, 1.0, seqs=48),
    Case(DECODE, "long-context", LARGE, "H200", 4, 1, 4, 0.6, 1.0, seqs=64),
    Case(DECODE, "chat", LARGE, "H200", 2, 1, 4, 0.6, 2.0),
    Case(DECODE, "code", MIDDLE, "A100-80", 2, 1, 4, 0.5, 3.0, seqs=64),
    Case(DECODE, "chat", SMALL, "H100", 1, 1, 2, 0.5, 3.0),
    Case(COLOCATED, "fixed", SMALL, "H100", 1, 1, 1, 0.3, 1.0, chunk=2048),
    Case(COLOCATED, "fixed", SMALL, "H100", 1, 1, 1, 0.6, 1.0, chunk=2048),
    Case(COLOCATED, "chat", LARGE, "H100", 4, 1, 1, 0.5, 1.0, chunk=2048),
    Case(COLOCATED, "chat", LARGE, "H200", 2, 1, 4, 0.4, 1.0, chunk=1024),
    Case(COLOCATED, "chat", LARGE, "H200", 2, 1, 8, 0.6, 1.0, chunk=8192),
    Case(COLOCATED, "chat", LARGE, "H200", 4, 1, 4, 0.7, 1.0, chunk=512),
    Case(COLOCATED, "code", MIDDLE, "H100", 2, 1, 2, 0.6, 1.0, seqs=64, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "A100-80", 2, 1, 8, 0.8, 1.0, seqs=64, chunk=4096),
    Case(COLOCATED, "code", MIDDLE, "L40S", 4, 1, 32, 0.7, 1.0, seqs=32, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "H200", 4, 1, 2, 0.5, 1.0, seqs=32, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "B200", 4, 1, 4, 0.7, 1.0, seqs=64, chunk=8192),
    Case(COLOCATED, "two", SMALL, "A100-80", 1, 1, 3, 0.7, 1.0, chunk=1024),
    Case(COLOCATED, "chat", LARGE, "H200", 2, 1, 4, 0.4, 2.0, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "H100", 2, 1, 4, 0.6, 3.0, seqs=64, chunk=2048),
    Case(COLOCATED, "chat", SMALL, "H100", 1, 1, 2, 0.5, 3.0, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "A100-80", 2, 1, 16, 0.7, 2.0, seqs=64, chunk=2048),
    Case(COLOCATED, "chat", LARGE, "H100", 2, 2, 2, 0.4, 1.0, seqs=64, chunk=1024),
    Case(COLOCATED, "chat", LARGE, "H200", 1, 4, 1, 0.5, 1.0, seqs=256, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "H100", 1, 2, 2, 0.6, 1.0, seqs=64, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "H200", 1, 4, 2, 0.4, 1.0, seqs=64, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "H200", 1, 4, 2, 0.6, 1.0, seqs=256, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "H100", 1, 2, 4, 0.5, 2.0, seqs=64, chunk=2048),
)
"""Pools of every role, engine size, mix of lengths and burstiness; 1 to 64 servers, busy from 0.3 to 0.9."""

CROWDED = (
    ("fixed", SMALL, "H100", 1, 2048),
    ("chat", LARGE, "H200", 2, 4096),
    ("reasoning", MIDDLE, "H200", 1, 4096),
    ("questions", "Qwen2.5-72B", "H100", 4, 4096),
)
"""Engines of 32 seats, all of which are taken for up to half of the time: mix, model, GPU, tensor, chunk."""
FILLED = (
    *((1, 0.5, 1.0), (1, 0.75, 1.0), (2, 0.85, 1.0), (1, 0.5, 2.0), (1, 0.6, 3.0)),
    *((2, 0.7, 2.0), (4, 0.6, 3.0), (8, 0.8, 2.0), (16, 0.9, 1.0), (16, 0.75, 3.0)),
)
"""How they are filled: engines, share of their seats taken on average, coefficient of variation of the gaps."""
FULL_CASES = tuple(
    Case(COLOCATED, mix, model, gpu, tensor, 1, *filled, seqs=32, chunk=chunk)
    for mix, model, gpu, tensor, chunk in CROWDED
    for filled in FILLED
)

IDLE = (
    *((1, 0.02, 1.0), (1, 0.1, 1.0), (4, 0.05, 1.0), (1, 0.05, 3.0), (1, 0.15, 2.0)),
    *((2, 0.03, 3.0), (4, 0.02, 2.0), (8, 0.02, 3.0)),
)
"""Engines that mostly idle: how many, busy share of their prompt servers, coefficient of variation of the gaps."""
LIGHT_CASES = tuple(
    Case(COLOCATED, mix, model, gpu, tensor, 1, *idle, seqs=seqs, chunk=chunk)
    for seqs in (8, 64)
    for mix, model, gpu, tensor, chunk in CROWDED
    for idle in IDLE
)
"""Idle engines of few seats, which bursts fill, and of many."""

CHUNKED_CASES = (
    Case(PREFILL, "chat", LARGE, "H100", 1, 2, 2, 0.8, 1.0, chunk=2048),
    Case(PREFILL, "chat", LARGE, "H100", 1, 2, 4, 0.7, 2.0, chunk=1024),
    Case(PREFILL, "chat", LARGE, "H200", 1, 2, 8, 0.85, 1.0, chunk=4096),
    Case(PREFILL, "chat", LARGE, "H200", 1, 4, 1, 0.6, 1.0, chunk=2048),
    Case(PREFILL, "chat", SMALL, "L40S", 1, 2, 16, 0.8, 1.0, chunk=512),
    Case(PREFILL, "code", MIDDLE, "H100", 1, 2, 1, 0.6, 1.0, chunk=1024),
    Case(PREFILL, "code", MIDDLE, "H100", 1, 2, 2, 0.7, 1.0, chunk=2048),
    Case(PREFILL, "code", MIDDLE, "A100-80", 1, 4, 2, 0.6, 1.0, chunk=512),
    Case(PREFILL, "code", MIDDLE, "A100-80", 2, 2, 4, 0.7, 2.0, chunk=2048),
    Case(PREFILL, "code", MIDDLE, "L40S", 2, 4, 8, 0.6, 3.0, chunk=4096),
    Case(PREFILL, "long-context", LARGE, "H200", 2, 2, 2, 0.6, 1.0, chunk=2048),
    Case(PREFILL, "long-context", LARGE, "H200", 1, 4, 4, 0.7, 1.0, chunk=4096),
    Case(PREFILL, "long-context", LARGE, "B200", 1, 2, 3, 0.6, 2.0, chunk=1024),
    Case(PREFILL, "two", SMALL, "H100", 1, 2, 2, 0.7, 1.0, chunk=1024),
    Case(PREFILL, "two", SMALL, "A100-80", 1, 2, 6, 0.75, 2.0, chunk=2048),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 2, 1, 0.6, 1.0, chunk=512),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 2, 0.7, 1.0, chunk=1024),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 8, 0.8, 1.0, chunk=2048),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 3, 0.8, 1.0, chunk=512),
    Case(PREFILL, "code", MIDDLE, "L40S", 4, 1, 16, 0.8, 3.0, chunk=1024),
    Case(PREFILL, "long-context", LARGE, "H200", 4, 1, 4, 0.6, 2.0, chunk=2048),
    Case(PREFILL, "two", SMALL, "H100", 1, 1, 2, 0.7, 1.0, chunk=512),
)
"""Prefill engines that compute prompts in small chunks, most of them pipelines, whose stages so work side by side."""


@cache
def lengths_of(mix: str) -> Workload:
    """The workload of an example, or lengths of our own, at one request per second."""
    if mix in MIXES:
        isl, osl, share = (np.array(column) for column in zip(*MIXES[mix], strict=True))
        return Workload(isl, osl, share, request_rate=1.0, max_tokens=8192)
    if mix in LOGNORMAL:
        score = np.array([NormalDist().inv_cdf((k + 0.5) / LENGTHS) for k in range(LENGTHS)])
        isl, osl = (np.minimum(median * np.exp(sigma * score), LONGEST) for median, sigma in LOGNORMAL[mix])
        osl = osl[np.arange(LENGTHS) * STRIDE % LENGTHS]
        share = np.full(LENGTHS, 1.0 / LENGTHS)
        return Workload(isl, osl, share, request_rate=1.0, max_tokens=int(2 * LONGEST))
    return replace(load_problem(ROOT / "examples" / f"{mix}.yaml").workload, request_rate=1.0)


def drawn_cases(count: int, seed: int) -> tuple[Case, ...]:
    """Pools drawn at random, to judge the tail model on what it was not made with."""
    rng = np.random.default_rng(seed)
    return tuple(_drawn(rng) for _ in range(count))


def _drawn(rng: np.random.Generator) -> Case:
    """One of them: half Poisson, a tenth of the prefill and colocated ones a pipeline of two stages."""
    role = (PREFILL, DECODE, COLOCATED)[int(rng.choice(3, p=(0.4, 0.2, 0.4)))]
    model, gpu, tensor = HOSTS[int(rng.integers(len(HOSTS)))]
    mixes = (*LOGNORMAL, "chat", "code", "fixed", "two")
    return Case(
        role=role,
        mix=mixes[int(rng.integers(len(mixes)))],
        model=model,
        gpu=gpu,
        tensor=tensor,
        pipeline=2 if role is not DECODE and rng.random() < 0.1 else 1,
        servers=round(float(np.exp(rng.uniform(0.0, np.log(40.0))))),
        utilization=round(float(rng.uniform(0.3, 0.9 if role is PREFILL else 0.7)), 2),
        cv=1.0 if rng.random() < 0.5 else round(float(rng.uniform(1.0, 3.0)), 1),
        seqs=int(rng.choice((32, 64, 128))),
        chunk=8192 if role is DECODE else int(rng.choice((2048, 4096, 8192))),
    )
