"""The latency-throughput curve of a fleet, by simulation: from light load to beyond saturation."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.errors import InputError
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

from .simulated_goodput import LEAST_VOLUME, MOST_VOLUME, Goodput, RatePoint, Trials, boundary, goodput_among

TOLERANCE = 0.02
"""To which the goodput and the saturation point are found (relative)."""
LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.3, 1.6)
"""Rates of the curve as shares of the saturation point."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising rate, and what stands out among them [1/s].

    saturation: highest rate that the fleet keeps up with, to a tolerance (0: none);
    knee: rate of the point at which requests served per second over their mean time in the system is highest.
    """

    points: tuple[RatePoint, ...]
    saturation: float
    knee: float
    goodput: Goodput


def latency_curve(
    instance: Instance, fleet: Fleet, *, requests: int = 10_000, seed: int = 0, tolerance: float = TOLERANCE
) -> Curve:
    """Run a fleet at rates around its saturation point, with common random numbers.

    The knee maximises Kleinrock's power, throughput / mean response time (Kleinrock 1979, Power and deterministic rules
    of thumb): beyond it the delay grows faster, in proportion, than what is served.
    """
    trials, demand = Trials.of(instance, fleet, requests, seed), instance.problem.workload.request_rate
    saturated, _ = boundary(lambda volume: not trials.at(volume).overloaded, tolerance)
    if saturated >= MOST_VOLUME:
        raise InputError(
            f"{requests} requests are too few for a curve: the fleet falls behind at no rate up to "
            f"{demand * MOST_VOLUME:g} req/s; ask for more requests"
        )
    found = goodput_among(trials, tolerance)
    volumes = {volume for volume, point in trials.points.items() if point.rate in (found.rate, demand * saturated)}
    volumes |= {share * (saturated or LEAST_VOLUME) for share in LOADS}
    points = tuple(trials.at(volume) for volume in sorted(volumes))
    knee = max(points, key=lambda point: point.served / point.e2e)
    return Curve(points, demand * saturated, knee.rate, found)
