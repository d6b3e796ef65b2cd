"""How long prompts wait for a seat where the batches of all engines are full.

The router sends a prompt to an engine with as few waiting as any, so that an engine has prompts without a seat only
when all have: c engines of S seats are one queue of C = c S servers. Of X requests at the pool, M on average and of
variance V if seats had no end, X - C wait. Symbols: lambda requests per second, h the time that an engine with a full
batch takes for one request on average, rho = lambda h / c.

1. Where all seats are taken. X is taken for negative binomial, the Pascal model of peaked traffic (Delbrouck 1981);
   Poisson, V = M, is its limit. With all C taken the excess is geometric of mean theta, so that

       P(X >= C) = f theta / (F + f theta),   f = P(X = C),   F = P(X < C),   theta = z / (1 - rho)

   For Poisson arrivals and steps that are always as long (z = 1) that is Erlang's C. For many seats it is the limit of
   Halfin and Whitt (1981), with a peakedness as Whitt (2004, A diffusion approximation for the G/GI/n/m queue) has it.
   z is how much more X varies in short times than a Poisson stream and its ends would let it: V / M without what longer
   steps add (rho has these already), and without what it is that bursts are no longer there together (`at_once`).
2. Arrivals. Those that find C or more come as often as requests end beside more than C (rate conservation), which of
   bursts makes them P(X >= C) (1 - 1 / theta') / rho, theta' = (ca2 + 1) / 2 / (1 - rho) that of exponential seats.
3. Their wait, w = theta'' h / c on average, is that of Allen and Cunneen. But they wait at the engine that they were
   sent to: of k in excess, dealt out in turn, the last has the ceiling of k / c requests there to wait for. For a
   geometric k of mean theta'' that is h / (1 - (1 - 1 / theta'')^c), which is w at one engine.
4. Decodes. A full batch takes in a prompt when one of the S - 1 others ends: (S - 1) n / E[n] in n steps. What would
   take a request longer than these and steps of a full batch waits for a seat: its TPOT is held there (`within_seats`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .beside import Beside
from .decode_queue import DecodeTime
from .queues.erlang import conditional_wait, gamma_exceeds, held_at, normal_exceeds

FloatArray = NDArray[np.float64]

FULLEST = 0.999
"""Where rho is cut off, short of an endless wait [1]."""
FAR = 3.0
"""Standard deviations that count as the most there is [1]: a normal variable exceeds them with a chance of 0.1 %."""
LEAST_PEAKED = 1e-6
"""Numbers whose variance exceeds their mean by a smaller share, or is below it, are taken for Poisson [1]."""


@dataclass(frozen=True, slots=True)
class Seats:
    """The seats of a pool and those who want them.

    engines: c [1]; seats: S of each [1]; rate: lambda [1/s]; present, variance: M and V of the requests at the pool if
    it had seats without end [1]; peaked: z [1]; turn (flows,): time that an engine with a full batch takes for one
    request of each flow [s], of weight (flows,) [1]; arrival_scv: ca2 of the gaps between arrivals [1].
    """

    engines: float
    seats: float
    rate: float
    present: float
    variance: float
    peaked: float
    turn: FloatArray
    weight: FloatArray
    arrival_scv: float

    @property
    def mean_turn(self) -> float:
        """Mean turn, h [s]."""
        return float(self.weight @ self.turn)

    @property
    def busy(self) -> float:
        """Load of full batches, rho [1]."""
        return min(self.rate * self.mean_turn / self.engines, FULLEST)


def at_once(steps: FloatArray, weight: FloatArray, arrival_scv: float, overlap: float) -> float:
    """Peakedness of arrivals and ends in short times over that of the number there [1].

    Arrivals of dispersion ca2 that stay equally long end so too, each length by itself; of lengths (flows,) with
    weights w (flows,), the ends have the dispersion 1 + (ca2 - 1) sum w^2, and half of both is the peakedness. That of
    the number is 1 + (ca2 - 1) `overlap` (`beside.Beside`; Eckberg 1983): both are ca2 for equal lengths.

    >>> half = np.full(2, 0.5)
    >>> at_once(np.array([9.0, 9.0]), half, 4.0, 1.0), at_once(np.array([1.0, 9.0]), half, 4.0, 0.5)
    (1.0, 1.3)
    """
    burst = arrival_scv - 1.0
    if burst <= 0.0:
        return 1.0
    alike = np.bincount(np.unique(steps, return_inverse=True)[1].ravel(), weights=weight)
    return float((1.0 + burst * (1.0 + float(alike @ alike)) / 2.0) / (1.0 + burst * overlap))


def taken_chance(seats: Seats) -> float:
    """Chance that an arrival finds all seats taken [1]; F is that of a gamma variable, which differs little.

    >>> turn = np.array([0.1])  # of Poisson arrivals: M/M/10 at 0.8, Erlang's 0.409
    >>> round(taken_chance(Seats(1.0, 10.0, 8.0, 8.0, 8.0, 1.0, turn, np.ones(1), 1.0)), 2)
    0.4
    """
    number, rho = seats.engines * seats.seats, seats.busy
    above = seats.peaked / (1.0 - rho) * _chance_of(number, seats.present, seats.variance)
    below = 1.0 - float(gamma_exceeds(number - 0.5, seats.present, math.sqrt(seats.variance)))
    bursts = max((seats.arrival_scv + 1.0) / 2.0, 1.0) / (1.0 - rho)
    return min(above / max(below + above, 1e-300) * (1.0 - 1.0 / bursts) / rho, 1.0)


def _chance_of(number: float, mean: float, variance: float) -> float:
    """P(X = number) of a negative binomial variable of this mean and variance [1].

    >>> round(_chance_of(2.0, 1.0, 2.0), 6)  # geometric: 1 / 2^3
    0.125
    """
    peaked = max(variance / mean - 1.0, LEAST_PEAKED)
    size = mean / peaked
    least = number * math.log(peaked) - (size + number) * math.log1p(peaked)
    return math.exp(least + math.lgamma(number + size) - math.lgamma(size) - math.lgamma(number + 1.0))


def seat_wait(seats: Seats) -> float:
    """Mean wait for a seat of those who find none free [s].

    >>> turn = np.array([0.1])  # M/D/10 at 0.8, that is 0.1 / 2 / 0.2
    >>> round(seat_wait(Seats(1.0, 10.0, 8.0, 8.0, 8.0, 1.0, turn, np.ones(1), 1.0)), 6)
    0.25
    """
    turn, engines = seats.mean_turn, seats.engines
    second = float(seats.weight @ seats.turn**2)
    wait = float(conditional_wait(engines, seats.busy, turn, second, seats.arrival_scv))
    excess = wait * engines / turn
    return float(turn * min(excess, 1.0) / (1.0 - max(1.0 - 1.0 / max(excess, 1e-12), 0.0) ** engines))


def within_seats(beside: Beside, time: DecodeTime, seats: float, full_step: float) -> tuple[DecodeTime, FloatArray]:
    """Time of decodes that batches of no more than the seats leave, and the largest mean step, (flows,) [s].

    (S - 1) n / E[n] others end in n steps of a full batch, of a variance like that of n; in a short n that begins at
    the mean batch N, others find the S - N free seats. The mean step is taken for normal before it is held.
    seats: S [1]; full_step: of a full batch without prompts [s].
    """
    lives = beside.steps / beside.length
    came = (seats - 1.0) * lives + np.maximum(seats - beside.batch, 0.0) * np.maximum(1.0 - lives, 0.0)
    length_scv = min(float(beside.weight @ beside.steps**2) / beside.length**2 - 1.0, 1.0)
    square = max(beside.second - beside.mean**2 + length_scv * beside.mean**2, 0.0)
    around = np.sqrt(came * square) / beside.steps
    most = full_step + came * beside.mean / beside.steps
    above = (most - beside.quiet - time.own - time.mean) / np.maximum(time.spread, 1e-12)
    (less, kept), held = held_at(above), normal_exceeds(above)
    spread = np.sqrt(kept * time.spread**2 + held * np.minimum(around, time.spread) ** 2)
    return replace(time, mean=time.mean + less * time.spread, spread=spread), most + FAR * around
