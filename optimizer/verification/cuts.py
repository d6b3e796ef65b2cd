"""What simulations showed engines to be unable to bear: their steps count as longer when fleets are searched for again.

A fleet that holds by the formulas and misses when it is simulated refutes how busy they let the pools to blame be. So
the steps of these engines are taken to be so much longer that by formula, too, the fleet misses as much as it did: what
they may be given falls, other engines stay as they are, and the search is made again (`verify`). Lengths of steps stand
on a ladder, STEP apart.

It ends: whoever searches again has raised a rung before, there are TOP of them for each of two kinds of steps of S
engine shapes, and none is ever lowered. So there are at most 2 S TOP searches, whatever the simulations say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.loads.instance import Instance

from .bench import Verdict

STEP, TOP = 1.02, 35
"""Factor from one rung to the next, and the last of them: steps that take twice as long."""

PROMPTS = ("prefill_alone", "prefill_time", "prefill_shared")
"""Tables of the steps of prefill engines, the engine shapes along the first axis."""
TOKENS = ("decode_base", "attention_slope", "mixed_alone", "mixed_base", "full_base")
"""Of those of engines that generate, decode and colocated ones alike."""

Kind = tuple[int, bool]
"""An engine shape, and whether it generates."""
Rungs = Mapping[Kind, int]
"""How far the steps of engines were raised; those that are not listed stay as they are."""


def slower(instance: Instance, rungs: Rungs) -> Instance:
    """The instance with the steps of some engines STEP^rung times as long."""
    tables, changed = instance.tables, {}
    for names, generates in ((PROMPTS, False), (TOKENS, True)):
        factor = np.ones(len(tables.shapes))
        for (shape, kind), rung in rungs.items():
            if kind is generates:
                factor[shape] = STEP**rung
        for name in names:
            values = getattr(tables, name)
            changed[name] = values * factor.reshape(-1, *(1,) * (values.ndim - 1))
    return replace(instance, tables=replace(tables, **changed))


def raised(instance: Instance, rungs: Rungs, missed: Verdict) -> Rungs:
    """The rungs, those of the engines to blame raised by as few as make the formulas say what was simulated.

    The same where the formulas say so already, or no rung is left.
    """
    if missed.blame is None or _as_bad(slower(instance, rungs), missed):
        return rungs
    blamed = [missed.fleet.pools[index] for index in missed.blame.worst]
    kinds = {(pool.shape, pool.role is not Role.PREFILL) for pool in blamed}

    def lifted(by: int) -> Rungs:
        return {**rungs, **{kind: min(rungs.get(kind, 0) + by, TOP) for kind in sorted(kinds)}}

    low, high = 0, TOP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _as_bad(slower(instance, lifted(middle)), missed) else (middle, high)
    return lifted(high)


def _as_bad(instance: Instance, missed: Verdict) -> bool:
    """Whether a fleet misses by formula, and no class that fell short does better than it was simulated to."""
    found = predict_misses(instance, missed.fleet)
    pairs = zip(found.attainment.tolist(), missed.judgement.classes, strict=True)
    return not holds(instance, found) and all(one.held or said <= one.attainment.share for said, one in pairs)
