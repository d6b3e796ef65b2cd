"""A sweep: many scenarios on all cores or on a cluster, resumable; the same rows in the same order whoever solved them.

Scenarios are handed out in batches, each of which depends on nothing but itself; so the number of workers, the order in
which they finish and a restart in between change no row.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from costmodel.errors import InputError

from .journal import Journal, no_fault

Row = dict[str, Any]
"""One scenario's result, ready for JSON; `number` is its place in the sweep."""
Task = Mapping[str, Any]
"""One scenario, or what is to be done for several once their rows are known, ready for JSON."""
Batch = Sequence[tuple[int, Task]]
"""Tasks with their numbers."""
Solve = Callable[[Batch], list[Row]]
"""Solves a batch; must be picklable, and give each scenario the row that it would get alone."""
Progress = Callable[[int, int, float], None]
"""(finished, all, seconds left)."""

Kinship = Callable[[Mapping[str, Any]], str]
"""What scenarios have in common, as a text."""


def varied(task: Task) -> Row:
    """What the row of a scenario says of it: its name, if it has one, and the values that vary."""
    return ({"scenario": task["name"]} if task["name"] else {}) | {key: task["changes"][key] for key in task["shown"]}


class Rounds(Protocol):
    """What is done once all scenarios are solved; a function of their rows alone, whoever solved them."""

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:
        """Tasks to solve next, as those so far are all known; none at the end."""

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        """The rows of the sweep."""


@dataclass(frozen=True, slots=True)
class OneRound:
    """Nothing more: the rows are as they were solved."""

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:  # noqa: ARG002 - as `Rounds` has it
        """None."""
        return []

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        """All rows in the order of their scenarios."""
        return [rows[number] for number, task in enumerate(tasks) if "of" not in task]


def no_kinship(_changes: Mapping[str, Any]) -> str:
    """Scenarios that have nothing in common, or everything."""
    return ""


LARGEST_BATCH = 128
"""A sweep that is killed loses no more than this of each worker's rows."""
BATCHES_PER_WORKER = 8
"""At least as many batches as this for each worker, so that none idles long at the end."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by libraries as they start: a worker for each core needs no threads beside it."""
NO_LEAKS = "ignore:resource_tracker"
"""Semaphores that a parent leaves as it is ended are cleaned up by a helper of Python's, of which nobody need hear."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Scenarios to solve, how, and what their rows depend on besides (`identity`, ready for JSON).

    kinship: scenarios are handed out in its order, so that those which share work meet the same worker; largest: batch;
    rounds: what follows when all are solved; fault_of: what is wrong with a row of its journal, see `Journal`.
    """

    scenarios: tuple[Task, ...]
    solve: Solve
    identity: Mapping[str, Any]
    kinship: Kinship = no_kinship
    largest: int = LARGEST_BATCH
    rounds: Rounds = OneRound()
    fault_of: Callable[[Mapping[str, Any]], str] = no_fault

    @property
    def key(self) -> str:
        """Digest of all that the rows depend on."""
        text = json.dumps([self.identity, list(self.scenarios)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def run_sweep(
    sweep: Sweep, executor: Executor, workers: int, journal: Journal | None = None, progress: Progress | None = None
) -> list[Row]:
    """Solve what the journal does not hold yet, and return all rows in the order of the scenarios.

    Raises what `solve` raises; rows that were finished before stay in the journal.
    """
    rows = {} if journal is None else journal.read()
    if journal is not None:
        journal.open()
    told = _Told(progress, time.monotonic(), len(rows))
    tasks, next_ones = list[Task](), list(sweep.scenarios)
    while next_ones:
        tasks += next_ones
        left = [(number, task) for number, task in enumerate(tasks) if number not in rows]
        done = len(tasks) - len(left)
        parts = apart(list(batches(left, workers, sweep.kinship, sweep.largest)), workers)
        for found in _solved(executor, sweep.solve, parts):
            if journal is not None:
                journal.append(found)
            rows |= {row["number"]: row for row in found}
            done += len(found)
            told.now(done, len(tasks))
        next_ones = sweep.rounds.more(tasks, rows)
    return sweep.rounds.finish(tasks, rows)


@dataclass(frozen=True, slots=True)
class _Told:
    """Who hears of progress, since when, and how many rows there were then."""

    progress: Progress | None
    begun: float
    before: int

    def now(self, done: int, every: int) -> None:
        """Tell how far it is, and how long the rest takes at the pace so far."""
        if self.progress is not None:
            pace = (time.monotonic() - self.begun) / max(done - self.before, 1)
            self.progress(done, every, pace * (every - done))


def _solved(executor: Executor, solve: Solve, parts: Sequence[Batch]) -> Iterator[list[Row]]:
    """The rows of each batch as it is finished; the first failure is raised when all that had begun are."""
    waiting: list[Future[list[Row]]] = [executor.submit(solve, batch) for batch in parts]
    failure: BaseException | None = None
    try:
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            if (error := future.exception()) is not None:
                failure = failure or error
                _cancel(waiting)
                continue
            yield future.result()
    finally:
        _cancel(waiting)
    if failure is not None:
        raise failure


def _cancel(waiting: Sequence[Future[list[Row]]]) -> None:
    """Take back what has not begun."""
    for future in waiting:
        future.cancel()


def batches(tasks: Batch, workers: int, kinship: Kinship = no_kinship, largest: int = LARGEST_BATCH) -> Iterator[Batch]:
    """Tasks in batches of about equal size, a few for each worker; kin stay together where they fit into one.

    >>> [len(batch) for batch in batches([(n, {}) for n in range(20)], workers=1)]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    size = min(max(len(tasks) // (BATCHES_PER_WORKER * workers), 1), largest)
    waiting: list[tuple[int, Mapping[str, Any]]] = []
    for _, group in groupby(sorted(tasks, key=lambda task: kinship(task[1])), lambda task: kinship(task[1])):
        kin = list(group)
        for start in range(0, len(kin), size):
            part = kin[start : start + size]
            if waiting and len(waiting) + len(part) > size:
                yield waiting
                waiting = []
            waiting = waiting + part
    if waiting:
        yield waiting


def apart(parts: Sequence[Batch], workers: int) -> list[Batch]:
    """Batches in the order in which workers that keep pace each get neighbours: they share the most work.

    >>> [batch[0][0] for batch in apart([[(n, {})] for n in range(5)], workers=2)]
    [0, 3, 1, 4, 2]
    """
    share = -(-len(parts) // workers)
    return [parts[at] for step in range(share) for at in range(step, len(parts), share)] if parts else []


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
    spawn = multiprocessing.get_context("spawn")
    with (
        _environment(dict.fromkeys(ONE_THREAD, "1") | {"PYTHONWARNINGS": NO_LEAKS}),
        ProcessPoolExecutor(jobs, mp_context=spawn, initializer=end_with_parent) as executor,
    ):
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


def end_with_parent() -> None:
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
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment for the processes that are started meanwhile, where none are set."""
    missing = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


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
