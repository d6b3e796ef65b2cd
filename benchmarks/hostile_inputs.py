"""Hostile input: files, command lines, journals, devices, links and names with one thing wrong, through every command.

    python benchmarks/hostile_inputs.py [--files 300] [--lines 350] [--journals 1500] [--devices 4000] [--links 2000]
                                        [--names 1850] [--seed 0] [--jobs 2] [--number links-17 ...]

Files are the examples with one value replaced, left out, renamed or added, or with their text damaged, read by
`pdplan optimize --effort quick`. Command lines are one for each use of each command, with one word replaced, dropped,
doubled, misspelt or added. Journals are those of a sweep with one row, or the text, damaged, or any other file. Devices
are pipes, sockets and devices in the place of a file that is read or written; links lead to files of somebody else, out
of the folder, in a ring or nowhere; names are what a file can be called. Each runs inside a process of --jobs in a
folder of its own. A fault is

* an exit code other than 0, 2 and 3, which a traceback's is too; a warning of Python's; over LONGEST seconds of CPU, or
  of waiting;
* a refusal (2) that is no sentence after "pdplan: error: ", prints to stdout, or names neither the file, nor the key or
  the word that was changed, nor an option or argument;
* a file changed that pdplan did not write, where no --force says so; a file made outside the folders that are named;
* a sweep that goes on from a damaged journal to another table.

Prints the faults with the number that repeats each alone (`--number`), and counts. Exit code 1 where there is a fault.
Fifteen minutes on two cores.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reports.whole_files import written_kind  # noqa: E402 -- run as a script, the repository is found first
from search_spaces.files import shown_path  # noqa: E402
from tests.running import TINY, tiny, within  # noqa: E402

LONGEST = 20
"""CPU time that one input may take, and time that it may wait [s]."""
NAME_MAX = 255
"""Bytes of the longest name of a file."""
IDLE = 1
"""CPU time below which it waits in all that time [s]."""
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
MOST_NAMED = 50
"""Characters of a name that a refusal must show."""
FILES = (
    *("w.yaml", "plan.json", "trace.csv", "result.json", "terms.yaml", "own.yaml", "measured.csv", "sweep.log"),
    *("folder", "empty", "binary", "absent"),
)
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
whatif w.yaml --slack 5% --verify 0 --set constraints.max_gpus=4
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
deploy plan.json --target llm-d -o files --claim weights --rdma rdma/ib
validate --against result.json --plan plan.json --slo-class default
estimate --model Llama-3.1-8B --gpu H100 --catalog own.yaml
simulate plan.json --trace trace.csv --requests 200 --csv rows.csv --timeline steps.json
optimize w.yaml --effort quick -o out --deploy files
optimize w.yaml --effort quick -o out
deploy plan.json -o deployed --force
deploy plan.json --check deployed
""".splitlines()
SWEEP = "whatif w.yaml --vary rate=2,3,4 --jobs 1 --verify 1 --resume sweep.log --json"
"""The command whose journal is damaged."""
PATHS = (
    *("-o", "--csv", "--html", "--timeline", "--resume", "--write", "--deploy"),
    *("--trace", "--terms", "--catalog", "--against", "--plan", "--check"),
)
"""Options whose value is a path."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "pipe", "socket", "folder", "to-zero", "to-pipe")
"""What stands where a regular file should."""
NAMES = (
    *(b"caf\xe9.csv", b"\xff\xfe", b"a\nb.yaml", b"a\tb", b"\x1b[31mred", b"\x07", b"\x7f", b"a\rb.json", b"\xc2\x85"),
    *("é\u202eabc".encode(), "模型.yaml".encode(), "😀".encode(), "\u2028".encode(), b"n" * 255, b"m" * 256),
    *(b"-", b"--", b"-o", b"--force", b"-rf.csv", b" ", b"a b.csv", b"a'b", b'a"b', b"$(id)", b"`id`", b"a;b", b"a&b"),
    *(
        b"~",
        b"~root",
        b"%s",
        b"%00",
        b"{}",
        b"{{7*7}}",
        b"<b>",
        b"C:x",
        b"a\\b",
        b"#x",
        b"*",
        b"?",
        b"[a]",
        b"no",
        b"1e3",
    ),
    *(b"..", b".", b"./x/../y", b"x/", b"x//y", b"null", b"x" * 200 + b".yaml", b"d/" * 60 + b"x"),
)
"""What a file may be called, as bytes."""
STRANGERS = (
    b"",
    b"{",
    b"SECRET",
    b'{"a": 1}',
    b'{"a": 1}\n{"b": 2}',
    b"a,b\n1,2\n",
    b"\0" * 5000,
    b"\xff\xfe{\0",
    b"[" * 9999,
)
"""Files that are no journal."""
PLACE = re.compile(r"--[a-z]|option '-|no such command|\A-: |\b[Aa]rgument|" + "|".join(map(re.escape, FILES)))
"""What a refusal of a command line names: an option, an argument or a file."""
TERMS = {
    "schema": "pdplan.terms/1",
    "demand": {"levels": 2},
    "accelerators": [{"name": "H100", "reserved_1_year": "$2.00/h"}],
}


class TooLong(BaseException):
    """The time is up: no command catches this."""


def nothing(_folder: Path) -> None:
    """Nothing to lay."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, the text of the workload file, and what its refusal may name.

    lay: puts what is hostile into the folder; same: what is printed where the command succeeds, if it is told.
    """

    words: list[str]
    text: str
    named: tuple[str, ...]
    lay: Callable[[Path], None] = nothing
    same: str = ""


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
    word, before, after = words[at], words[at - 1], words[at + 1 : at + 2]
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
        tuple(part for part in (word, key, before, *after, *new) if part.strip(" -")),
    )


def pathful(draw: random.Random) -> tuple[list[str], int]:
    """A command line, and the place of a path in it."""
    while True:
        words = shlex.split(draw.choice(LINES))
        places = [at for at, word in enumerate(words) if at and (word in FILES or words[at - 1] in PATHS)]
        if places:
            return words, draw.choice(places)


def journal_case(draw: random.Random, folder: Path) -> Case:
    """The sweep, from a journal that is damaged or none at all."""
    lines = (folder / "sweep.log").read_bytes().splitlines(keepends=True)
    kind = draw.choice(("row", "row", "row", "row", "line", "text", "cut", "header", "stranger"))
    content = b"".join(lines)
    if kind == "row":
        at = draw.randrange(1, len(lines))
        lines[at] = damaged_row(draw, json.loads(lines[at]))
        content = b"".join(lines)
    elif kind == "line":
        at, other = draw.randrange(1, len(lines)), draw.randrange(len(lines))
        lines[at : at + 1] = draw.choice(([], [lines[at]] * 2, [lines[other]], [lines[at], lines[other]], [b"\n"]))
        content = b"".join(lines)
    elif kind == "text":
        at = draw.randrange(len(content))
        byte = bytes([draw.randrange(256)])
        content = (
            content[:at] + draw.choice((byte, b"", draw.choice(DAMAGE).encode())) + content[at + draw.choice((0, 1)) :]
        )
    elif kind == "cut":
        content = content[: draw.randrange(len(content))]
    elif kind == "header":
        header = json.loads(lines[0])
        key = draw.choice(list(header))
        content = json.dumps(header | {key: draw.choice(VALUES)}).encode() + b"\n" + b"".join(lines[1:])
    else:
        content = draw.choice(STRANGERS)

    def lay(folder: Path) -> None:
        (folder / "sweep.log").write_bytes(content)

    same = "" if content == b"" else (folder / "sweep.json").read_text("utf-8")
    return Case(shlex.split(SWEEP), yaml.safe_dump(TINY, sort_keys=False), ("sweep.log",), lay, same)


def damaged_row(draw: random.Random, row: dict[str, Any]) -> bytes:
    """A row with one value replaced, left out, renamed, doubled, swapped or changed a little."""
    *parents, last = draw.choice(list(paths(row)))
    section: Any = row
    for key in parents:
        section = section[key]
    kind = draw.choice(("replaced", "replaced", "left out", "renamed", "doubled", "nudged", "added"))
    if kind == "left out" or (kind in {"renamed", "doubled"} and isinstance(section, list)):
        del section[last]
    elif kind == "renamed":
        section[f"{last}s"] = section.pop(last)
    elif kind == "doubled":
        twice = json.dumps({last: draw.choice(VALUES)})[1:-1]
        return json.dumps(row).replace(json.dumps(last), f"{twice}, {json.dumps(last)}", 1).encode() + b"\n"
    elif kind == "nudged" and isinstance(section[last], int | float):
        section[last] += draw.choice((1, -1, 0.5, 1e-9))
    elif kind == "added" and isinstance(section, dict):
        section[draw.choice(WORDS)] = draw.choice(VALUES)
    else:
        section[last] = draw.choice(VALUES)
    return json.dumps(row).encode() + b"\n"


def device_case(draw: random.Random) -> Case:
    """A pipe, a socket, a device or a folder in the place of a file."""
    words, at = pathful(draw)
    device = draw.choice(DEVICES)
    word, words[at] = words[at], device

    def lay(folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "socket"))
        (folder / "to-zero").symlink_to("/dev/zero")
        (folder / "to-pipe").symlink_to("pipe")

    return Case([*words, *forced(draw, words)], yaml.safe_dump(TINY, sort_keys=False), (word, device), lay)


def forced(draw: random.Random, words: list[str]) -> list[str]:
    """--force now and then, where a command has it."""
    return (
        ["--force"]
        if draw.random() < 0.4 and words[0] not in {"explain", "gpus", "models", "estimate", "schema"}
        else []
    )


TARGETS = (
    "outside/key",
    "outside/page.html",
    "outside",
    "outside/new",
    "nowhere/at/all",
    "link",
    "plan.json",
    "trace.csv",
)
"""What links lead to; `link` is a ring."""


def link_case(draw: random.Random) -> Case:
    """A link in the place of a file, or of one that is written into a folder."""
    words, at = pathful(draw)
    word = words[at]
    inner = {"out": ("plan.json", "report.html"), "files": ("README.md", "SHA256SUMS", "workers", "deployment.json")}
    inner["deployed"] = inner["files"]
    place = (
        f"{word}/{draw.choice(inner[word])}" if word in inner and draw.random() < 0.8 else draw.choice((word, "link"))
    )
    target, hard = draw.choice(TARGETS), draw.random() < 0.2
    if place == "link":
        words[at] = "link"

    def lay(folder: Path) -> None:
        path = folder / place
        path.parent.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if hard and (folder / target).is_file():
            path.hardlink_to(folder / target)
        else:
            path.symlink_to(folder / target)

    named = (word, place, "link", Path(target).name)
    return Case([*words, *forced(draw, words)], yaml.safe_dump(TINY, sort_keys=False), named, lay)


def name_case(draw: random.Random) -> Case:
    """A file that is called something, read or written."""
    words, at = pathful(draw)
    word, name = words[at], os.fsdecode(draw.choice(NAMES))
    words[at] = draw.choice((name, f"./{name}", f"folder/{name}"))

    def lay(folder: Path) -> None:
        made = folder / words[at]
        if (folder / word).is_file() and not os.path.lexists(made):
            with suppress(OSError):
                shutil.copy(folder / word, made)

    return Case(
        [*words, *forced(draw, words)],
        yaml.safe_dump(TINY, sort_keys=False),
        (name, word, words[at - 1], *words[at + 1 : at + 3]),
        lay,
    )


def prepare(folder: Path) -> None:
    """The files that command lines name."""
    tiny(folder).rename(folder / "w.yaml")
    done = within("optimize", "w.yaml", "--effort", "quick", "-o", "planned", cwd=folder)
    assert done.returncode == 0, done.stderr
    shutil.copy(folder / "planned" / "plan.json", folder / "plan.json")
    (folder / "planned").rename(folder / "out")
    assert within("deploy", "plan.json", "-o", "deployed", cwd=folder).returncode == 0
    shutil.copytree(ROOT / "examples" / "histograms", folder / "histograms")
    rows = "".join(f"2023-11-16 18:00:{k % 60:02}.000,{300 + k},{50 + k % 90}\n" for k in range(60))
    (folder / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    shutil.copy(ROOT / "tests" / "benchmark_results" / "vllm_bench_serve.json", folder / "result.json")
    (folder / "terms.yaml").write_text(yaml.safe_dump(TERMS))
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "own.yaml").write_text("accelerators: {H100: {price_usd_per_hour: 3, date: 2026-01-01}}\n")
    rows = "Llama-3.1-8B,H100,vllm,1000,100,4,1,1,50,9\n"
    (folder / "measured.csv").write_text(
        f"model,accelerator,engine,isl,osl,concurrency,num_gpus,tp,ttft_ms,tpot_ms\n{rows}"
    )
    (folder / "outside").mkdir()
    (folder / "outside" / "key").write_text("SECRET")
    (folder / "outside" / "page.html").write_text("<!DOCTYPE html>\n<title>mine</title>\n")
    swept = within(*shlex.split(SWEEP), cwd=folder)
    assert swept.returncode == 0, swept.stderr
    (folder / "sweep.json").write_text(swept.stdout, "utf-8")


def digests(folder: Path) -> dict[Path, tuple[str, bool]]:
    """Every regular file of a folder, whatever links lead to it: its digest, and whether pdplan wrote it."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            ours = bool(written_kind(path)) or content.startswith(b'{"schema": "pdplan.sweep/')
            found[path] = hashlib.sha256(content).hexdigest(), ours or "deployed" in path.parts
    return found


