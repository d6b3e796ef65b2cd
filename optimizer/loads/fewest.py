"""The fewest blocks of a column that can serve the whole demand, whatever they permit.

Read from the tables alone, without a number per column and flow, so that most columns need not be priced where only the
cheapest fleet is asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role

from .columns import ROLES, Columns
from .instance import Instance

FloatArray = NDArray[np.float64]


def fewest_blocks(instance: Instance, columns: Columns) -> FloatArray:
    """Lower bound of the load of one block that takes the whole demand, shape (columns,); 1 is full.

    Prompt servers are never busy for more than all the time, no batch is fuller than full, and prompts beside decodes
    only lengthen their steps. It is the same for all columns that differ in what they permit alone (utilisation,
    moment, chance, attention, step), so with one of them all that could be tailored from it are left out.
    """
    prompts = columns.role != ROLES.index(Role.DECODE)
    decodes = columns.role != ROLES.index(Role.PREFILL)
    load = np.where(prompts, _prompt_load(instance, columns), 0.0)
    return np.asarray(np.maximum(load, np.where(decodes, _decode_load(instance, columns), 0.0)))


def _prompt_load(instance: Instance, columns: Columns) -> FloatArray:
    """Busy share of the prompt servers of one block, were its decodes to read no KV."""
    tables, rate, shape = instance.tables, instance.flows.rate, columns.shape
    mixed = np.einsum("sbcf,sbcf,f->sbc", tables.chunk_count, tables.mixed_base, rate)
    alone = tables.prefill_time @ rate
    colocated = columns.role == ROLES.index(Role.COLOCATED)
    busy = np.where(colocated, mixed[shape, columns.seqs, columns.chunk], alone[shape, columns.chunk])
    return np.asarray(busy / (tables.pipeline[shape] * tables.ranks[shape] * columns.replicas))


def _decode_load(instance: Instance, columns: Columns) -> FloatArray:
    """Share of the request slots of one block, were every batch full."""
    tables, rate, shape = instance.tables, instance.flows.rate * instance.flows.osl, columns.shape
    step = tables.decode_base[shape, columns.seqs] / tables.seqs[columns.seqs]
    return np.asarray((rate.sum() * step + (tables.attention_slope @ rate)[shape]) / columns.replicas)
