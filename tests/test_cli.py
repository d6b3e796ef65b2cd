"""The program as its users run it: golden help texts, exit codes and quiet streams; each command once in a subprocess.

PDPLAN_UPDATE_GOLDEN=1 rewrites the golden files; read the diff.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from costmodel.words import listed as listed_price
from pdplan import __version__
from pdplan.cli import cli
from tests.bad_input_cases import refused
from tests.running import QUICK, ROOT, pdplan, tiny, within

GOLDEN = ROOT / "tests" / "golden" / "cli"
CHAT = ROOT / "examples" / "chat.yaml"
PLAN = ROOT / "tests" / "plans" / "colocated.json"
COMMANDS = sorted(cli.commands)
SMALL = ("--set", "accelerators=[H100]", "--set", "search=quick")
"""What is written for all accelerators is planned for one."""
ANSI = re.compile(r"\x1b|\r")
NUMBER = re.compile(r"-?[\d,]*\.?\d+")


def assert_golden(name: str, text: str) -> None:
    """Compare words, not line breaks: releases of click differ in where they wrap a help text."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8").split() == text.split()


# --- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_command(command: str) -> None:
    done = within(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2].strip() == "Examples:"
    assert_golden(f"help-{command}", done.stdout)


def test_help_opens_with_three_examples() -> None:
    done = pdplan("--help")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[2] == "Examples:"
    assert [line.split()[0] for line in lines[3:7] if line] == ["pdplan"] * 3
    assert_golden("help", done.stdout)


def test_help_loads_nothing_slow() -> None:
    code = "import sys; from pdplan.cli import run; run(['--help']); sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(done.stderr.split()) & {"numpy", "ortools", "optuna", "pydantic", "yaml", "jinja2"}


def test_version() -> None:
    assert pdplan("--version").stdout == f"pdplan, version {__version__}\n"


# --- one run per command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The main job: the shipped example, planned once for all tests that look at its outcome."""
    directory = tmp_path_factory.mktemp("main") / "plan"
    return directory, pdplan("optimize", CHAT, "-o", directory)


