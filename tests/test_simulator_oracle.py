"""The simulator against a literal scheduler: same times, gaps, preemptions and steps, to rounding.

The scheduler keeps lists of requests and takes one step at a time, nothing lazy. It follows the semantics of Vidur's
`vllm` and `sarathi` replicas (one engine, recompute on preemption), where a request that makes its first token at the
end of its prompt has processed prompt + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.simulator_cases import colocated

# isort: split
from costmodel.policy import SARATHI, VLLM_V0
from costmodel.simulator import CoefficientSteps, Limits, Result, Trace, make_trace, simulate
from costmodel.simulator.metrics import gap_edges

STEPS = CoefficientSteps((5e-3, 2e-5, 1e-9), (8e-3, 1e-7, 1e-4))


@dataclass
class Job:
    arrival: float
    prompt: int
    total: int
    osl: int
    processed: int = 0
    decoding: bool = False
    first: float = -1.0
    finish: float = -1.0
    restarts: int = 0
    blocks: int = 0
    tokens: list[float] = field(default_factory=list)


class Oracle:
    def __init__(
        self,
        trace: Trace,
        time: Callable[[list[tuple[int, int]], int, int], float],
        *,
        chunked: bool,
        budget: int,
        seqs: int,
        blocks: int,
        block: int = 16,
    ) -> None:
        rows = zip(trace.arrival.tolist(), trace.isl.tolist(), trace.osl.tolist(), strict=True)
        self.jobs = [Job(arrival, isl, isl + osl, osl) for arrival, isl, osl in rows]
        self.time, self.chunked, self.budget, self.seqs = time, chunked, budget, seqs
        self.total, self.block, self.watermark = blocks, block, int(0.01 * blocks)
        self.queue: list[Job] = []
        self.running: list[Job] = []
        self.used = 0
        self.steps = 0

    def fits(self, job: Job) -> bool:
        if job.blocks == 0:
            return self.total - self.used - -(-job.prompt // self.block) >= self.watermark
        return self.total - self.used >= 1

    def take(self, job: Job) -> None:
        if job.blocks == 0:
            job.blocks = -(-job.prompt // self.block)
            self.used += job.blocks
        elif job.processed > job.blocks * self.block:
            job.blocks += 1
            self.used += 1

    def restart(self, job: Job) -> None:
        self.used -= job.blocks
        job.blocks, job.prompt, job.processed, job.decoding = 0, job.processed, 0, False
        job.restarts += 1
        self.queue.insert(0, job)

    def decodes(self) -> list[Job]:
        """Running decodes in order; each takes the block it needs from the youngest if there is none."""
        batch, left = [], list(self.running)
        self.running = []
        while left:
            job = left.pop(0)
            if not job.decoding:
                self.running.append(job)
                continue
            while not self.fits(job):
                if left:
                    self.restart(left.pop())
                else:
                    self.restart(job)
                    break
            else:
                self.take(job)
                batch.append(job)
                self.running.append(job)
        return batch

    def batch(self) -> tuple[list[tuple[Job, int]], list[Job]]:
        if not self.chunked:
            chunks = self.new_prompts([], 0)
            return (chunks, []) if chunks else ([], self.decodes())
        decodes = self.decodes()
        tokens, chunks = len(decodes), []
        for job in self.running:
            size = min(job.prompt - job.processed, self.budget - tokens) if not job.decoding else 0
            if size > 0:
                chunks.append((job, size))
                tokens += size
        return self.new_prompts(chunks, tokens), decodes

    def new_prompts(self, chunks: list[tuple[Job, int]], tokens: int) -> list[tuple[Job, int]]:
        while self.queue and len(self.running) < self.seqs and self.fits(self.queue[0]):
            job = self.queue[0]
            size = job.prompt
            if self.chunked:
                size = min(size, self.budget - tokens)
                if size <= 0:
                    break
            elif (len(chunks) + 1) * max([size, *(one for _, one in chunks)]) > self.budget:
                break
            self.queue.pop(0)
            self.take(job)
            chunks.append((job, size))
            self.running.append(job)
            tokens += size
        return chunks

    def run(self) -> Oracle:
        now, coming = 0.0, 0
        while any(job.finish < 0 for job in self.jobs):
            while coming < len(self.jobs) and self.jobs[coming].arrival <= now:
                self.queue.append(self.jobs[coming])
                coming += 1
            chunks, decodes = self.batch()
            if not chunks and not decodes:
                now = self.jobs[coming].arrival
                continue
            self.steps += 1
            now += self.time([(n, job.processed) for job, n in chunks], len(decodes), sum(j.processed for j in decodes))
            for job, size in [*((job, 1) for job in decodes), *chunks]:
                self.advance(job, size, now)
        return self

    def advance(self, job: Job, size: int, now: float) -> None:
        job.processed += size
        emits = job.decoding
        if job.processed == job.prompt and not job.decoding:
            job.decoding, emits = True, True
            job.processed += 1
            job.first = now if job.first < 0 else job.first
        if emits:
            job.tokens.append(now)
        if job.processed == job.total:
            job.finish = now
            self.used -= job.blocks
            self.running.remove(job)

    def times(self, name: str) -> np.ndarray:
        return np.array([getattr(job, name) for job in self.jobs])

    def gaps(self) -> list[list[float]]:
        """Gaps between the tokens of each request, the longest first."""
        return [sorted(np.diff(job.tokens), reverse=True) for job in self.jobs]

    def itl_p99(self) -> np.ndarray:
        """The least that all gaps but 1 % of OSL - 1, rounded down, keep."""
        pairs = zip(self.jobs, self.gaps(), strict=True)
        return np.array([gaps[(job.osl - 1) // 100] if gaps else np.nan for job, gaps in pairs])


def seconds(chunks: list[tuple[int, int]], batch: int, context: int) -> float:
    a, b, c = STEPS.small
    decodes = b * (context + batch) + c * batch
    if not chunks:
        return a + decodes
    first, per_token, per_square = STEPS.prefill_abc
    prompts = per_token * sum(new for new, _ in chunks) + per_square * sum(
        new * (new + 2 * past) for new, past in chunks
    )
    return first + prompts + (decodes if batch else 0.0)


def assert_tail_of_gaps(result: Result, truth: np.ndarray, edges: tuple[float, ...]) -> None:
    """Exact for fewer than 100 gaps; else rounded up to the next edge, so that every edge decides as the truth does."""
    several, few = result.trace.osl > 1, result.trace.osl <= 100
    np.testing.assert_allclose(result.itl_p99[few], truth[few], rtol=1e-9, atol=1e-9)
    for edge in edges:
        sure = several & (np.abs(truth / edge - 1.0) > 1e-8)
        np.testing.assert_array_equal((result.itl_p99 <= edge)[sure], (truth <= edge)[sure])
    inside = several & (truth > edges[0]) & (truth < edges[-1])
    ratio = result.itl_p99[inside] / truth[inside]
    assert ratio.min() > 1.0 - 1e-8
    assert ratio.max() < 1.05 + 1e-8
    assert np.isnan(result.itl_p99[~several]).all()


@pytest.mark.parametrize("chunked", [False, True], ids=["vllm", "sarathi"])
def test_equals_a_literal_scheduler(chunked: bool) -> None:
    restarts = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(5, 60))
        gaps = rng.exponential(rng.choice([0.01, 0.1, 0.3]), count)
        trace = make_trace(np.cumsum(gaps), rng.integers(1, 400, count), rng.integers(1, 200, count))
        blocks, seqs = int(rng.integers(45, 160)), int(rng.choice([3, 8, 128]))
        budget = int(rng.choice([128, 256])) if chunked else 4096
        policy = replace(
            SARATHI if chunked else VLLM_V0, spare_block=True, partial_prompt_ends=True, padded_budget=not chunked
        )
        truth = Oracle(trace, seconds, chunked=chunked, budget=budget, seqs=seqs, blocks=blocks).run()
        median = float(np.nanmedian(truth.itl_p99()))
        edges = gap_edges([0.5 * median, median * 1.000001])
        engines = colocated(policy, STEPS, Limits(seqs, budget, kv_blocks=blocks))
        result = simulate(trace, engines, gap_edges=edges)
        longest = np.array([max(gaps, default=0.0) for gaps in truth.gaps()])
        for ours, theirs in (
            (result.first, truth.times("first")),
            (result.finish, truth.times("finish")),
            (result.itl_max, longest),
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
        assert_tail_of_gaps(result, truth.itl_p99(), edges)
        np.testing.assert_array_equal(result.restarts, truth.times("restarts"))
        assert result.steps == truth.steps
        restarts += int(result.restarts.sum())
    assert restarts > 100
