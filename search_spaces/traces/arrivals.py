"""The arrival process of a trace, from arrivals in order: rate, burstiness, ties, peaks and the hours of the day."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from costmodel.errors import InputError
from costmodel.words import percentage
from costmodel.workload import FloatArray

from .rows import NANOSECONDS, IntArray, Rows

SLOT_SECONDS = 10
MAX_SLOTS = 16_000_000
"""Five years of slots."""
PEAK_WINDOWS = (10, 60, 600, 3600)
"""Windows of the peak rates [s]; those longer than the trace are left out."""
TIE_SHARE = 0.2
"""Share of arrivals at the very time of their predecessor from which the clock is taken as too coarse for gaps."""
LEAST_EXPOSURE = 60.0
"""Seconds that an hour of the day must have been observed for its rate to be shown."""
LEAST_GAPS = 20
"""One of so many gaps of a Poisson process is longer than all the others together in 1 of 26,000 traces."""
MOST_OF_TRACE = 0.5
"""Share of a trace's duration from which on one gap rules its rate; assumed."""
LEAST_WINDOW = 60
"""Shorter peaks [s] are what burstiness tells of."""
NOTABLE = 0.1
"""How far a peak is above a rate, as a share of it, before a plan for that rate is called too small; assumed."""
MOST_DEVIATIONS = 3.0
"""Standard deviations by which the count in the busiest of many windows may be above the mean by chance; assumed."""
WAVY_CV = 3.0
"""CV of the gaps from which the summary says that it is ruled by pauses [1]."""
_BINS_PER_OCTAVE = 16


@dataclass(frozen=True, slots=True)
class ArrivalStats:
    """What is known of the arrivals.

    duration: first to last arrival [s]; mean_rate [1/s], None if all came at once; gap_cv: coefficient of variation
    of the gaps as recorded [1]; longest_gap [s]; gap_lines: lines of the file of the requests before and after it, the
    later in time second; tie_share: share of gaps that are 0 [1]; quantum: step of a coarse
    clock [s] or None; dispersion: variance over mean of the counts per quantum [1] or None; burstiness: CV of gaps
    that a plan should use [1]; peak_rate: highest rate [1/s] by window [s]; hourly_rate: mean rate [1/s] by hour
    0-23 observed.
    """

    requests: int
    duration: float
    mean_rate: float | None
    gap_cv: float | None
    longest_gap: float
    tie_share: float
    quantum: float | None
    dispersion: float | None
    burstiness: float
    peak_rate: Mapping[int, float]
    hourly_rate: Mapping[int, float]
    gap_lines: tuple[int, int] = field(default=(0, 0), compare=False)  # where it stands is no figure of the arrivals

    @property
    def rate_without_pause(self) -> float | None:
        """Mean rate [1/s] less the longest gap, where that is most of the trace and not by chance; else None."""
        if self.requests <= LEAST_GAPS or not self.longest_gap > MOST_OF_TRACE * self.duration:
            return None
        rest = self.duration - self.longest_gap
        return (self.requests - 2) / rest if rest > 0 else None

    def busy_window(self, rate: float) -> tuple[int, float] | None:
        """The long window [s] with its peak rate [1/s] where that is well above a rate [1/s], and not by chance.

        Long is the longest window of a minute or more that the trace holds twice. The count in a window of w seconds
        has a standard deviation of CV sqrt(rate w), as that of a renewal process has for long windows (Cox 1962).
        """
        long = [window for window in self.peak_rate if LEAST_WINDOW <= window <= self.duration / 2.0]
        if not long:
            return None
        window = max(long)
        peak = self.peak_rate[window]
        chance = MOST_DEVIATIONS * self.burstiness * math.sqrt(rate / window)
        return (window, peak) if peak > rate * (1.0 + NOTABLE) and peak > rate + chance else None


