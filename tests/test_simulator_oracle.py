"""The simulator against a literal scheduler: same times, gaps, preemptions and steps, to rounding.

The scheduler keeps lists of requests and takes one step at a time, nothing lazy. It follows the semantics of vLLM
before 2025 and of Sarathi-Serve (one engine, recompute on preemption), where a request that makes its first token at
the end of its prompt has processed prompt + 1 tokens.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.reference.lone_steps import CoefficientSteps, step_seconds
from benchmarks.reference.policies import POLICIES, SARATHI, STATIC, VLLM_V0
from costmodel.engine import Policy
from costmodel.simulator.fleet import Limits, SimulatedFleet
from costmodel.simulator.loop import run_loop
from costmodel.simulator.metrics import Result, gap_edges
from costmodel.simulator.run import make_world, simulate
from costmodel.workload import Trace, make_trace
from tests.simulator_cases import STEPS, colocated, random_fleet, random_trace

TIMES_OF_STEPS = CoefficientSteps((5e-3, 2e-5, 1e-9), (8e-3, 1e-7, 1e-4))


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
    def __init__(self, trace: Trace, *, chunked: bool, budget: int, seqs: int, blocks: int) -> None:
        rows = zip(trace.arrival.tolist(), trace.isl.tolist(), trace.osl.tolist(), strict=True)
        self.jobs = [Job(arrival, isl, isl + osl, osl) for arrival, isl, osl in rows]
        self.chunked, self.budget, self.seqs = chunked, budget, seqs
        self.total, self.block, self.watermark = blocks, 16, int(0.01 * blocks)
        self.queue: list[Job] = []
        self.running: list[Job] = []
        self.used = 0
        self.steps = 0

    def fits(self, job: Job) -> bool:
        if job.blocks == 0:
            return self.total - self.used - -(-job.prompt // self.block) >= self.watermark
        return not self.needs_block(job) or self.total - self.used >= 1

    def needs_block(self, job: Job) -> bool:
        """Whether the newest token of a running request has no room in its blocks."""
        return job.processed > job.blocks * self.block

    def take(self, job: Job) -> None:
        if job.blocks == 0:
            job.blocks = -(-job.prompt // self.block)
            self.used += job.blocks
        elif self.needs_block(job):
            job.blocks += 1
            self.used += 1

    def restart(self, job: Job) -> None:
        self.used -= job.blocks
        job.prompt = job.processed if job.decoding else job.prompt
        job.blocks, job.processed, job.decoding = 0, 0, False
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
            elif tokens + size > self.budget:
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
            now += seconds([(n, job.processed) for job, n in chunks], len(decodes), sum(j.processed for j in decodes))
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
    a, b, c = TIMES_OF_STEPS.small
    decodes = b * (context + batch) + c * batch
    if not chunks:
        return a + decodes
    first, per_token, per_square = TIMES_OF_STEPS.prefill_abc
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
    for seed in range(20):
        rng, trace = np.random.default_rng(seed), dataclasses.replace(random_trace(seed), concurrency=0)
        blocks, seqs = int(rng.integers(45, 160)), int(rng.choice([3, 8, 128]))
        budget = int(rng.choice([128, 256])) if chunked else 4096
        policy = SARATHI if chunked else VLLM_V0
        truth = Oracle(trace, chunked=chunked, budget=budget, seqs=seqs, blocks=blocks).run()
        median = float(np.nanmedian(truth.itl_p99()))
        edges = gap_edges([0.5 * median, median * 1.000001])
        engines = colocated(policy, TIMES_OF_STEPS, Limits(seqs, budget, kv_blocks=blocks))
        result = simulate(trace, engines, gap_edges=edges)
        longest = np.array([max(gaps, default=0.0) for gaps in truth.gaps()])
        ours = result.first, result.finish, result.itl_max
        np.testing.assert_allclose(ours, (truth.times("first"), truth.times("finish"), longest), rtol=1e-9, atol=1e-9)
        assert_tail_of_gaps(result, truth.itl_p99(), edges)
        np.testing.assert_array_equal(result.restarts, truth.times("restarts"))
        assert result.steps == truth.steps
        restarts += int(result.restarts.sum())
    assert restarts > 60


# --- the conformance suite of scheduling policies: what each of them must do on any workload

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
either_way = pytest.mark.parametrize("disaggregated", [False, True], ids=["colocated", "disaggregated"])
TIMES = ("arrival", "prompt_start", "prompt_end", "moved", "first", "finish", "itl_max")


def assert_same(ours: Result, theirs: Result) -> None:
    """Jumps change nothing but rounding; what is counted in whole numbers, and work, not even that."""
    for name in TIMES:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-12, err_msg=name)
    for name in ("restarts", "engine", "decode_engine", "hit"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for use, other in zip(ours.engines, theirs.engines, strict=True):
        mine, steps = dataclasses.asdict(use), dataclasses.asdict(other)
        for name in ("busy", "kv_block_seconds"):
            assert mine.pop(name) == pytest.approx(steps.pop(name), rel=1e-9, abs=1e-12)
        assert mine == steps


def assert_conserved(trace: Trace, fleet: SimulatedFleet, result: Result) -> None:
    """Requests, tokens and blocks: all that were there at the begin are there at the end."""
    assert int(result.finished.sum()) + sum(use.rejected for use in result.engines) == trace.size
    world = make_world(trace, fleet)
    run_loop(world, float("inf"))
    pools = [pool for pool in fleet for _ in range(pool.replicas)]
    for engine, pool in zip(world["engines"].view(np.recarray), pools, strict=True):
        assert (engine.free, engine.promised) == (pool.limits.kv_blocks, 0)
        assert (engine.requests, engine.uncomputed, engine.coming) == (0, 0, 0)
        assert world["chains"][engine.gate].tolist() == world["chains"][engine.waiting].tolist() == (-1, -1)
        if trace.pages is not None and engine.cache >= 0:
            count = int(trace.pages.ids.max()) + 1
            listed, *references = world["cached"]["references"][engine.cache :][: count + 1].tolist()
            assert max(references) <= 0
            assert references.count(0) == listed
            assert listed * engine.page_blocks <= engine.free
    if result.finished.all() and not result.restarts.any():
        split = len(fleet) == 2
        made = 0 if split else 1
        decodes = sum(use.content.decodes for use in result.engines)
        assert decodes >= int((trace.osl - made).sum())
        if not fleet[0].policy.static:
            assert decodes == int((trace.osl - made).sum())
        assert sum(use.content.tokens for use in result.engines) - decodes == int((trace.isl - result.hit).sum())


def assert_limits(trace: Trace, fleet: SimulatedFleet, result: Result) -> None:
    """Steps keep to budget, sequences and blocks, and times come in order."""
    pool, longest = fleet[0], float(trace.isl.max() + trace.osl.max())
    budget = pool.limits.max_num_batched_tokens
    _, start, end, prompts, decodes, _, steps = result.steps_log.T
    assert np.all(end >= start)
    assert np.all(steps >= 1)
    assert np.all(decodes <= pool.limits.max_num_seqs)
    shared = 0.0 if pool.policy.exclusive_prefill else decodes
    assert np.all(prompts + shared <= (budget if pool.policy.chunked else max(budget, longest)))
    assert not (pool.policy.exclusive_prefill and np.any((prompts > 0) & (decodes > 0)))
    assert all(use.peak_blocks <= pool.limits.kv_blocks for use in result.engines)
    ended = result.finished
    for earlier, later in (("arrival", "prompt_start"), ("prompt_start", "prompt_end"), ("first", "finish")):
        assert np.all(getattr(result, earlier)[ended] <= getattr(result, later)[ended])
    assert np.all((result.itl_max * (trace.osl - 1))[ended] >= (result.finish - result.first)[ended] * (1 - 1e-9))


@every_policy
@either_way
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), paged=st.booleans())
@example(seed=763, paged=False)  # preempted before its first decode step, it goes on in another micro-batch
def test_jumps_conservation_and_limits(policy: Policy, disaggregated: bool, seed: int, paged: bool) -> None:
    """Pull or push, NICs, data-parallel lanes, stages, prefix caches, routers."""
    paged = paged and not policy.static
    trace, fleet = random_trace(seed, paged=paged), random_fleet(seed, policy, disaggregated, paged=paged)
    result = simulate(trace, fleet, log_rows=100_000)
    assert_same(result, simulate(trace, fleet, fast_forward=False))
    assert_conserved(trace, fleet, result)
    assert_limits(trace, fleet, result)
    again = simulate(trace, fleet)
    assert again.finish.tobytes() == result.finish.tobytes()


@every_policy
def test_a_lone_request_takes_its_steps_and_no_more(policy: Policy) -> None:
    result = simulate(make_trace(np.array([1.0]), np.array([100]), np.array([5])), colocated(policy))
    decodes = sum(step_seconds(STEPS, (), None, 1, 101 + k) for k in range(4))
    assert result.ttft[0] == pytest.approx(5e-3 + 2e-5 * 100 + 1e-9 * 100**2, rel=1e-12)
    assert result.e2e[0] == pytest.approx(float(result.ttft[0]) + decodes, rel=1e-12)
    assert result.decode[0] == pytest.approx(decodes)
    assert result.steps == 5


def test_static_batches_wait_for_their_longest() -> None:
    trace = make_trace(np.zeros(3), np.array([10, 10, 10]), np.array([2, 100, 2]))
    static, continuous = (
        simulate(trace, colocated(policy, limits=Limits(max_num_seqs=2))) for policy in (STATIC, VLLM_V0)
    )
    assert static.prompt_start[2] == pytest.approx(static.finish[1])
    assert continuous.prompt_start[2] == pytest.approx(continuous.finish[0])


@pytest.mark.parametrize(("policy", "least", "most"), [("trtllm", 0, 0), ("sarathi", 5, 40)])
def test_only_policies_that_promise_blocks_never_preempt(policy: str, least: int, most: int) -> None:
    preempting = [
        simulate(random_trace(seed), random_fleet(seed, POLICIES[policy], disaggregated=False)).restarts.any()
        for seed in range(40)
    ]
    assert least <= sum(preempting) <= most


# --- other simulators' cases, request by request: simdistserve to 1e-3 ms, Vidur to 1e-2 ms, steps equal


@pytest.mark.parametrize(("peer", "tolerance", "cases"), [("simdistserve", 1e-3, 8), ("vidur", 1e-2, 12)])
def test_every_case_is_exact(root: Path, data: Path, peer: str, tolerance: float, cases: int) -> None:
    folder = data / "simulation" / peer
    if not folder.is_dir():
        pytest.skip(f"no cases at {folder}")
    command = [sys.executable, "-m", "benchmarks.reference", peer, str(folder), "--json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    comparisons = json.loads(done.stdout)
    assert len(comparisons) == cases
    for comparison in comparisons:
        assert comparison["max_abs_error_ms"] <= tolerance, comparison
        assert comparison["p99_abs_error_ms"] <= comparison["max_abs_error_ms"]
        assert comparison["steps_equal"], comparison
