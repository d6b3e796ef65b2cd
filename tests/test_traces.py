"""search_spaces.trace_reader, trace_summary: formats, arrivals, lengths, prefixes, and the workload made from them."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from pdplan.cli import run
from pdplan.exits import ExitCode
from search_spaces.loader import load_problem, workload_yaml_text
from search_spaces.trace_reader import NANOSECONDS, parse_date
from search_spaces.trace_summary import is_session_trace, read_sessions, read_trace, trace_source, workload_block
from tests.running import within
from tests.trace_files import AZURE, CODE, CONV, MOONCAKE, Write, jsonl, mooncake, refusal


def test_azure_2024_with_offsets_and_whole_seconds(write: Write) -> None:
    times = "00:00:00.009930+00:00,2162,5", "00:00:01+00:00,100,7", "02:00:03.5+02:00,1,1"
    rows = read_trace(write(AZURE + "".join(f"2024-05-10 {row}\n" for row in times))).rows
    origin = parse_date("2024-05-10 00:00:00")
    assert ((rows.nanoseconds - origin) / NANOSECONDS).tolist() == [0.00993, 1.0, 3.5]
    assert (rows.isl.tolist(), rows.osl.tolist(), rows.line.tolist()) == ([2162, 100, 1], [5, 7, 1], [2, 3, 4])


def arrivals_csv(times: list[float]) -> str:
    return "arrival,isl,osl\n" + "".join(f"{time},10,10\n" for time in times)


def test_out_of_order_is_sorted_and_noted(write: Write) -> None:
    straight = read_trace(write(arrivals_csv([0, 1, 3, 7, 8])))
    summary = read_trace(write(arrivals_csv([1, 0, 3, 8, 7])))
    assert summary.out_of_order == 2
    assert summary.arrivals == straight.arrivals
    assert summary.notes[0].startswith("2 arrivals are earlier than the line before")


def test_tied_clock_by_hand(write: Write) -> None:
    """Counts 4, 0, 2 per step of 5 s (an empty step between): mean 2, variance 8/3, dispersion 4/3."""
    arrivals = read_trace(write(arrivals_csv([0, 0, 0, 0, 10, 10, 15, 15]))).arrivals
    assert arrivals.quantum == 5.0
    counts = np.array([4, 0, 2, 2])
    assert arrivals.dispersion == pytest.approx(counts.var() / counts.mean())
    assert arrivals.burstiness == pytest.approx(math.sqrt(counts.var() / counts.mean()))
    assert arrivals.mean_rate == pytest.approx(8 / 20)
    assert arrivals.tie_share == pytest.approx(5 / 7)


def test_peak_rates_by_hand(write: Write) -> None:
    """One request per 10 s for a little over two hours, and 50 more in one second."""
    times = [10.0 * i for i in range(722)] + [1800 + i / 50 for i in range(50)]
    arrivals = read_trace(write(arrivals_csv(sorted(times)))).arrivals
    assert arrivals.peak_rate[10] == pytest.approx(5.1)
    assert arrivals.peak_rate[3600] == pytest.approx((360 + 50) / 3600)


SERVABLE = [f"{second},{10 + second},5" for second in range(1, 41)]  # two rows may be left out beside them


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("0,10,0", "osl is 0"),
        ("0,10,", "osl is missing"),
        ("0,10,n/a", "osl is missing"),
        ("0,10,16777217", "osl is 16777217"),
        ("0,,0", "isl is missing and osl is 0"),
    ],
)
def test_rows_that_no_engine_can_serve_are_left_out_counted_and_noted(write: Write, row: str, fault: str) -> None:
    sound = read_trace(write("\n".join(["arrival,isl,osl", *SERVABLE]) + "\n", "sound.csv"))
    summary = read_trace(write("\n".join(["arrival,isl,osl", row, *SERVABLE]) + "\n"))
    assert (summary.arrivals.requests, summary.dropped, summary.mean_isl) == (40, 1, sound.mean_isl)
    # the rate is of the rows that are served: the first comes a second later
    assert summary.arrivals.mean_rate == sound.arrivals.mean_rate
    assert summary.arrivals.burstiness == sound.arrivals.burstiness
    assert summary.notes[0] == f"1 of 41 rows cannot be served (line 2: {fault}); no figure counts them."


@given(prompts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_prefix_hits_against_a_plain_set(write: Write, prompts: list[list[int]]) -> None:
    found, seen = 0, set[int]()
    for ids in prompts:
        found += next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
    rows = (mooncake(second, 512 * len(ids), 1, ids) for second, ids in enumerate(prompts))
    assert read_trace(write(jsonl(*rows), "m.jsonl")).prefix_hit_share == found / sum(map(len, prompts))


# --- traces: one clear sentence for every file that is none; those that are text are in bad_files.yaml

FIRST = jsonl(mooncake(0, 10, 1, [1])).encode()
ROW = "2023-11-16 18:00:00,1,2\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"arrival,isl,osl\n0,1,\xff\n" + b"0,1,1\n" * 20, ": the file is not UTF-8 text (offset 20)"),
        (b"\x00\x01\x02weights", ": the file is binary (byte 0x00 at offset 0), a trace must be plain or gzip"),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16"), ": the file is UTF-16 text, a trace must be"),
        (b"PAR1\x15\x04", ": the file is a Parquet file"),
        (FIRST + b'{"timestamp": 0, "input_length": ' + b"9" * 5000 + b"}\n", ":2: the line is not valid JSON"),
    ],
)
def test_files_that_are_no_text_and_lines_without_end(write: Write, content: bytes, sentence: str) -> None:
    assert refusal(write(content)).startswith(sentence)


def test_missing_column_offers_the_nearest(write: Write) -> None:
    path = write(AZURE.replace("ContextTokens", "ContextToken") + ROW)
    assert refusal(path, format="azure") == ":1: there is no column 'ContextTokens'; did you mean 'ContextToken'?"
    assert "did you mean 'GeneratedTokens'?" in refusal(path, columns={"isl": "ContextToken", "osl": "GenerateTokens"})


# --- traces that people have: each is read as it is, by the names of its columns or keys

FOLDER = Path(__file__).resolve().parent / "traces"
CHAT = (812, 140), 5.0
SAMPLES = {
    "servegen.csv": ((1024, 20), 2.0),
    "splitwise_sim.csv": ((4808, 10), 0.5),
    "llmservingsim.jsonl": ((10, 70), 0.5),
    "profile_export.jsonl": ((48, 20), 0.3969),
    "litellm_payloads.jsonl": ((812, 140), 4.0),
    "openai_chat_completions.jsonl": CHAT,
    "openai_responses.jsonl": CHAT,
    "openai_batch_output.jsonl": CHAT,
}
"""Of each file: ISL and OSL of its first request [token], and the time from its first arrival to its last [s]."""


@pytest.mark.parametrize(("name", "expected"), SAMPLES.items())
def test_samples_are_read_without_a_word(name: str, expected: tuple[tuple[int, int], float]) -> None:
    summary = read_trace(FOLDER / name)
    (isl, osl), duration = expected
    assert (isl, osl) in zip(summary.rows.isl.tolist(), summary.rows.osl.tolist(), strict=True)
    assert summary.arrivals.requests >= 3
    assert summary.arrivals.duration == pytest.approx(duration, abs=1e-3)


def test_every_sample_has_a_row_in_the_docs() -> None:
    page = (FOLDER.parents[1] / "docs" / "running.md").read_text("utf-8")
    assert set(SAMPLES) == {path.name for path in FOLDER.iterdir()}
    for name in SAMPLES:
        summary = read_trace(FOLDER / name)
        assert f"`{summary.columns.arrival}`, `{summary.columns.isl}`, `{summary.columns.osl}`" in page, name


def test_names_of_a_published_trace_in_the_other_kind_of_file(write: Write) -> None:
    table = write("timestamp,input_length,output_length\n0,10,5\n1,20,6\n", "log.csv")
    names = AZURE.strip().split(",")
    lines = write(jsonl(*(dict(zip(names, row, strict=True)) for row in ((0, 10, 5), (1, 20, 6)))), "log.jsonl")
    for path, form in ((table, "csv"), (lines, "jsonl")):
        summary = read_trace(path)
        assert (summary.format, summary.mean_isl, summary.arrivals.duration) == (form, 15.0, 1.0)


def test_blocks_tell_a_mooncake_trace_whatever_keys_it_has_beside(write: Write) -> None:
    rows = [mooncake(at, 512, 5, [at]) | {"priority": 1} for at in (0, 2000)]
    assert read_trace(write(jsonl(*rows), "m.jsonl")).arrivals.duration == 2.0  # of milliseconds


@pytest.mark.parametrize("times", [(1700000000.5, 1700000002.5), ("2023-11-16T18:15:46", "2023-11-16T18:15:48")])
def test_times_since_1970_are_no_milliseconds_of_mooncake(write: Write, times: tuple[object, object]) -> None:
    rows = [mooncake(0, 512, 5, [1]) | {"model": "m", "timestamp": at} for at in times]
    summary = read_trace(write(jsonl(*rows), "log.jsonl"))
    assert (summary.format, summary.arrivals.duration) == ("jsonl", 2.0)


@pytest.mark.parametrize("text", ["2023-11-16 1 8:15", "20231116 181546", "2023-W01-1 12", "2023-11-16"])
def test_what_is_no_date_and_time(text: str) -> None:
    assert parse_date(text) is None


def test_a_blank_may_stand_before_the_offset() -> None:
    assert parse_date("2023-11-16 18:15:46 +01:00") == parse_date("2023-11-16 17:15:46 Z")


NESTED = ({"at": {"ms": 0}, "use": {"in": 5, "out": 6}}, {"at": {"ms": 2000}, "use": {"in": 7, "out": 8}})


def test_columns_are_keys_in_objects(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(jsonl(*NESTED), "log.jsonl")
    named = {"arrival": "at.ms", "isl": "use.in", "osl": "use.out", "arrival_unit": "ms"}
    summary = read_trace(path, columns=named)
    assert (summary.mean_isl, summary.mean_osl, summary.arrivals.duration) == (6.0, 7.0, 2.0)
    assert trace_source(summary, path.parent) == {"path": "log.jsonl", "format": "jsonl", "columns": named}
    columns = ",".join(f"{role}={name}" for role, name in named.items())
    assert run(["workload", str(path), "--columns", columns]) == ExitCode.DONE
    assert "2 in 2 s (jsonl)" in capsys.readouterr().out


def test_a_trace_of_one_moment_is_followed_by_a_command_with_a_rate(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write("arrival,isl,osl\n0,100,20\n0,200,30\n0,300,10\n", "log.csv"))
    assert run(["workload", path]) == ExitCode.DONE
    assert "workload.yaml --rate RATE   # such as 2/s; the trace has no rate\n" in "".join(capsys.readouterr())
    assert run(["workload", path, "--rate", "2/s"]) == ExitCode.DONE
    assert "log.csv --rate 2/s -o workload.yaml\n" in "".join(capsys.readouterr())


def test_cached_tokens_of_a_log_are_its_prefix_hits(write: Write) -> None:
    usage = [
        {"input_tokens": 100, "output_tokens": 6, "details": {"cached_tokens": 50}},
        {"input_tokens": 300, "output_tokens": 7},
    ]
    path = write(jsonl(*({"timestamp": at, "usage": tokens} for at, tokens in enumerate(usage))), "log.jsonl")
    assert read_trace(path).prefix_hit_share == 50 / 400
    table = write("arrival,isl,osl,cached_tokens\n0,100,5,60\n1,100,5,900\n2,100,5,\n", "log.csv")
    assert read_trace(table).prefix_hit_share == 160 / 300  # never more than the prompt
    assert "the engines that wrote the log" in read_trace(table).notes[-1]
    assert read_trace(write("arrival,isl,osl,cached_tokens\n0,100,5,\n1,90,5,\n", "none.csv")).prefix_hit_share is None


# --- search_spaces.trace_summary: exact figures of the public traces, and the histograms that are shipped of them


@pytest.mark.parametrize(
    ("name", "format_", "requests", "isl", "osl", "longest"),
    [
        (CONV, "azure", 19_366, 1154.697, 211.126, 14_089),
        (CODE, "azure", 8_819, 2047.848, 27.883, 7_841),
        (MOONCAKE, "mooncake", 12_031, 12_035.06, 342.62, 126_527),
    ],
)
def test_public_traces(
    data: Path, name: str, format_: str, requests: int, isl: float, osl: float, longest: int
) -> None:
    summary = read_trace(data / "traces" / name)
    assert (summary.format, summary.arrivals.requests, summary.max_tokens) == (format_, requests, longest)
    assert (summary.mean_isl, summary.mean_osl) == pytest.approx((isl, osl), abs=0.006)
    assert (summary.dropped, summary.out_of_order) == (0, 0)
    buckets, rows = summary.bucketed(48), summary.rows
    assert buckets.isl.size == 48
    for kept, own in ((buckets.isl, rows.isl), (buckets.osl, rows.osl)):
        assert float(buckets.share @ kept) == pytest.approx(own.mean(), rel=1e-9)
        assert float(buckets.share @ kept**2) == pytest.approx((own**2).mean(), rel=0.02)
    assert float(buckets.share @ (buckets.isl * buckets.osl)) == pytest.approx((rows.isl * rows.osl).mean(), rel=0.005)
    mix = summary.to_workload()
    assert mix.share.sum() == pytest.approx(1.0)
    assert min(mix.isl.min(), mix.osl.min()) >= 1.0
    assert mix.max_tokens >= int((mix.isl + mix.osl).max())


def test_mooncake_prefix_hits_and_quantised_clock(data: Path) -> None:
    summary = read_trace(data / "traces" / MOONCAKE)
    assert summary.prefix_hit_share == pytest.approx(0.374, abs=0.0005)
    assert summary.block_tokens == 512
    arrivals = summary.arrivals
    assert arrivals.quantum == pytest.approx(3.0, abs=0.001)
    assert arrivals.tie_share > 0.9
    assert arrivals.mean_rate == pytest.approx(12_031 / (3536.999 + 3.0), rel=1e-4)
    assert arrivals.burstiness == pytest.approx(1.05, abs=0.01)
    assert "the clock steps by 3 s" in summary.notes[0]


@pytest.mark.parametrize(("name", "buckets"), [("chat", CONV), ("code", CODE), ("long-context", MOONCAKE)])
def test_shipped_histograms_are_those_of_the_traces(root: Path, data: Path, name: str, buckets: str) -> None:
    block = workload_block(read_trace(data / "traces" / buckets).bucketed(48))
    expected = [list(row.values()) for row in block["lengths"]["histogram"]]
    shipped = np.loadtxt(root / "examples" / "histograms" / f"{name}.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(shipped, np.array(expected), atol=0.011)  # the second decimal may be a tie
    assert round(float(shipped[:, 2].sum()), 9) == 1.0


# --- traces of sessions: AIPerf's with delays and Bailian's with chat ids, and the workload.yaml made from them

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


def test_delays_are_think_times_and_lengths_new_tokens(write: Write) -> None:
    path = write(jsonl(*DELAYS), "trace.jsonl")
    summary = read_sessions(path)
    assert is_session_trace(path)
    assert (summary.turns.tolist(), summary.pause.tolist()) == ([3, 1], [1.5, 2.5])
    assert (summary.user.tolist(), summary.rate, summary.answers_in) == ([3000, 2000, 400, 600], 0.25, False)


def test_chats_repeat_what_was_before(write: Write) -> None:
    summary = read_sessions(write(jsonl(*CHATS), "trace.jsonl"))
    assert (summary.turns.tolist(), summary.pause.tolist()) == ([2, 1], [30.0])
    assert (summary.user.tolist(), summary.answers_in) == ([500, 760 - 500 - 60, 300], True)


def test_what_is_written_is_a_problem_of_such_sessions(write: Write) -> None:
    mapping = read_sessions(write(jsonl(*DELAYS), "trace.jsonl")).mapping()
    load = load_problem(write(workload_yaml_text(mapping, "agents", "Llama-3.1-8B"), "w.yaml")).workload
    assert load.request_rate == pytest.approx(0.25 * load.sessions.turns.mean)
    assert load.sessions.pause.within(2.6) == 1.0


HASHED = [
    {"timestamp": 1000 * second, "input_length": 512 * len(blocks), "output_length": 5, "hash_ids": blocks}
    for second, blocks in ((0, [1, 2]), (10, [1, 2, 3]), (40, [1, 2]), (41, [7, 2]))
]


def test_hash_blocks_tell_after_what_time_they_are_used_again(write: Write) -> None:
    """Four of nine blocks hit, two after 10 s and two after 30 s; the last request has none of its beginning."""
    summary = read_trace(write(jsonl(*HASHED), "trace.jsonl"))
    assert summary.prefix_hit_share == pytest.approx(4 / 9)
    interval = summary.reuse_interval
    assert [interval[share] for share in (0.25, 0.5, 0.75, 1.0)] == pytest.approx([10, 10, 30, 30], rel=0.06)


def test_a_trace_of_hash_blocks_states_its_problem_again(write: Write) -> None:
    """What memory has to keep, and for how long, comes out of the repeated inputs as it went in."""
    write(jsonl(*HASHED), "trace.jsonl")
    asked = "model: Llama-3.1-8B\nworkload: {lengths: {trace: {path: trace.jsonl}}}\n"
    first = load_problem(write(f"{asked}slo: {{ttft: 2s, tpot: 50ms}}\naccelerators: H100\n", "w.yaml"))
    again = load_problem(write(json.dumps(first.inputs), "again.yaml"))
    assert again.inputs == first.inputs
    before, after = first.workload.reuse, again.workload.reuse
    assert before.pause.seconds.tolist() == after.pause.seconds.tolist()


# --- what `pdplan workload` advises about a trace that the model cannot take


LONG = [100] * 97 + [50_000, 45_000, 40_901]
"""With 60 output tokens each, three are longer than the 40,960 of Qwen3-32B, the last by one."""


def test_requests_beyond_the_context_are_counted_and_the_next_command_leaves_them_out(folder: Path) -> None:
    rows = "".join(f"{second},{isl},60\n" for second, isl in enumerate(LONG))
    Path("t.csv").write_text(f"arrival,isl,osl\n{rows}", "utf-8")
    asked = ("workload", "t.csv", "--model", "Qwen3-32B", "-o", "w.yaml")
    done = within(*asked, cwd=folder)
    said = " ".join(done.stdout.split())
    assert "3 of 100 requests (3 %) are longer than the context of Qwen3-32B, 40,960 tokens" in said
    assert "--max-tokens 40960, or name a --model of longer context" in said
    assert "# Note: 3 of 100 requests (3 %)" in Path("w.yaml").read_text("utf-8")
    with pytest.raises(InputError, match="50,060 tokens exceed the context"):
        load_problem(Path("w.yaml"))
    following = done.stderr.splitlines()[-1].removeprefix("Next: ")
    assert following.endswith("--max-tokens 40960 --force")
    again = within(*asked, *shlex.split(following)[-3:], cwd=folder)
    assert "Note: 3 requests have more than 40,960 tokens (ISL + OSL) and are left out of all figures." in again.stdout
    assert again.stderr.splitlines()[-1] == "Next: pdplan optimize w.yaml -o plan"
    load = load_problem(Path("w.yaml")).workload
    assert (load.isl.tolist(), load.max_tokens) == ([100.0], 160)
