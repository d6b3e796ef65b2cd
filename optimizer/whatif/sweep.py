"""A sweep of scenarios on many cores or nodes: a row for each, then simulations of the fleets of the most rows.

The rows of a fleet that did not hold are solved again for one that does. The choice depends on the rows alone, so that
it is the same whoever does the work. Rows go into a journal, a JSON line each, as soon as they are finished, so that a
sweep that is killed goes on from there. Each line ends with a digest of itself and of all that the sweep depends on, so
that one that was damaged, changed or taken from elsewhere is refused.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError, InputError
from costmodel.units import MIB
from optimizer.fleets.build_plan import package_versions
from optimizer.loads.instance import Progress
from optimizer.plans.records import CANDIDATES
from search_spaces.files import open_file, shown_path
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, SweepAxis, grid, lever_of, scenario_problem

from .answer import Answer, ScenarioEffort, answer

Row = dict[str, Any]
"""One scenario's result, ready for JSON; `number` is its place in the sweep."""
PROVING = 0.7
"""Share of a sweep's work that is done when simulations begin."""

MOST_FULL = 64
"""Scenarios of a sweep up to which each gets the whole search that nobody has to ask for."""
INNER = ("fleet", "refuted_fleets")
"""Keys of a row that are for the sweep alone: what tells its fleet, and those that were refuted, from every other."""


