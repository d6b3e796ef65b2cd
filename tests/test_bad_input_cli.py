"""Bad input, end to end: one clear sentence, the exit code, and nothing written.

Every class of fault that users are promised a sentence for is one run of the program in a subprocess; further cases
of a class run the same command line inside this process, which is ten times as fast. Runs on absurd files have a
limit on their address space, so that a file read whole fails the test and not the machine.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplan.cli import run

ROOT = Path(__file__).resolve().parent.parent
BAD_INPUT, INFEASIBLE, INTERRUPTED = 2, 3, 130
TEN_GIGABYTES = 10 * 2**30
SECONDS = 60
"""Longest that a refusal may take, on a busy machine [s]."""

BASE: dict[str, Any] = {
    "model": {"name": "Llama-3.1-8B"},
    "workload": {
        "request_rate": "2/s",
        "lengths": {"histogram": [{"isl": 500, "osl": 100, "share": 0.5}, {"isl": 1500, "osl": 200, "share": 0.5}]},
    },
    "slo": {"ttft": "2s", "tpot": "50ms", "percentile": "p90"},
    "accelerators": ["H100"],
    "search": {"preset": "quick"},
}
"""A small problem that one H100 solves."""

GONE = object()
"""Instead of a value: the key is left out."""

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
AZURE_ROW = "2023-11-16 18:15:48.1,{},44\n"

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from pdplan.cli import main
main(sys.argv[1:])
"""


def problem(**changes: object) -> str:
    """BASE as YAML, with values replaced by path: `workload__request_rate="-1/s"`."""
    value = copy.deepcopy(BASE)
    for path, given in changes.items():
        *parents, last = path.split("__")
        section = value
        for key in parents:
            section = section[key]
        if given is GONE:
            del section[last]
        else:
            section[last] = given
    return yaml.safe_dump(value, sort_keys=False)


def lengths(*rows: tuple[float, float, float]) -> dict[str, object]:
    """A histogram of (ISL, OSL, share)."""
    return {"histogram": [{"isl": isl, "osl": osl, "share": share} for isl, osl, share in rows]}


