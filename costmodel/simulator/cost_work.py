"""The least work of an engine's steps by pdplan's own cost model, for the counters and floors of the simulator.

FLOP of matrices and of full attention are linear and so exact. What is not linear is bounded from below, by chords that
begin at one token: the weights of experts grow with the tokens in a step up to a knee and then slowly; attention with a
window or an indexer grows to its limit. Skew between expert ranks is left out, as only the sum over all GPUs counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig
from costmodel.engine_arrays import EngineArrays
from costmodel.kernels import (
    NOTHING,
    Work,
    decode_attention_work,
    elementwise_work,
    expert_work,
    head_matrix,
    matrix_work,
    prefill_attention_work,
)
from costmodel.transformer import LayerGroup, Transformer

from .step_model import StepWork

FloatArray = NDArray[np.float64]


def cost_work(
    model: Transformer, config: EngineConfig, engine: EngineArrays, nodes: tuple[FloatArray, FloatArray, FloatArray]
) -> StepWork:
    """Coefficients of one engine, below its work at all nodes: tokens of a step, of a chunk, contexts [token]."""
    tokens, chunks, contexts = nodes
    even = replace(engine, expert_largest=np.zeros_like(engine.expert_largest))
    ranks = config.parallelism.data
    gpus = config.parallelism.tensor * ranks
    dense = _summed(model, lambda group: _layer(even, group, tokens / ranks, tokens))
    head = matrix_work(even, head_matrix(model), np.array([1.0, 2.0]))
    past = np.concatenate([[0.0], contexts])
    new, old = np.repeat(chunks, past.size), np.tile(past, chunks.size)
    prompts = _summed(model, lambda group: prefill_attention_work(even, group.attention, np.ones(1), new, old))
    decodes = _summed(model, lambda group: decode_attention_work(even, group.attention, np.ones(1), contexts))
    tensor = config.parallelism.tensor
    constant, capped, token, knee = _kneed(tokens, gpus * dense.traffic[0])
    row_bytes = head.traffic[0, 1] - head.traffic[0, 0]
    context_flop, context_bytes = (_slope(contexts, values[0]) for values in (decodes.flop, decodes.traffic))
    return StepWork(
        peak=float(engine.peak[0, 0]) * gpus,
        bandwidth=float(engine.bandwidth[0, 0]) * gpus,
        knee=knee,
        token_flop=gpus * float(np.min(dense.flop[0] / tokens)),
        row_flop=tensor * float(head.flop[0, 0]),
        pair_flop=tensor * float(np.min(prompts.flop[0] / (new * old + new * (new + 1.0) / 2.0))),
        decode_flop=tensor * float(decodes.flop[0, 0] - context_flop * contexts[0]),
        context_flop=tensor * context_flop,
        step_bytes=constant + gpus * float(head.traffic[0, 0] - row_bytes),
        capped_bytes=capped,
        token_bytes=token,
        row_bytes=tensor * float(row_bytes),
        reach_bytes=tensor * float(np.min(prompts.traffic[0] / (new + old))),
        decode_bytes=tensor * float(decodes.traffic[0, 0] - context_bytes * contexts[0]),
        context_bytes=tensor * context_bytes,
    )


def _summed(model: Transformer, layer: Callable[[LayerGroup], Work]) -> Work:
    """Work of all layers on one GPU of each stage."""
    return reduce(add, (layer(group).times(group.count) for group in model.layers), NOTHING)


def _layer(engine: EngineArrays, group: LayerGroup, tokens: FloatArray, everything: FloatArray) -> Work:
    """One layer without its attention over `tokens` of one data rank, `everything` of all of them."""
    work = reduce(add, (matrix_work(engine, matrix, tokens) for matrix in group.matrices))
    work += elementwise_work(engine, group, tokens)
    if group.feed_forward.experts:
        work += expert_work(engine, group.feed_forward, everything)
    return work


def _slope(x: FloatArray, y: FloatArray) -> float:
    """Steepest line through the first point that stays below all others."""
    return float(np.min((y[1:] - y[0]) / (x[1:] - x[0])))


def _kneed(x: FloatArray, y: FloatArray) -> tuple[float, float, float, int]:
    """Lower bound of y: constant + a min(x, knee) + b x, with the knee that comes closest (least mean log ratio).

    Of the chords from the first node to the knee and from there on; exact where y is affine.
    """
    best: tuple[float, float, float, int] = (float(y[0] - _slope(x, y) * x[0]), 0.0, _slope(x, y), 1)
    least = np.inf
    for k in range(1, x.size - 1):
        first, later = _slope(x[: k + 1], y[: k + 1]), _slope(x[k:], y[k:])
        constant = float(y[0] - first * x[0])
        if later > first:
            continue
        bound = constant + (first - later) * np.minimum(x, x[k]) + later * x
        gap = float(np.mean(np.log(y / bound)))
        if gap < least * (1.0 - 1e-9):
            best, least = (constant, first - later, later, int(x[k])), gap
    return best
