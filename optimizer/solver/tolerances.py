"""How exactly the searches compare, each of these numbers once; how much they work stands where they do.

None of them is measured: each is assumed, between the error that it forgives and the difference that it must not hide.
"""

from __future__ import annotations

SAME = 1e-9
"""Tolerance: relative difference of two numbers that are the same but for rounding in double precision (assumed: 1e7
times the rounding of one operation)."""

SINGLE = 1e-5
"""Tolerance: relative error of sums of a few hundred terms in single precision, by which bounds are widened (assumed:
100 times the rounding of one operation)."""

LOOSENED = 1e-5
"""Tolerance: share of the demand's worth by which a cut is loosened (assumed: ten times the 1e-6 by which HiGHS and
GLOP may break a row)."""

DEARER = 1e-6
"""Tolerance: relative margin by which a reduced cost must exceed the gap before its column is dropped, or be below zero
before the column is an improvement (assumed: the 1e-6 by which GLOP may break a dual constraint)."""

WORTHLESS = 1e-6
"""Tolerance: share of a block's price below which the worth of the demand is rounding, so that nothing is missing
(assumed: as exact as GLOP is)."""

LACKING = 1e-3
"""Tolerance: share of the demand's worth that blocks in fractions may lack when no more cuts are made of them (assumed:
a tenth of the gap that whole blocks leave)."""

EARNING = 1e-4
"""Tolerance: relative margin by which a block must earn more than it costs before it is added to a programme (assumed:
ten times SINGLE)."""

TRACE = 1e-4
"""Tolerance: engines of every kind that the linear programme has beside those chosen, so that its prices say something
of them (assumed: ten times LOOSENED)."""

WHOLE = 1e-4
"""Tolerance: fraction of a block that is none (assumed: below it no branch raises a bound by much)."""

SAME_PRICE = 1e-6
"""Tolerance: relative difference below which the price of a block's time is that of the block (assumed)."""

SAME_STEP = 1e-6
"""Tolerance: what is forgiven when a cost is rounded up to whole steps, in steps (assumed)."""
