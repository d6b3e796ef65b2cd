"""Many tasks, on all cores or on a cluster, resumable: the same rows in the same order whoever solves them.

Batches depend on nothing but themselves, so the number of workers, the order in which they finish and a restart change
no row. A journal has a line per finished task, after one that says of which sweep it is; each row has a digest of
itself and of the sweep, so that one that was damaged, changed or taken from elsewhere is refused.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.units import MIB
from search_spaces.files import open_file, shown_path

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

Kinship = Callable[[Task], str]
"""What tasks have in common, as a text."""

SCHEMA = "pdplan.sweep/2"
LONGEST_LINE = MIB
"""A row has a few kB; a longer line is none [byte]."""
DIGEST = "sha256"
"""Last key of every row."""
MEND = "remove the line, and its scenario is solved again"
LARGEST_BATCH = 128
"""A sweep that is killed loses no more than this of each worker's rows."""
BATCHES_PER_WORKER = 8
"""At least as many batches as this for each worker, so that none idles long at the end."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by libraries as they start: a worker for each core needs no threads beside it."""
NO_LEAKS = "ignore:resource_tracker"
"""Semaphores that a parent leaves as it is ended are cleaned up by a helper of Python's, of which nobody need hear."""


class Rounds(Protocol):
    """What is done once all scenarios are solved; a function of their rows alone, whoever solved them."""

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:
        """Tasks to solve next, as those so far are all known; none at the end."""

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        """The rows of the sweep."""


