"""A small workload whose values the tests of bad input replace, and what a refusal looks like."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import yaml

from tests.running import QUICK, TINY, Done, pdplan, within

BAD_INPUT = 2
LONGEST = 300
"""Characters of a line of a refusal, without the names of files."""


def problem(**changes: object) -> str:
    """TINY as YAML, with values replaced by path: `workload__request_rate="-1/s"`."""
    value = copy.deepcopy(TINY)
    for path, given in changes.items():
        *parents, last = path.split("__")
        section = value
        for key in parents:
            section = section[key]
        section[last] = given
    return yaml.safe_dump(value, sort_keys=False)


def refused(done: Done, *words: str, code: int = BAD_INPUT, longest: int = LONGEST) -> str:
    """What a run that refused its input said: the exit code, and a sentence on stderr that has all the words.

    Below the sentence at most the line of the file and a caret.
    """
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("pdplan: error: ")
    assert "Traceback" not in done.stderr
    assert "bug of pdplan" not in done.stderr
    said = done.stderr.removeprefix("pdplan: error: ")
    assert all(line.startswith("  ") for line in said.splitlines()[1:]), said
    assert said.count("\n") in {1, 3}, said
    assert all(len(re.sub(r"/\S+", "", line)) <= longest for line in said.splitlines()), said
    missing = [word for word in words if word not in said]
    assert not missing, said
    return said


def write(folder: Path, text: str | bytes) -> None:
    """Write the workload.yaml of a case."""
    (folder / "w.yaml").write_bytes(text.encode() if isinstance(text, str) else text)


def optimize(folder: Path, text: str | bytes, *flags: object, code: str = "") -> Done:
    """Plan for a workload.yaml of this text by formulas, in a subprocess."""
    write(folder, text)
    return pdplan("optimize", "w.yaml", *QUICK, *flags, cwd=folder, code=code)


def optimize_within(folder: Path, text: str | bytes, *flags: object) -> Done:
    """The same, inside this process."""
    write(folder, text)
    return within("optimize", "w.yaml", *QUICK, *flags, cwd=folder)
