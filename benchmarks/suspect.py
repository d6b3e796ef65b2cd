"""Rules that tell suspect measurements from real ones; what they catch is reported, not fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MEANINGFUL_FLOOR = 5e-6
"""Kernels whose least possible time is shorter than this are launch-bound; dtypes are not compared on them [s]."""

LEAST_LINK_SHARE = 0.25
"""A collective that reaches less of its link at large messages did not run on that link [1]."""

ONE_ROW = "one row slower than eight"


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of a rule: suspect or not, and the figure and number of rows that it rests on."""

    rule: str
    suspect: bool
    figure: float
    rows: int


def beats_physics(seconds: Array, floor: Array) -> NDArray[np.bool_]:
    """Rows measured faster than peak and bandwidth allow: the bytes came from a cache, or the row is wrong."""
    return np.asarray(seconds < floor)


def narrower_is_slower(narrow: Array, wide: Array, narrow_floor: Array) -> Finding:
    """Whether a narrower dtype is usually slower than the wider one at equal, memory-bound shape.

    narrow, wide: seconds of the same shapes [s]; narrow_floor: least time of the narrow kernel [s]. Half the bytes
    cannot take longer on a kernel that is bound by bytes: such a table has a launch floor or an unfused conversion.
    Suspect if the median of narrow / wide exceeds 1 over the shapes that are not launch-bound.

    >>> narrower_is_slower(np.array([8e-5]), np.array([4e-5]), np.array([1e-5])).suspect
    True
    """
    meaningful = narrow_floor >= MEANINGFUL_FLOOR
    if not meaningful.any():
        return Finding("narrower dtype slower", False, float("nan"), 0)
    ratio = float(np.median(narrow[meaningful] / wide[meaningful]))
    return Finding("narrower dtype slower", ratio > 1.0, ratio, int(meaningful.sum()))


def one_row_slower(one: Array, few: Array, kernels: Array) -> Finding:
    """Whether matrix products of one row take longer than those of a few rows with the same weights.

    one, few: seconds of steps that differ in their rows only [s]; kernels: matrix products in each [1]. A product
    holds that of its first row, so it cannot be quicker: a slower kernel runs for single rows. The figure is the
    median of what each product of one row takes more [s]; suspect if that is more than launching a kernel takes.

    >>> one_row_slower(np.array([4e-3]), np.array([2e-3]), np.array([100.0])).suspect
    True
    """
    if not one.size:
        return Finding(ONE_ROW, False, float("nan"), 0)
    more = float(np.median((one - few) / kernels))
    return Finding(ONE_ROW, more > MEANINGFUL_FLOOR, more, int(one.size))


def link_unused(seconds: Array, ideal: Array) -> Finding:
    """Whether large messages reach less than LEAST_LINK_SHARE of the link they are said to use.

    seconds: measured; ideal: bytes over the link's bandwidth [s]; pass large messages only.

    >>> link_unused(np.array([9e-3]), np.array([1e-3])).suspect
    True
    """
    share = float(np.median(ideal / seconds))
    return Finding("link unused", share < LEAST_LINK_SHARE, share, int(seconds.size))