# --- the scenarios ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Solver:
    """Solves scenarios of one problem; picklable.

    proven: whether whole searches by formula state a bound; shown: keys whose values stand in the rows; count: of the
    scenarios, whose numbers are raised by it where their fleets are to be simulated.
    """

    problem: Problem
    effort: ScenarioEffort
    proven: bool
    shown: tuple[str, ...]
    count: int

    def __call__(self, numbered: tuple[int, Scenario]) -> Row:
        """The row of one scenario: its name, what varied, and the answer; from `count` on, of simulated fleets."""
        number, scenario = numbered
        row = {"number": number} | ({"scenario": scenario.name} if scenario.name else {})
        row |= {key: scenario.changes[key] for key in self.shown}
        best = answer(
            self.problem,
            self.effort,
            changes=scenario.changes,
            simulated=number >= self.count,
            proven=self.proven,
            name=scenario.name,
        )
        refuted_fleets = [miss.case.key for miss in best.refuted if miss.case is not None]
        return row | best.row | {"fleet": best.case.key if best.case else "", "refuted_fleets": refuted_fleets}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Scenarios to solve, how, and how many of their fleets are simulated at most, those in place of others apart.

    key: digest of all that the rows depend on.
    """

    scenarios: tuple[Scenario, ...]
    solver: Solver
    looks: int
    key: str


def sweep_of(  # noqa: PLR0917
    problem: Problem,
    axes: Sequence[SweepAxis],
    named_scenarios: Sequence[Scenario] = (),
    effort: ScenarioEffort | None = None,
    gap: bool | None = None,
    looks: int = 0,
) -> Sweep:
    """The sweep over all combinations of the axes, for each of the named scenarios.

    effort: how each is solved; None: by the whole search, by formula, where there are no more than MOST_FULL or where
    gaps are asked for, else simply. gap: whether whole searches by formula state their gap; None: they do. Raises
    InputError for a bad key or value before any work.
    """
    scenarios = tuple(grid(axes, named_scenarios))
    _check(problem, scenarios)
    if effort is None:
        effort = ScenarioEffort.FULL if gap or len(scenarios) <= MOST_FULL else ScenarioEffort.SIMPLE
    solver = Solver(problem, effort, gap is not False, tuple(axis.key for axis in axes), len(scenarios))
    changes = [[scenario.name, scenario.changes] for scenario in scenarios]
    identity = [problem.inputs, str(effort), gap, looks, package_versions(), changes, solver.shown]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return Sweep(scenarios, solver, looks, key)


def _check(problem: Problem, scenarios: Sequence[Scenario]) -> None:
    """Make each change by itself: every text; of numbers, which have bounds, the ends and a fraction."""
    values: dict[str, dict[str, Any]] = {}
    for scenario in scenarios:
        for key, value in scenario.changes.items():
            values.setdefault(key, {})[repr(value)] = value
    for key, distinct in values.items():
        numbers = sorted(value for value in distinct.values() if isinstance(value, int | float))
        fraction = [value for value in numbers if value % 1.0][:1]
        texts = [value for value in distinct.values() if not isinstance(value, int | float)]
        for value in (*numbers[:1], *numbers[-1:], *fraction, *texts):
            with suppress(ImpossibleError):  # a row that says so
                scenario_problem(problem, {key: value})


def run_sweep(
    sweep: Sweep, executor: Executor, workers: int, journal: Journal | None = None, progress: Progress | None = None
) -> list[Row]:
    """Solve what the journal does not hold yet, and return all rows in the order of the scenarios.

    Scenarios that share engines and demand are solved one after another, whatever their order. Raises what a scenario
    raises; rows that were finished before stay in the journal.
    """
    known, count = {} if journal is None else journal.begin(), len(sweep.scenarios)

    def solved(tasks: Sequence[tuple[int, Scenario]], noun: str, begin: float, end: float) -> dict[int, Row]:
        """The rows of some scenarios; neighbors of what is not known yet are solved by the same worker.

        begin, end: shares of the work that is done before and after.
        """
        open_tasks, begun = [(number, task) for number, task in tasks if number not in known], time.monotonic()
        # each worker takes some again, so that none idles long
        size = min(max(len(open_tasks) // (CANDIDATES * workers), 1), MOST_FULL)
        for done_count, row in enumerate(executor.map(sweep.solver, open_tasks, chunksize=size), start=1):
            if journal is not None:
                journal.append(row)
            known[row["number"]] = row
            if progress is not None:
                waiting = len(open_tasks) - done_count
                seconds = (time.monotonic() - begun) / done_count * waiting
                label = f"{len(tasks) - waiting:,} of {len(tasks):,} {noun}, {seconds:,.0f} s left"
                progress(label, end - (end - begin) * waiting / len(tasks))
        return {number: known[number] for number, _ in tasks}

    rows = solved(sorted(enumerate(sweep.scenarios), key=lambda row: _demand(row[1])), "scenarios", 0.0, PROVING)
    fleets = Counter(rows[number]["fleet"] for number in range(count) if rows[number]["fleet"])
    first = {rows[number]["fleet"]: number for number in reversed(range(count))}
    again, shares = sorted(first[fleet] for fleet, _ in fleets.most_common(sweep.looks)), dict[str, float]()
    refuted_fleets, solved_again = set[str](), set[int]()
    while again:
        solved_again.update(again)
        tasks = [(number + count, sweep.scenarios[number]) for number in again]
        for number, row in solved(tasks, "simulated fleets", PROVING, 1.0).items():
            rows[number - count] = row | {"number": number - count}
            refuted_fleets.update(row["refuted_fleets"])
            if row["simulated"]:
                shares[row["fleet"]] = row["simulated_attainment"]
        again = [
            number for number in range(count) if rows[number]["fleet"] in refuted_fleets and number not in solved_again
        ]
    return [_shown(rows[number], shares) for number in range(count)]


def solve(problem: Problem, scenarios: Sequence[Scenario], effort: ScenarioEffort, looks: int = 0) -> list[Answer]:
    """The answers to some scenarios, solved in this process; looks: fleets that are simulated at most."""
    solver = Solver(problem, effort, proven=False, shown=(), count=len(scenarios))
    looks = 0 if effort is ScenarioEffort.SIMULATED else looks
    with ThreadPoolExecutor(1) as executor:
        return [Answer.of_row(row) for row in run_sweep(Sweep(tuple(scenarios), solver, looks, ""), executor, 1)]


def _shown(row: Row, shares: Mapping[str, float]) -> Row:
    """The row of a scenario with what was seen of its fleet."""
    if row["fleet"] in shares:
        row = row | {"simulated": True, "simulated_attainment": shares[row["fleet"]]}
    return {key: value for key, value in row.items() if key not in INNER}


def _demand(scenario: Scenario) -> str:
    """What scenarios share that differ in prices and limits alone."""
    changes = scenario.changes.items()
    demand = [[key, value] for key, value in changes if not lever_of(key).cheap]
    return json.dumps([scenario.name, sorted(demand, key=str)], default=str)


# --- workers ----------------------------------------------------------------------------------------------------------


ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by libraries as they start: a worker for each core needs no threads beside it."""
WORKER_ENVIRONMENT = dict.fromkeys(ONE_THREAD, "1") | {"PYTHONWARNINGS": "ignore:resource_tracker"}
"""Semaphores that a parent leaves as it is ended are cleaned up by a helper of Python's, of which nobody need hear."""


