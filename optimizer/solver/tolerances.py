"""How exactly the searches compare, each of these numbers once; how much they work stands where they do.

None of them is measured: each is assumed, between the error that it forgives and the difference that it must not hide.
"""

from __future__ import annotations

SAME = 1e-9
"""Tolerance: relative difference of two numbers that are the same but for rounding in double precision (assumed: 1e7
times the rounding of one operation)."""

DEARER = 1e-6
"""Tolerance: relative margin by which a reduced cost must exceed the gap before its column is dropped, or be below zero
before the column is an improvement (assumed: the 1e-6 by which GLOP may break a dual constraint)."""
