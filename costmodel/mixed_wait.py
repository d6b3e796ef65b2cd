"""What prompts wait for on engines that decode too, beside the prompts that are being computed (`prompt_queue`).

1. Company. A prompt that finds an engine without prompts starts with the next step, together with all others that come
   to it during the one under way. While one waits for it, its engine is no longer free for the router: with rho' the
   share of the time in which an engine has a prompt, waiting or computed, C(rho') of the arrivals find all engines so.
   Of these the share 1 - rho / rho' is sent to one whose prompt waits: they have it before them in their step, and as
   many have one behind.
2. A full batch. While all seats of the engines are taken, prompts wait for one: how often and how long is in
   `seat_queue`. The wait is taken for exponential, and to go on beside that for the prompts ahead, whichever is longer.
3. Pipelines. A mixed step goes through all k stages and holds up those behind it, which are decodes that are soon all
   stuck: a prompt that finds the first stage free starts when the last mixed step has left. Mixed steps come at rate r
   and take (k - 1) M beyond the first stage: the last one of those in transit leaves within t with chance
   exp(-r E[((k - 1) M - t)+]). (Infinitely many servers: the transits overlap.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .prompt_ahead import capped
from .prompt_queue import PromptWait

FloatArray = NDArray[np.float64]

LIVES = 10.0
"""The grid of waits reaches so many times the mean wait for a seat: exp(-10) = 5e-5 is left out."""


@dataclass(frozen=True, slots=True)
class Company:
    """Prompts that start in the same step.

    occupied: chance that all engines have a prompt, pending: share of these that waits for a step to end [1]; step: its
    length [s]; before, behind (flows,): what one of each flow adds before and behind [s]; weight (flows,): share of
    each flow [1].
    """

    occupied: float
    pending: float
    step: float
    before: FloatArray
    behind: FloatArray
    weight: FloatArray


@dataclass(frozen=True, slots=True)
class Transit:
    """Mixed steps in a pipeline: how many begin per second, and the time of those of each flow in a stage [s].

    weight (flows,): how often it is such a step [1].
    """

    rate: float
    step: FloatArray
    weight: FloatArray
    stages: float


def with_company(wait: PromptWait, company: Company) -> PromptWait:
    """Waits beside those who start in the same step."""
    usual = max(company.occupied * (1.0 - company.pending), wait.chance)
    more = min(2.0 * company.occupied * company.pending, 1.0 - usual)
    if more <= 0.0:
        return replace(wait, chance=usual)
    added = np.concatenate([company.before, company.behind])
    share = np.tile(company.weight, 2) / (2.0 * company.weight.sum())
    step = max(company.step, 1e-12)  # P(rest + added > t) is the mean of P(added > u) for u from t - step to t
    together = (capped(added, share, wait.seconds) - capped(added, share, wait.seconds - step)) / step
    return replace(wait, chance=usual + more, late=(usual * wait.late + more * together) / (usual + more))


def with_crowd(wait: PromptWait, chance: float, mean: float) -> PromptWait:
    """Waits where with this chance all seats are taken, and one is free after `mean` [s] on average (exponential)."""
    if chance <= 1e-9:
        return wait
    seconds, late = wait.seconds, wait.chance * wait.late
    if seconds[-1] < LIVES * mean:
        seconds = np.linspace(0.0, LIVES * mean, seconds.size)
        late = np.array([np.interp(seconds, wait.seconds, row, right=0.0) for row in late])
    late = late + chance * (1.0 - late) * np.exp(-seconds / max(mean, 1e-12))
    waits = wait.chance + chance * (1.0 - wait.chance)
    return replace(wait, chance=waits, seconds=seconds, late=np.minimum(late / waits, 1.0))


def with_transit(wait: PromptWait, transit: Transit) -> PromptWait:
    """Waits in a pipeline, where steps ahead are still on their way through the other stages."""
    left = np.maximum((transit.stages - 1.0) * transit.step[:, None] - wait.seconds, 0.0)
    in_transit = -np.expm1(-transit.rate * (transit.weight @ left) / transit.weight.sum())
    chance = wait.chance + (1.0 - wait.chance) * float(in_transit[0])
    late = wait.chance * wait.late + (1.0 - wait.chance) * in_transit
    return replace(wait, chance=chance, late=late / max(chance, 1e-12))
