"""The sweep of `pdplan whatif`: a row for every combination of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.errors import InputError, UnknownNameError
from pdplan.console import Console, write_texts

from .whatif_asked import Asked, Told

if TYPE_CHECKING:
    from optimizer.whatif.workers import Row, Sweep
    from search_spaces.problem import Problem
    from search_spaces.scenarios import Scenario

MOST_UNLOGGED = 10_000
"""More scenarios than that, minutes to hours of work, are solved only with a log to go on from."""
PROVING = 0.7
"""Share of the work that is done when simulations begin."""


def sweep_answer(
    console: Console, problem: Problem, base: Path, asked: Asked, record: Mapping[str, Any], *, force: bool
) -> Told:
    """The rows of a sweep, written beside the result where files are named; record: what the page embeds besides.

    base: folder of the files that the problem names; force: files that are there already are replaced.
    """
    from optimizer.whatif.sweep import check_scenarios, sweep_of
    from reports.whatif_text import sweep_text
    from search_spaces.scenarios import grid, parse_axis

    varied, depth = [parse_axis(axis) for axis in asked.axes], asked.depth()
    scenarios = list(grid(varied, chosen_scenarios(problem, asked.names)))
    if len(scenarios) > MOST_UNLOGGED and asked.journal is None:
        raise InputError(
            f"the axes make {len(scenarios):,} scenarios; more than {MOST_UNLOGGED:,} need --resume LOG, which keeps "
            "finished rows to go on from"
        )
    check_scenarios(problem, base, scenarios)
    sweep = sweep_of(problem, base, scenarios, [axis.key for axis in varied], depth, asked.gap, asked.looks)
    rows = swept(console, sweep, asked.jobs, asked.journal, asked.address)
    write_tables(console, {**record, "rows": rows}, asked.files, problem.name, force=force)
    any_fleet = any(row["cost_usd_per_hour"] is not None for row in rows)
    return Told("rows", rows, sweep_text(rows, depth.value, console.width), any_fleet)


def chosen_scenarios(problem: Problem, names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names; all of the file's for 'all'."""
    from search_spaces.scenarios import named_scenarios

    known = named_scenarios(problem)
    if names and not known:
        raise InputError("--scenario: the file names no scenarios; state them under `scenarios:`, or use --vary")
    if "all" in names and "all" not in known:
        return list(known.values())
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise UnknownNameError("scenario", missing, known)
    return [known[name] for name in dict.fromkeys(names)]


def swept(console: Console, sweep: Sweep, jobs: int | None, journal: Path | None, address: str | None) -> list[Row]:
    """All rows of a sweep, from this machine's cores or from a cluster, with a progress bar."""
    from optimizer.whatif.workers import Journal, all_cores, dask_executor, local_executor, run_sweep

    log = None if journal is None else Journal(journal, sweep.key)
    wanted = min(jobs or all_cores(), len(sweep.scenarios))
    with ExitStack() as stack:
        progress = stack.enter_context(console.milestones())
        if address is not None:
            executor, workers = stack.enter_context(dask_executor(address))
        else:
            executor, workers = stack.enter_context(local_executor(wanted)), wanted

        def told(done: int, total: int, left: float) -> None:
            if progress is None:
                return
            first = len(sweep.scenarios)
            if total == first:
                progress(f"{done:,} of {total:,} scenarios, {left:,.0f} s left", PROVING * done / total)
            else:
                more = f"{done - first:,} of {total - first:,} simulated fleets"
                progress(more, PROVING + (1.0 - PROVING) * (done - first) / (total - first))

        return run_sweep(sweep, executor, workers, log, told)


def write_tables(
    console: Console, record: dict[str, Any], files: dict[str, Path | None], name: str, *, force: bool
) -> None:
    """Write the rows beside the result."""
    from reports.whatif_files import sweep_csv, sweep_parquet
    from reports.whatif_page import render_sweep

    rows = record["rows"]
    makers: dict[str, Callable[[], str | bytes]] = {
        "--csv": lambda: sweep_csv(rows),
        "--parquet": lambda: sweep_parquet(rows),
        "--html": lambda: render_sweep(rows, record, name, record["search"]),
    }
    wanted = {path: makers[flag]() for flag, path in files.items() if path is not None}
    write_texts(wanted, force=force)
    for path in wanted:
        console.note(f"wrote {path}")
