"""DistServe's pipelined model, where every stage is a node with queues of its own.

pdplan's engines keep pp micro-batches apart; DistServe's stages take whatever is in their queue: the first stage whole
prompts up to the budget, later stages the prompts of one batch, and every stage all decodes up to the cap, so that
micro-batches may merge. Prompts go before decodes. A token counts when its batch leaves the last stage.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.simulator import CoefficientSteps, Trace

FloatArray = NDArray[np.float64]


@dataclass(slots=True)
class Node:
    """One stage: its step times and queues. next: where prompts and decodes go; out: the first decode stage, for the
    prompts that leave the last prompt stage."""

    steps: CoefficientSteps
    first: bool
    last: bool
    next: int
    out: int
    prompts: deque[tuple[int, int]] = field(default_factory=deque)
    """(batch, request)"""
    decodes: deque[int] = field(default_factory=deque)
    busy: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class StageResult:
    """Times per request [s] and batches of all stages, and of the first stages alone."""

    trace: Trace
    first: FloatArray
    finish: FloatArray
    steps: int
    first_stage_steps: int

    @property
    def ttft(self) -> FloatArray:
        """Arrival to end of the prompt [s]."""
        return self.first - self.trace.arrival

    @property
    def e2e(self) -> FloatArray:
        """Arrival to last token [s]."""
        return self.finish - self.trace.arrival


class Pipeline:
    """Nodes, requests and the heap of events (time, order, node, prompts, decodes); node -1 is an arrival."""

    def __init__(self, trace: Trace, nodes: list[Node], budget: int, cap: int) -> None:
        self.nodes, self.budget, self.cap = nodes, budget, cap
        self.isl, self.osl = trace.isl.tolist(), trace.osl.tolist()
        self.made = [0] * trace.size
        self.batches_of = [0] * trace.size
        self.first = np.full(trace.size, np.nan)
        self.finish = np.full(trace.size, np.nan)
        self.batches = 0
        self.order = 0
        self.events: list[tuple[float, int, int, int, list[int], list[int]]] = []
        for request, time in enumerate(trace.arrival.tolist()):
            self.push(time, 0, -1, [request], [])

    def push(self, time: float, late: int, node: int, prompts: list[int], decodes: list[int]) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, late, self.order, node, prompts, decodes))

    def run(self) -> None:
        while self.events:
            time, late, _, number, prompts, decodes = heapq.heappop(self.events)
            if number < 0:
                self.nodes[0].prompts.append((0, prompts[0]))
                self.wake(0, time)
                continue
            if not late:
                self.end(number, time, prompts, decodes)
            self.start(number, time)

    def wake(self, number: int, time: float) -> None:
        """An idle node looks at its queues after all else that happens now."""
        node = self.nodes[number]
        if not node.busy:
            node.busy = True
            self.push(time, 1, number, [], [])

    def end(self, number: int, time: float, prompts: list[int], decodes: list[int]) -> None:
        node = self.nodes[number]
        for request in prompts:
            if not node.last:
                self.nodes[node.next].prompts.append((self.batches_of[request], request))
                self.wake(node.next, time)
                continue
            self.first[request] = time
            self.nodes[node.out].decodes.append(request)
            self.wake(node.out, time)
        for request in decodes:
            self.made[request] += node.last
            if self.made[request] >= self.osl[request]:
                self.finish[request] = time
            else:
                self.nodes[node.next].decodes.append(request)
                self.wake(node.next, time)

    def start(self, number: int, time: float) -> None:
        node = self.nodes[number]
        node.busy = bool(node.prompts or node.decodes)
        if not node.busy:
            return
        node.count += 1
        steps = node.steps
        if node.prompts:
            prompts = self.take_prompts(node)
            lengths = [self.isl[request] for request in prompts]
            a, b, c = steps.prefill_abc
            work = (a + b * sum(lengths) + c * sum(n * n for n in lengths)) * steps.stage_share + steps.prefill_constant
            self.push(time + work + self.overhead(steps, sum(lengths)), 0, number, prompts, [])
            return
        decodes, context = self.take_decodes(node)
        a, b, c = steps.small if len(decodes) < steps.large_batch else steps.large
        work = (a + b * (context + len(decodes)) + c * len(decodes)) * steps.stage_share
        self.push(time + work + self.overhead(steps, context), 0, number, [], decodes)

    @staticmethod
    def overhead(steps: CoefficientSteps, tokens: int) -> float:
        return steps.overhead_step + steps.overhead_token * tokens

    def take_prompts(self, node: Node) -> list[int]:
        taken: list[int] = []
        if not node.first:
            batch = node.prompts[0][0]
            while node.prompts and node.prompts[0][0] == batch:
                taken.append(node.prompts.popleft()[1])
            return taken
        self.batches += 1
        room = self.budget
        while node.prompts and (self.isl[node.prompts[0][1]] <= room or not taken):
            request = node.prompts.popleft()[1]
            self.batches_of[request] = self.batches
            room -= self.isl[request]
            taken.append(request)
        return taken

    def take_decodes(self, node: Node) -> tuple[list[int], int]:
        taken, context, room = [], 0, self.cap
        while node.decodes:
            tokens = self.isl[node.decodes[0]] + self.made[node.decodes[0]]
            if tokens + 1 > room and taken:
                break
            room -= tokens + 1
            context += tokens
            taken.append(node.decodes.popleft())
        return taken, context


def simulate_stages(
    trace: Trace,
    steps: Sequence[Sequence[CoefficientSteps]],
    stages: tuple[int, int],
    budget: int,
    cap: int,
    colocated: bool,
) -> StageResult:
    """A chain of prompt stages and one of decode stages, or one chain for both. steps: (first, later) of each chain."""
    nodes: list[Node] = []
    for chain, count in enumerate(stages[:1] if colocated else stages):
        start = len(nodes)
        out = 0 if colocated else stages[0]
        for stage in range(count):
            kind = steps[chain][0 if stage == 0 else 1]
            nodes.append(Node(kind, stage == 0, stage == count - 1, start + (stage + 1) % count, out))
    pipeline = Pipeline(trace, nodes, budget, cap)
    pipeline.run()
    return StageResult(
        trace,
        pipeline.first,
        pipeline.finish,
        steps=sum(node.count for node in nodes),
        first_stage_steps=sum(node.count for node in nodes if node.first),
    )