def pdplan(*arguments: object, cwd: Path, code: str = "", timeout: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run the program, or `code` with the same arguments, with both streams piped."""
    start = ["-c", code] if code else ["-m", "pdplan"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PDPLAN_", "NO_COLOR", "COLUMNS"))}
    settings = {"COLUMNS": "100", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        cwd=cwd,
        env=kept | settings,
        timeout=timeout,
    )


def within(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same, inside this process."""
    words = [str(word) for word in arguments]
    with chdir(cwd), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def refused(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """What a run that refused its input said: exit code 2, a sentence on stderr with all the words, nothing else."""
    assert done.returncode == BAD_INPUT, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("pdplan: error: ")
    assert "Traceback" not in done.stderr
    assert "bug of pdplan" not in done.stderr
    said = done.stderr.removeprefix("pdplan: error: ")
    missing = [word for word in words if word not in said]
    assert not missing, said
    return said


def write(folder: Path, text: str | bytes) -> None:
    """Write the workload.yaml of a case."""
    (folder / "w.yaml").write_bytes(text.encode() if isinstance(text, str) else text)


def optimize(folder: Path, text: str | bytes, *flags: object, code: str = "") -> subprocess.CompletedProcess[str]:
    """Plan for a workload.yaml of this text by formulas, in a subprocess."""
    write(folder, text)
    return pdplan("optimize", "w.yaml", "--effort", "quick", *flags, cwd=folder, code=code)


def optimize_within(folder: Path, text: str | bytes, *flags: object) -> subprocess.CompletedProcess[str]:
    """The same, inside this process."""
    write(folder, text)
    return within("optimize", "w.yaml", "--effort", "quick", *flags, cwd=folder)


def sparse(path: Path, size: int = TEN_GIGABYTES) -> None:
    """A file that claims `size` bytes and takes none."""
    try:
        with path.open("ab") as file:
            file.truncate(size)
    except OSError as error:
        pytest.skip(f"no sparse files of {size} bytes here: {error}")


# --- values that are wrong ------------------------------------------------------------------------------------------

TWO_CLASSES = [{"name": name, "share": 0.6, "ttft": "2s", "tpot": "50ms"} for name in ("a", "b")]

VALUES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "unknown-gpu": (
        {"accelerators": ["H100", "H20O"]},
        ("accelerators.1: 'H20O' is not known; did you mean 'H200'?", "- H20O\n"),
    ),
    "unknown-model": ({"model": "Llama-3.1-8"}, ("model", "'Llama-3.1-8' is not known", "'Llama-3.1-8B'")),
    "unknown-key": (
        {"slo__tpto": "50ms"},
        ("w.yaml:", "slo.tpto: is not a known key", "did you mean 'tpot'?"),
    ),
    "negative-rate": (
        {"workload__request_rate": "-3/s"},
        ("w.yaml:4:17: workload.request_rate: '-3/s'", "must be at least 1e-06/s and at most 1000000/s"),
    ),
    "zero-rate": ({"workload__request_rate": 0}, ("workload.request_rate: 0", "must be at least 1e-06/s")),
    "shares-of-lengths": (
        {"workload__lengths": lengths((500, 100, 0.5), (1500, 200, 0.4))},
        ("workload.lengths.histogram: shares sum to 0.9, but must sum to 1",),
    ),
    "shares-of-classes": ({"slo": TWO_CLASSES}, ("slo: shares sum to 1.2, but must sum to 1",)),
    "tp-and-heads": (
        {"search__tensor_parallel": [7, 8]},
        ("search.tensor_parallel: has 7", "heads of Llama-3.1-8B", "allowed: 1, 2, 4, 8"),
    ),
    "nan": ({"workload__burstiness": float("nan")}, ("workload.burstiness: nan is not a finite number",)),
    "nan-rate": ({"workload__request_rate": float("nan")}, ("workload.request_rate: nan is not a finite number",)),
    "infinite-slo": ({"slo__ttft": float("inf")}, ("slo.ttft: inf is not a finite number",)),
    "no-output": ({"workload__lengths": lengths((500, 0, 1))}, ("histogram.0.osl: 0", "must be at least 1")),
    "beyond-context": (
        {"workload__lengths": lengths((500_000, 100, 1))},
        ("500100 tokens exceed the context of Llama-3.1-8B, 131072 tokens",),
    ),
    "attainment-of-90": (
        {"slo": {"ttft": "2s", "tpot": "50ms", "attainment": 90}},
        ("slo.attainment: 90", "must be at least 0.01 and at most 0.999999", "did you mean 0.9?"),
    ),
    "seconds-or-milliseconds": ({"slo__tpot": 50}, ("slo.tpot: 50 without a unit", "50ms", "50 s")),
    "wrong-unit": ({"slo__tpot": "50kg"}, ("slo.tpot: '50kg' has the unit 'kg'", "ms")),
    "no-accelerators": ({"accelerators": []}, ("accelerators: is empty", "pdplan gpus")),
    "half-of-a-fleet": (
        {"search__roles": ["decode"]},
        ("search.roles: decode alone cannot serve a request", "colocated"),
    ),
    "experts-of-a-dense-model": (
        {"search__expert_parallel": [2]},
        ("search.expert_parallel: has 2", "no experts", "allowed: 1"),
    ),
    "goodput-without-limit": ({"objective": "max_goodput"}, ("objective: max_goodput needs a limit", "budget")),
    "missing-section": ({"slo": GONE}, ("slo: is missing",)),
    "histogram-that-is-not-there": (
        {"workload__lengths": {"histogram": "nope.csv"}},
        ("workload.lengths.histogram: nope.csv", "cannot be read"),
    ),
    "folder-for-a-trace": (
        {"workload__lengths": {"trace": {"path": "."}}},
        ("workload.lengths.trace.path", "is a folder"),
    ),
}


PROMISED = {"unknown-gpu", "negative-rate", "shares-of-lengths", "shares-of-classes", "tp-and-heads", "nan"}
"""Cases that run in a process of their own."""


@pytest.mark.parametrize("case", VALUES)
def test_a_wrong_value_is_named_with_its_place(case: str, tmp_path: Path) -> None:
    changes, words = VALUES[case]
    plan = optimize if case in PROMISED else optimize_within
    text = problem(**changes)
    said = refused(plan(tmp_path, text, "-o", "plan"), *words)
    place, shown, caret = said.splitlines()[:3]
    line, column = (int(part) for part in place.removeprefix("w.yaml:").split(":")[:2])
    assert shown == "  " + text.splitlines()[line - 1].lstrip()
    assert caret.strip() == "^"
    assert 1 <= column <= len(text.splitlines()[line - 1]) + 1
    assert not (tmp_path / "plan").exists()


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    text = problem(
        model="Llama-3.1-8",
        workload__request_rate="-1/s",
        slo={"ttft": -1, "tpot": "4 parsec", "percentile": "p100"},
        accelerators=["H20O"],
        search={"preset": "quik"},
        zzz=1,
    )
    done = optimize(tmp_path, text, "--json")
    said = refused(done, "'parsec'", "'Llama-3.1-8B'", "'H200'", "'quick'", "zzz: is not a known key")
    places = [line for line in said.splitlines() if line.startswith("w.yaml:")]
    assert len(places) == 8
    assert places == sorted(places, key=lambda line: int(line.split(":")[1]))


def test_an_override_is_named_as_one(tmp_path: Path) -> None:
    done = optimize_within(tmp_path, problem(), "--set", "slo.ttft=-1s", "--set", "accelerators.0=H20O")
    refused(done, "w.yaml (overridden): slo.ttft: '-1s'", "w.yaml (overridden): accelerators.0: 'H20O'", "'H200'")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("slo.ttft", ("'slo.ttft' is not KEY=VALUE",)),
        ("accelerators.5=H200", ("'accelerators.5'", "not one of the 1 items")),
        ("slo.ttft=[", ("is not valid YAML",)),
        ("workload.request_rat=1", ("request_rat: is not a known key; did you mean 'request_rate'?",)),
    ],
)
def test_a_nonsensical_override_is_refused(setting: str, words: tuple[str, ...], tmp_path: Path) -> None:
    refused(optimize_within(tmp_path, problem(), "--set", setting), *words)


