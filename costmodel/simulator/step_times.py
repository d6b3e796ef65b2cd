"""Time of one step from the numbers of its model; compiled. All times in seconds.

A decode step is answered as a piece (time, slope, limit): with the same batch, time + slope (C' - C) holds for every
total context C' from C up to limit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .compiled import compiled
from .fleet import COEFFICIENTS, TABLES, UNLIMITED
from .fleet import least_bytes as bytes_of
from .fleet import least_flop as flop_of
from .records import Floats, StepRecord

least_flop, least_bytes = compiled(flop_of), compiled(bytes_of)


class Chosen(NamedTuple):
    """Prompt tokens of one step.

    prompts: chunks; tokens; longest: of them; first, second: sums of terms (`add_chunk`); pairs, reach: as in
    `StepContent`.
    """

    prompts: int
    tokens: int
    longest: int
    first: float
    second: float
    pairs: int
    reach: int


@compiled
def no_prompts() -> Chosen:
    """A step without prompts."""
    return Chosen(0, 0, 0, 0.0, 0.0, 0, 0)


@compiled
def add_chunk(m: StepRecord, data: Floats, chunks: Chosen, new: int, past: int) -> Chosen:
    """The step with one chunk more: `new` tokens after `past` cached ones.

    first, second sum up what `mixed_time` computes prompt attention from. Coefficients: q (q + 2 p) and the context.
    Tables: q^2 and p rounded up to 64. Grids: seconds.
    """
    if m.kind == COEFFICIENTS:
        first, second = float(new) * (new + 2.0 * past), float(new + past)
    elif m.kind == TABLES:
        first, second = float(new) * new, 64.0 * ((past + 63) // 64)
    else:
        first, second = prefill_grid(m, data, new, past), 0.0
    longest = max(chunks.longest, new)
    tokens = chunks.tokens + new
    pairs, reach = chunks.pairs + new * past + new * (new + 1) // 2, chunks.reach + new + past
    return Chosen(chunks.prompts + 1, tokens, longest, chunks.first + first, chunks.second + second, pairs, reach)


@compiled
def decode_piece(m: StepRecord, data: Floats, batch: int, total: int) -> tuple[float, float, int]:
    """Time of a decode-only step, its growth per token of total context, and how far both hold."""
    if m.kind == COEFFICIENTS:
        a, b, c = decode_coefficients(m, batch)
        return a + b * (total + batch) + c * batch + m.step + m.token * total, b + m.token, UNLIMITED
    if m.kind == TABLES:
        attention, limit = decode_table(m, data, batch, total)
        return data[m.at0 + batch] + attention, 0.0, limit
    attention, slope, limit = decode_grid(m, data, batch, total)
    return m.b0 * (decode_rest(m, data, batch) + attention), m.b0 * slope, limit


@compiled
def decode_rest(m: StepRecord, data: Floats, batch: int) -> float:
    """Time of a decode-only step on grids, but for its attention."""
    tokens = m.a2 * batch
    time = line(data, m.at0, m.at1, tokens) + line(data, m.at2, m.at3, tokens)
    return time + line(data, m.at11, m.at12, tokens) if m.c0 > 0.0 else time


@compiled
def mixed_time(m: StepRecord, data: Floats, chunks: Chosen, batch: int, total: int) -> float:
    """Time of a step with the chosen prompt tokens and `batch` decodes with a context of `total`."""
    tokens, prompts, first, second = chunks.tokens, chunks.prompts, chunks.first, chunks.second
    if m.kind == COEFFICIENTS:
        time = m.a0 + m.a1 * tokens + m.a2 * first
        if batch > 0:
            _a, b, c = decode_coefficients(m, batch)
            time += b * (total + batch) + c * batch
        return time + m.constant + m.step + m.token * (second + total)
    if m.kind == TABLES:
        time = data[m.at0 + tokens + batch] + prefill_table(m, data, prompts, first, second)
        if batch > 0:
            time += decode_table(m, data, batch, total)[0]
        return time
    if m.a0 > 1.0:
        time, share = lane_time(m, data, chunks, batch)
        first *= share
    else:
        time = line(data, m.at0, m.at1, tokens + m.a2 * batch)
    time += line(data, m.at2, m.at3, prompts + m.a2 * batch)
    if m.c0 > 0.0:
        time += line(data, m.at11, m.at12, min(m.c0 * prompts, tokens) + m.a2 * batch)
    time += first
    if batch > 0:
        attention = decode_grid(m, data, batch, total)[0]
        time += attention
        if m.b0 < 1.0:  # a token step (`costmodel.engine.Speculation`)
            time -= (1.0 - m.b0) * (decode_rest(m, data, batch) + attention)
    return time


@compiled
def lane_time(m: StepRecord, data: Floats, chunks: Chosen, batch: int) -> tuple[float, float]:
    """Time of the tokens of a step on data-parallel lanes, and the busiest lane's share of prompt attention.

    The longest chunk keeps to one lane of R = a0, and what each lane does for its own tokens takes at least as long as
    that; prompts are spread evenly otherwise.
    """
    busiest = max(m.a0 * chunks.longest, chunks.tokens)
    decodes = m.a2 * batch
    beyond = line(data, m.at9, m.at10, busiest + decodes) - line(data, m.at9, m.at10, chunks.tokens + decodes)
    return line(data, m.at0, m.at1, chunks.tokens + decodes) + beyond, busiest / (m.a0 * chunks.tokens)


@compiled
def decode_coefficients(m: StepRecord, batch: int) -> tuple[float, float, float]:
    """Constant, per token of context, per request [s]."""
    if batch < m.large:
        return m.b0, m.b1, m.b2
    return m.c0, m.c1, m.c2


@compiled
def decode_table(m: StepRecord, data: Floats, batch: int, total: int) -> tuple[float, int]:
    """Attention of decodes at [batch][ceil64(floor(mean context))]: constant until the mean passes a multiple of 64."""
    columns = int(m.a0)
    j = (total // batch + 63) // 64
    limit = batch * (64 * j + 1) - 1
    if j >= columns - 1:
        j, limit = columns - 1, UNLIMITED
    row = min(batch, int(m.a2) - 1)
    attention = data[m.at2 + row * columns + j]
    if batch > 1:
        attention *= m.b1
    return attention, limit


@compiled
def prefill_table(m: StepRecord, data: Floats, prompts: int, squares: float, past: float) -> float:
    """Attention of prompts at [round(sqrt(sum of squared chunks))][sum of pasts, each rounded up to 64]."""
    columns = int(m.a0)
    row = min(math.floor(math.sqrt(squares) + 0.5), int(m.a1) - 1)
    attention = data[m.at1 + row * columns + min(int(past) // 64, columns - 1)]
    if prompts > 1:
        attention *= m.b0
    return attention


@compiled
def segment(data: Floats, start: int, size: int, x: float) -> int:
    """Index of the segment between rising nodes that holds x: the first or last one beyond the ends."""
    low, high = 0, size - 2
    while low < high:
        middle = (low + high + 1) // 2
        if data[start + middle] <= x:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def line(data: Floats, nodes: int, values: int, x: float) -> float:
    """Piecewise linear function; its values follow its nodes."""
    k = segment(data, nodes, values - nodes, x)
    left_node, right_node = data[nodes + k], data[nodes + k + 1]
    low, high = data[values + k], data[values + k + 1]
    return low + (high - low) * ((x - left_node) / (right_node - left_node))


@compiled
def decode_grid(m: StepRecord, data: Floats, batch: int, total: int) -> tuple[float, float, int]:
    """Attention of decodes: a row per batch, linear in the mean context; beyond the rows in proportion to the batch."""
    nodes, values = m.at4, m.at5
    size = values - nodes
    count = (m.at6 - values) // size
    mean = total / batch
    k = segment(data, nodes, size, mean)
    base = values + (min(batch, count) - 1) * size + k
    left_node, right_node = data[nodes + k], data[nodes + k + 1]
    scale = max(batch, count) / count
    growth = scale * (data[base + 1] - data[base]) / (right_node - left_node)
    limit = UNLIMITED if k == size - 2 else math.floor(right_node * batch)
    return scale * data[base] + growth * (mean - left_node), growth / batch, max(limit, total)


@compiled
def prefill_grid(m: StepRecord, data: Floats, new: int, past: int) -> float:
    """Attention of one chunk: query-key pairs x seconds per pair, the latter bilinear over chunk and past."""
    chunks, pasts, values = m.at6, m.at7, m.at8
    wide = values - pasts
    a = segment(data, chunks, pasts - chunks, float(new))
    b = segment(data, pasts, wide, float(past))
    left_node, right_node = data[chunks + a], data[chunks + a + 1]
    down, up = data[pasts + b], data[pasts + b + 1]
    x = min(max((new - left_node) / (right_node - left_node), 0.0), 1.0)
    y = min(max((past - down) / (up - down), 0.0), 1.0)
    row = values + a * wide + b
    low = data[row] + (data[row + 1] - data[row]) * y
    high = data[row + wide] + (data[row + wide + 1] - data[row + wide]) * y
    return (low + (high - low) * x) * (new * past + 0.5 * new * (new + 1.0))
