"""Workers that solve the scenarios of a sweep: processes on this machine, or a Dask cluster; and its journal."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.errors import InputError
from costmodel.units import MIB
from search_spaces.files import open_file, shown_path

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
        raise InputError("--address needs Dask; install it with: pip install 'pdplan[dask]'") from None
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
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


JOURNAL_SCHEMA = "pdplan.sweep/4"
DIGEST = "sha256"
"""Last key of every row of a journal."""
NO_JOURNAL = "is no journal of a sweep, and is left as it is"
LONGEST_HEADER = MIB
"""A file whose first line is longer is no journal [byte]."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The file from which an interrupted sweep resumes: a JSON line per row; key: digest of all that rows depend on.

    Each line ends with a digest of itself and of the key, so that one that was damaged, changed or taken from elsewhere
    is refused.
    """

    path: Path
    key: str

    @property
    def where(self) -> str:
        """The file as a message names it."""
        return shown_path(self.path)

    @property
    def _header(self) -> bytes:
        return json.dumps({"schema": JOURNAL_SCHEMA, "key": self.key}).encode() + b"\n"

    def begin(self) -> dict[int, dict[str, Any]]:
        """Make the file, or cut off an unfinished last line; return the finished rows by number.

        Raises InputError for a file that is no journal, for that of another sweep, and for a row that is damaged.
        """
        rows, whole = dict[int, dict[str, Any]](), len(self._header)
        try:
            if not os.path.lexists(self.path):
                self.path.write_bytes(self._header)
                return rows
            with open_file(self.path, "a journal of a sweep") as stream:
                header = stream.readline(LONGEST_HEADER)
                if header != self._header:
                    is_alike = header.startswith(b'{"schema": "pdplan.sweep/') and header.endswith(b"}\n")
                    fault = "holds another sweep (other inputs, scenarios or version)" if is_alike else NO_JOURNAL
                    raise InputError(f"{self.where} {fault}; choose another file")
                for number, line in enumerate(stream, start=2):
                    if line.endswith(b"\n"):
                        row = self._row(line, number)
                        rows[row["number"]] = row
                        whole += len(line)
            os.truncate(self.path, whole)
        except OSError as error:
            raise self._unwritable(error) from error
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """Append a line; earlier lines are never touched."""
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(json.dumps({**row, DIGEST: self._digest(row)}).encode() + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _row(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            digest = row.pop(DIGEST)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            row, digest = {}, ""
        if digest != self._digest(row):
            raise InputError(f"{self.where}:{number}: is damaged; remove the line, and its scenario is solved again")
        return row

    def _digest(self, row: dict[str, Any]) -> str:
        return hashlib.sha256(f"{self.key} {json.dumps(row)}".encode()).hexdigest()

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"{self.where} cannot be written: {error.strerror}; the same command continues from the rows in it"
        )
