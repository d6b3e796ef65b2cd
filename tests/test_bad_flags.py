"""Flags and paths that cannot be meant: exit code 2 and one sentence, before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optimizer.recommend import optimize as search
from pdplan.cli import run

ROOT = Path(__file__).resolve().parent.parent
CHAT = str(ROOT / "examples" / "chat.yaml")
PLAN = (ROOT / "tests" / "plans" / "colocated.json").read_bytes()
LARGE = "1" + "0" * 30
LONG = "a" * 5000
ESTIMATE = ("estimate", "--model", "Llama-3.1-8B", "--gpu", "H100")


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
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
        (("--batch", LARGE), "is not in the range 1<=x<=65536"),
        (("--isl", LARGE), "is not in the range 1<=x<=16777216"),
        (("--osl", LARGE), "is not in the range 1<=x<=16777216"),
        (("--max-num-batched-tokens", LARGE), "is not in the range 16<=x<=1048576"),
        (("--tp", LARGE), "is not in the range 1<=x<=1024"),
        (("--isl", "200000"), "200,256 tokens, which exceed the context of Llama-3.1-8B, 131,072 tokens"),
    ],
)
def test_an_estimate_of_what_cannot_be_is_refused(
    flags: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *ESTIMATE, *flags)


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
    assert said in refused(capsys, *words)


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
    assert option in refused(capsys, *words)


def test_a_range_that_is_none_is_shown_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.yaml"
    assert run(["init", str(file)]) == 0
    capsys.readouterr()
    asked = ("frontier", file, "--over")
    assert "is not LOW:HIGH, such as 300ms:2s" in refused(capsys, *asked, "ttft", "--between", "300ms")
    said = refused(capsys, *asked, "attainment", "--between", "50:99")
    assert "ends at 99; goals are below 1, such as 0.999; did you mean 99%?" in said


def test_a_column_that_is_not_recognised_is_named_as_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "my.csv"
    trace.write_text("when,isl,osl\n1,2,3\n")
    assert "name it, e.g. --columns arrival=" in refused(capsys, "workload", trace)


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
    assert words in refused(capsys, *flags)


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
    said = refused(capsys, *command, name)
    assert len(said) < 1500
    assert said.count("a") < 400


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("command", [*PATHS[:3], *PATHS[4:]], ids=" ".join)
def test_a_pipe_is_not_waited_for(command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(capsys, *command, tmp_path / "pipe")


def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "make_instance", lambda *_, **__: pytest.fail("the search began"))
    (tmp_path / "report.html").mkdir()
    (tmp_path / "plan.json").write_bytes(PLAN)
    assert "report.html is a folder" in refused(capsys, "optimize", CHAT, "-o", tmp_path)
    (tmp_path / "w.yaml").write_text("mine")
    assert "w.yaml exists" in refused(capsys, "workload", tmp_path / "absent.csv", "-o", tmp_path / "w.yaml")
    assert (tmp_path / "w.yaml").read_text() == "mine"


def test_a_view_does_not_replace_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, other = tmp_path / "plan.json", tmp_path / "other.json"
    plan.write_bytes(PLAN)
    other.write_bytes(PLAN)
    said = refused(capsys, "report", plan, "-o", plan, "--format", "text", "--force")
    assert "plan.json is a plan, which its view would replace; choose another name" in said
    said = refused(capsys, "report", plan, "-o", plan, "--format", "json", "--force")
    assert f"FILE and -o name the same file, {plan}; choose another name" in said
    said = refused(capsys, "report", plan, "-o", other, "--format", "text", "--force")
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
        assert "name the same file" in refused(capsys, *words, "--force"), words
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
        said = refused(capsys, *words)
        assert "is not a regular file" in said or "is a file, not a directory" in said, words


def test_a_search_that_finds_a_deep_or_huge_plan_in_its_way_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("[" * 200_000)
    assert "was not written by pdplan" in refused(capsys, "optimize", CHAT, "-o", tmp_path)
    try:
        os.truncate(plan, 10 * 2**30)
    except OSError:
        pytest.skip("no sparse files here")
    assert "was not written by pdplan" in refused(capsys, "optimize", CHAT, "-o", tmp_path)
