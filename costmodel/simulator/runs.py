"""Runs of equal decode steps in closed form; compiled.

While the batch stays, each step lasts `growth` longer than the one before: k steps take k d + g k (k - 1) / 2, with d
the first step's time and g = slope x batch. Which step is under way at a time follows by solving for k.
"""

from __future__ import annotations

from .compiled import Events, compile_loop
from .schedule import schedule_lane
from .state import Lane, World


@compile_loop
def run_time(lane: Lane, steps: int) -> float:
    """Time of the first `steps` steps of a run: k d + g k (k - 1) / 2 [s]."""
    return steps * lane.first_duration + lane.growth * (0.5 * steps * (steps - 1))


@compile_loop
def steps_by(lane: Lane, t: float) -> int:
    """Number of the step of the run that ends first at or after t: k = 2 s / (h + sqrt(h^2 + 2 g s)), h = d - g / 2."""
    growth, elapsed = lane.growth, t - lane.start
    half = lane.first_duration - 0.5 * growth
    steps = max(1, min(lane.run, int(2.0 * elapsed / (half + (half * half + 2.0 * growth * elapsed) ** 0.5))))
    while steps > 1 and lane.start + run_time(lane, steps - 1) >= t:
        steps -= 1
    while steps < lane.run and lane.start + run_time(lane, steps) < t:
        steps += 1
    return steps


@compile_loop
def interrupt(w: World, events: Events, lane: Lane, t: float) -> None:
    """Cut the run short at the first step that ends at or after t."""
    steps = steps_by(lane, t)
    if steps < lane.run:
        lane.run = steps
        schedule_lane(w, events, lane, lane.start + run_time(lane, steps))
