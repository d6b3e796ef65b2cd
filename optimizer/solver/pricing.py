"""Pricing: what a block of every column of the space would earn at the shadow prices of a relaxation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.columns import ROLES, Columns, blocks_of
from optimizer.loads.instance import Instance
from optimizer.loads.loads import column_loads

from .fleet_model import COLOCATED, DECODE, MOST_BLOCKS, PREFILL, Aim, FleetModel, engine_cost, fleet_limits
from .program import Solution
from .tolerances import DEARER, SINGLE

FloatArray = NDArray[np.float64]
FloatArray32 = NDArray[np.float32]

QUICK, CLOSE = 6, 30
"""Work limits: refinements of what a block earns at most, for a first look at all columns and for what is stated
(assumed: after 20 the bound is within 1 % or so)."""

CLOSE_ONCE = 12
"""Work limit: the same where no flow is served more than once, which bounds it anyway (assumed)."""


@dataclass(frozen=True, slots=True)
class Duals:
    """Shadow prices of one relaxation: per flow and stage, per class, and of one engine of each shape."""

    gain: FloatArray
    miss: FloatArray
    engine: FloatArray


def read_duals(instance: Instance, model: FleetModel, solution: Solution, aim: Aim) -> Duals:
    """Turn row duals into what a unit of each flow earns on each (role, domain) and what an engine costs."""
    duals, pairing = solution.duals, instance.tables.pairing
    cover, pair = duals[model.cover], duals[model.pair]
    gain = np.zeros((len(ROLES), pairing.prefill.shape[1], cover.size))
    sent, gain[DECODE] = pairing.worth(pair)
    gain[PREFILL] = cover + sent
    gain[COLOCATED] = cover
    engine = aim.cost_weight * engine_cost(instance)
    for limit in fleet_limits(instance):
        engine = engine - duals[model.limits[limit.name]] * limit.weight
    flows = instance.flows
    return Duals(gain, duals[model.attainment][flows.slo] * flows.share, engine)


@dataclass(frozen=True, slots=True)
class Priced:
    """One slice of the columns with its loads, in single precision and laid out for pricing.

    load (resources, columns, flows): blocks that the whole flow needs; miss (columns, flows).
    """

    columns: Columns
    load: NDArray[np.float32]
    miss: NDArray[np.float32]


def price_columns(instance: Instance, columns: Columns) -> tuple[Priced, ...]:
    """Loads of all columns, slice by slice in two threads, computed once for all rounds."""

    def price(part: slice) -> Priced:
        chosen = columns.take(np.arange(part.start, part.stop))
        loads = column_loads(instance, chosen)
        load = np.minimum(np.moveaxis(loads.load, 1, 0) * instance.flows.rate, MOST_BLOCKS)
        return Priced(chosen, np.ascontiguousarray(load, dtype=np.float32), loads.miss.astype(np.float32))

    with ThreadPoolExecutor(max_workers=2) as pool:
        return tuple(pool.map(price, blocks_of(columns)))


def reduced_costs(instance: Instance, priced: tuple[Priced, ...], duals: Duals) -> FloatArray:
    """Lower bound of each column's reduced cost per block [$/h], shape (columns,).

    Cheap bounds first, for all columns; those that look like an improvement are looked at more closely.
    """

    def price(part: Priced) -> FloatArray:
        cost = part.columns.replicas * duals.engine[part.columns.shape]
        gain = gains(instance, part, duals)
        result = cost - most_earned(part.load, gain, QUICK)
        promising = np.flatnonzero(result < -DEARER * cost)
        if promising.size:
            closer = most_earned(part.load[:, promising], gain[promising], CLOSE)
            result[promising] = cost[promising] - closer
        return result

    with ThreadPoolExecutor(max_workers=2) as pool:
        return np.concatenate([np.zeros(0), *pool.map(price, priced)])


def gains(instance: Instance, priced: Priced, duals: Duals) -> FloatArray32:
    """What the whole of a flow earns on each column at the duals [$/h], 0 where it cannot run, (columns, flows)."""
    domain = instance.tables.group[priced.columns.role, priced.columns.shape]
    gain = duals.gain[priced.columns.role, domain] + priced.miss * duals.miss
    gain[(priced.load >= MOST_BLOCKS).any(axis=0)] = 0.0
    return gain.astype(np.float32)


def most_earned(load: FloatArray32, gain: FloatArray32, steps: int = CLOSE) -> FloatArray:
    """Upper bound of what one block of each column earns where the whole of flow f earns gain_f, shape (columns,).

    load (resources, columns, flows): blocks that the whole of a flow takes; gain (columns, flows).
    A block earns at most max_x { gain x : load_r x <= 1 for every r }. Any weights y >= 0 of the resources that
    sum to 1 bound that by max_f gain_f / (sum_r y_r load_rf); see `resource_weights`.
    """
    return resource_weights(load, np.maximum(gain, np.float32(0.0)), steps)[0].astype(np.float64)


def most_earned_once(load: FloatArray32, gain: FloatArray32) -> FloatArray:
    """The same bound where no more than the whole of a flow can be served, x <= 1, shape (columns,).

    With the resources weighted into one, the flows that earn most per share of the block fill it first (fractional
    knapsack); never less than what the block really earns.
    """
    gain = np.maximum(gain, np.float32(0.0))
    bound, weight = resource_weights(load, gain, CLOSE_ONCE)
    used = np.einsum("rc,rcf->cf", weight, load)
    order = np.argsort(-gain / np.maximum(used, np.float32(1e-30)), axis=1, kind="stable")
    used, gain = np.take_along_axis(used, order, axis=1), np.take_along_axis(gain, order, axis=1)
    before = np.cumsum(used, axis=1) - used
    served = np.clip((1.0 - before) / np.maximum(used, np.float32(1e-30)), 0.0, 1.0)
    least = np.minimum(bound, (gain * served).sum(axis=1))
    return np.asarray(least.astype(np.float64) * (1.0 + SINGLE))


def resource_weights(load: FloatArray32, gain: FloatArray32, steps: int) -> tuple[FloatArray32, FloatArray32]:
    """Lowest bound of what a block earns that some weights of its resources give, (columns,), and those weights.

    The flows that earn most pull the weights towards what they use, each step more sharply so (multiplicative
    updates); after 20 steps the bound is within 1 % or so. With a single resource it is exact.
    """
    best = np.full(gain.shape[0], np.inf, dtype=np.float32)
    weight = (load.max(axis=2) > 0.0).astype(np.float32)
    weight /= np.maximum(weight.sum(axis=0), 1.0)
    chosen = weight.copy()
    growth = 400.0 ** (1.0 / max(steps, 1))
    for step in range(steps if load.shape[0] > 1 else 1):
        used = np.maximum(np.einsum("rc,rcf->cf", weight, load), 1e-30)
        earned = gain / used
        top = earned.max(axis=1)
        better = top < best
        best[better], chosen[:, better] = top[better], weight[:, better]
        pull = (earned / np.maximum(top, 1e-30)[:, None]) ** np.float32(growth ** (step + 1))
        pull = pull / np.maximum(pull.sum(axis=1, keepdims=True), 1e-30) / used  # one by one: the product underflows
        weight *= np.einsum("cf,rcf->rc", pull, load)
        weight /= np.maximum(weight.sum(axis=0), 1e-30)
    return best, chosen