def no_kinship(_changes: Mapping[str, Any]) -> str:
    """Scenarios that have nothing in common, or everything."""
    return ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Scenarios to solve, how, and what their rows depend on besides (`identity`, ready for JSON).

    kinship: scenarios are handed out in its order, so that those which share work meet the same worker; largest: batch;
    rounds: what follows when all are solved.
    """

    scenarios: tuple[Task, ...]
    solve: Solve
    identity: Mapping[str, Any]
    kinship: Kinship = no_kinship
    largest: int = LARGEST_BATCH
    rounds: Rounds | None = None

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
    begun, before = time.monotonic(), len(rows)
    tasks, new = list[Task](), list(sweep.scenarios)
    while new:
        tasks += new
        unsolved = [(number, task) for number, task in enumerate(tasks) if number not in rows]
        finished = len(tasks) - len(unsolved)
        handed = apart(list(batches(unsolved, workers, sweep.kinship, sweep.largest)), workers)
        for solved in _solved(executor, sweep.solve, handed):
            if journal is not None:
                journal.append(solved)
            rows |= {row["number"]: row for row in solved}
            finished += len(solved)
            if progress is not None:
                pace = (time.monotonic() - begun) / max(finished - before, 1)
                progress(finished, len(tasks), pace * (len(tasks) - finished))
        new = sweep.rounds.more(tasks, rows) if sweep.rounds else []
    return sweep.rounds.finish(tasks, rows) if sweep.rounds else [rows[number] for number in range(len(tasks))]


def _solved(executor: Executor, solve: Solve, handed: Sequence[Batch]) -> Iterator[list[Row]]:
    """The rows of each batch as it is finished; the first failure is raised when all that had begun are."""
    waiting: list[Future[list[Row]]] = [executor.submit(solve, batch) for batch in handed]
    failure: BaseException | None = None

    def cancel() -> None:
        """Take back what has not begun."""
        for future in waiting:
            future.cancel()

    try:
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            if (error := future.exception()) is not None:
                failure = failure or error
                cancel()
                continue
            yield future.result()
    finally:
        cancel()
    if failure is not None:
        raise failure


def batches(tasks: Batch, workers: int, kinship: Kinship = no_kinship, largest: int = LARGEST_BATCH) -> Iterator[Batch]:
    """Tasks in batches of about equal size, a few for each worker; kin stay together where they fit into one.

    >>> [len(batch) for batch in batches([(n, {}) for n in range(20)], workers=1)]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    size = min(max(len(tasks) // (BATCHES_PER_WORKER * workers), 1), largest)
    batch: list[tuple[int, Task]] = []
    for _, group in groupby(sorted(tasks, key=lambda task: kinship(task[1])), lambda task: kinship(task[1])):
        kin = list(group)
        for start in range(0, len(kin), size):
            together = kin[start : start + size]
            if batch and len(batch) + len(together) > size:
                yield batch
                batch = []
            batch = batch + together
    if batch:
        yield batch


def apart(handed: Sequence[Batch], workers: int) -> list[Batch]:
    """Batches in the order in which workers that keep pace each get neighbours: they share the most work.

    >>> [batch[0][0] for batch in apart([[(n, {})] for n in range(5)], workers=2)]
    [0, 3, 1, 4, 2]
    """
    share = -(-len(handed) // workers)
    return [handed[at] for step in range(share) for at in range(step, len(handed), share)] if handed else []


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


# --- the journal ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Journal:
    """The file of one sweep.

    key: digest of everything that its rows depend on.
    """

    path: Path
    key: str

    @property
    def where(self) -> str:
        """The file as a message names it."""
        return shown_path(self.path)

    def read(self) -> dict[int, dict[str, Any]]:
        """Rows by scenario number, as far as they were finished; a last line that was cut short is none.

        Raises InputError for a file that is no journal, for that of another sweep, and for a row that is damaged.
        """
        rows = {}
        for number, line in enumerate(self._lines(), start=1):
            if number > 1:
                row = self._row(line, f"{self.where}:{number}")
                rows[row["number"]] = row
        return rows

    def open(self) -> None:
        """Begin the file, or cut off a last line that was not finished."""
        whole = sum(len(line) for line in self._lines())
        try:
            if whole:
                os.truncate(self.path, whole)
            else:
                self._begin()
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin(self) -> None:
        """Make the file with its header, or none."""
        with self.path.open("xb", buffering=0) as file:
            try:
                _write(file, self._header)
            except OSError:
                self.path.unlink()
                raise

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines and see them onto the disk; those before them stay whatever happens."""
        try:
            with self.path.open("r+b", buffering=0) as file:
                file.seek(0, os.SEEK_END)
                _write(file, b"".join(self._line(row) for row in rows))
        except OSError as error:
            raise self._unwritable(error) from error

    @property
    def _header(self) -> bytes:
        return json.dumps({"schema": SCHEMA, "key": self.key}).encode() + b"\n"

    def _lines(self) -> Iterator[bytes]:
        """The lines that end, header and rows; none where there is no file."""
        if not os.path.lexists(self.path):
            return
        with open_file(self.path, "a journal of a sweep") as stream:
            self._check_header(line := stream.readline(LONGEST_LINE))
            while line.endswith(b"\n"):
                yield line
                line = stream.readline(LONGEST_LINE)
            if len(line) == LONGEST_LINE:
                raise InputError(f"{self.where} has a line of over {LONGEST_LINE:,} bytes, and no row has; {MEND}")

    def _check_header(self, line: bytes) -> None:
        if line == self._header:
            return
        if line.startswith(b'{"schema": "pdplan.sweep/') and line.endswith(b"}\n"):
            raise InputError(
                f"{self.where} holds another sweep (other inputs, scenarios or version); choose another file"
            )
        raise InputError(f"{self.where} is no journal of a sweep, and is left as it is; choose another file")

    def _row(self, line: bytes, where: str) -> Row:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        digest = row.pop(DIGEST, "missing") if isinstance(row, dict) else "missing"
        if digest != self._digest(row):
            raise InputError(f"{where}: is not a row as this sweep wrote it, its {DIGEST} is {shown(digest)}; {MEND}")
        return dict(row)

    def _line(self, row: Mapping[str, Any]) -> bytes:
        return json.dumps({**row, DIGEST: self._digest(row)}).encode() + b"\n"

    def _digest(self, row: object) -> str:
        return hashlib.sha256(f"{self.key} {json.dumps(row)}".encode()).hexdigest()

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"{self.where} cannot be written: {error.strerror}; the same command goes on from the rows that are in it"
        )


def _write(file: FileIO, content: bytes) -> None:
    """Write all of it, and see it onto the disk."""
    while content:
        content = content[file.write(content) :]
    os.fsync(file.fileno())