def changed_file(case: Case, before: dict[Path, tuple[str, bool]], folder: Path) -> str:
    """What somebody else's file a command changed, or made in a folder that it does not name; empty if none."""
    after = digests(folder)
    named = [Path(os.path.realpath(folder / word)) for word in case.words if len(os.fsencode(word)) < NAME_MAX]
    forced = named if "--force" in case.words else []
    for path, (digest, ours) in before.items():
        if not ours and not _within(path, forced) and after.get(path, ("",))[0] != digest:
            return f"changed {path.relative_to(folder)}"
    made = [path for path in after.keys() - before.keys() if "outside" in path.parts and not _within(path, named)]
    return f"made {made[0].relative_to(folder)}" if made else ""


def _within(path: Path, places: list[Path]) -> bool:
    """Whether a file is one of these, or stands in one."""
    return path in places or path.parent in places


def fault_of(case: Case, folder: Path) -> tuple[str, int | None]:
    """What is wrong with how a case ended, "" if nothing, and its exit code."""
    (folder / "w.yaml").write_text(case.text, "utf-8")
    case.lay(folder)
    before = digests(folder)
    begin_clocks()
    try:
        done = within(*case.words, cwd=folder)
    except TooLong:
        return f"takes over {LONGEST} s", None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    changed = changed_file(case, before, folder)
    if changed:
        return changed, done.returncode
    if case.same and not done.returncode and done.stdout != case.same:
        return f"another table: {done.stdout[:200]}", 0
    said = done.stderr
    if done.returncode not in {0, 2, 3} or "Traceback" in said:
        return f"exit code {done.returncode}: {said.strip()}", done.returncode
    if re.search(r"\w*Warning:", said):
        return f"a warning: {said.strip()}", done.returncode
    if done.returncode != 2:
        return "", done.returncode
    if "pdplan: error: " not in said and case.words:  # to the program's name alone the help is an answer
        return f"no sentence: {said.strip()!r}", 2
    if done.stdout and "--check" not in case.words:  # the faults of a deployment are its answer
        return f"prints beside a refusal: {done.stdout[:200]!r}", 2
    sentence = said.partition("; see 'pdplan ")[0].removeprefix("pdplan: error: ")
    names = [shown_path(form)[:MOST_NAMED] for word in case.named for form in (word, os.path.normpath(word))]
    told = PLACE.search(sentence) or any(name in sentence for name in names)
    return ("" if told else f"names nothing: {said.strip()}"), 2


