"""How long prompts wait at a pool whose engines compute waiting prompts together: the whole distribution.

An engine takes as many waiting prompts into its next step as its token budget holds, and all of a step end together.
So a prompt that finds every engine busy waits for the work ahead of it, V (`prompt_ahead`), and then for the work E
that came behind it in time for the same step (`prompt_company`). One that finds an engine idle starts at once. Symbols:
c engines, lambda arrivals per second, s the time of a prompt alone, g its time in a step that is full, K the longest
step, P the chance that all engines are busy. V is the same for all prompts; E is kept apart for short, middle and long
ones, as the router sends others elsewhere once a long one has come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cells import cells_of
from .prompt_ahead import bubble_grown, likeness, shared_steps, work_ahead
from .prompt_company import Company, bunch_behind, held_up, in_parts, own_classes, rate_behind, with_company
from .prompts import Prompts

__all__ = ["PromptWait", "Prompts", "bunch_behind", "endless_wait", "prompt_wait"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PromptWait:
    """Waits at a pool.

    utilization: busy share of the engines; load: offered work in full steps over capacity, which must stay below 1;
    chance: that an arrival finds all engines busy; seconds (cells + 1,), late (classes, cells + 1):
    P(wait > seconds) of those who do, by class of their own length; member (flows,): class of each flow; mean: of their
    waits [s]; behind: prompts that came behind and end in the same step, on average over them; together: prompts of a
    step.
    """

    utilization: float
    load: float
    chance: float
    seconds: FloatArray
    late: FloatArray
    member: NDArray[np.int64]
    mean: float
    behind: float
    together: float = 1.0

    def exceeds(self, slack: FloatArray) -> FloatArray:
        """P(wait > slack) of those who find all engines busy; 1 where there is no slack at all [1].

        slack (..., flows) [s].
        """
        slack = np.broadcast_to(slack, np.broadcast_shapes(slack.shape, self.member.shape))
        result = np.empty(slack.shape)
        for number, row in enumerate(self.late):
            flows = self.member == number
            result[..., flows] = np.interp(slack[..., flows], self.seconds, row, left=1.0, right=0.0)
        return result


def endless_wait(load: float, flows: int) -> PromptWait:
    """The wait at a pool that falls behind: a million seconds."""
    everyone = np.zeros(flows, dtype=np.int64)
    return PromptWait(1.0, load, 1.0, np.array([0.0, 1e6]), np.array([[1.0, 0.0]]), everyone, 5e5, 0.0)


def prompt_wait(prompts: Prompts) -> PromptWait:
    """Distribution of the wait before and beside a prompt's own computing; see the module for the equations."""
    flows, load = prompts.rate.size, prompts.per_engine * float(prompts.weight @ prompts.shared)
    if float(prompts.rate.sum()) <= 1e-12:
        return PromptWait(0.0, 0.0, 0.0, np.array([0.0, 1.0]), np.zeros((1, 2)), np.zeros(flows, np.int64), 0.0, 0.0)
    if load >= 1.0:
        return endless_wait(load, flows)
    busy, together, chance = shared_steps(prompts)
    grown = float(bubble_grown(prompts, np.array(together)))
    prompts = replace(prompts, alone=np.maximum(prompts.alone + grown, prompts.shared))
    alike = likeness(prompts)
    edges, ahead = work_ahead(prompts, together, alike)
    member, rate, step = own_classes(prompts), rate_behind(prompts, busy, chance), chance / (1.0 + chance)
    part = prompts.weight * (member == np.arange(member.max() + 1)[:, None])
    share = part.sum(axis=1)
    each = part / np.maximum(share, 1e-300)[:, None]
    own, pace = (each @ prompts.alone)[:, None], (each @ rate)[:, None]
    kept, shared = pace / max(float(prompts.weight @ rate), 1e-300), float(prompts.weight @ prompts.shared)
    company = Company(own, pace, kept, step, prompts.full_step, shared, alike)
    wait, behind = with_company(prompts, in_parts(prompts, ahead, edges, step), edges, company)
    if prompts.bare is not None:
        wait = wait * held_up(prompts, each @ prompts.bare, edges)
    cells = np.maximum(cells_of(wait), 0.0)
    late = np.pad(np.maximum(1.0 - np.cumsum(cells, axis=1) + 0.5 * cells, 0.0), ((0, 0), (0, 1)))
    late[:, 0] = 1.0
    mean = float(share @ (late[:, 1:].sum(axis=1) + 0.5)) * float(edges[1])
    return PromptWait(busy, load, chance, edges, late, member, mean, float(share @ behind), together)
