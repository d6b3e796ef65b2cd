"""Have the engines' own argument parsers read every command of the deployment files that pdplan writes.

    python benchmarks/real_parsers.py                  plans for three workloads, on vLLM and on SGLang
    python benchmarks/real_parsers.py PLAN.json ...    these plans
    python benchmarks/real_parsers.py --environment DIR    keeps what it installs (5 GB) for the next run

Each plan is written for every target that runs it, for vLLM in its oldest and newest version and two between. From the
scripts, compose files and pods each command is taken that starts an engine, a worker of Dynamo, its frontend or a
router, and read by the parser of that very version, out of its wheel; workers of Dynamo check what they are told
besides. Each parser must refuse a flag that does not exist. Modules that only GPUs need are stubbed. TensorRT-LLM's
wheel is no public package, so its commands are counted, not read. Needs Linux, pip and some minutes. Exit code 1 if a
parser refuses a command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.parser_probe import MISSING  # noqa: E402 -- the repository is found first
from benchmarks.real_engine import engine_environment, run  # noqa: E402
from costmodel.errors import InputError  # noqa: E402
from optimizer.loads.effort import Level  # noqa: E402
from optimizer.plans.plan import Plan, parse_plan  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from reports.deploy.deployment import Options, checked_version  # noqa: E402
from reports.deploy.files import write_deployment  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.problem import TARGETS  # noqa: E402

WORKLOADS = ("examples/chat.yaml", "examples/agents.yaml", "benchmarks/flagships/deepseek-v4-flash.yaml")
ENGINES = ("vllm", "sglang")
VLLM = ("0.20.1", "0.24.0", "0.28.0", "0.33.0")
PACKAGES = {
    "vllm": ("vllm=={version}",),
    "sglang": ("sglang==0.5.23",),
    "dynamo.vllm": ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1", "vllm==0.31.0"),
    "dynamo.sglang": ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1", "sglang==0.5.21"),
    "dynamo.frontend": ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1", "vllm==0.31.0"),
    "vllm-router": ("vllm-router==0.1.17",),
    "sglang-router": ("sglang-router==0.3.2",),
}
"""Packages in which the parser of each program is."""
COMPILED = ("ai-dynamo-runtime", "vllm-router", "sglang-router")
"""Packages whose compiled part runs without a GPU."""
PROGRAMS = {
    "vllm serve": "vllm",
    "vllm-router": "vllm-router",
    "-m sglang_router.launch_router": "sglang-router",
    "-m sglang.launch_server": "sglang",
    "-m dynamo.vllm": "dynamo.vllm",
    "-m dynamo.sglang": "dynamo.sglang",
    "-m dynamo.frontend": "dynamo.frontend",
    "trtllm-serve": "trtllm",
}
"""The program that a command starts, by the words that say so."""
WRONG = ["--no-such-flag"]
"""Arguments that every parser must refuse, for its other answers to mean something."""
Command = tuple[str, list[str]]
"""A program, and its arguments."""


def plans() -> Iterator[tuple[str, Plan]]:
    """A plan for every workload and engine that has one."""
    for workload in WORKLOADS:
        for engine in ENGINES:
            try:
                plan = optimize(load_problem(ROOT / workload, {"engine": engine, "target": "none"}), level=Level.QUICK)
            except InputError as error:
                print(f"no plan for {workload} on {engine}: {error}", file=sys.stderr)
                continue
            if plan.pools:
                yield f"{Path(workload).stem} on {engine}", plan


def written(plan: Plan, folder: Path) -> Iterator[tuple[str, str]]:
    """Target and version of every deployment of a plan, its files written below the folder."""
    for target in TARGETS:
        for version in VLLM if target.name in ("vllm", "llm-d") else (checked_version(target.name, None),):
            try:
                write_deployment(plan, Options(target.name, version), folder / target.name / version)
            except InputError as error:
                if plan.engine in target.engines:
                    print(f"    {target.name} {version}: {error}")
                continue
            yield target.name, version


def commands(folder: Path) -> Iterator[Command]:
    """Every command of the files below a folder that starts one of the programs."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".sh":
            yield from in_script(path.read_text("utf-8"), path.parent)
        elif path.suffix == ".yaml":
            for document in yaml.safe_load_all(path.read_text("utf-8")):
                yield from in_object(document, folder)


def in_script(text: str, here: Path) -> Iterator[Command]:
    """Commands of a shell script; hosts are this one, and `here` is its folder."""
    text = re.sub(r"\$\{?HOST[A-Z0-9_]*\}?", "127.0.0.1", text.replace("\\\n", " ").replace('"$here"', str(here)))
    for line in text.splitlines():
        if any(words in line for words in PROGRAMS) and not line.lstrip().startswith("#"):
            yield from started(shlex.split(line, comments=True))


