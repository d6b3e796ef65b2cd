"""When a fleet has two stable states at one request rate: an engine whose KV memory is full makes work of its own.

A request that is preempted gives its KV blocks up, and its tokens are computed again when it comes back. So an engine
that serves well below its memory may have a second life above it: once a burst has filled the memory, it computes again
what it just gave up, ends fewer requests per second than come, and stays full. The balance that decides is that of an
engine with a backlog: with its seats taken, and its memory full as far as that many requests fill it, it ends

    mu = 1 / (b t(n) / n + p (a + w))

requests per second: b output tokens each in steps of t(n) seconds for n requests, and p seconds for each of the a
tokens of a prompt and of the w that are computed again (`recomputed_tokens`). Where mu is below the arrivals the full
memory never drains, though the engine keeps up with them while it is not full.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .queueing import normal_exceeds

FloatArray = NDArray[np.float64]


def running_share(share: FloatArray, osl: FloatArray) -> FloatArray:
    """Share of the requests that run at a moment which is of each flow [1]: in proportion to share x osl steps."""
    return np.asarray(share * osl / float(share @ osl))


def resident_context(share: FloatArray, isl: FloatArray, osl: FloatArray) -> tuple[float, float]:
    """Mean context of a request that runs, and its standard deviation [token].

    A request runs for osl steps, and its context grows from isl to isl + osl meanwhile, so that one found running is of
    a length in proportion to share x osl, at an age that is uniform over its steps.

    >>> resident_context(np.ones(1), np.array([400.0]), np.array([1200.0]))
    (1000.0, 346.41016151377545)
    """
    weight = running_share(share, osl)
    middle = isl + osl / 2.0
    mean = float(weight @ middle)
    return mean, math.sqrt(max(float(weight @ (middle**2 + osl**2 / 12.0)) - mean**2, 0.0))


def full_chance(context: tuple[float, float], seats: float, kv_tokens: float) -> float:
    """Chance that so many running requests need more than the KV memory [1]; their contexts are independent.

    context: mean and standard deviation of each [token]; seats [request]; kv_tokens: capacity [token].

    >>> [round(full_chance((4000.0, 4000.0), seats, 800_000.0), 3) for seats in (150.0, 200.0, 250.0)]
    [0.0, 0.5, 0.999]
    """
    mean, spread = context
    return float(normal_exceeds((kv_tokens - seats * mean) / max(math.sqrt(seats) * spread, 1e-9)))


def backlog_batch(context: float, seats: float, kv_tokens: float) -> float:
    """Requests that run in an engine with a backlog [1]: as many as it has seats or memory for; context [token].

    >>> backlog_batch(4000.0, 256.0, 800_000.0)
    200.0
    """
    return min(seats, kv_tokens / context)


def recomputed_tokens(
    share: FloatArray,
    isl: FloatArray,
    osl: FloatArray,
    *,
    batch: float,
    budget: float,
    grown: float = 1.0,
    whole_prompts: bool = False,
) -> float:
    """Tokens that an engine with full KV memory computes again for each request that it ends [token].

    share, isl, osl: of the flows [1, token, token]; batch: requests that run; budget: prompt tokens of a step; grown:
    share of the output for which no memory was promised at admission [1]; whole_prompts: a prompt gets all its blocks
    at admission.

    Memory that an ended request leaves is given away at once, as others wait. So each of the b tokens that a request
    grows by (`grown` of them) is taken from one that must leave, and is computed again when that comes back.

    A prompt of x > B tokens, B the budget, is worse where blocks are given chunk by chunk: it is admitted once B tokens
    are free, takes whatever else is, and as the youngest is the first to leave when a decode then finds no block. It
    comes back at once, and so on, in rounds of three steps (one that preempts and admits nothing, one that computes B
    tokens again, one that takes the rest), until the x - B tokens that it lacks are free. Nothing else is admitted
    before it, so ended requests leave a more tokens each than the others grow by, a the mean prompt: that takes
    (x - B) / a of them, b / n steps each. Together

        w = grown b + sum share max(x - B, 0) / a  b / n  B / 3.

    Derived for the schedulers of vLLM and SGLang as `costmodel.simulator.fleet` states them; simulated engines with
    a backlog compute 0.8 to 1.1 times as much again (`benchmarks/crowds.py`).

    >>> flows = np.array([0.95, 0.05]), np.array([500.0, 20_000.0]), np.array([2000.0, 2000.0])
    >>> round(recomputed_tokens(*flows, batch=200.0, budget=32_768.0))
    2000
    >>> round(recomputed_tokens(*flows, batch=200.0, budget=8192.0))
    12930
    """
    weight = share / float(share.sum())
    longer = 0.0 if whole_prompts else float(weight @ np.maximum(isl - budget, 0.0))
    output = float(weight @ osl)
    return grown * output + longer / float(weight @ isl) * output / batch * budget / 3.0