# --- what physics forbids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "value"), [("ttft", "1ms"), ("tpot", "0.1ms")])
def test_an_slo_below_the_floor_says_by_how_much(limit: str, value: str, tmp_path: Path) -> None:
    done = optimize(tmp_path, problem(**{f"slo__{limit}": value}))
    said = refused(done, limit, "below the physical floor", " ms more")
    needed, more = (float(said.split(" ms" + after)[0].split()[-1]) for after in (" for ", " more"))
    assert needed - more == pytest.approx(float(value.removesuffix("ms")), abs=0.51 if limit == "ttft" else 0.011)


def test_a_model_that_fits_nowhere_says_how_large_it_is(tmp_path: Path) -> None:
    done = optimize(tmp_path, problem(model="DeepSeek-V3", accelerators=["L4"]))
    refused(
        done,
        "DeepSeek-V3",
        "GiB of weights",
        "w.yaml:17:3: accelerators.0: ",
        "no engine of L4",
        "weights do not fit",
        "search.tensor_parallel",
    )


def test_an_estimate_that_does_not_fit_says_so(tmp_path: Path) -> None:
    done = within("estimate", "--model", "Llama-3.1-405B", "--gpu", "L4", "--json", cwd=tmp_path)
    refused(done, "Llama-3.1-405B", "does not fit on 1 x L4", "22 GiB")


# --- traces ---------------------------------------------------------------------------------------------------------

TRACES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("t.csv: the trace is empty",)),
    "header-only": (AZURE.splitlines(keepends=True)[0], ("t.csv: the trace is empty",)),
    "field-missing": (AZURE + "2023-11-16 18:15:47,374\n", ("t.csv:3:", "2 fields", "has 3")),
    "not-a-number": (AZURE + AZURE_ROW.format("abc"), ("t.csv:3: ContextTokens is 'abc'", "whole number")),
    "negative": (AZURE + AZURE_ROW.format(-5), ("t.csv:3: ContextTokens is -5", "from 1 to")),
    "nan": ("arrival,isl,osl\n1,2,3\nnan,2,3\n", ("t.csv:3: arrival is 'nan'", "finite")),
    "no-such-day": (AZURE + "2023-02-30 18:15:46,374,44\n", ("t.csv:3: TIMESTAMP is '2023-02-30 18:15:46'",)),
    "no-header": ("1,2,3\n4,5,6\n", ("t.csv:1:", "header", "'1,2,3'")),
    "binary": (b"\x7fELF\x02\x01\x01\x00" + bytes(64), ("t.csv: the file is a program", "CSV or JSONL")),
    "damaged-gzip": (b"\x1f\x8b\x08\x00garbage", ("t.csv: the gzip data is cut off or damaged",)),
}


