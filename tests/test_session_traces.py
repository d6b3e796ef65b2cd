"""Traces of sessions: AIPerf's with delays and Bailian's with chat ids, and the workload.yaml made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search_spaces.echo import workload_yaml_text
from search_spaces.loader import load_problem
from search_spaces.traces.sessions import is_session_trace, read_sessions
from search_spaces.traces.summary import read_trace

DELAYS: list[dict[str, Any]] = [
    {"session_id": "a", "timestamp": 0, "input_length": 3000, "output_length": 100},
    {"session_id": "b", "timestamp": 4000, "input_length": 2000, "output_length": 50},
    {"session_id": "a", "delay": 1500, "input_length": 400, "output_length": 120},
    {"session_id": "a", "delay": 2500, "input_length": 600, "output_length": 80},
]
CHATS: list[dict[str, Any]] = [
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 10.0, "input_length": 500, "output_length": 60, "turn": 1},
    {"chat_id": 9, "parent_chat_id": 7, "timestamp": 40.0, "input_length": 760, "output_length": 90, "turn": 2},
    {"chat_id": 12, "parent_chat_id": -1, "timestamp": 50.0, "input_length": 300, "output_length": 30, "turn": 1},
]


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_delays_are_think_times_and_lengths_new_tokens(tmp_path: Path) -> None:
    path = written(tmp_path, DELAYS)
    summary = read_sessions(path)
    assert is_session_trace(path)
    assert summary.turns.tolist() == [3, 1]
    assert summary.pause.tolist() == [1.5, 2.5]
    assert summary.user.tolist() == [3000, 400, 600, 2000]
    assert summary.rate == 0.25
    assert not summary.answers_in


def test_chats_repeat_what_was_before(tmp_path: Path) -> None:
    summary = read_sessions(written(tmp_path, CHATS))
    assert summary.turns.tolist() == [2, 1]
    assert summary.pause.tolist() == [30.0]
    assert summary.user.tolist() == [500, 760 - 500 - 60, 300]
    assert summary.answers_in


def test_what_is_written_is_a_problem_of_such_sessions(tmp_path: Path) -> None:
    mapping = read_sessions(written(tmp_path, DELAYS)).mapping()
    (tmp_path / "w.yaml").write_text(workload_yaml_text(mapping, "agents", "Llama-3.1-8B"), "utf-8")
    load = load_problem(tmp_path / "w.yaml").workload
    assert load.sessions is not None
    assert load.request_rate == pytest.approx(0.25 * load.sessions.turns.mean)
    assert load.sessions.pause.within(2.6) == 1.0


HASHED = [
    {"timestamp": 1000 * second, "input_length": 512 * len(blocks), "output_length": 5, "hash_ids": blocks}
    for second, blocks in ((0, [1, 2]), (10, [1, 2, 3]), (40, [1, 2]), (41, [7, 2]))
]


def test_hash_blocks_tell_after_what_time_they_are_used_again(tmp_path: Path) -> None:
    """Four of nine blocks hit, two after 10 s and two after 30 s; the last request has none of its beginning."""
    summary = read_trace(written(tmp_path, HASHED))
    assert summary.prefix_hit_share == pytest.approx(4 / 9)
    interval = summary.reuse_interval
    assert interval is not None
    assert [interval[share] for share in (0.25, 0.5, 0.75, 1.0)] == pytest.approx([10, 10, 30, 30], rel=0.06)


def test_a_trace_of_hash_blocks_states_its_problem_again(tmp_path: Path) -> None:
    """What memory has to keep, and for how long, comes out of the repeated inputs as it went in."""
    written(tmp_path, HASHED)
    (tmp_path / "w.yaml").write_text(
        "model: Llama-3.1-8B\nworkload: {lengths: {trace: {path: trace.jsonl}}}\n"
        "slo: {ttft: 2s, tpot: 50ms}\naccelerators: H100\n", "utf-8")  # fmt: skip
    first = load_problem(tmp_path / "w.yaml")
    (tmp_path / "again.yaml").write_text(json.dumps(first.inputs), "utf-8")
    again = load_problem(tmp_path / "again.yaml")
    assert again.inputs == first.inputs
    before, after = first.workload.reuse, again.workload.reuse
    assert before is not None
    assert after is not None
    assert before.pause.seconds.tolist() == after.pause.seconds.tolist()
