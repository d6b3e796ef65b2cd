"""Bad input, end to end: one clear sentence, the exit code, and nothing written.

A few cases run the program in a subprocess; the others run the same command line inside this process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.recommend import optimize as search
from pdplan.cli import run
from tests.bad_input_cases import BASE, lengths, optimize, optimize_within, problem, refused
from tests.running import ROOT, SECONDS, tiny, within

INFEASIBLE, INTERRUPTED = 3, 130

# --- values that are wrong ------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "unknown-gpu": (
        {"accelerators": ["H100", "H20O"]},
        ("accelerators.1: 'H20O' is not known; did you mean 'H200'?", "- H20O\n"),
    ),
    "infinite-slo": ({"slo__ttft": float("inf")}, ("slo.ttft: inf is not a finite number",)),
    "half-of-a-fleet": (
        {"search__roles": ["decode"]},
        ("search.roles: decode alone cannot serve a request", "colocated"),
    ),
    "steps-too-short-for-a-batch": (
        {"search__max_num_seqs": [512], "search__max_num_batched_tokens": [256]},
        ("search.max_num_batched_tokens: a step of 256 tokens", "512 requests", "at least 512"),
    ),
    "folder-for-a-trace": (
        {"workload__lengths": {"trace": {"path": "."}}},
        ("workload.lengths.trace.path", "is a folder"),
    ),
}
"""What golden/workload_faults.txt does not have, and one that is refused in a process of its own."""


@pytest.mark.parametrize("case", VALUES)
def test_a_wrong_value_is_named_with_its_place(case: str, tmp_path: Path) -> None:
    changes, words = VALUES[case]
    plan = optimize if case == "unknown-gpu" else optimize_within
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
    done = optimize_within(tmp_path, text, "--json")
    said = refused(done, "'parsec'", "'Llama-3.1-8B'", "'H200'", "'quick'", "zzz: is not a known key")
    places = [line for line in said.splitlines() if line.startswith("w.yaml:")]
    assert len(places) == 8
    assert places == sorted(places, key=lambda line: int(line.split(":")[1]))


def test_a_plan_and_its_deployment_go_to_different_folders(tmp_path: Path) -> None:
    refused(optimize_within(tmp_path, problem(), "-o", "out", "--deploy", "./out"), "same folder, out", "out/deploy")
    assert not (tmp_path / "out").exists()


def test_an_override_is_named_as_one(tmp_path: Path) -> None:
    done = optimize_within(tmp_path, problem(), "--set", "slo.ttft=-1s", "--set", "accelerators.0=H20O")
    refused(
        done,
        "(overridden by slo.ttft=-1s): slo.ttft: '-1s'",
        "(overridden by accelerators.0=H20O): accelerators.0",
        "'H200'",
    )


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
    done = optimize_within(tmp_path, problem(**{f"slo__{limit}": value}))
    said = refused(done, limit, "below the physical floor", " ms more", code=INFEASIBLE)
    needed, more = (float(said.split(" ms" + after)[0].split()[-1]) for after in (" for ", " more"))
    assert needed - more == pytest.approx(float(value.removesuffix("ms")), abs=0.51 if limit == "ttft" else 0.011)


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
    assert "below the physical floor" in refusal["reason"]
    assert "below the physical floor" in plan.stderr
    assert not within("optimize", file).stdout


def test_a_run_that_physics_forbids_leaves_no_folder(tmp_path: Path) -> None:
    file = tiny(tmp_path, slo={"ttft": "1s", "tpot": "0.1ms", "attainment": 0.9})
    assert within("optimize", file, "-o", tmp_path / "plans" / "first").returncode == INFEASIBLE
    assert not (tmp_path / "plans").exists()
    (tmp_path / "mine").mkdir()
    assert within("optimize", file, "-o", tmp_path / "mine").returncode == INFEASIBLE
    assert (tmp_path / "mine").exists()


def test_a_model_that_fits_nowhere_says_how_large_it_is(tmp_path: Path) -> None:
    done = optimize_within(tmp_path, problem(model="DeepSeek-V3", accelerators=["L4"]))
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
    assert slacks
    assert all(slack is None or slack < 0 for slack in slacks)  # a limit of 0 has no relative slack
    assert {row["kind"] for row in plan["alternatives"] if row["pools"]} == {"nearest_miss"}


def test_an_slo_just_out_of_reach_is_no_success(tmp_path: Path) -> None:
    """One request in a thousand may miss limits that it just meets alone, and eight GPUs are one fast replica."""
    few = {"constraints": {"max_gpus": 8}, "slo__percentile": "p99.9"}
    floors = [
        optimize_within(tmp_path, problem(**few, **{f"slo__{limit}": "1us"})).stderr for limit in ("ttft", "tpot")
    ]
    ttft, tpot = (float(said.split(" ms for ")[0].split()[-1]) for said in floors)
    slo = {"ttft": f"{ttft * 1.002}ms", "tpot": f"{tpot * 1.05}ms", "percentile": "p99.9"}
    done = optimize_within(tmp_path, problem(constraints=few["constraints"], slo=slo), "-o", "plan")
    assert done.returncode == INFEASIBLE, done.stderr
    assert done.stdout.startswith("No fleet ")
    assert "Nearest miss: " in done.stdout
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text("utf-8"))
    assert plan["status"] in {"infeasible", "time_limit"}
    assert plan["pools"] == []


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
    refused(optimize_within(old_plan.parent, problem(slo__ttft="1ms"), "-o", "plan"), "floor", code=INFEASIBLE)


def test_an_interrupted_search_is_130_and_writes_nothing(old_plan: Path) -> None:
    code = AT.format(module="optimizer.recommend.optimize", function="instance_of_problem", signal="SIGINT")
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
    assert done.stdout.startswith("Run 1 colocated replica of 1 × H100")


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


# --- flags and paths that cannot be meant: exit code 2 and one sentence, before any work is done

CHAT = str(ROOT / "examples" / "chat.yaml")
PLAN = (ROOT / "tests" / "plans" / "colocated.json").read_bytes()
LARGE = "1" + "0" * 30
LONG = "a" * 5000
ESTIMATE = ("estimate", "--model", "Llama-3.1-8B", "--gpu", "H100")


def refused_by(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What the program says when it refuses this command line."""
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("pdplan: error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--memory-fraction", "nan"), "'--memory-fraction': 'nan' is not a share; write for example 0.3 or 30%"),
        (("--memory-fraction", "0"), "0 is out of range; must be at least 0.1 and at most 1 (10% to 100%)"),
        (("--weight-dtype", "fp9"), "invalid value for '--weight-dtype': 'fp9' is not known; did you mean 'fp8'?"),
        (("--batch", LARGE), "is not in the range 1 to 65,536"),
        (("--isl", LARGE), "is not in the range 1 to 16,777,216"),
        (("--osl", LARGE), "is not in the range 1 to 16,777,216"),
        (("--max-num-batched-tokens", LARGE), "is not in the range 16 to 1,048,576"),
        (("--tp", LARGE), "is not in the range 1 to 1,024"),
        (("--isl", "200000"), "200,256 tokens, which exceed the context of Llama-3.1-8B, 131,072 tokens"),
    ],
)
def test_an_estimate_of_what_cannot_be_is_refused(
    flags: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused_by(capsys, *ESTIMATE, *flags)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("deploy", "plan.json", "--target", "llm-d"), "'trtllm'; did you mean 'llmd'? see"),
        (("deploy", "plan.json", "--target", "ray"), "'trtllm'; see"),
        (("explain", "w.yaml", "--model", "x"), "no such option '--model'; see 'pdplan explain --help'"),
        (("explain", "w.yaml", "--confg", "x"), "no such option '--confg'; did you mean --config? see"),
        (("models", "foo"), "NAME: model 'foo' is not known; known: BLOOM-176B, "),
        (("gpus", "Rubin-NVL144"), "NAME: accelerator 'Rubin-NVL144' is not known; did you mean 'VR200'?"),
        (("gpus", "Foo"), "NAME: accelerator 'Foo' is not known; known: A10, "),
    ],
)
def test_the_nearest_name_is_offered_where_one_is_near(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused_by(capsys, *words)


CALIBRATE = ("calibrate", str(ROOT / "tests" / "benchmark_results" / "vllm_bench_serve.json"))


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "--model", "Llama-3.1-8B", "--gpu", " "),
        ("estimate", "--gpu", "H100", "--model", " "),
        (*ESTIMATE, "--engine", " "),
        (*ESTIMATE, "--weight-dtype", " "),
        (*CALIBRATE, "--model", "Llama-3.1-8B", "--gpu", " "),
        (*CALIBRATE, "--gpu", "H100", "--model", " "),
        (*CALIBRATE, "--model", "Llama-3.1-8B", "--gpu", "H100", "--engine", " "),
        ("workload", "absent.csv", "-o", "absent.yaml", "--model", " "),
        ("deploy", str(ROOT / "tests" / "plans" / "colocated.json"), "-o", "absent", "--engine-version", " "),
        ("gpus", " "),
        ("models", " "),
    ],
    ids=" ".join,
)
def test_a_blank_name_is_refused_by_the_option_that_states_it(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    option = words[-2] if words[-2].startswith("-") else "NAME"
    assert option in refused_by(capsys, *words)


def test_a_range_that_is_none_is_shown_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.yaml"
    assert run(["init", str(file)]) == 0
    capsys.readouterr()
    asked = ("frontier", file, "--over")
    assert "is not LOW:HIGH, such as 300ms:2s" in refused_by(capsys, *asked, "ttft", "--between", "300ms")
    said = refused_by(capsys, *asked, "attainment", "--between", "50:99")
    assert "ends at 99; goals are below 1, such as 0.999; did you mean 99%?" in said


def test_a_column_that_is_not_recognised_is_named_as_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "my.csv"
    trace.write_text("when,isl,osl\n1,2,3\n")
    assert "name it, e.g. --columns arrival=" in refused_by(capsys, "workload", trace)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("optimize", CHAT, "--time-limit", "1e300s"), "'1e300s' is out of range; must be at least 1ms and at most 1d"),
        (("optimize", CHAT, "--seed", "9" * 400), "'--seed'"),
        (("optimize", CHAT, "--set", "accelerators.²=H200"), "accelerators.²"),
        (("optimize", CHAT, "--set", f"accelerators.{LARGE}=H200"), "accelerators.1000"),
        (("buy", CHAT, "--growth", "ab"), "'--growth': 'ab' is not a share; write for example 0.3 or 30%"),
        (("buy", CHAT, "--growth", "%"), "'--growth': '%' is not a share; write for example 0.3 or 30%"),
        (("buy", CHAT, "--growth", "500%"), "'--growth': '500%' is out of range; must be at least -0.9 and at most 1"),
        (
            ("buy", CHAT, "--high", "8"),
            "'--high': 8 is out of range; must be at least -0.9 and at most 1 (-90% to",
        ),
        (("buy", CHAT, "--low", ""), "'--low': '' is not a share"),
        (("workload", CHAT, "--rate", "1e300/s"), "'1e300/s' is out of range; must be at least 1e-06"),
        (("workload", CHAT, "--limit", LARGE), "'--limit'"),
    ],
)
def test_a_number_beyond_belief_is_refused(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused_by(capsys, *flags)


PATHS = [
    ("optimize",),
    ("workload",),
    ("report",),
    ("init",),
    ("gpus", "--catalog"),
    ("models",),
    ("optimize", CHAT, "-o"),
    ("report", str(ROOT / "tests" / "plans" / "colocated.json"), "-o"),
]


@pytest.mark.parametrize("command", PATHS, ids=" ".join)
@pytest.mark.parametrize("name", [LONG, f"./{LONG}/plan.json", "a\0b"], ids=["long", "long-folder", "nul"])
def test_a_name_that_cannot_be_is_refused(
    command: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused_by(capsys, *command, name)
    assert len(said) < 1500
    assert said.count("a") < 400


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("command", [*PATHS[:3], *PATHS[4:]], ids=" ".join)
def test_a_pipe_is_not_waited_for(command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused_by(capsys, *command, tmp_path / "pipe")


def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "make_instance", lambda *_, **__: pytest.fail("the search began"))
    (tmp_path / "report.html").mkdir()
    (tmp_path / "plan.json").write_bytes(PLAN)
    assert "report.html is a folder" in refused_by(capsys, "optimize", CHAT, "-o", tmp_path)
    (tmp_path / "w.yaml").write_text("mine")
    assert "w.yaml exists" in refused_by(capsys, "workload", tmp_path / "absent.csv", "-o", tmp_path / "w.yaml")
    assert (tmp_path / "w.yaml").read_text() == "mine"


def test_a_view_does_not_replace_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, other = tmp_path / "plan.json", tmp_path / "other.json"
    plan.write_bytes(PLAN)
    other.write_bytes(PLAN)
    said = refused_by(capsys, "report", plan, "-o", plan, "--format", "text", "--force")
    assert "plan.json is a plan, which its view would replace; choose another name" in said
    said = refused_by(capsys, "report", plan, "-o", plan, "--format", "json", "--force")
    assert f"FILE and -o name the same file, {plan}; choose another name" in said
    said = refused_by(capsys, "report", plan, "-o", other, "--format", "text", "--force")
    assert "other.json is a plan, which its view would replace; choose another name" in said
    assert plan.read_bytes() == other.read_bytes() == PLAN


def test_what_is_read_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert "name the same file" in refused_by(capsys, *words, "--force"), words
    assert {path.read_bytes() for path in files.values()} == {PLAN, b"mine"}
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/null", "/dev/full"])
def test_what_is_no_file_is_neither_read_nor_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "plan.json").write_bytes(PLAN)
    path = tmp_path / name
    for words in (
        ("validate", "-q", "--against", path),
        ("validate", "--against", path, "--plan", tmp_path / "plan.json"),
        ("whatif", CHAT, "--vary", "rate=1,2", "--jobs", "1", "--resume", path),
        ("whatif", CHAT, "--vary", "rate=1,2", "--csv", path, "--force"),
        ("buy", CHAT, "--terms", path),
        ("calibrate", path, "--model", "Llama-3.1-8B", "--gpu", "H100"),
        ("estimate", "--model", "Llama-3.1-8B", "--gpu", "H100", "--catalog", path),
        ("deploy", tmp_path / "plan.json", "-o", path),
    ):
        said = refused_by(capsys, *words)
        assert "is not a regular file" in said or "is a file, not a directory" in said, words


def test_a_search_that_finds_a_deep_or_huge_plan_in_its_way_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("[" * 200_000)
    assert "was not written by pdplan" in refused_by(capsys, "optimize", CHAT, "-o", tmp_path)
    try:
        os.truncate(plan, 10 * 2**30)
    except OSError:
        pytest.skip("no sparse files here")
    assert "was not written by pdplan" in refused_by(capsys, "optimize", CHAT, "-o", tmp_path)