@pytest.mark.parametrize("case", TRACES)
def test_a_bad_trace_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    content, words = TRACES[case]
    (tmp_path / "t.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    start = pdplan if case in {"empty", "field-missing"} else within
    refused(start("workload", "t.csv", "-o", "new.yaml", cwd=tmp_path), *words)
    assert not (tmp_path / "new.yaml").exists()


def test_a_bad_trace_is_refused_where_the_problem_names_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(AZURE + AZURE_ROW.format("abc"))
    done = optimize_within(tmp_path, problem(workload__lengths={"trace": {"path": "t.csv"}}))
    refused(done, "workload.lengths.trace.path: ", "t.csv:3: ContextTokens is 'abc'")


def test_every_bad_row_of_a_histogram_is_named(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("isl,osl,share\nx,10,0.5\n100,nan,0.5\n100,10\n")
    done = optimize_within(tmp_path, problem(workload__lengths={"histogram": "h.csv"}))
    refused(done, "h.csv:2: 'x,10,0.5'", "h.csv:3: isl 100 and osl nan", "h.csv:4: has 2 values, but must have 3")


# --- files that are too large, too deep, or no text -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["w.yaml", "t.csv"])
def test_ten_gigabytes_by_mistake_are_not_read(name: str, tmp_path: Path) -> None:
    sparse(tmp_path / name)
    command = {"w.yaml": "optimize", "t.csv": "workload"}[name]
    refused(pdplan(command, name, cwd=tmp_path, code=LIMITED), name, "bytes" if name == "w.yaml" else "binary")


def test_ten_gigabytes_behind_any_key_are_not_read(tmp_path: Path) -> None:
    """A config.json, a catalog and a histogram, each refused at its own key, in one run."""
    for name in ("config.json", "catalog.yaml", "h.csv"):
        sparse(tmp_path / name)
    text = problem(model={"config": "config.json"}, catalog="catalog.yaml", workload__lengths={"histogram": "h.csv"})
    said = refused(optimize(tmp_path, text, code=LIMITED), "model.config: ", "10240 MiB", "10,737,418,240 bytes")
    assert [key for key in ("model.config: ", "catalog: ", "workload.lengths.histogram: ") if key not in said] == []


def laughs(levels: int) -> str:
    """The billion laughs: every line repeats the one before ten times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "billion-laughs": (laughs(10), ("aliases (*name) repeat more than",)),
    "brackets": ("a: " + "[" * 200_000, ("w.yaml:1:", "nested deeper than 50 levels")),
    "blocks": ("".join(" " * depth + "a:\n" for depth in range(900)), ("nested deeper than 50 levels",)),
    "alias-of-itself": ("a: &a [*a]\n", ("w.yaml:1:", "nested deeper", "contains itself")),
    "python-tag": ("name: !!python/object/apply:os.system 'touch pwned'\n", ("w.yaml:1:", "tag", "not allowed")),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_yaml_bomb_does_not_go_off(case: str, tmp_path: Path) -> None:
    text, words = BOMBS[case]
    refused(optimize(tmp_path, text, code=LIMITED), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["w.yaml"]


TEXTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("w.yaml: is empty", "pdplan init")),
    "list": (b"- a\n- b\n", ("w.yaml: holds a list", "keys and values")),
    "utf-16": (problem().encode("utf-16"), ("w.yaml:1: is not UTF-8 text", "save it as UTF-8")),
    "latin-1": (problem(name="x").replace("x", "café").encode("latin-1"), ("is not UTF-8 text", "byte 0xe9")),
    "nul": (problem().replace("2s", "2\0s").encode(), ("w.yaml:", "control character U+0000")),
    "tab": (b"workload:\n\trequest_rate: 1\n", ("w.yaml:2:1: a tab cannot indent",)),
    "duplicate-key": (f"{problem()}seed: 1\nseed: 2\n".encode(), ("the key 'seed' stands here again", "first on line")),
    "norway": (b"engine: no\n", ("w.yaml:1:9: engine: no without quotes means false",)),
    "base-60": (problem(slo__ttft=0).replace("ttft: 0", "ttft: 1:30").encode(), ("slo.ttft: 1:30 means 90", "90s")),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_file_that_is_no_workload_is_refused(case: str, tmp_path: Path) -> None:
    content, words = TEXTS[case]
    refused(optimize_within(tmp_path, content), *words)


def test_wrong_types_everywhere_are_all_named(tmp_path: Path) -> None:
    keys = ("model", "workload", "slo", "accelerators", "search", "objective", "constraints", "engine", "seed")
    said = refused(optimize_within(tmp_path, yaml.safe_dump({key: [[True]] for key in keys})))
    assert [key for key in keys if f": {key}" not in said] == []


CONFIGS = {
    "not-json": ("{", ("config.json:1:", "not valid JSON")),
    "nan": (json.dumps(CONFIG | {"hidden_size": float("nan")}), ("config.json holds NaN",)),
    "deep": ('{"a":' * 100_000, ("config.json is nested too deeply",)),
    "missing": (json.dumps({**CONFIG, "hidden_size": None}), ("lacks 'hidden_size'", "does not guess")),
    "negative": (json.dumps(CONFIG | {"num_hidden_layers": -1}), ("'num_hidden_layers' is -1", "from 1 to")),
    "heads": (json.dumps(CONFIG | {"num_attention_heads": 30}), ("'num_attention_heads' 30", "multiple")),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_bad_config_is_refused(case: str, tmp_path: Path) -> None:
    text, words = CONFIGS[case]
    (tmp_path / "config.json").write_text(text)
    refused(within("models", "config.json", cwd=tmp_path), *words)


def test_every_fault_of_a_catalog_is_named(tmp_path: Path) -> None:
    entries = "accelerators:\n  A: {like: H10O}\n  H100: {memory_gb: 1}\n  C: 5\nx: 1\n"
    (tmp_path / "mine.yaml").write_text(entries)
    done = within("gpus", "--catalog", "mine.yaml", "--json", cwd=tmp_path)
    words = (
        "mine.yaml:2:13: ",
        "'H100'?",
        "did you mean 'memory_gib'?",
        "accelerators.C",
        "x: is",
    )
    refused(done, *words)


MISSING = {
    "file": (("optimize", "nope.yaml"), "nope.yaml"),
    "folder": (("optimize", "."), "is a folder"),
    "folder-as-trace": (("workload", "."), "is a folder"),
    "folder-as-plan": (("report", "."), "is a folder"),
    "catalog": (("gpus", "--catalog", "nope.yaml"), "nope.yaml"),
    "model": (("models", "nope/config.json"), "nope/config.json"),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_file_that_is_not_there_is_named(case: str, tmp_path: Path) -> None:
    arguments, word = MISSING[case]
    refused(within(*arguments, cwd=tmp_path), word)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(problem())
    (tmp_path / "w.yaml").chmod(0)
    refused(within("optimize", "w.yaml", cwd=tmp_path), "w.yaml", "read")


# --- no fleet, and what is written ----------------------------------------------------------------------------------

LIMITS: dict[str, tuple[dict[str, object], str]] = {
    "budget": ({"constraints": {"budget": 0.01}}, "budget"),
    "power": ({"constraints": {"power": "1W"}}, "power"),
    "inventory": ({"accelerators": [{"name": "H100", "inventory": 1}], "workload__request_rate": 200}, "inventory"),
    "inventory-below-an-engine": (
        {"model": "Llama-3.1-70B", "accelerators": [{"name": "H100", "inventory": 1}]},
        "inventory",
    ),
    "max-gpus-below-an-engine": ({"model": "Llama-3.1-70B", "constraints": {"max_gpus": 1}}, "max_gpus"),
    "nothing-in-stock": (
        {"accelerators": [{"name": "H100", "inventory": 0}, {"name": "H200", "inventory": 0}]},
        "inventory",
    ),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_limit_that_leaves_no_fleet_is_named_with_the_nearest_miss(case: str, tmp_path: Path) -> None:
    changes, limit = LIMITS[case]
    plan_for = optimize if case == "budget" else optimize_within
    done = plan_for(tmp_path, problem(**changes), "--json")
    assert (done.returncode, done.stderr) == (INFEASIBLE, "")
    plan = json.loads(done.stdout)
    assert (plan["status"], plan["pools"], plan["cost_usd_per_hour"]) == ("infeasible", [], None)
    slacks = [row["slack"] for row in plan["binding"] if limit in row["constraint"]]
    assert [slack is None or slack < 0 for slack in slacks] == [True]  # a limit of 0 has no relative slack
    assert [row["kind"] for row in plan["alternatives"] if row["pools"]] == ["nearest_miss"]


def test_an_slo_just_out_of_reach_is_no_success(tmp_path: Path) -> None:
    floors = [optimize_within(tmp_path, problem(**{f"slo__{limit}": "1us"})).stderr for limit in ("ttft", "tpot")]
    ttft, tpot = (float(said.split(" ms for ")[0].split()[-1]) for said in floors)
    slo = {"ttft": f"{ttft * 1.002}ms", "tpot": f"{tpot * 1.05}ms"}
    done = optimize_within(tmp_path, problem(slo=slo), "-o", "plan")
    assert done.returncode == INFEASIBLE, done.stderr
    assert done.stdout.startswith("No fleet of the search space meets the SLOs")
    assert "Nearest miss: " in done.stdout
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text("utf-8"))
    assert (plan["status"], plan["pools"]) == ("infeasible", [])


@pytest.fixture
def old_plan(tmp_path: Path) -> Iterator[Path]:
    """A folder with a plan of an earlier run, which must survive whatever goes wrong."""
    folder = tmp_path / "plan"
    folder.mkdir()
    (folder / "plan.json").write_text('{"schema": "pdplan.plan/1"}')
    yield folder
    assert (folder / "plan.json").read_text() == '{"schema": "pdplan.plan/1"}'
    assert not (folder / "report.html").exists()


AT = """
import os, signal, sys
import {module}
def struck(*_, **__):
    os.kill(os.getpid(), signal.{signal})
assert callable({module}.{function})
{module}.{function} = struck
from pdplan.cli import main
main(sys.argv[1:])
"""


def test_bad_input_leaves_an_old_plan_alone(old_plan: Path) -> None:
    refused(optimize_within(old_plan.parent, problem(slo__ttft="1ms"), "-o", "plan"), "floor")


def test_an_interrupted_search_is_130_and_writes_nothing(old_plan: Path) -> None:
    code = AT.format(module="optimizer.recommend.optimize", function="make_instance", signal="SIGINT")
    done = optimize(old_plan.parent, problem(), "-o", "plan", code=code)
    assert (done.returncode, done.stdout) == (INTERRUPTED, "")
    assert done.stderr.strip() == "pdplan: error: interrupted"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_kill_while_writing_leaves_no_half_written_plan(old_plan: Path) -> None:
    code = AT.format(module="os", function="replace", signal="SIGKILL")
    assert optimize(old_plan.parent, problem(), "-o", "plan", code=code).returncode < 0


@pytest.mark.parametrize("name", ["plan.json", "report.html"])
def test_foreign_files_are_kept(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    refused(optimize_within(tmp_path, problem(), "-o", "."), f"{name} was not written by pdplan", "--force")
    assert (tmp_path / name).read_text() == '{"mine": 1}'


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    refused(optimize_within(tmp_path, problem(), "-o", "w.yaml"), "w.yaml is a file, not a directory")
    refused(optimize_within(tmp_path, problem(), "-o", "w.yaml/plan"), "w.yaml/plan cannot be written: Not a directory")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_reader_that_reads_one_line_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(problem())
    command = f"'{sys.executable}' -m pdplan optimize w.yaml --effort quick | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=SECONDS,
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert done.stdout.startswith("Run 1 colocated engine of 1 × H100")


# --- odd, but right -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + problem().replace("\n", "\r\n").encode(),
        json.dumps(BASE).encode(),
        problem(workload__lengths=lengths((500, 1, 1)), slo__tpot="1h").encode(),
        problem(slo={"ttft": "2s", "tpot": "50ms", "attainment": 0.9999}).encode(),
    ],
    ids=["bom-and-crlf", "json", "one-token", "four-nines"],
)
def test_odd_but_right_input_is_planned_for(content: bytes, tmp_path: Path) -> None:
    done = optimize_within(tmp_path, content, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    plan = json.loads(done.stdout)
    assert plan["attainment"] >= plan["classes"][0]["attainment_goal"]
