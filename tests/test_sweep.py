"""Sweeps: the same rows after a killed worker, and after a journal that was cut short."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.plans.plan import Status
from optimizer.whatif.answer import Answer, ScenarioEffort
from optimizer.whatif.solver import Sweep, Task, run_sweep
from optimizer.whatif.workers import local_executor
from search_spaces.files import Journal
from search_spaces.scenarios import Scenario

KEY = "squares"


def square(task: Task) -> Answer:
    scenario, _ = task
    return Answer(Status.FEASIBLE, goodput=scenario.changes["x"] ** 2)


def squares(
    count: int,
    executor: Executor,
    jobs: int,
    journal: Journal | None = None,
    solve: Callable[[Task], Answer] = square,
) -> list[float]:
    scenarios = tuple(Scenario("", {"x": x}) for x in range(count))
    sweep = Sweep(scenarios, solve, ScenarioEffort.SIMPLE, 0, KEY)
    return [item.answer.goodput for item in run_sweep(sweep, executor, jobs, journal)]


EXPECTED = [x * x for x in range(40)]


def is_killed_at_27(task: Task) -> Answer:
    if task[0].changes["x"] == 27:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(task)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_killed_worker_is_no_bug_and_loses_no_row_that_was_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", KEY)
    with pytest.raises(InputError, match=r"process of --jobs 2 was killed.*; use fewer --jobs"):  # noqa: SIM117
        with local_executor(2) as executor:
            squares(40, executor, 2, journal, is_killed_at_27)
    with ThreadPoolExecutor(1) as executor:
        assert squares(40, executor, 1, journal) == EXPECTED


@settings(max_examples=40)
@given(st.data())
def test_a_journal_cut_anywhere_costs_only_the_rows_behind_the_cut(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "sweep.jsonl", KEY)
        with ThreadPoolExecutor(1) as executor:
            squares(40, executor, 1, journal)
            content = journal.path.read_bytes()
            cut = data.draw(st.integers(content.index(b"\n") + 1, len(content)))
            journal.path.write_bytes(content[:cut])
            assert squares(40, executor, 1, journal) == EXPECTED
        lines = [json.loads(line) for line in journal.path.read_bytes().splitlines()]
        assert sorted(line["number"] for line in lines[1:]) == list(range(40))


def test_a_journal_of_another_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    with ThreadPoolExecutor(1) as executor:
        squares(3, executor, 1, Journal(path, KEY))
    with pytest.raises(InputError, match="holds another sweep"):
        Journal(path, "other").begin()
    path.write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(InputError, match=r"sweep.jsonl is no journal of a sweep, and is left as it is"):
        Journal(path, KEY).begin()