def begin_clocks() -> None:
    """Raise TooLong after LONGEST seconds of work, or of waiting."""
    begun = time.process_time()

    def waited(*_: object) -> None:
        if time.process_time() - begun < IDLE:
            raise TooLong

    signal.signal(signal.SIGALRM, waited)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    signal.setitimer(signal.ITIMER_REAL, LONGEST, LONGEST)


def time_is_up(*_: object) -> None:
    raise TooLong


KINDS = {"files": 300, "lines": 350, "journals": 1500, "devices": 4000, "links": 2000, "names": 1850}
"""How many inputs of each kind."""


def case_of(kind: str, draw: random.Random, clean: Path) -> Case:
    """An input of a kind."""
    if kind == "journals":
        return journal_case(draw, clean)
    drawn = {"files": file_case, "lines": line_case, "devices": device_case, "links": link_case, "names": name_case}
    return drawn[kind](draw)


def outcome(number: str, seed: int, clean: Path) -> tuple[str, Case, str, int | None]:
    """The input of a number, and how it ended."""
    kind = number.partition("-")[0]
    case = case_of(kind, random.Random(f"{seed} {number}"), clean)
    with tempfile.TemporaryDirectory(dir=clean.parent) as base:
        fault, code = fault_of(case, Path(shutil.copytree(clean, Path(base, "case"), symlinks=True)))
    return number, replace(case, lay=nothing), fault, code


