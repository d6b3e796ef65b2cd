"""Output that cannot be delivered, progress, interrupts, and files that appear whole or not at all."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from pdplan.console import Console, part_of
from reports.text import json_text, record_of
from reports.whole_files import check_directory
from tests.report_cases import load
from tests.running import ROOT, SECONDS, pdplan

FULL = Path("/dev/full")


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    """Run `pdplan` in a shell line that may redirect it: its exit code, stdout and stderr."""
    command = f"'{sys.executable}' -W error -m pdplan {line}"
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        check=False,
        cwd=ROOT,
        timeout=SECONDS,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"} | environment,
    )
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("utf-8")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("command", "encoding"), [("--help", "utf-8"), ("schema", "ascii")])
def test_a_full_disk_is_one_sentence(command: str, encoding: str) -> None:
    code, _, said = shell(f"{command} > {FULL}", PYTHONIOENCODING=encoding)
    assert (code, said) == (2, "pdplan: error: standard output cannot be written: No space left on device\n")


def test_a_reader_that_has_gone_is_quiet() -> None:
    # The pipe is made in a process of its own: none that this one has forked keeps its reading end open.
    script = "import os, sys, subprocess as s; r, w = os.pipe(); os.close(r); sys.exit(s.call(sys.argv[1:], stdout=w))"
    words = [sys.executable, "-c", script, sys.executable, "-m", "pdplan", "--help"]
    done = subprocess.run(words, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (141, b"")


# --- streams, colour and progress: who sees what, and when


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_terminal() -> Iterator[Terminal]:
    """Make both streams a terminal, and give what is drawn on stderr; not a fixture, for pytest swaps streams too."""
    with redirect_stdout(Terminal()), redirect_stderr(Terminal()) as drawn:
        yield drawn


def test_progress_redraws_one_line_on_stderr_and_clears_it() -> None:
    with on_terminal() as drawn, Console().progress() as progress:
        progress("pricing", 0.25)
        progress("pricing", 2.0)
    assert drawn.getvalue() == f"\r\x1b[K{'█' * 5}{'·' * 15} pricing\r\x1b[K{'█' * 20} pricing\r\x1b[K"


def test_milestones_are_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().milestones() as progress:
        for number in range(41):
            progress(f"step {number}", number / 80)
    assert capsys.readouterr().err.splitlines() == [
        "  0 %  step 0", " 10 %  step 8", " 20 %  step 16", " 30 %  step 24", " 40 %  step 32", " 50 %  step 40",
        "100 %  done",
    ]  # fmt: skip
    with Console().milestones() as progress:
        searching, moving = part_of(progress, 0.0, 0.8), part_of(progress, 0.8, 1.0)
        searching("searching", 0.5)
        searching("done", 1.0)  # with its part only, so that the next one tells
        moving("moving prices", 0.0)
        searching("searching once more", 0.75)  # what is gone through again stays where it was
        moving("moving links", 0.5)
    told = capsys.readouterr().err.splitlines()
    assert told == [" 40 %  searching", " 80 %  moving prices", " 90 %  moving links", "100 %  done"]
    with pytest.raises(InputError, match="no"), Console().milestones() as progress:  # noqa: PT012 (it fails at once)
        progress("searching", 0.0)
        raise InputError("no")
    assert capsys.readouterr().err.splitlines() == ["  0 %  searching"]
    with Console().milestones():
        pass
    assert capsys.readouterr().err == ""
    with Console(json_only=True).milestones() as progress:
        assert progress is None
    with on_terminal() as drawn, Console().milestones() as progress:
        progress("pricing", 1.0)
    assert drawn.getvalue().startswith("\r")


# --- ctrl-C: 130 and one line, wherever it strikes


STRUCK_WHERE_IT_IS_SWALLOWED = """
import os, signal
from pdplan.exits import end_on_interrupt
end_on_interrupt()
{before}
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    pass
print("nobody noticed")
"""


def struck(before: str = "") -> tuple[int, str, str]:
    """Run Python code that is interrupted where exceptions are lost, as in a compiled module on its way in."""
    done = pdplan(code=STRUCK_WHERE_IT_IS_SWALLOWED.format(before=before))
    return done.returncode, done.stdout, done.stderr


def test_an_interrupt_cannot_be_swallowed() -> None:
    assert struck() == (130, "", "pdplan: error: interrupted\n")


def test_an_interrupt_removes_what_is_half_written(tmp_path: Path) -> None:
    before = (
        f"from pathlib import Path; from reports.whole_files import _write_beside as w; w(Path('{tmp_path}/a'), 'x')"
    )
    assert struck(before)[0] == 130
    assert list(tmp_path.iterdir()) == []


def test_the_program_is_ready_for_it_before_it_is_imported() -> None:
    code = "import sys, pdplan.exits; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"click", "costmodel", "pathlib", "typing", "re"} & set(loaded.stdout.split())


# --- files appear whole or not at all, and what cannot be written is said before the work


def test_a_link_out_of_the_folder_is_refused_even_with_force(tmp_path: Path) -> None:
    folder, outside = tmp_path / "plan", tmp_path / "outside.html"
    folder.mkdir()
    outside.write_text("mine")
    (folder / "report.html").symlink_to(outside)
    for force in (False, True):
        with pytest.raises(InputError, match=r"report\.html leads out of .*plan; nothing is written there"):
            check_directory(folder, ("plan.json", "report.html"), force=force)
    assert outside.read_text() == "mine"


def test_json_keeps_the_models_order_and_has_no_nan() -> None:
    plan = load("colocated")
    quantiles = replace(plan.classes[0].ttft_s, p99=math.inf, p95=math.nan)
    text = json_text(record_of(plan.model_copy(update={"ttft_s": quantiles})))
    record = json.loads(text, parse_constant=pytest.fail)
    assert list(record)[:3] == ["schema", "name", "model"]
    assert record["ttft_s"]["p99"] is None
    assert record["status"] == "optimal"
    assert text.endswith("}\n")
    again = Plan.model_validate_json(text)
    assert math.isnan(again.ttft_s.p99)
    assert json_text(record_of(again)) == text
