"""How long a step takes, in numbers of one of three kinds, which `step_times` evaluates, and the least work that it is.

- coefficients: prefill = a + b sum(p) + c sum(p^2), decode = a + b sum(context + 1) + c batch
  (`benchmarks/reference/lone_steps.py`);
- tables: dense[tokens] + prefill[chunk][past] + decode[batch][context], looked up (`benchmarks/reference/vidur.py`);
- grids: the same three, interpolated linearly, which is how pdplan's own cost model arrives (`cost_steps`).

Between two events the batch stays, and all three kinds are affine in the total context over a known range; that is
what makes a run of decode steps a closed form.

On grids a step's time splits into what depends on the tokens in it, what depends on its requests (output head, host),
attention of its prompts and attention of its decodes; each part gets its own grid:

    time = tokens(T) + rows(R) + sum over chunks pairs(q, p) x seconds per pair(q, p) + decode(batch, mean context)

with pairs = q p + q (q + 1) / 2. Layers that only the last w tokens of a prompt pass (`LayerGroup.tail`) are no part of
tokens(T); they add tail(min(w chunks, prompt tokens) + decodes).

Data-parallel ranks are lanes that begin and end a step together. A chunk keeps to one lane, so a step with few prompts
takes longer than one with as many tokens on all lanes; many prompts, and decodes, are spread evenly. See
`step_times.lane_time`; one more grid, lane(T), is what each lane does for its own tokens: all but attention, the
experts, and what passes between them and the lanes.

The least work of a step, for counters and floors (`cost_work`): FLOP of matrices and of full attention are linear and
so exact. What is not linear is bounded from below, by chords that begin at one token: the weights of experts grow with
the tokens in a step up to a knee and then slowly; attention with a window or an indexer grows to its limit. Skew
between expert ranks is left out, as only the sum over all GPUs counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.engine import EngineConfig, EngineOverhead
from costmodel.engine_arrays import EngineArrays, engine_arrays
from costmodel.kernels import (
    NOTHING,
    Work,
    attended_pairs,
    decode_attention_work,
    elementwise_work,
    expert_work,
    head_matrix,
    matrix_work,
    prefill_attention_work,
)
from costmodel.step import StepLoad, step_time
from costmodel.transformer import LayerGroup, Transformer

from .fleet import GRIDS, StepNumbers, StepWork

FINE = 64
"""Up to so many tokens or requests every integer is a node."""
PER_OCTAVE = 8
"""Nodes per doubling beyond."""
CONTEXTS_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True)
class GridSteps:
    """Nodes and values of the parts [s]; decode_attention has a row for each batch 1, 2, ...; work: the least.

    lanes: data-parallel ranks; lane_nodes, lane_times: lane(T) above, by the tokens of all lanes if they were even;
    verified: tokens of a decoding request in a step, and tokens_per_step: those of them that it is given
    (`costmodel.engine.Speculation`) [1]; tail, tail_times: w and tail(tokens) above; 0: there are no such layers.
    """

    token_nodes: FloatArray
    token_times: FloatArray
    row_nodes: FloatArray
    row_times: FloatArray
    context_nodes: FloatArray
    decode_attention: FloatArray
    chunk_nodes: FloatArray
    past_nodes: FloatArray
    pair_times: FloatArray
    work: StepWork = field(default_factory=StepWork)
    lanes: float = 1.0
    verified: float = 1.0
    tokens_per_step: float = 1.0
    lane_nodes: FloatArray = field(default_factory=lambda: np.zeros(0))
    lane_times: FloatArray = field(default_factory=lambda: np.zeros(0))
    tail: float = 0.0
    tail_times: FloatArray = field(default_factory=lambda: np.zeros(0))

    def numbers(self) -> StepNumbers:
        """The grids for the event loop."""
        pairs = (self.chunk_nodes, self.past_nodes, self.pair_times)
        tables = (
            *(self.token_nodes, self.token_times, self.row_nodes, self.row_times),
            *(self.context_nodes, self.decode_attention, *pairs, self.lane_nodes, self.lane_times),
            *((self.token_nodes, self.tail_times) if self.tail else ()),
        )
        scalars = {"a0": self.lanes, "a2": self.verified, "b0": 1.0 / self.tokens_per_step, "c0": self.tail}
        return StepNumbers(GRIDS, scalars, tables, self.work)

    def scaled(self, factor: float) -> GridSteps:
        """All times times a factor, but none below its share of FLOP / peak and of bytes / bandwidth.

        Attention is that of one lane, on whose GPUs alone it runs.
        """
        work, first = self.work, self.row_nodes[0]
        tokens, rows, batch = self.token_nodes, self.row_nodes, np.arange(1.0, self.decode_attention.shape[0] + 1.0)
        new, past = self.chunk_nodes[:, None], self.past_nodes[None, :]
        pairs = attended_pairs(new, past, None)
        traffic = work.step_bytes + work.capped_bytes * np.minimum(tokens, work.knee) + work.token_bytes * tokens

        def floored(times: FloatArray, flops: FloatArray, hbm_bytes: FloatArray) -> FloatArray:
            least = np.maximum(flops / work.peak, hbm_bytes / work.bandwidth) if work.peak > 0.0 else 0.0
            return np.asarray(np.maximum(times * factor, least))

        flop = work.decode_flop + work.context_flop * self.context_nodes
        attention_bytes = work.decode_bytes + work.context_bytes * self.context_nodes
        return replace(
            self,
            token_times=floored(
                self.token_times, work.token_flop * tokens + work.row_flop * first, traffic + work.row_bytes * first
            ),
            row_times=floored(self.row_times, work.row_flop * (rows - first), work.row_bytes * (rows - first)),
            decode_attention=floored(self.decode_attention, np.outer(batch, flop), np.outer(batch, attention_bytes)),
            pair_times=floored(
                self.pair_times,
                np.full_like(pairs, self.lanes * work.pair_flop),
                self.lanes * work.reach_bytes * (new + past) / pairs,
            ),
            lane_times=self.lane_times * factor,
            tail_times=self.tail_times * factor,
        )


def nodes_to(last: float, per_octave: int = PER_OCTAVE, fine: int = FINE) -> FloatArray:
    """Integers 1, 2, ... `fine`, then `per_octave` per doubling up to `last`.

    >>> nodes_to(10, per_octave=1, fine=4).tolist()
    [1.0, 2.0, 3.0, 4.0, 8.0, 10.0]
    """
    octaves = max(0.0, np.log2(max(last, 2.0) / fine))
    coarse = np.rint(fine * 2.0 ** (np.arange(1, int(octaves * per_octave) + 1) / per_octave))
    nodes = np.concatenate([np.arange(1.0, fine + 1.0), coarse, [max(last, 2.0)]])
    return np.asarray(np.unique(nodes[nodes <= max(last, 2.0)]))


def cost_steps(model: Transformer, config: EngineConfig, overhead: EngineOverhead) -> GridSteps:
    """Grids of one engine, up to its max_num_batched_tokens, max_num_seqs and max_model_len."""
    if config.whole_prompts:
        model = replace(model, layers=tuple(replace(group, tail=0) for group in model.layers))
    engine = engine_arrays(model, [config], overhead)
    ranks = float(config.parallelism.data)
    verified = float(config.verified)
    most = float(max(config.max_num_batched_tokens + verified * config.max_num_seqs, config.max_model_len))
    tokens = nodes_to(most)
    rows = nodes_to(verified * config.max_num_seqs)
    early = replace(model, layers=tuple(group for group in model.layers if not group.tail))
    tail = max(group.tail for group in model.layers)
    ends = StepLoad.of(tokens, np.minimum(tokens, 1.0))  # prompts of one token each pass all layers
    tail_times = _rest(model, engine, ends) - _rest(early, engine, ends) if tail else np.zeros(tokens.size)
    base = _rest(early, engine, StepLoad.of(ranks, tokens / ranks))
    wide = most / ranks
    heads = _rest(early, engine, StepLoad.of(rows * ranks, wide / rows))
    contexts = np.concatenate([[1.0], nodes_to(float(config.max_model_len), CONTEXTS_PER_OCTAVE, 8)[1:]])
    batches = np.arange(1.0, config.max_num_seqs + 1.0)
    grid = StepLoad.decode(np.repeat(batches, contexts.size), np.tile(contexts, batches.size))
    decode_time = step_time(model, engine, grid)
    decode = decode_time.attention_decode.reshape(batches.size, contexts.size)
    chunks = nodes_to(most, CONTEXTS_PER_OCTAVE, 8)
    pasts = np.concatenate([[0.0], contexts])
    lanes = nodes_to(ranks * most) if ranks > 1.0 else np.zeros(0)
    row_nodes = np.unique([1.0, *(rows * ranks)])
    row_times = np.concatenate([np.zeros(int(ranks > 1.0)), heads - heads[0]])
    if verified > 1.0:  # what drafting takes beyond that, by the batch alone
        whole = (decode_time.total - decode_time.attention_decode).reshape(decode.shape)[:, :1]
        checked = verified * batches
        steps = np.interp(checked, tokens, base + tail_times) + np.interp(checked, row_nodes, row_times)
        decode = decode + whole - steps[:, None]
    return GridSteps(
        token_nodes=tokens,
        token_times=base,
        row_nodes=row_nodes,
        row_times=row_times,
        context_nodes=contexts,
        decode_attention=decode,
        chunk_nodes=chunks,
        past_nodes=pasts,
        pair_times=_pair_times(model, engine, chunks, pasts),
        work=cost_work(model, config, engine, (tokens, chunks, contexts)),
        lanes=ranks,
        verified=verified,
        tokens_per_step=config.tokens_per_step,
        lane_nodes=lanes,
        lane_times=_lane_times(early, engine, lanes) if ranks > 1.0 else lanes,
        tail=float(tail),
        tail_times=tail_times,
    )


def _rest(model: Transformer, engine: EngineArrays, load: StepLoad) -> FloatArray:
    """Time of a step of prompts without its attention [s]."""
    time = step_time(model, engine, load)
    return np.asarray((time.total - time.attention_prefill)[0])


def _lane_times(model: Transformer, engine: EngineArrays, tokens: FloatArray) -> FloatArray:
    """Time of what each lane does for its own tokens of prompts, but for their attention [s].

    tokens: of all lanes, were they even. One lane by itself dispatches nothing to others.
    """
    alone = replace(engine, data=np.ones_like(engine.data))
    time = step_time(model, alone, StepLoad.prefill(tokens / engine.data))
    return np.asarray((time.total - time.attention_prefill - time.experts)[0])


def _pair_times(model: Transformer, engine: EngineArrays, chunks: FloatArray, pasts: FloatArray) -> FloatArray:
    """Prompt attention per query-key pair [s], by chunk and past."""
    new, past = np.repeat(chunks, pasts.size), np.tile(pasts, chunks.size)
    time = step_time(model, engine, StepLoad.prefill(new, past=past))
    pairs = attended_pairs(new, past, None)
    return np.asarray(time.attention_prefill[0] / pairs).reshape(chunks.size, pasts.size)


def cost_work(
    model: Transformer, config: EngineConfig, engine: EngineArrays, nodes: tuple[FloatArray, FloatArray, FloatArray]
) -> StepWork:
    """Coefficients of one engine, below its work at all nodes: tokens of a step, of a chunk, contexts [token]."""
    tokens, chunks, contexts = nodes
    even = replace(engine, expert_largest=np.zeros_like(engine.expert_largest))
    ranks = config.parallelism.data
    gpus = config.parallelism.tensor * ranks
    full = _layer_sum(model, lambda group: _layer(even, group, tokens / ranks, tokens))  # of decodes; of one prompt:
    dense = _layer_sum(model, lambda group: _layer(even, group, group.tail_of(tokens) / ranks, group.tail_of(tokens)))
    head = matrix_work(even, head_matrix(model), np.array([1.0, 2.0]))
    past = np.concatenate([[0.0], contexts])
    new, old = np.repeat(chunks, past.size), np.tile(past, chunks.size)
    prompts = _layer_sum(
        model,
        lambda group: prefill_attention_work(
            even, group.attention, np.ones(1), group.tail_of(new), old + new - group.tail_of(new)
        ),
    )
    decodes = _layer_sum(model, lambda group: decode_attention_work(even, group.attention, np.ones(1), contexts))
    tensor = config.parallelism.tensor
    constant, capped_bytes, token_bytes, knee = _knee_fit(tokens, gpus * dense.traffic[0])
    row_bytes = head.traffic[0, 1] - head.traffic[0, 0]
    context_flop, context_bytes = (_slope(contexts, values[0]) for values in (decodes.flop, decodes.traffic))
    read = 1.0 / config.tokens_per_step  # for each token that a request is given
    token_flop, whole_flop = (gpus * float(np.min(work.flop[0] / tokens)) for work in (dense, full))
    return StepWork(
        peak=float(engine.peak[0, 0]) * gpus,
        bandwidth=float(engine.bandwidth[0, 0]) * gpus,
        knee=knee,
        token_flop=token_flop,
        row_flop=tensor * float(head.flop[0, 0]),
        pair_flop=tensor * float(np.min(prompts.flop[0] / attended_pairs(new, old, None))),
        decode_flop=tensor * float(decodes.flop[0, 0] - context_flop * contexts[0]) + (whole_flop - token_flop),
        context_flop=tensor * context_flop,
        step_bytes=read * (constant + gpus * float(head.traffic[0, 0] - row_bytes)),
        capped_bytes=read * capped_bytes,
        token_bytes=token_bytes,
        row_bytes=tensor * float(row_bytes),
        reach_bytes=tensor * float(np.min(prompts.traffic[0] / (new + old))),
        decode_bytes=read * tensor * float(decodes.traffic[0, 0] - context_bytes * contexts[0]),
        context_bytes=read * tensor * context_bytes,
    )


def _layer_sum(model: Transformer, layer: Callable[[LayerGroup], Work]) -> Work:
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


def _knee_fit(x: FloatArray, y: FloatArray) -> tuple[float, float, float, int]:
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
