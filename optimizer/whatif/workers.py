"""Workers that solve the scenarios of a sweep: processes on this machine, or a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

from costmodel.errors import InputError

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
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
