"""The program as tests run it, in a process of its own or inside the test's, and a workload soon planned for."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from pdplan.cli import run

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("--effort", "quick")
SECONDS = 600
"""Whatever runs longer hangs [s]."""


def demand(rate: float | str, short_share: float = 0.8, isl: int = 800, osl: int = 150) -> dict[str, Any]:
    """So many requests of `isl` and `osl` tokens as `short_share` says, the others long prompts."""
    rows = ((isl, osl, short_share), (3000, 80, round(1.0 - short_share, 9)))
    histogram = [dict(zip(("isl", "osl", "share"), row, strict=True)) for row in rows]
    return {"request_rate": rate, "max_tokens": 8192, "lengths": {"histogram": histogram}}


TINY: dict[str, Any] = {
    "schema": "pdplan.workload/1",
    "name": "tiny",
    "model": {"name": "Llama-3.1-8B"},
    "workload": demand("6/s"),
    "slo": {"ttft": "1s", "tpot": "40ms", "attainment": 0.9},
    "accelerators": ["H100"],
    "search": {"preset": "quick"},
}
THREE_GPUS: dict[str, Any] = {
    "model": TINY["model"],
    "workload": demand(20.0, 0.7),
    "slo": {"ttft": 1.0, "tpot": 0.05},
    "accelerators": [{"name": "H100", "price": 3.0}, {"name": "A100-80", "price": 2.0}, {"name": "L4", "price": 0.7}],
    "search": {"preset": "quick", "tensor_parallel": [1, 2], "max_num_seqs": [32, 128]},
}
"""Priced GPU types and few settings, so that any question is answered in some tens of milliseconds."""


def tiny(folder: Path, **sections: Any) -> Path:
    """A workload.yaml in `folder`: TINY with whole sections replaced."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | sections, sort_keys=False), "utf-8")
    return path


Done = subprocess.CompletedProcess[str]


def pdplan(*arguments: object, cwd: Path = ROOT, code: str = "", **environment: str) -> Done:
    """Run the program, or `code` with the same arguments, in a process of its own with both streams piped."""
    start = ["-c", code] if code else ["-m", "pdplan"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PDPLAN_", "NO_COLOR", "COLUMNS"))}
    settings = {"COLUMNS": "100", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        cwd=cwd,
        env=kept | settings | environment,
        timeout=SECONDS,
    )


def within(*arguments: object, cwd: Path = ROOT) -> Done:
    """The same command line inside this process: ten times as fast."""
    words = [str(word) for word in arguments]
    wide = patch.dict(os.environ, COLUMNS="100")
    with wide, chdir(cwd), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
