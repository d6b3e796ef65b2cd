"""How many instances to run when each is there only some of the time: headroom for spot GPUs and for failures."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@lru_cache(maxsize=64)
def instances_needed(most: int, availability: float, target: float) -> tuple[int, ...]:
    """Least n with P(Bin(n, availability) >= m) >= target, for every m = 0 .. most.

    Each instance is there with probability `availability` [1], independently of the others.

    With 90 %, two run so that one is there in 99 % of the time: 1 - 0.1^2 = 0.99.

    >>> instances_needed(1, 0.9, 0.98), instances_needed(2, 1.0, 0.98)
    ((0, 2), (0, 1, 2))
    """
    needed = [0]
    there = np.zeros(most + 2)  # chance of exactly 0 .. most instances; the last cell holds all above
    there[0] = 1.0
    running = 0
    while len(needed) <= most:
        running += 1
        grown = (1.0 - availability) * there
        grown[1:] += availability * there[:-1]
        grown[-1] += availability * there[-1]
        there = grown
        at_least = there[::-1].cumsum()[::-1]
        while len(needed) <= most and at_least[len(needed)] >= target:
            needed.append(running)
    return tuple(needed)


def gpus_to_rent(most: int, availability: float, target: float, instance: int) -> IntArray:
    """GPUs to rent in whole instances so that m of them are there, for every m = 0 .. most; see `instances_needed`.

    instance: GPUs of one instance.

    >>> gpus_to_rent(3, 1.0, 0.99, 2).tolist()
    [0, 2, 2, 4]
    """
    whole = -(-np.arange(most + 1) // instance)
    return np.array(instances_needed(int(whole[-1]), availability, target), dtype=np.int64)[whole] * instance
