"""Hostile input: workload files and command lines with one thing wrong, through every command.

    python benchmarks/hostile_inputs.py [--files 300] [--lines 350] [--seed 0] [--number K ...]

Files are the examples with one value replaced, left out, renamed or added, or with their text damaged, read by
`pdplan optimize --effort quick`. Command lines are one for each use of each command, with one word replaced, dropped,
doubled, misspelt or added. Each runs inside this process in a folder of its own. A fault is

* an exit code other than 0, 2 and 3, which a traceback's is too; a warning of Python's; over LONGEST seconds of CPU;
* a refusal (2) that is no sentence after "pdplan: error: ", prints to stdout, or names neither the file, nor the key or
  the word that was changed, nor an option or argument.

Prints the faults with the number that repeats each alone (`--number`), and counts. Exit code 1 where there is a fault.
Five minutes.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.running import TINY, tiny, within  # noqa: E402 -- run as a script, the repository is found first

LONGEST = 60
"""CPU time that one input may take [s]."""
MEMORY = 8 * 2**30
"""Address space of this process: who wants more is told so [byte]."""
CHEAP = {"search": {"preset": "quick"}, "accelerators": ["H100"]}
"""Sections of the examples that are replaced, so that what is no fault is soon planned for."""
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
WORDS = (
    *("", " ", "x", "-1", "0", "-0.0", "1e308", "1e400", "nan", "inf", "-inf", "99999999999999999999", "0x10", "1_000"),
    *(
        "½",
        "٣",
        "5%",
        "500%",
        "-5%",
        "0.5",
        "10",
        "3/s",
        "5ms",
        "8GiB",
        "$2/h",
        "1:2:3",
        "2:1",
        ",",
        ":",
        "=",
        "..",
        "/",
    ),
    *(
        "no",
        "None",
        "H100",
        "Llama-3.1-8B",
        "a" * 5000,
        "'; --",
        "{{7*7}}",
        "$(id)",
        "é\u202eabc",
        "<b>",
        "\t",
        "-",
        "--",
    ),
)
"""Words in place of others."""
VALUES = (
    *WORDS,
    None,
    True,
    False,
    -1,
    0,
    1,
    0.5,
    1e308,
    10**30,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [1, 2],
    {"a": 1},
)
"""Values in place of others of a file."""
DAMAGE = (
    "\t",
    ":",
    "- ",
    "{",
    "]",
    "&a ",
    "*a",
    "!!python/object:os.system ",
    "\x00",
    "\ufeff",
    "%",
    "|",
    "? ",
    "'",
    '"',
)
"""Text put into a file somewhere."""
FILES = ("w.yaml", "plan.json", "trace.csv", "result.json", "terms.yaml", "folder", "empty", "binary", "absent")
LINES = """\
optimize w.yaml --effort quick --set slo.ttft=1s --seed 3 -o out
optimize w.yaml --effort quick --time-limit 20s --json
simulate plan.json --rate 3/s --requests 300 --seed 1 --csv rows.csv --force
simulate plan.json --concurrency 4 --requests 300 --timeline steps.json --window 5s
simulate plan.json --trace trace.csv --requests 200 --json
simulate plan.json --requests 200 --replications 2 --diurnal 0.5,1,0.8
explain w.yaml --config gpu=H100,tp=2,role=decode --config gpu=H100,role=prefill,kv_dtype=fp8
buy w.yaml --terms terms.yaml --months 6 --growth 2% --low 0% --high 4% --verify 0
autoscale plan.json --start-up 5min --least 1 --requests 200 --by-hour 2,1,1,1,1,2,4,6,5,5,5,5,5,5,5,5,5,5,5,5,5,4,3,2
resilience plan.json --losses 1 --requests 200 --seed 1 --html losses.html
whatif w.yaml --vary price.H100=2,3 --vary rate=2:4:2 --jobs 1 --no-gap --verify 0 --csv sweep.csv
whatif w.yaml --break-even price.H100 --between 1:8 --verify 0
whatif w.yaml --tornado 25% --slack 5% --verify 0 --set constraints.max_gpus=4
whatif w.yaml --shadow-prices --set constraints.budget=20
frontier w.yaml --over ttft --between 300ms:2s --verify 0 --html frontier.html
init new.yaml
schema
workload trace.csv --format azure --model Llama-3.1-8B --rate 5/s --buckets 8 --limit 100 -o made.yaml
gpus H100 --json
models Llama-3.1-8B
estimate --model Llama-3.1-8B --gpu H100 --tp 2 --role decode --weight-dtype fp8 --isl 1000 --osl 100 --batch 4
calibrate result.json --model Llama-3.1-8B --gpu H100 --tp 1 --engine vllm -o overlay.yaml
report plan.json --format md
report plan.json -o report.html
compare plan.json plan.json --format json
deploy plan.json -o files --target vllm --engine-version 0.33.0 --namespace serving
deploy plan.json --target llmd -o files --claim weights --rdma rdma/ib
validate --against result.json --plan plan.json --slo-class default
""".splitlines()
PLACE = re.compile(r"--[a-z]|\b[Aa]rgument|" + "|".join(map(re.escape, FILES)))
"""What a refusal of a command line names: an option, an argument or a file."""
TERMS = {
    "schema": "pdplan.terms/1",
    "demand": {"levels": 2},
    "accelerators": [{"name": "H100", "reserved_1_year": "$2.00/h"}],
}


class TooLong(BaseException):
    """The time is up: no command catches this."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, the text of the workload file, and what its refusal may name."""

    words: list[str]
    text: str
    named: tuple[str, ...]


