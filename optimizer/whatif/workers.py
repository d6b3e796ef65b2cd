"""Many scenarios on many cores or nodes: batches, a log of finished rows to go on from, workers.

Rows go into a log, a JSON line each, as soon as they are finished, so that a sweep that is killed goes on from there.
Each line ends with a digest of itself and of all that the sweep depends on, so that one that was damaged, changed or
taken from elsewhere is refused.
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
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.units import MIB
from search_spaces.files import open_file, shown_path

Row = dict[str, Any]
"""One scenario's result, ready for JSON; `number` is its place in the sweep."""
Task = Mapping[str, Any]
"""One scenario, ready for JSON."""
Batch = Sequence[tuple[int, Task]]
"""Tasks with their numbers."""
Solve = Callable[[Batch], list[Row]]
"""Solves a batch; must be picklable, and give each scenario the row that it would get alone."""
Progress = Callable[[int, int, float], None]
"""(finished, all, seconds left)."""

SCHEMA = "pdplan.sweep/3"
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


@dataclass(slots=True)
class Runner:
    """Solves tasks on the workers of an executor; those that the journal has are done, at the first call and later.

    largest: tasks in a batch at most; rows: of all tasks that were solved, by number.
    """

    solve: Solve
    executor: Executor
    workers: int
    journal: Journal | None = None
    progress: Progress | None = None
    largest: int = LARGEST_BATCH
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.journal is not None:
            self.rows = self.journal.read()
            self.journal.open()

    def run(self, tasks: Batch, total: int | None = None) -> dict[int, Row]:
        """Solve what is not known yet of some tasks, neighbors by the same worker, and return the rows of all.

        total: tasks of the sweep, as far as is known. Raises what `solve` raises first, once all that had begun are
        done; their rows stay in the journal.
        """
        left = [(number, task) for number, task in tasks if number not in self.rows]
        finished, total = (total or len(tasks)) - len(left), total or len(tasks)
        begun, first = time.monotonic(), finished
        waiting = [self.executor.submit(self.solve, batch) for batch in batches(left, self.workers, self.largest)]
        failure: BaseException | None = None
        try:
            for future in as_completed(waiting):
                if future.cancelled():
                    continue
                if (error := future.exception()) is not None:
                    failure = failure or error
                    for other in waiting:
                        other.cancel()
                    continue
                solved = future.result()
                if self.journal is not None:
                    self.journal.append(solved)
                self.rows |= {row["number"]: row for row in solved}
                finished += len(solved)
                if self.progress is not None:
                    pace = (time.monotonic() - begun) / (finished - first)
                    self.progress(finished, total, pace * (total - finished))
        finally:
            for future in waiting:
                future.cancel()
        if failure is not None:
            raise failure
        return {number: self.rows[number] for number, _ in tasks}


def batches(tasks: Batch, workers: int, largest: int = LARGEST_BATCH) -> list[Batch]:
    """Tasks in batches of about equal size, a few for each worker.

    >>> [len(batch) for batch in batches([(n, {}) for n in range(20)], workers=1)]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    size = min(max(len(tasks) // (BATCHES_PER_WORKER * workers), 1), largest)
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


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
