"""Data-parallel lanes of an engine: each has prompts of its own, but all begin and end their steps together.

So a step ends with the longest prompt in it, and a prompt that finds a lane free begins when the step of the others has
ended. On a prefill engine a step lasts between that of a prompt alone and that with one on every lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.queueing import lockstep_excess

from .flows import Flows
from .tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Prefills = tuple[IntArray, IntArray]
"""Shape and token budget of prefill engines, both (engines,): indices into the tables."""


@dataclass(frozen=True, slots=True)
class Lockstep:
    """What the other lanes cost a prompt; 0 on engines with one lane.

    excess (engines, flows): what waiting for the longest prompt beside it adds [s]; step (engines,): mean length of the
    step that a prompt meets [s].
    """

    excess: FloatArray
    step: FloatArray


def lockstep(step: FloatArray, count: FloatArray, rate: FloatArray, *, lanes: FloatArray, busy: FloatArray) -> Lockstep:
    """Prompts of `count` steps each of length `step` [s], both (engines, flows), on engines of several lanes.

    rate (flows,): how often a prompt is of each flow; lanes, busy (engines,): number, and the share of time in which
    each has a prompt. A step is met in proportion to its length: E[s^2] / E[s].
    """
    excess, met = np.zeros(step.shape), np.zeros(lanes.shape)
    many = np.flatnonzero(lanes > 1.0)
    if many.size:
        weight = rate * count[many] / (count[many] @ rate)[:, None]
        longer = lockstep_excess(step[many], weight, busy[many], lanes[many])
        whole = step[many] + longer
        excess[many] = count[many] * longer
        met[many] = (weight * whole**2).sum(axis=1) / (weight * whole).sum(axis=1)
    return Lockstep(excess, met)


def prefill_lockstep(flows: Flows, tables: Tables, at: Prefills, rate: FloatArray, busy: FloatArray) -> Lockstep:
    """The same for prefill engines, whose lanes are busy for that share of the time."""
    count, shape = flows.chunks_of(tables.rank_chunks[at]), at[0]
    step = latency_beside(tables, at, busy) / tables.pipeline[shape][:, None] / count
    return lockstep(step, count, rate, lanes=tables.ranks[shape], busy=busy)


def latency_beside(tables: Tables, at: Prefills, busy: FloatArray) -> FloatArray:
    """Time of a prompt with the share `busy` (engines,) of a prefill engine's lanes busy [s], (engines, flows)."""
    return beside_prompts(tables.prefill_alone[at], tables.prefill_time[at], busy[:, None])


def beside_prompts(alone: FloatArray, full: FloatArray, busy: FloatArray | float) -> FloatArray:
    """Time with one prompt on an engine, and with one on each of its lanes, between the two [s].

    busy: the share of time in which a lane has a prompt [1]; without lanes both are the same.
    """
    return np.asarray(full - (1.0 - busy) * (full - alone))


def busy_beside(busy: FloatArray, arrival_scv: float, lanes: FloatArray) -> FloatArray:
    """Share of a pool's `lanes` that an arrival finds, or has soon beside it, with prompts: those of its burst too [1].

    Of a stream of squared coefficient of variation ca2, an arrival has (ca2 - 1) / 2 more before it than a Poisson one
    and as many behind it (`prompt_queue.bunch_behind`).

    >>> busy_beside(np.array([0.25, 0.9]), 3.0, np.array([8.0, 8.0])).tolist()
    [0.5, 1.0]
    """
    return np.asarray(np.minimum(busy + max(arrival_scv - 1.0, 0.0) / lanes, 1.0))