def paths(value: Any, prefix: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value of a file, sections too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*prefix, key)
        yield from paths(inner, (*prefix, key))


def changed_value(draw: random.Random, value: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The file with one value replaced, left out, renamed, wrapped or joined by another; and what was touched."""
    made = copy.deepcopy(value)
    *parents, last = draw.choice(list(paths(made)))
    section: Any = made
    for key in parents:
        section = section[key]
    kind = draw.choice(("replaced", "replaced", "replaced", "left out", "renamed", "wrapped", "joined"))
    if kind == "replaced":
        section[last] = draw.choice(VALUES)
    elif kind == "wrapped":
        section[last] = [section[last]]
    elif kind == "left out" or isinstance(section, list):
        del section[last]
    elif kind == "renamed":
        section[f"{last}s"] = section.pop(last)
    else:
        section[draw.choice(WORDS)] = draw.choice(VALUES)
    return yaml.safe_dump(made, sort_keys=False, allow_unicode=True), tuple(
        key for key in (*parents, last) if isinstance(key, str)
    )


def damaged(draw: random.Random, text: str) -> str:
    """A text with a piece put in, cut off, taken out, doubled or indented."""
    at = draw.randrange(len(text))
    lines = text.splitlines(keepends=True)
    line = draw.randrange(len(lines))
    return draw.choice(
        (
            text[:at] + draw.choice(DAMAGE) + text[at:],
            text[:at],
            text[:at] + text[at + 1 :],
            "".join((*lines[: line + 1], *lines[line:])),
            "".join((*lines[:line], " " + lines[line], *lines[line + 1 :])),
        )
    )


def file_case(draw: random.Random) -> Case:
    path = draw.choice(EXAMPLES)
    value = yaml.safe_load(path.read_text("utf-8")) | CHEAP
    text, named = changed_value(draw, value) if draw.random() < 0.7 else (yaml.safe_dump(value, sort_keys=False), ())
    text = text if named else damaged(draw, text)
    return Case(["optimize", "w.yaml", "--effort", "quick"], text, ("w.yaml", *named))


def line_case(draw: random.Random) -> Case:
    words = shlex.split(draw.choice(LINES))
    at = draw.randrange(1, len(words)) if len(words) > 1 else 0
    word, before = words[at], words[at - 1]
    kind = draw.choice(("replaced", "replaced", "replaced", "dropped", "doubled", "misspelt", "added", "other file"))
    key, equals, _ = word.partition("=")
    new = {
        "replaced": [key + equals + draw.choice(WORDS) if equals else draw.choice(WORDS)],
        "dropped": [],
        "doubled": [word, word],
        "misspelt": [word[:-1]],
        "added": [word, draw.choice((*WORDS, "--nonsense"))],
        "other file": [draw.choice(FILES)],
    }[kind]
    words[at : at + 1] = new
    return Case(
        words,
        yaml.safe_dump(TINY, sort_keys=False),
        tuple(part for part in (word, key, before, *new) if part.strip(" -")),
    )


def prepare(folder: Path) -> None:
    """The files that command lines name."""
    tiny(folder).rename(folder / "w.yaml")
    done = within("optimize", "w.yaml", "--effort", "quick", "-o", "planned", cwd=folder)
    assert done.returncode == 0, done.stderr
    shutil.copy(folder / "planned" / "plan.json", folder / "plan.json")
    shutil.rmtree(folder / "planned")
    shutil.copytree(ROOT / "examples" / "histograms", folder / "histograms")
    rows = "".join(f"2023-11-16 18:00:{k % 60:02}.000,{300 + k},{50 + k % 90}\n" for k in range(60))
    (folder / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    shutil.copy(ROOT / "tests" / "benchmark_results" / "vllm_bench_serve.json", folder / "result.json")
    (folder / "terms.yaml").write_text(yaml.safe_dump(TERMS))
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)))


def fault_of(case: Case, folder: Path) -> tuple[str, int | None]:
    """What is wrong with how a case ended, "" if nothing, and its exit code."""
    (folder / "w.yaml").write_text(case.text, "utf-8")
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        done = within(*case.words, cwd=folder)
    except TooLong:
        return f"takes over {LONGEST} s", None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    said = done.stderr
    if done.returncode not in {0, 2, 3} or "Traceback" in said:
        return f"exit code {done.returncode}: {said.strip()}", done.returncode
    if re.search(r"\w*Warning:", said):
        return f"a warning: {said.strip()}", done.returncode
    if done.returncode != 2:
        return "", done.returncode
    if "pdplan: error: " not in said and case.words:  # to the program's name alone the help is an answer
        return f"no sentence: {said.strip()!r}", 2
    if done.stdout:
        return f"prints beside a refusal: {done.stdout[:200]!r}", 2
    sentence = said.partition("; see 'pdplan ")[0].removeprefix("pdplan: error: ")
    told = PLACE.search(sentence) or any(name in sentence for name in case.named)
    return ("" if told else f"names nothing: {said.strip()}"), 2


def time_is_up(*_: object) -> None:
    raise TooLong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--lines", type=int, default=350)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, action="append", help="only these, and all that they say")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, time_is_up)
    os.environ["PDPLAN_SIMULATOR"] = "python"
    codes, faults = Counter[str](), 0
    with tempfile.TemporaryDirectory() as base:
        clean = Path(base, "clean")
        clean.mkdir()
        prepare(clean)
        for number in arguments.number or range(arguments.files + arguments.lines):
            draw = random.Random(f"{arguments.seed} {number}")
            case = file_case(draw) if number < arguments.files else line_case(draw)
            folder = Path(shutil.copytree(clean, Path(base, str(number))))
            fault, code = fault_of(case, folder)
            shutil.rmtree(folder)
            codes[str(code)] += 1
            faults += bool(fault)
            if fault or arguments.number:
                print(
                    f"{number}: pdplan {shlex.join(case.words)[:200]} ({', '.join(case.named)[:80]}): {fault[:600]}",
                    flush=True,
                )
    ends = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
    print(f"{sum(codes.values())} inputs, seed {arguments.seed}: {faults} faults; ended {ends}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
