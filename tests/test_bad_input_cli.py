"""Bad input, end to end: one clear sentence, the exit code, and nothing written.

A few cases run the program in a subprocess; the others run the same command line inside this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from costmodel.errors import InputError
from optimizer.recommend import optimize as search
from search_spaces.benchmark_results import read_results
from search_spaces.buying_terms import load_terms
from search_spaces.catalog import load_catalog
from search_spaces.demand import read_histogram
from search_spaces.trace_summary import read_trace
from tests import optimizer_cases
from tests.bad_input_cases import optimize, optimize_within, problem, refused
from tests.running import ROOT, tiny, within

INFEASIBLE, INTERRUPTED = 3, 130

# --- values that are wrong ------------------------------------------------------------------------------------------


def test_a_wrong_value_is_named_with_its_place(tmp_path: Path) -> None:
    """golden/workload_faults.txt has the others."""
    text = problem(accelerators=["H100", "H20O"])
    said = refused(optimize(tmp_path, text, "-o", "plan"), "accelerators.1: 'H20O' is not known; did you mean 'H200'?")
    place, shown, caret = said.splitlines()[:3]
    line, column = (int(part) for part in place.removeprefix("w.yaml:").split(":")[:2])
    assert shown == "  " + text.splitlines()[line - 1].lstrip()
    assert caret.strip() == "^"
    assert 1 <= column <= len(text.splitlines()[line - 1]) + 1
    assert not (tmp_path / "plan").exists()


def test_a_plan_and_its_deployment_go_to_different_folders(tmp_path: Path) -> None:
    refused(optimize_within(tmp_path, problem(), "-o", "out", "--deploy", "./out"), "same folder, out", "out/deploy")
    assert not (tmp_path / "out").exists()


def test_a_confidence_out_of_range_says_what_a_negative_one_is_for(tmp_path: Path) -> None:
    allowed = "must be from 0 to 0.98 (0% to 98%), or down to -0.98 for quick GPUs; did you mean 0.9 (90%)?"
    refused(optimize(tmp_path, problem(confidence=90), "-o", "plan"), f"confidence: 90 is out of range; {allowed}")
    refused(optimize(tmp_path, problem(), "--confidence", "90"), f"'--confidence': 90 is out of range; {allowed}")


# --- what physics forbids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "value"), [("ttft", "1ms"), ("tpot", "0.1ms")])
def test_an_slo_below_the_floor_says_by_how_much(limit: str, value: str, tmp_path: Path) -> None:
    done = optimize_within(tmp_path, problem(**{f"slo__{limit}": value}))
    number = value.removesuffix("ms")
    said = refused(done, limit, f"{number} ms of class", "the fastest engine, idle, needs", code=INFEASIBLE)
    assert float(said.split(" ms for ")[0].split()[-1]) > float(number)
    assert (" input tokens; " in said) == (limit == "ttft")


def test_a_program_gets_a_document_of_a_limit_that_physics_forbids(tmp_path: Path) -> None:
    """Exit code 3 means that there is one: of `optimize` a plan, of a command with no answer to state the reason."""
    slo = {"ttft": "1s", "tpot": "0.1ms", "attainment": 0.9}
    file = tiny(tmp_path, slo=slo, procurement={"demand": {"months": 6, "growth": "5%"}})
    plan, purchase = within("optimize", file, "--json"), within("buy", file, "--json")
    assert (plan.returncode, purchase.returncode) == (INFEASIBLE, INFEASIBLE)
    document = json.loads(plan.stdout)
    assert (document["schema"], document["status"]) == ("pdplan.plan/2", "infeasible")
    assert [row["constraint"] for row in document["binding"]] == ["tpot"]
    refusal = json.loads(purchase.stdout)
    assert (refusal["schema"], refusal["status"]) == ("pdplan.refusal/1", "infeasible")
    assert "is not possible: the fastest engine" in refusal["reason"]
    assert "is not possible: the fastest engine" in plan.stderr
    assert "; its other limits can be as low as " in plan.stderr
    assert not within("optimize", file).stdout


# --- no fleet, and what is written ----------------------------------------------------------------------------------


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
    refused(optimize_within(old_plan.parent, problem(slo__ttft="1ms"), "-o", "plan"), "not possible", code=INFEASIBLE)


def test_an_interrupted_search_is_130_and_writes_nothing(old_plan: Path) -> None:
    code = AT.format(module="optimizer.recommend.optimize", function="possible_instance", signal="SIGINT")
    done = optimize(old_plan.parent, problem(), "-o", "plan", code=code)
    assert (done.returncode, done.stdout) == (INTERRUPTED, "")
    assert done.stderr.strip() == "pdplan: error: interrupted"


def test_a_kill_while_writing_leaves_no_half_written_plan(old_plan: Path) -> None:
    code = AT.format(module="os", function="replace", signal="SIGKILL")
    assert optimize(old_plan.parent, problem(), "-o", "plan", code=code).returncode < 0


@pytest.mark.parametrize("name", ["plan.json", "report.html"])
def test_foreign_files_are_kept(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    refused(optimize_within(tmp_path, problem(), "-o", "."), f"{name} was not written by pdplan", "--force")
    assert (tmp_path / name).read_text() == '{"mine": 1}'


# --- flags and paths that cannot be meant: exit code 2 and one sentence, before any work is done

CHAT = str(ROOT / "examples" / "chat.yaml")
PLAN = (ROOT / "tests" / "plans" / "colocated.json").read_bytes()


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "make_instance", lambda *_, **__: pytest.fail("the search began"))
    (tmp_path / "report.html").mkdir()
    (tmp_path / "plan.json").write_bytes(PLAN)
    refused(within("optimize", CHAT, "-o", tmp_path), "report.html is a folder")
    (tmp_path / "w.yaml").write_text("mine")
    refused(within("workload", tmp_path / "absent.csv", "-o", tmp_path / "w.yaml"), "w.yaml exists")
    assert (tmp_path / "w.yaml").read_text() == "mine"


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("plan.json", "t.csv", "w.yaml", "r.json", "terms.yaml")}
    for path in files.values():
        path.write_bytes(PLAN if path.name == "plan.json" else b"mine")
    (tmp_path / "link.csv").symlink_to("t.csv")
    (tmp_path / "hard.csv").hardlink_to(tmp_path / "t.csv")
    w, t, r = (files[name] for name in ("w.yaml", "t.csv", "r.json"))
    calibrated = ("calibrate", r, "--model", "Llama-3.1-8B", "--gpu", "H100")
    for words in (
        ("workload", t, "-o", t),
        ("workload", t, "-o", tmp_path / "link.csv"),
        ("workload", tmp_path / "hard.csv", "-o", t),
        ("simulate", files["plan.json"], "--trace", t, "--csv", t),
        ("whatif", w, "--vary", "rate=1,2", "--csv", w),
        ("whatif", w, "--vary", "rate=1,2", "--resume", tmp_path / "x", "--csv", tmp_path / "x"),
        ("whatif", w, "--vary", "rate=1,2", "--resume", t, "--html", tmp_path / "hard.csv"),
        ("frontier", w, "--over", "rate", "--csv", tmp_path / "x", "--html", f"{tmp_path}/./x"),
        ("buy", w, "--terms", files["terms.yaml"], "--html", files["terms.yaml"]),
        (*calibrated, "-o", r),
    ):
        refused(within(*words, "--force"), "name the same file")
    assert {path.read_bytes() for path in files.values()} == {PLAN, b"mine"}
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("command", "file", "content", "says"),
    [
        ("evaluate", "f.yaml", b"\n", "f.yaml: is empty; a fleet to start from is written by `pdplan init --fleet`"),
        ("evaluate", "f.yaml", b"\xe0\x00", "f.yaml:1: is not UTF-8 text"),
        ("evaluate", "f.json", b"", "f.json: is empty, but must be a plan.json or a fleet file (YAML)"),
        ("evaluate", ".", b"", ": is a folder, but must be a plan.json or a fleet file (YAML)"),
        ("report", "f.yaml", b"", "f.yaml: is empty, but must be a plan.json"),
        ("models", "f.yaml", b"", "f.yaml: is empty; a model to start from is written by `pdplan models NAME -o FILE`"),
    ],
)
def test_a_file_without_text_is_told(tmp_path: Path, command: str, file: str, content: bytes, says: str) -> None:
    if file != ".":
        (tmp_path / file).write_bytes(content)
    refused(within(command, tmp_path / file), says)


# --- files of every kind that cannot be read: each is told in a sentence with its line, as `bad_files.yaml` has them

CASES: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "bad_files.yaml").read_text("utf-8"))
READERS: Mapping[str, Callable[[Path], object]] = {
    "trace.csv": read_trace,
    "trace.jsonl": read_trace,
    "catalog.yaml": load_catalog,
    "quotes.csv": lambda path: load_catalog(prices=str(path)),
    "histogram.csv": read_histogram,
    "results.json": lambda path: read_results([path]),
    "terms.yaml": lambda path: load_terms(optimizer_cases.problem(), path),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, case: dict[str, str]) -> None:
    path = tmp_path / case["file"]
    path.write_text(case["text"], "utf-8", newline="")
    with pytest.raises(InputError) as caught:
        READERS[case["file"]](path)
    message = str(caught.value)
    assert case["says"] in message
    assert str(path) in message
    assert "\n" not in message or case["file"] in {"catalog.yaml", "quotes.csv", "terms.yaml"}  # with all faults
