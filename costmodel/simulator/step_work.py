"""Least work of engine steps: FLOP and HBM traffic that are linear in what a step holds; compiled.

Because the bound is linear, the work of a whole run follows from sums of whole numbers, which are the same whether
decode steps are taken one by one or in closed form; and a step's own numbers give the floors of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .compiled import compile_loop


@dataclass(frozen=True, slots=True)
class StepWork:
    """Coefficients of one engine, all its GPUs together; the default, for models without a roofline, is no work.

    flop = token_flop x tokens + row_flop x rows + pair_flop x pairs + decode_flop x decodes + context_flop x context;
    bytes = step_bytes + capped_bytes x min(tokens, knee) + token_bytes x tokens + row_bytes x rows
    + reach_bytes x reach + decode_bytes x decodes + context_bytes x context (see `StepContent`).
    peak [FLOP/s], bandwidth [byte/s]: the vendor's, of the GPUs of one pipeline stage; 0: no floors.
    """

    peak: float = 0.0
    bandwidth: float = 0.0
    knee: int = 1
    token_flop: float = 0.0
    row_flop: float = 0.0
    pair_flop: float = 0.0
    decode_flop: float = 0.0
    context_flop: float = 0.0
    step_bytes: float = 0.0
    capped_bytes: float = 0.0
    token_bytes: float = 0.0
    row_bytes: float = 0.0
    reach_bytes: float = 0.0
    decode_bytes: float = 0.0
    context_bytes: float = 0.0


class StepContent(NamedTuple):
    """What one step holds, or many steps together.

    steps; tokens: new ones, of prompts and decodes; capped: sum over steps of min(tokens, knee); rows: prompts and
    decodes; pairs: query-key pairs of the prompt chunks, q p + q (q + 1) / 2; reach: sum of q + p over chunks; decodes;
    context: of all decodes together. q: tokens of a chunk, p: those before it.
    """

    steps: int
    tokens: int
    capped: int
    rows: int
    pairs: int
    reach: int
    decodes: int
    context: int


@compile_loop
def least_flop(work: StepWork, held: StepContent) -> float:
    """FLOP that the steps need [FLOP]."""
    return (
        work.token_flop * held.tokens
        + work.row_flop * held.rows
        + work.pair_flop * held.pairs
        + work.decode_flop * held.decodes
        + work.context_flop * held.context
    )


@compile_loop
def least_bytes(work: StepWork, held: StepContent) -> float:
    """HBM traffic that the steps need [byte]."""
    return (
        work.step_bytes * held.steps
        + work.capped_bytes * held.capped
        + work.token_bytes * held.tokens
        + work.row_bytes * held.rows
        + work.reach_bytes * held.reach
        + work.decode_bytes * held.decodes
        + work.context_bytes * held.context
    )