def in_object(value: Any, folder: Path) -> Iterator[Command]:
    """Commands of containers and services, wherever they are in an object."""
    if isinstance(value, list):
        for inner in value:
            yield from in_object(inner, folder)
    elif isinstance(value, dict):
        words = [_in_pod(word) for word in (*_words(value, "command"), *_words(value, "args"))]
        if words and "/vllm-openai" in str(value.get("image")) and words[0].startswith("-"):
            words = ["vllm", "serve", *words]  # the image's own entry point
        if words[1:2] == ["-c"]:  # a shell, its script, its own name, and what "$@" stands for
            yield from in_script(words[2].replace('"$@"', shlex.join(words[4:])), folder)
        else:
            yield from started([word.replace("/workers/", f"{folder}/workers/") for word in words])
        for inner in value.values():
            yield from in_object(inner, folder)


def _in_pod(word: str) -> str:
    """A word as Kubernetes hands it on in the second pod of a group of LeaderWorkerSet."""
    word = re.sub(r"\$\$\(\(LWS_WORKER_INDEX \* (\d+)\)\)", r"\1", word)
    return word.replace("$(LWS_WORKER_INDEX)", "1").replace("$(LWS_LEADER_ADDRESS)", "127.0.0.1").replace("$$(", "$(")


def _words(value: dict[str, Any], key: str) -> list[str]:
    words = value.get(key)
    return list(map(str, words)) if isinstance(words, list) else []


def started(words: Sequence[str]) -> Iterator[Command]:
    """The program that a command starts, and its arguments; nothing where it is none of those looked for."""
    for start, program in PROGRAMS.items():
        marks = start.split()
        for place in range(len(words) - len(marks) + 1):
            if list(words[place : place + len(marks)]) == marks:
                yield program, list(words[place + len(marks) :])
                return


def package(requirement: str, environment: Path, folder: Path) -> Path:
    """The folder of an unpacked wheel, without what is compiled for GPUs."""
    name = requirement.partition("==")[0]
    unpacked = folder / "packages" / requirement.replace("==", "-")
    if not unpacked.exists():
        print(f"fetching {requirement}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            run([environment / "bin" / "pip", "download", "-qq", "--no-deps", requirement, "-d", wheels])
            with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
                kept = [file for file in wheel.namelist() if name in COMPILED or not file.endswith(".so")]
                wheel.extractall(unpacked, kept)
    return unpacked


def faults(program: str, version: str, argvs: list[list[str]], folder: Path) -> list[str | None]:
    """What the parser of a program says against each list of arguments, None where it takes it."""
    environment = engine_environment(folder)
    packages = [package(needed.format(version=version), environment, folder) for needed in PACKAGES[program]]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages)), "CUDA_VISIBLE_DEVICES": ""}
    stubs: list[str] = []
    while True:
        command = [environment / "bin" / "python", ROOT / "benchmarks" / "parser_probe.py", program, ",".join(stubs)]
        answer = subprocess.run(
            list(map(str, command)),
            input=json.dumps([*argvs, WRONG]),
            capture_output=True,
            text=True,
            check=False,
            env=settings,
        )
        if answer.returncode != MISSING:
            break
        stubs.append(answer.stdout.strip().splitlines()[-1])
    if answer.returncode:
        sys.exit(f"{program} {version}: its parser does not start\n{answer.stderr[-2000:]}")
    if stubs:
        print(f"    {program} {version}: not installed, so stubbed: {', '.join(stubs)}")
    said: list[str | None] = json.loads(answer.stdout.strip().splitlines()[-1])
    if said.pop() is None:
        sys.exit(f"{program} {version}: its parser takes {WRONG[0]}, so what it takes proves nothing")
    return said


def main() -> None:
    """Write, read, and say what was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", type=Path, metavar="PLAN.json")
    parser.add_argument("--environment", type=Path, help="folder that keeps what is installed")
    arguments = parser.parse_args()
    stated = [(str(path), parse_plan(path.read_bytes())) for path in arguments.plans]
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.environment or Path(scratch) / "environment").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for number, (name, plan) in enumerate(stated or plans()):
            print(name)
            files = Path(scratch) / str(number)
            for target, version in written(plan, files):
                for program, argv in commands(files / target / version):
                    read_by = version if program == "vllm" else ""
                    found[program, read_by][json.dumps(argv)].add(f"{name}, {target} {version}")
        refused = 0
        for (program, version), places in sorted(found.items()):
            if program not in PACKAGES:
                print(f"{program:16} {version:8} {len(places):4} commands not read")
                continue
            said = faults(program, version, [json.loads(argv) for argv in places], folder)
            bad = [(fault, argv) for fault, argv in zip(said, places, strict=True) if fault is not None]
            refused += len(bad)
            print(f"{program:16} {version:8} {len(places):4} commands read, {len(bad)} refused")
            for fault, argv in bad:
                print(f"    {'; '.join(sorted(places[argv]))}: {fault}\n        {shlex.join(json.loads(argv))}")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
