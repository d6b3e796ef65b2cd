"""Measured serving results that contradict physics or their own description; they are scored, but no fit follows them.

Predictions play a part as yardsticks only, with wide margins, and no prediction depends on what is found here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from costmodel.serving.load import Steady

from .measured_batches import Batch, Deployment

MOST_PREFILL = 1.25
"""Share of an engine's time that its prompts may take by the catalog's kernels, whose error it allows for [1]."""
LONGEST_QUEUE = 3.0
"""TTFT over the time in which one worker prefills all requests in flight [1]."""

LEAST_BYTES = 0.5
"""Least bytes of a weight [byte]."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is odd about a row: `rule` says it in words; figure: how far beyond its limit the row is [1]."""

    rule: str
    figure: float


UNSTATED = "load not stated"
TOO_FAST = "more prompts than the kernels can compute"
TOO_QUICK = "tokens faster than the memory"
TOO_SLOW = "first token later than any queue"


def suspicions(batch: Batch, steady: Steady) -> list[Suspicion | None]:
    """For every deployment of a batch the first rule that its measurement breaks, or None."""
    columns = (steady.prefill, steady.shared, steady.line)
    return [
        _suspicion(each, *values)
        for each, *values in zip(
            batch.deployments, *(np.broadcast_to(one, steady.ttft.shape)[:, 0].tolist() for one in columns), strict=True
        )
    ]


def _suspicion(each: Deployment, alone: float, shared: float, line: float) -> Suspicion | None:
    row, engine = each.row, each.decode or each.prefill
    if row.concurrency is None:
        return Suspicion(UNSTATED, math.nan)
    if not (row.ttft > 0 and row.tpot > 0):
        return None
    rate = each.concurrency / (row.ttft + max(each.osl - 1.0, 1.0) * row.tpot)
    workers = row.prefill.workers if each.decode else 1
    read = each.model.matmul_parameters * LEAST_BYTES / engine.gpus / engine.accelerator.bandwidth
    queue = LONGEST_QUEUE * (alone + each.concurrency * shared + each.transfer)
    limits = (
        Suspicion(TOO_FAST, rate * shared / workers / MOST_PREFILL),
        Suspicion(TOO_QUICK, read / row.tpot),
        Suspicion(TOO_SLOW, row.ttft / queue if line <= 0 else 0.0),
    )
    return next((limit for limit in limits if limit.figure > 1), None)
