"""How long something waits: the distribution of every wait. All tails are decided here, and nowhere else.

A queue's own law says how likely a wait is and how long on average: `prefill.prompt_wait` for an engine,
`decode.Seats` for a batch slot, `costmodel.first_token.card_wait` for a network card. What exceeds it is here:

    prompts for an engine                   on a grid, as the law has it                `tail_on_grid`
    prompts for a slot, KV for a card       exponential                                 `ExponentialWait`
    the rest of a step in progress          met at any time with equal chance           `rest_exceeds`

`costmodel.first_token.Ttft` adds them up. To try another tail, such as a lognormal one, change it here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from costmodel.arrays import FloatArray

LIVES = 10.0
"""The grid of waits reaches so many times the mean wait for a slot: exp(-10) = 5e-5 is left out."""


@dataclass(frozen=True, slots=True)
class ExponentialWait:
    """A wait of which no more is known than its chance [1] and the mean of those who wait [s]."""

    chance: float
    mean: float

    def exceeds(self, seconds: FloatArray) -> FloatArray:
        """P(wait > seconds) of those who wait [1]."""
        return np.exp(-seconds / max(self.mean, 1e-12))

    def quantiles(self, levels: FloatArray) -> FloatArray:
        """Quantiles of all, who mostly do not wait [s].

        >>> ExponentialWait(0.5, 2.0).quantiles(np.array([0.4, 0.9])).round(3).tolist()
        [-0.0, 3.219]
        """
        above = np.minimum((1.0 - levels) / max(self.chance, 1e-300), 1.0)
        return np.asarray(-self.mean * np.log(above))


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait on a grid.

    chance: that there is any [1]; seconds, late (points,): P(wait > seconds) of those who wait; mean: of theirs [s].
    """

    chance: float
    seconds: FloatArray
    late: FloatArray
    mean: float

    def exceeds(self, slack: FloatArray) -> FloatArray:
        """P(wait > slack) of those who wait; 1 where there is no slack at all [1]."""
        return np.asarray(np.interp(slack, self.seconds, self.late, left=1.0, right=0.0))

    def with_slot(self, slot: ExponentialWait) -> Self:
        """The wait for this and for a slot, beside each other: until the later of both is there."""
        if slot.chance <= 1e-9:
            return self
        seconds, late = self.seconds, self.chance * self.late
        if seconds[-1] < LIVES * slot.mean:
            seconds = np.linspace(0.0, LIVES * slot.mean, seconds.size)
            late = np.interp(seconds, self.seconds, late, right=0.0)
        late = late + slot.chance * (1.0 - late) * slot.exceeds(seconds)
        chance = self.chance + slot.chance * (1.0 - self.chance)
        late = np.minimum(late / chance, 1.0)
        return replace(self, chance=chance, seconds=seconds, late=late, mean=float(np.trapezoid(late, seconds)))


def tail_on_grid(cells: FloatArray, width: float) -> tuple[FloatArray, float]:
    """P(wait > edge) at the edges of cells, (cells + 1,) [1], and the mean [s], of those who wait.

    cells (cells,): distribution of the wait, as its queue's law has it [1]; width: of a cell [s].

    >>> tail_on_grid(np.array([0.0, 0.5, 0.5]), 2.0)
    (array([1.  , 0.75, 0.25, 0.  ]), 3.0)
    """
    late = np.append(np.maximum(1.0 - np.cumsum(cells) + 0.5 * cells, 0.0), 0.0)
    late[0] = 1.0
    return late, float(late[1:].sum() + 0.5) * width


def rest_exceeds(slack: FloatArray, step: float) -> FloatArray:
    """P(rest of a step > slack), met at any time with equal chance; 1 where slack is negative [1]."""
    return 1.0 - np.clip(slack, 0.0, step) / step if step > 0.0 else np.where(slack < 0.0, 1.0, 0.0)
