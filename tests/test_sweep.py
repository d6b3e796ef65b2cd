"""Sweeps: the same rows from any number of workers, after a restart, and after a journal that was cut short."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.whatif import workers
from optimizer.whatif.workers import (
    BATCHES_PER_WORKER,
    Batch,
    Journal,
    Row,
    Sweep,
    Task,
    batches,
    local_executor,
    run_sweep,
)


def square(batch: Batch) -> list[Row]:
    return [{"number": number, "square": changes["x"] ** 2} for number, changes in batch]


def fails_at_27(batch: Batch) -> list[Row]:
    if any(changes["x"] == 27 for _, changes in batch):
        raise InputError("twenty-seven")
    return square(batch)


def made(count: int, solve: Any = square) -> Sweep:
    scenarios: tuple[Mapping[str, Any], ...] = tuple({"x": x} for x in range(count))
    return Sweep(scenarios, solve, {"what": "squares"})


EXPECTED = [{"number": x, "square": x * x} for x in range(40)]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_do_not_depend_on_the_workers(workers: int) -> None:
    with ThreadPoolExecutor(workers) as executor:
        assert run_sweep(made(40), executor, workers) == EXPECTED


def test_processes_of_their_own_give_the_same_rows() -> None:
    with local_executor(2) as executor:
        assert run_sweep(made(40), executor, 2) == EXPECTED


def is_killed_at_27(batch: Batch) -> list[Row]:
    if any(changes["x"] == 27 for _, changes in batch):
        os.kill(os.getpid(), signal.SIGKILL)
    return square(batch)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_killed_worker_is_no_bug_and_loses_no_row_that_was_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", made(40).key)
    with pytest.raises(InputError, match=r"process of --jobs 2 was killed.*; use fewer --jobs"):  # noqa: SIM117
        with local_executor(2) as executor:
            run_sweep(made(40, is_killed_at_27), executor, 2, journal)
    kept = journal.read()
    assert kept
    with ThreadPoolExecutor(1) as executor:
        assert run_sweep(made(40), executor, 1, journal) == EXPECTED


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 300), st.integers(1, 9))
def test_batches_hold_every_task_once_in_order(count: int, workers: int) -> None:
    tasks = [(number, {"x": number}) for number in range(count)]
    assert [task for batch in batches(tasks, workers) for task in batch] == tasks


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 20), st.integers(1, 40))
def test_kin_that_fit_into_a_batch_share_it(count: int, workers: int, families: int, largest: int) -> None:
    def family(changes: Mapping[str, Any]) -> str:
        return str(changes["x"] % families)

    tasks = [(number, {"x": number}) for number in range(count)]
    made = list(batches(tasks, workers, family, largest))
    assert sorted(number for batch in made for number, _ in batch) == list(range(count))
    size = max(len(batch) for batch in made)
    assert size <= largest
    for name in {family(changes) for _, changes in tasks}:
        mine = sum(family(changes) == name for _, changes in tasks)
        within = sum(any(family(changes) == name for _, changes in batch) for batch in made)
        assert within == 1 or mine > min(largest, max(count // (BATCHES_PER_WORKER * workers), 1))


def test_a_sweep_that_failed_goes_on_where_it_stood(tmp_path: Path) -> None:
    sweep = made(40, fails_at_27)
    journal = Journal(tmp_path / "sweep.jsonl", sweep.key)
    with ThreadPoolExecutor(1) as executor, pytest.raises(InputError, match="twenty-seven"):
        run_sweep(sweep, executor, 1, journal)
    kept = journal.read()
    assert 0 < len(kept) < 40
    solved: list[int] = []

    def noting(batch: Batch) -> list[Row]:
        solved.extend(number for number, _ in batch)
        return square(batch)

    again = Sweep(sweep.scenarios, noting, sweep.identity)
    with ThreadPoolExecutor(1) as executor:
        assert run_sweep(again, executor, 1, journal) == EXPECTED
    assert sorted(solved) == [number for number in range(40) if number not in kept]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_journal_cut_anywhere_costs_only_the_rows_behind_the_cut(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "sweep.jsonl", made(40).key)
        with ThreadPoolExecutor(1) as executor:
            run_sweep(made(40), executor, 1, journal)
            content = journal.path.read_bytes()
            cut = data.draw(st.integers(content.index(b"\n") + 1, len(content)))
            journal.path.write_bytes(content[:cut])
            assert run_sweep(made(40), executor, 1, journal) == EXPECTED
        lines = [json.loads(line) for line in journal.path.read_bytes().splitlines()]
        assert sorted(line["number"] for line in lines[1:]) == list(range(40))


def test_a_journal_of_another_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    with ThreadPoolExecutor(1) as executor:
        run_sweep(made(3), executor, 1, Journal(path, made(3).key))
    with pytest.raises(InputError, match="holds another sweep"):
        Journal(path, made(4).key).read()
    path.write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(InputError, match=r"sweep.jsonl is no journal of a sweep, and is left as it is"):
        Journal(path, made(3).key).read()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"SECRET",
        b'{"a": 1}',
        b'{"a": 1}\n{"b": 2}',
        b"a,b\n1,2",
        b"\0" * 3_000_000,
        b'{"schema": "pdplan.sw',
    ],
    ids=["empty", "brace", "key", "json", "jsonl", "csv", "zeros", "half-a-header"],
)
def test_a_file_that_is_no_journal_is_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with ThreadPoolExecutor(1) as executor, pytest.raises(InputError, match="is no journal of a sweep, and is left as"):
        run_sweep(made(3), executor, 1, Journal(path, made(3).key))
    assert path.read_bytes() == content
    (tmp_path / "link").symlink_to("nowhere")
    with ThreadPoolExecutor(1) as executor, pytest.raises(InputError, match="link: cannot be read"):
        run_sweep(made(3), executor, 1, Journal(tmp_path / "link", made(3).key))
    assert not (tmp_path / "nowhere").exists()


def test_a_full_disk_is_one_sentence_and_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = made(40)
    log = Journal(tmp_path / "sweep.jsonl", sweep.key)
    synced: list[int] = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) > left:
            raise OSError(28, "No space left on device")

    for left in (0, 3):
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as executor:
            patch.setattr(workers.os, "fsync", full)
            with pytest.raises(InputError, match=r"sweep\.jsonl cannot be written: No space left on device; the same"):
                run_sweep(sweep, executor, 1, log)
        assert log.path.exists() == bool(left)
        synced.clear()
    assert log.read()
    with ThreadPoolExecutor(1) as executor:
        assert run_sweep(sweep, executor, 1, log) == EXPECTED


NOT_WRITTEN = ":4: is not a row as this sweep wrote it, its sha256 is "


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ((b'"square": 4', b'"square": 5'), NOT_WRITTEN),
        ((b'"square": 4, ', b""), NOT_WRITTEN),
        ((b'"number": 2, ', b""), NOT_WRITTEN),
        ((b'"number": 2', b'"number": -1'), NOT_WRITTEN),
        ((b'"number": 2', b'"number": 2.0'), NOT_WRITTEN),
        ((b'"number": 2', b'"number": true'), NOT_WRITTEN),
        ((b'"number": 2', b'"number": 1'), NOT_WRITTEN),
        ((b'{"number": 2', b'[1]\n{"number": 2'), NOT_WRITTEN),
        ((b'{"number": 2', b'\n{"number": 2'), NOT_WRITTEN),
        ((b'{"number": 2', b"[" * 100_000 + b'\n{"number": 2'), NOT_WRITTEN),
        ((b'{"number": 2', b"9" * 9999 + b'\n{"number": 2'), NOT_WRITTEN),
        ((b'{"number": 2', b"\xff\n{"), NOT_WRITTEN),
        ((b'{"number": 2', b" " * 2**21 + b'{"number": 2'), "has a line of over 1,048,576 bytes"),
    ],
)
def test_a_row_that_is_not_as_it_was_written_is_named(damage: tuple[bytes, bytes], words: str, tmp_path: Path) -> None:
    log = Journal(tmp_path / "sweep.jsonl", made(5).key)
    with ThreadPoolExecutor(1) as executor:
        run_sweep(made(5), executor, 1, log)
        content = log.path.read_bytes().replace(*damage, 1)
        log.path.write_bytes(content)
        with pytest.raises(InputError) as refusal:
            run_sweep(made(5), executor, 1, log)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 300
    assert log.path.read_bytes() == content


def test_progress_counts_up_to_all(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as executor:
        run_sweep(made(40), executor, 1, progress=lambda done, total, _left: told.append((done, total)))
    assert told[-1] == (40, 40)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


class Halves:
    """A second round for each square above 100, a third for none; the rows tell what it found."""

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:
        if any("of" in task for task in tasks):
            return []
        return [
            {"x": task["x"] / 2.0, "of": number} for number, task in enumerate(tasks) if rows[number]["square"] > 100
        ]

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        later = {task["of"]: rows[number]["square"] for number, task in enumerate(tasks) if "of" in task}
        first = (number for number, task in enumerate(tasks) if "of" not in task)
        return [{**rows[number], "half": later.get(number)} for number in first]


def test_later_rounds_give_the_same_rows_after_a_restart_anywhere_and_from_any_number_of_workers(
    tmp_path: Path,
) -> None:
    sweep = replace(made(20), rounds=Halves())
    expected = [{"number": x, "square": x * x, "half": (x / 2.0) ** 2 if x > 10 else None} for x in range(20)]
    journal = Journal(tmp_path / "sweep.jsonl", sweep.key)
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as executor:
        assert run_sweep(sweep, executor, 2, journal, lambda done, total, _left: told.append((done, total))) == expected
        content = journal.path.read_bytes().splitlines(keepends=True)
        for kept in (1, 8, 21, 25, len(content)):
            journal.path.write_bytes(b"".join(content[:kept]))
            assert run_sweep(sweep, executor, 1, journal) == expected
            assert len(journal.read()) == 29
    assert told[-1] == (29, 29)
    assert all(done <= total for done, total in told)