class ArrivalCounter:
    """Adds up arrivals [ns] that come in order, in bounded memory: gaps by Welford's update, counts in 10 s slots."""

    def __init__(self) -> None:
        self.origin = 0
        self.last = 0
        self.requests = 0
        self._mean_gap = 0.0
        self._square_gap = 0.0
        self._longest_gap = 0.0
        self._gap_lines = (0, 0)
        self._last_line = 0
        self._ties = 0
        self._tie_run = 1
        self._square_runs = 0
        self._gap_bins = np.zeros(64 * _BINS_PER_OCTAVE, dtype=np.int64)
        self._gap_sums = np.zeros(64 * _BINS_PER_OCTAVE)
        self._slots: IntArray = np.zeros(1024, dtype=np.int64)

    def add(self, rows: Rows, where: str = "") -> None:
        """Take in the next arrivals; they must not be earlier than those before. `where` opens a refusal."""
        nanoseconds, lines = rows.nanoseconds, rows.line
        if not self.requests:
            self.origin = self.last = int(nanoseconds[0])
            gaps = np.diff(nanoseconds)
        else:
            gaps = np.diff(nanoseconds, prepend=self.last)
            lines = np.concatenate([[self._last_line], lines])
        if gaps.size:
            self._mark_longest(gaps, lines)
            self._add_gaps(gaps)
        self._last_line = int(lines[-1])
        self._add_slots(nanoseconds, where)
        self.requests += nanoseconds.size
        self.last = int(nanoseconds[-1])

    def _mark_longest(self, gaps: IntArray, lines: IntArray) -> None:
        """Keep the longest gap and the lines at its ends; lines: one more than gaps."""
        at = int(gaps.argmax())
        if gaps[at] > self._longest_gap * NANOSECONDS:
            self._longest_gap = float(gaps[at]) / NANOSECONDS
            self._gap_lines = int(lines[at]), int(lines[at + 1])

    def _add_gaps(self, gaps: IntArray) -> None:
        seconds = gaps / NANOSECONDS
        before, added = max(self.requests - 1, 0), gaps.size
        mean = float(seconds.mean())
        shift = mean - self._mean_gap
        self._square_gap += float(((seconds - mean) ** 2).sum()) + shift**2 * before * added / (before + added)
        self._mean_gap += shift * added / (before + added)
        self._ties += int(np.count_nonzero(gaps == 0))
        moves = np.flatnonzero(gaps)
        if moves.size:
            runs = np.diff(moves, prepend=-1)
            runs[0] += self._tie_run - 1
            self._square_runs += int((runs**2).sum())
            bins = (np.log2(gaps[moves]) * _BINS_PER_OCTAVE).astype(np.int64)
            np.add.at(self._gap_bins, bins, 1)
            np.add.at(self._gap_sums, bins, seconds[moves])
            self._tie_run = int(added - moves[-1])
        else:
            self._tie_run += added

    def _add_slots(self, nanoseconds: IntArray, where: str) -> None:
        slots = (nanoseconds - self.origin) // (SLOT_SECONDS * NANOSECONDS)
        needed = int(slots[-1]) + 1
        if needed > MAX_SLOTS:
            years = needed * SLOT_SECONDS / (365 * 86400)
            raise InputError(f"{where}: the trace spans {years:.0f} years; check the unit of the arrivals")
        if needed > self._slots.size:
            self._slots = np.concatenate([self._slots, np.zeros(max(needed, self._slots.size), dtype=np.int64)])
        np.add.at(self._slots, slots, 1)

    def finish(self, wall_clock: bool) -> ArrivalStats:
        """Return the statistics; hours are those of the UTC day if the clock is a wall clock, else since the start."""
        duration = (self.last - self.origin) / NANOSECONDS
        gaps = self.requests - 1
        gap_cv = math.sqrt(self._square_gap / gaps) / self._mean_gap if gaps > 0 and self._mean_gap > 0 else None
        tie_share = self._ties / gaps if gaps > 0 else 0.0
        rate = gaps / duration if duration > 0 else None
        quantum = self._quantum() if tie_share > TIE_SHARE and duration > 0 else None
        dispersion = None
        if quantum is not None:
            rate = self.requests / (duration + quantum)
            dispersion = self._dispersion(duration, quantum)
        measured = math.sqrt(dispersion) if dispersion is not None else gap_cv
        return ArrivalStats(
            requests=self.requests,
            duration=duration,
            mean_rate=rate,
            gap_cv=gap_cv,
            longest_gap=self._longest_gap,
            tie_share=tie_share,
            quantum=quantum,
            dispersion=dispersion,
            burstiness=1.0 if measured is None else measured,
            peak_rate=self._peak_rates(duration),
            hourly_rate=self._hourly_rates(duration, wall_clock),
            gap_lines=self._gap_lines,
        )

    def _quantum(self) -> float:
        """Return the clock's step [s]: the mean of the gaps in the bin of their 5 % quantile, empty steps aside."""
        place = int(np.searchsorted(np.cumsum(self._gap_bins), 0.05 * self._gap_bins.sum()))
        return float(self._gap_sums[place] / self._gap_bins[place])

    def _dispersion(self, duration: float, quantum: float) -> float:
        """Return the index of dispersion of counts [1], variance over mean of the arrivals per clock step.

        For a renewal process it tends to the squared CV of the gaps as the step grows over the mean gap.
        """
        steps = round(duration / quantum) + 1
        mean = self.requests / steps
        return max((self._square_runs + self._tie_run**2) / steps - mean**2, 0.0) / mean

    def _peak_rates(self, duration: float) -> dict[int, float]:
        used = self._slots[: int(duration // SLOT_SECONDS) + 1]
        peaks = {}
        for window in PEAK_WINDOWS:
            if window <= duration:
                peaks[window] = float(_window_sums(used, window // SLOT_SECONDS).max() / window)
        return peaks

    def _hourly_rates(self, duration: float, wall_clock: bool) -> dict[int, float]:
        used = self._slots[: int(duration // SLOT_SECONDS) + 1]
        start = (self.origin // NANOSECONDS) % 86400 if wall_clock else 0
        hour = (start + np.arange(used.size) * SLOT_SECONDS) // 3600 % 24
        exposure = np.full(used.size, float(SLOT_SECONDS))
        exposure[-1] = duration - (used.size - 1) * SLOT_SECONDS
        counts = np.bincount(hour, weights=used, minlength=24)
        seconds = np.bincount(hour, weights=exposure, minlength=24)
        return {h: float(counts[h] / seconds[h]) for h in range(24) if seconds[h] >= LEAST_EXPOSURE}


def _window_sums(counts: IntArray, width: int) -> FloatArray:
    """Return the sums over all runs of `width` neighbouring slots (fewer if there are fewer)."""
    total = np.concatenate([[0], np.cumsum(counts)])
    width = min(width, counts.size)
    return np.asarray(total[width:] - total[:-width], dtype=np.float64)


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
