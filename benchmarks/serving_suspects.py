"""Rules that tell which measured serving rows contradict physics or their own description."""

from __future__ import annotations

import numpy as np

from costmodel.queues.steady_state import Steady
from search_spaces.measured_engines import Batch

MOST_PREFILL = 1.25
"""Share of an engine's time that its prompts may take by the catalog's kernels, whose error it allows for [1]."""
LONGEST_QUEUE = 3.0
"""TTFT over the time in which one worker prefills all requests in flight [1]."""

LEAST_BYTES = 0.5
"""Least bytes of a weight [byte]."""


UNSTATED = "load not stated"
TOO_FAST = "more prompts than the kernels can compute"
TOO_QUICK = "tokens faster than the memory"
TOO_SLOW = "first token later than any queue"


def suspicions(batch: Batch, steady: Steady) -> list[str]:
    """For every deployment of a batch the first rule that its measurement breaks; empty where it breaks none."""
    columns = np.broadcast_arrays(steady.prefill, steady.shared, steady.line, steady.ttft)[:3]
    doubts = []
    for own, *figures in zip(batch.deployments, *(column[:, 0].tolist() for column in columns), strict=True):
        (alone, shared, line), row, engine = figures, own.row, own.decode or own.prefill
        ttft, tpot = row.scored
        workers = row.prefill.count if own.decode else 1
        least_read = own.model.matmul_parameters * LEAST_BYTES / engine.gpus / engine.accelerator.bandwidth
        queue = LONGEST_QUEUE * (alone + own.concurrency * shared + own.transfer)
        if row.concurrency is None:
            doubts.append(UNSTATED)
        elif not (ttft > 0 and tpot > 0):
            doubts.append("")
        elif own.request_rate(ttft, tpot) * shared / workers > MOST_PREFILL:
            doubts.append(TOO_FAST)
        elif least_read > tpot:
            doubts.append(TOO_QUICK)
        else:
            doubts.append(TOO_SLOW if line <= 0 and ttft > queue else "")
    return doubts