def test_optimize_writes_plan_and_report(planned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, done = planned
    assert done.returncode == 0, done.stderr
    plan = json.loads((directory / "plan.json").read_text("utf-8"))
    assert plan["schema"] == "pdplan.plan/2"
    assert plan["status"] in ("optimal", "feasible")
    assert plan["bound_usd_per_hour"] <= plan["cost_usd_per_hour"] * (1 + 1e-9)
    assert plan["cost_usd_per_hour"] == pytest.approx(sum(pool["usd_per_hour"] for pool in plan["pools"]))
    for row in plan["alternatives"]:
        assert None not in [value for pool in row["pools"] for value in pool.values()]
        assert (row["cost_usd_per_hour"] or 0.0) == pytest.approx(sum(pool["usd_per_hour"] for pool in row["pools"]))
    assert "<html" in (directory / "report.html").read_text("utf-8")


def test_optimize_is_plain_when_piped(planned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, done = planned
    plan = json.loads((directory / "plan.json").read_text("utf-8"))
    assert not ANSI.search(done.stdout + done.stderr)
    assert f"{plan['cost_usd_per_hour']:.2f}" in done.stdout
    *lines, following = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert following.startswith(f"Next: pdplan simulate {directory / 'plan.json'}   # --alternative")
    *steps, wrote = done.stderr.splitlines()
    assert wrote == f"wrote {directory / 'plan.json'} and {directory / 'report.html'}"
    # on a new machine the first tenth goes to the simulator, which is compiled once
    assert steps[0] in {"  0 %  pricing engines", "  0 %  compiling the simulator, once"}
    assert all(re.fullmatch(r"[ \d]{3} %  \S.*", step) for step in steps)


def test_readme_shows_what_comes_out(planned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    readme = ROOT / "README.md"
    shown = re.compile(r"(?<=```text\n)Run .*?(?=```)", re.S)
    printed = planned[1].stdout.replace(str(planned[0]), "plan")
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        readme.write_text(shown.sub(lambda _: printed, readme.read_text("utf-8")), "utf-8")
    found = shown.search(readme.read_text("utf-8"))
    assert NUMBER.sub("#", found.group()).split() == NUMBER.sub("#", printed).split()
    figures = ([float(figure.replace(",", "")) for figure in NUMBER.findall(text)] for text in (found.group(), printed))
    assert next(figures) == pytest.approx(next(figures), rel=0.01)


def test_optimize_json_prints_the_plan_and_nothing_else(tmp_path: Path) -> None:
    asked = ("optimize", tiny(tmp_path), *QUICK)
    assert within(*asked, "-o", tmp_path / "plan").returncode == 0
    done = pdplan(*asked, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    printed, written = json.loads(done.stdout), json.loads((tmp_path / "plan" / "plan.json").read_text("utf-8"))
    for plan in (printed, written):
        plan["provenance"].pop("run")
    assert printed == written


def test_report_shows_the_plan_again(planned: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    directory, first = planned
    again = pdplan("report", directory / "plan.json")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == first.stdout
    page = tmp_path / "again.html"
    assert within("report", directory / "plan.json", "-o", page).returncode == 0
    assert page.read_text("utf-8") == (directory / "report.html").read_text("utf-8")
    for flags in (("--format", "json"), ("--json",)):
        as_json = within("report", directory / "plan.json", *flags)
        assert json.loads(as_json.stdout) == json.loads((directory / "plan.json").read_text("utf-8"))


def test_init_writes_a_file_that_optimize_reads(tmp_path: Path) -> None:
    done = pdplan("init", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "Next: pdplan optimize mine.yaml -o plan"
    assert within("optimize", "mine.yaml", *QUICK, *SMALL, cwd=tmp_path).returncode in (0, 3)
    refused(within("init", "mine.yaml", cwd=tmp_path), "mine.yaml exists")
    assert within("init", "mine.yaml", "--force", cwd=tmp_path).returncode == 0
    assert within("init", "-o", "another.yaml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "another.yaml").read_text("utf-8") == (tmp_path / "mine.yaml").read_text("utf-8")
    refused(within("init", "a.yaml", "-o", "b.yaml", cwd=tmp_path), "FILE and -o")


def test_schema_accepts_the_example() -> None:
    done = pdplan("schema")
    assert (done.returncode, done.stderr) == (0, "")
    jsonschema.validate(yaml.safe_load(CHAT.read_text("utf-8")), json.loads(done.stdout))


def test_workload_reads_a_trace_and_writes_a_problem(tmp_path: Path) -> None:
    rows = [f"{0.5 * second},{100 + 7 * (second % 40)},{20 + second % 60}" for second in range(400)]
    (tmp_path / "trace.csv").write_text("arrived_s,prompt,answer\n" + "\n".join(rows) + "\n", "utf-8")
    done = pdplan(
        *("workload", "trace.csv", "--columns", "arrival=arrived_s,isl=prompt,osl=answer"),
        *("--model", "Llama-3.1-8B", "-o", "workload.yaml"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "400" in done.stdout
    assert done.stderr.splitlines()[-1] == "Next: pdplan optimize workload.yaml -o plan"
    plan = within("optimize", "workload.yaml", *QUICK, *SMALL, "--json", cwd=tmp_path)
    assert plan.returncode in (0, 3), plan.stderr
    assert json.loads(plan.stdout)["demand_rps"] == pytest.approx(2.0, rel=0.01)


def test_gpus_lists_the_catalog() -> None:
    table, listed = pdplan("gpus"), json.loads(within("gpus", "--json").stdout)
    names = [entry["name"] for entry in listed]
    assert "H200" in names
    assert all(name in table.stdout for name in names)
    assert all(entry["source"] and entry["date"] for entry in listed)
    lines = {line.split()[0]: line for line in table.stdout.splitlines() if line}
    for entry in listed:  # the price that plans use: L40S at 1.275, not 1.28
        unquoted = "borrowed_from" in entry["price"] or entry["price"]["origin"] == "assumed"
        price = listed_price(entry["price"]["usd_per_hour"])[1:-2] + "*" * unquoted
        assert f" {price} " in f"{lines[entry['name']]} ", entry["name"]
    assert "$2.8973/h" in within("gpus", "A100-40").stdout


def test_the_catalogs_models_are_understood_as_they_were() -> None:
    """Every family's notation: parameters, kinds of attention, experts and KV bytes per token of each model."""
    assert_golden("models", within("models").stdout)
    page = within("models", "DeepSeek-V4-Flash").stdout
    assert "fp8, attention and feed_forward; mxfp4, experts" in page
    for name, checkpoint in (("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct"), ("Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-32B")):
        assert f"served as     {checkpoint}\n" in within("models", name).stdout
    assert "A name without its owner may mean the checkpoint for chats" in within("models", "qwen2.5").stdout


def test_estimate_prints_one_engine() -> None:
    flags = ("--model", "Llama-3.1-70B", "--gpu", "H100", "--tp", 4)
    table, value = pdplan("estimate", *flags), json.loads(within("estimate", *flags, "--json").stdout)
    assert (table.returncode, value["ridge_point_flop_per_byte"]) == (0, pytest.approx(295.2, rel=1e-3))
    assert "FLOP/byte" in table.stdout


# --- failures -------------------------------------------------------------------------------------------------------


BAD_INPUT = yaml.safe_load((ROOT / "tests" / "bad_commands.yaml").read_text("utf-8"))
WORDED_BY_CLICK = {"unknown-option": "--sed", "unknown-command": "optimise"}
"""And what its sentences name."""


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_sentence_and_exit_code_2(case: str) -> None:
    if case in WORDED_BY_CLICK:
        refused(pdplan(*BAD_INPUT[case]), WORDED_BY_CLICK[case])
    else:
        assert_golden(f"error-{case}", refused(within(*BAD_INPUT[case]), longest=500))


def test_infeasible_is_exit_code_3_and_names_what_binds(short_runs: None, tmp_path: Path) -> None:
    asked = ("optimize", tiny(tmp_path), "--set", "workload.request_rate=60", "--set", "constraints.max_gpus=1")
    done = within(*asked, "-o", tmp_path / "plan")
    assert done.returncode == 3, done.stderr
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text("utf-8"))
    assert plan["status"] == "infeasible"
    assert plan["binding"]
    assert plan["binding"][0]["sentence"] in " ".join(done.stdout.split())
    assert (tmp_path / "plan" / "report.html").is_file()
    assert "Traceback" not in done.stderr


BUG = """
import sys
import search_spaces.catalog
def broken(*_, **__):
    raise RuntimeError("wires crossed")
search_spaces.catalog.load_catalog = broken
from pdplan.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(("flags", "traceback"), [((), False), (("-v",), True)])
def test_a_bug_is_exit_code_70_and_says_how_to_report_it(flags: tuple[str, ...], traceback: bool) -> None:
    done = pdplan("gpus", *flags, code=BUG)
    assert (done.returncode, done.stdout) == (70, "")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pdplan: error: this is a bug of pdplan")
    assert "RuntimeError: wires crossed; please report it" in last
    assert ("Traceback" in done.stderr) is traceback
