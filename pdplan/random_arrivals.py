"""Commands that look at many problems draw random requests, also where those of a trace are known; they say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdplan.console import Console

if TYPE_CHECKING:
    from search_spaces.problem import Problem


def random_arrivals(console: Console, problem: Problem) -> Problem:
    """The problem without recorded requests; where it has some, what that means is noted."""
    if problem.recorded is None:
        return problem
    from reports.numbers import significant
    from reports.text import clean
    from search_spaces.loader import without_recording

    console.note(
        f"Note: requests are random here, with burstiness {significant(problem.workload.burstiness)}; pdplan optimize "
        f"simulates those of {clean(problem.recorded.source, 60)} themselves, and may choose another fleet."
    )
    return without_recording(problem)