def limit() -> None:
    """What each process that runs inputs is held to."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, time_is_up)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, count in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--number", action="append", help="only these, such as links-17, and all that they say")
    arguments = parser.parse_args()
    numbers = [f"{kind}-{number}" for kind in KINDS for number in range(getattr(arguments, kind))]
    codes, faults = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as base, multiprocessing.get_context("fork").Pool(arguments.jobs, limit) as pool:
        clean = Path(base, "clean")
        clean.mkdir()
        pool.apply(prepare, (clean,))
        ask = partial(outcome, seed=arguments.seed, clean=clean)
        for number, case, fault, code in pool.imap(ask, arguments.number or numbers, chunksize=10):
            codes[str(code)] += 1
            faults[number.partition("-")[0]] += bool(fault)
            if fault or arguments.number:
                line = f"pdplan {shlex.join(case.words)[:200]} ({', '.join(case.named)[:80]}): {fault[:600]}"
                print(f"{number}: {line!r}", flush=True)
    ends = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
    told = ", ".join(f"{count} in {kind}" for kind, count in faults.items() if count) or "no faults"
    print(f"{codes.total()} inputs, seed {arguments.seed}: {told}; ended {ends}")
    sys.exit(1 if faults.total() else 0)


if __name__ == "__main__":
    main()
