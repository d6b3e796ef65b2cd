"""How exactly figures are known, and how many candidates are tried: numbers that all searches share.

The levels of precision, each far above the one before it: ROUNDING, OPTIMAL_GAP, ALIKE, TOLERANCE, NOTABLE.
"""

from __future__ import annotations

from typing import Final

ROUNDING: Final = 1e-6
"""Relative difference below which costs, shares and times are the same [1]: solvers keep their limits no better."""

NO_DEARER: Final = 1.0 + 2.0 * ROUNDING
"""Factor on a cost below which those that are equal to it are found too."""

OPTIMAL_GAP: Final = 1e-4
"""Relative difference to which costs, shares and the ends of what a fleet can do are worked out by formula [1]: what is
printed is as fine. A fleet within it counts as the optimum."""

ALIKE: Final = 2e-3
"""Relative difference up to which two loads, costs or gaps are alike [1]: less than any prediction tells. A pool with
so little of its load is in nobody's way."""

TOLERANCE: Final = 0.02
"""To which the goodput and the saturation point are found by simulation (relative): with other seeds they differ by
0.5 % (benchmarks/goodput_spread.py), and predictions are off by more."""

NOTABLE: Final = 0.05
"""Share of a cost or a rate from which on a difference counts [1]: predictions err by as much (docs/accuracy.md)."""

SHORT_RUNS: Final = 4
"""Short runs in a full one, and full runs of one question of many: 2,000 requests at least, of which 1,800 count, tell
most fleets that miss, and the root of four halves an interval."""

CANDIDATES: Final = 6
"""Candidates of one list that are tried after each other, the likeliest first, where each takes a simulation or a
search; assumed: six confirmations in place of eight changed none of 22 plans of benchmarks/pins.py."""

QUICK_CANDIDATES: Final = SHORT_RUNS * CANDIDATES
"""The same where each takes a short run or an evaluation by formula."""

HALVINGS: Final = 3
"""So often a range is halved, or doubled, to find where an answer changes: to an eighth of it, or to eight times."""

MOST_MORE: Final = 1e3
"""Multiple of a demand, or of its inverse, beyond which nothing is looked for."""

MOST_LOOKS: Final = 20_000
"""Fleets, or nodes of a search tree, that one search looks at: a guard against spaces of thousands of engines, which is
the same on a slow machine."""
