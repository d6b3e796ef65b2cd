"""A slow, literal scheduler to test the fast one against: lists of requests, one step at a time, nothing lazy.

It follows the semantics of Vidur's `vllm` and `sarathi` replicas (one engine, recompute on preemption), where a request
that makes its first token at the end of its prompt has processed prompt + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodel.simulator import Trace

StepTime = Callable[[list[tuple[int, int]], int, int], float]
"""Seconds of a step: (new, past) of each prompt chunk, decodes, their total context."""


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
        self, trace: Trace, time: StepTime, *, chunked: bool, budget: int, seqs: int, blocks: int, block: int = 16
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

    @property
    def first(self) -> np.ndarray:
        return np.array([job.first for job in self.jobs])

    @property
    def finish(self) -> np.ndarray:
        return np.array([job.finish for job in self.jobs])

    @property
    def itl_max(self) -> np.ndarray:
        return np.array([max(np.diff(job.tokens), default=0.0) for job in self.jobs])

    @property
    def itl_p99(self) -> np.ndarray:
        """The least that all gaps but 1 % of OSL - 1, rounded down, keep."""
        gaps = [sorted(np.diff(job.tokens), reverse=True) or [np.nan] for job in self.jobs]
        return np.array([each[(job.osl - 1) // 100] for job, each in zip(self.jobs, gaps, strict=True)])

    @property
    def restarts(self) -> np.ndarray:
        return np.array([job.restarts for job in self.jobs])
