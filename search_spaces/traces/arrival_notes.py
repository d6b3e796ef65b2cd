"""What a reader of a trace's figures must know of its arrivals, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.words import percentage

from .arrivals import TIE_SHARE, ArrivalStats

WAVY_CV = 3.0
"""CV of the gaps from which the summary says that it is ruled by pauses [1]."""


def arrival_notes(arrivals: ArrivalStats) -> Iterator[str]:
    """A coarse clock, one pause that rules the trace, or waves; whatever the figures alone do not tell."""
    pause = _pause_note(arrivals)
    if pause:
        yield pause
    if arrivals.quantum is not None and arrivals.dispersion is not None:
        yield (
            f"{percentage(arrivals.tie_share)} of the arrivals share the time of the one before "
            f"(over {percentage(TIE_SHARE)}): the clock steps by {arrivals.quantum:.4g} s, so burstiness "
            f"{arrivals.burstiness:.2f} is the root of the dispersion of counts per step, not the CV of the "
            f"recorded gaps ({arrivals.gap_cv or 0:.2f})."
        )
    elif arrivals.gap_cv is None:
        yield "too few distinct arrivals to measure burstiness; 1 (Poisson) is assumed."
    elif arrivals.gap_cv > WAVY_CV and not pause:
        yield (
            f"the gaps between arrivals vary by {arrivals.gap_cv:.1f} times their mean (longest pause "
            f"{arrivals.longest_gap:.0f} s): requests come in waves, so look at the peak rates too."
        )


def _pause_note(arrivals: ArrivalStats) -> str:
    """Where one gap is most of the trace, as a wrong timestamp makes it; empty where none is."""
    rate = arrivals.rate_without_pause
    if rate is None:
        return ""
    before, after = arrivals.gap_lines
    share = percentage(arrivals.longest_gap / arrivals.duration)
    return (
        f"{share} of the trace is one gap of {arrivals.longest_gap:,.0f} s without a request, between those of line "
        f"{before:,} and line {after:,}: without it the rate is {rate:.3g} req/s, and rate and burstiness above tell "
        "little. If a timestamp is wrong there, mend it or leave the line out."
    )