@contextmanager
def local_executor(jobs: int) -> Iterator[Executor]:
    """Processes of this machine, started afresh: a fork would copy locks that threads of the solver hold.

    A single job stays in this process. Raises InputError where one of several is killed, which is what systems that run
    out of memory do.
    """
    if jobs == 1:
        with ThreadPoolExecutor(1) as thread:
            yield thread
        return
    spawn, missing = multiprocessing.get_context("spawn"), {*WORKER_ENVIRONMENT} - {*os.environ}
    os.environ.update({name: WORKER_ENVIRONMENT[name] for name in missing})
    try:
        with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_end_with_parent) as executor:
            try:
                with _interrupts_held():  # by all of them from their first line on
                    for _ in range(jobs):
                        executor.submit(os.getpid)
                yield executor
            except BrokenExecutor:
                raise InputError(
                    f"a worker process of --jobs {jobs} was killed, probably for want of memory; use fewer --jobs"
                ) from None
            finally:
                executor.shutdown(wait=False, cancel_futures=True)
    finally:
        for name in missing:
            del os.environ[name]


def _end_with_parent() -> None:
    """Let this worker end as soon as its parent does, whatever ends that, and hold no output of the parent open.

    The parent's end closes a pipe that `multiprocessing` has between the two.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back from this process for a moment, and for good from those that it starts meanwhile.

    A terminal sends it to all of them, but it is the parent's business.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """Workers of a Dask cluster (extra `dask`), and how many there are.

    Raises InputError when Dask is not installed or no scheduler answers at the address.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--backend dask needs Dask; install it with: pip install 'pdplan[dask]'") from None
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"--address {address}: no Dask scheduler answers there: {error}") from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise InputError(f"--address {address}: the Dask scheduler there has no workers")
        yield client.get_executor(), workers


def all_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- the journal ------------------------------------------------------------------------------------------------------

SCHEMA = "pdplan.sweep/3"
DIGEST = "sha256"
"""Last key of every row."""
LONGEST_HEADER = MIB
"""A file whose first line is longer is no journal [byte]."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The file of one sweep; key: digest of everything that its rows depend on."""

    path: Path
    key: str

    @property
    def where(self) -> str:
        """The file as a message names it."""
        return shown_path(self.path)

    @property
    def _header(self) -> bytes:
        return json.dumps({"schema": SCHEMA, "key": self.key}).encode() + b"\n"

    def begin(self) -> dict[int, Row]:
        """Make the file, or cut off a last line that was not finished; the rows of those that were, by number.

        Raises InputError for a file that is no journal, for that of another sweep, and for a row that is damaged.
        """
        rows, whole = dict[int, Row](), len(self._header)
        try:
            if not os.path.lexists(self.path):
                self.path.write_bytes(self._header)
                return rows
            with open_file(self.path, "a journal of a sweep") as stream:
                self._check_header(stream.readline(LONGEST_HEADER))
                for number, line in enumerate(stream, start=2):
                    if line.endswith(b"\n"):
                        row = self._row(line, number)
                        rows[row["number"]] = row
                        whole += len(line)
            os.truncate(self.path, whole)
        except OSError as error:
            raise self._unwritable(error) from error
        return rows

    def append(self, row: Row) -> None:
        """Add a line; those before it stay whatever happens."""
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(json.dumps({**row, DIGEST: self._digest(row)}).encode() + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _check_header(self, line: bytes) -> None:
        if line == self._header:
            return
        if line.startswith(b'{"schema": "pdplan.sweep/') and line.endswith(b"}\n"):
            raise InputError(
                f"{self.where} holds another sweep (other inputs, scenarios or version); choose another file"
            )
        raise InputError(f"{self.where} is no journal of a sweep, and is left as it is; choose another file")

    def _row(self, line: bytes, number: int) -> Row:
        try:
            row: Row = json.loads(line)
            digest = row.pop(DIGEST)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            row, digest = {}, ""
        if digest != self._digest(row):
            raise InputError(f"{self.where}:{number}: is damaged; remove the line, and its scenario is solved again")
        return row

    def _digest(self, row: Row) -> str:
        return hashlib.sha256(f"{self.key} {json.dumps(row)}".encode()).hexdigest()

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"{self.where} cannot be written: {error.strerror}; the same command goes on from the rows that are in it"
        )
