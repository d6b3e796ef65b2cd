"""Settings of engines among which a fleet is searched: role, shape, batch limit and token budget."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role

from .instance import Instance
from .tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

ROLES = (Role.PREFILL, Role.DECODE, Role.COLOCATED)
PREFILL, DECODE, COLOCATED = range(3)
"""Places of the roles in ROLES."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Engines, every array (settings,): role, a place in ROLES; shape, batch limit and token budget as in tables."""

    role: IntArray
    shape: IntArray
    seqs: IntArray
    chunk: IntArray

    @property
    def size(self) -> int:
        """Number of settings."""
        return int(self.role.size)

    def take(self, index: IntArray | BoolArray) -> Settings:
        """The settings at `index`, in that order."""
        return Settings(*(getattr(self, field.name)[index] for field in fields(self)))


def make_settings(instance: Instance, *, every_limit: bool = False) -> Settings:
    """Every setting that the limits can hold one engine of, in roles that are allowed, with someone to talk to.

    A prefill engine has the largest token budget that there is memory for, as larger steps are more efficient and no
    decode waits for them; in a pipeline any, as stages work side by side on several steps only. A decode engine has the
    largest batch limit, as by formula a smaller one only makes requests wait; `every_limit`: all of them.
    """
    tables, roles = instance.tables, instance.problem.space.roles
    sends, takes = np.asarray(tables.talks.any(axis=1)), np.asarray(tables.talks.any(axis=0))
    roomy, every = tables.roomy, np.ones(len(tables.shapes), dtype=np.bool_)
    last, largest = np.arange(tables.chunks.size), tables.chunks.size - 1 - np.argmax(roomy[:, ::-1], axis=1)
    prompts = roomy & ((last == largest[:, None]) | (tables.pipeline > 1.0)[:, None])
    limits = tables.limits[::-1]
    parts = []
    if Role.PREFILL in roles:
        parts.append(_product(PREFILL, sends, np.zeros(1, dtype=np.int64), prompts))
    if Role.DECODE in roles:
        least = roomy & (last == 0)
        parts.append(_product(DECODE, takes, limits if every_limit else limits[:1], least))
    if Role.COLOCATED in roles:
        parts.append(_product(COLOCATED, every, limits, roomy))
    rows = np.concatenate([np.zeros((4, 0), dtype=np.int64), *parts], axis=1)
    settings = Settings(*rows)
    return settings.take(_possible(instance, settings))


def _product(role: int, shapes: BoolArray, limits: IntArray, chunks: BoolArray) -> IntArray:
    """Every shape with every token budget (shapes, budgets) and batch limit, the largest limit first; (4, settings)."""
    shape, chunk = np.nonzero(chunks & shapes[:, None])
    number = np.repeat(np.arange(shape.size), limits.size)
    return np.stack([np.full(number.size, role), shape[number], np.tile(limits, shape.size), chunk[number]])


def _possible(instance: Instance, settings: Settings) -> BoolArray:
    """Whether the limits hold one engine that decodes within some TPOT limit, with a token for each request in a step.

    Of the batch limits of colocated engines those are dropped whose full batch is too slow for every TPOT limit, but
    for the smallest of these, which may never be full.
    """
    problem, tables, shape = instance.problem, instance.tables, settings.shape
    gpus, price = tables.gpus[shape], tables.usd_per_hour[shape]
    inventory = np.array([np.inf if offer.inventory is None else offer.inventory for offer in problem.offers])
    fits = gpus <= inventory[tables.offer[shape]]
    if problem.constraints.max_gpus is not None:
        fits &= gpus <= problem.constraints.max_gpus
    if problem.constraints.budget is not None:
        fits &= price <= problem.constraints.budget * (1.0 + 1e-9)
    longest = instance.flows.tpot.max()
    generates, together = settings.role != PREFILL, settings.role == COLOCATED
    fits &= ~generates | (tables.decode_base.min(axis=1)[shape] < longest)
    fits &= ~together | (tables.seqs[settings.seqs] <= tables.chunks[settings.chunk])
    return np.asarray(fits & ~(together & (_limit_before(tables, settings) >= longest)))


def _limit_before(tables: Tables, settings: Settings) -> FloatArray:
    """Decode step of a full batch of the next smaller limit, 0 where there is none [s], (settings,)."""
    place = np.searchsorted(tables.limits, settings.seqs)
    before = tables.decode_base[settings.shape, tables.limits[np.maximum(place - 1, 0)]]
    return np.asarray(np.where(place > 0, before, 0.0))
