"""The engine settings that a search may choose from: each is a role, shape, batch limit and token budget."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from optimizer.fleets.purchase import within_limits
from optimizer.loads.instance import COLOCATED, PREFILL, ROLES, Instance


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Engines, every array (settings,): role, a place in ROLES; shape, batch limit and token budget as in the table."""

    role: IntArray
    shape: IntArray
    seqs: IntArray
    chunk: IntArray

    @property
    def size(self) -> int:
        """Number of settings."""
        return int(self.role.size)

    def take(self, index: IntArray | BoolArray) -> EngineSettings:
        """The settings at `index`, in that order."""
        return EngineSettings(*(getattr(self, field.name)[index] for field in fields(self)))


def make_settings(instance: Instance, *, every_limit: bool = False) -> EngineSettings:
    """Every setting that fits in memory, in a role that is allowed, with a partner where it needs one.

    A prefill engine has the largest token budget that there is memory for, as larger steps are more efficient and no
    decode waits for them; in a pipeline any, as stages work side by side on several steps only. A decode engine has the
    largest batch limit, as by formula a smaller one only makes requests wait; `every_limit`: all of them.
    """
    table, roomy = instance.tables, instance.tables.roomy
    at_limits = np.zeros_like(roomy)
    at_limits[:, table.limits] = roomy[:, table.limits] & table.shared_limits[:, :, None]
    prompts = np.zeros_like(roomy)
    prompts[:, :1] = roomy[:, :1] & ((table.pipeline > 1.0)[:, None, None] | _last(roomy[:, :1], axis=2))
    tokens = np.zeros_like(roomy)
    tokens[:, :, :1] = at_limits[:, :, :1] if every_limit else _last(at_limits[:, :, :1], axis=1)
    sends, takes = (np.asarray(table.talks.any(axis=axis))[:, None, None] for axis in (1, 0))
    rows = [np.zeros((4, 0), dtype=np.int64)]
    for role, possible in enumerate((prompts & sends, tokens & takes, at_limits)):
        if ROLES[role] in instance.problem.space.roles:
            shape, chunk, back = np.nonzero(possible.swapaxes(1, 2)[:, :, ::-1])
            rows.append(np.stack([np.full_like(shape, role), shape, table.seqs.size - 1 - back, chunk]))
    settings = EngineSettings(*np.concatenate(rows, axis=1))
    return settings.take(_possible(instance, settings))


def engine_gpus(instance: Instance, settings: EngineSettings) -> FloatArray:
    """GPUs of each offer that one engine of each setting takes, (settings, offers)."""
    bought = instance.tables.offer[settings.shape][:, None] == np.arange(len(instance.problem.offers))
    return np.asarray(bought * instance.tables.gpus[settings.shape][:, None])


def _last(possible: BoolArray, axis: int) -> BoolArray:
    """The last possible entry along an axis."""
    later = np.flip(np.cumsum(np.flip(possible, axis), axis), axis)
    return np.asarray(possible & (later == 1))


def _possible(instance: Instance, settings: EngineSettings) -> BoolArray:
    """Whether the limits hold one engine that decodes within some TPOT limit, with a token for each request in a step.

    A batch limit whose full batch is too slow is kept: few requests never fill it, and smaller limits make them wait.
    """
    table, flows, shape, is_colocated = instance.tables, instance.flows, settings.shape, settings.role == COLOCATED
    fits = within_limits(instance.problem, engine_gpus(instance, settings))
    longest = flows.tpot.max() if flows.gaps.any() else np.inf
    fits &= (settings.role == PREFILL) | (table.decode_base.min(axis=1)[shape] < longest)
    tokens = table.verified[shape] * table.seqs[settings.seqs]
    return np.asarray(fits & ~(is_colocated & (tokens > table.chunks[settings.chunk])))
