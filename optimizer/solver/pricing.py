"""Pricing: what a block of every column would earn at most at the shadow prices of a relaxation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
FloatArray32 = NDArray[np.float32]

CLOSE = 30
"""Work limit: refinements of what a block earns at most (assumed: after 20 the bound is within 1 % or so)."""


def most_earned(load: FloatArray32, gain: FloatArray32, steps: int = CLOSE) -> FloatArray:
    """Upper bound of what one block of each column earns where the whole of flow f earns gain_f, shape (columns,).

    load (resources, columns, flows): blocks that the whole of a flow takes; gain (columns, flows).
    A block earns at most max_x { gain x : load_r x <= 1 for every r }. Any weights y >= 0 of the resources that
    sum to 1 bound that by max_f gain_f / (sum_r y_r load_rf); see `resource_weights`.
    """
    return resource_weights(load, np.maximum(gain, np.float32(0.0)), steps)[0].astype(np.float64)


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
