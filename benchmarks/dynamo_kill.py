"""Kill a worker behind Dynamo's frontend as `pdplan deploy --target dynamo` starts it, and count lost requests.

    python benchmarks/dynamo_kill.py PLAN.json ... --environment DIR [--migrations N]

Each plan's frontend runs before Dynamo's mock workers, two that compute prompts and, where the plan hands over, one
that decodes; they find each other by files. Of 700 requests, 20 a second, one of the two is killed (-9) after 100.
Prints how many requests failed, and how long after the kill the last of these was sent. --migrations replaces the
emitted limit of hand-overs. DIR keeps what is installed (as of real_parsers.py), with the model of real_engine.py.
Exit code 1 if any request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_requests import print_table  # noqa: E402 -- the repository is found first
from benchmarks.real_engine import engine_environment, made_model  # noqa: E402
from benchmarks.real_parsers import PACKAGES, package  # noqa: E402
from benchmarks.router_policies import failures, free_port  # noqa: E402
from optimizer.plans.plan import parse_plan  # noqa: E402
from reports.deploy.deployment import default_options  # noqa: E402
from reports.deploy.describe import describe  # noqa: E402
from reports.deploy.kubernetes import router_words  # noqa: E402

REQUESTS, KILLED_AT, START = 700, 100, 300.0
"""Requests; after how many a worker dies; longest time that the start may take [s]."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""A chat template, without which Dynamo's frontend serves no model."""


@contextlib.contextmanager
def fleet(words: list[str], roles: list[str], folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A frontend and mock workers of these roles; yields where clients ask, and the first worker."""
    environment = engine_environment(folder)
    packages = [package(needed, environment, folder) for needed in PACKAGES["dynamo.frontend"] if "dynamo" in needed]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        scratch, model = Path(name), made_model(environment, folder)
        for file in model.glob("*.json"):
            (scratch / file.name).write_bytes(file.read_bytes())
        config = json.loads((scratch / "tokenizer_config.json").read_text("utf-8"))
        (scratch / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}), "utf-8")
        own = {"PYTHONPATH": os.pathsep.join(map(str, packages)), "DYN_FILE_KV": str(scratch / "found")}
        env = {**os.environ, **own, "DYN_DISCOVERY_BACKEND": "file", "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1"}

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            command = [str(environment / "bin" / "python"), "-m", *arguments]
            quiet = subprocess.DEVNULL
            process = subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet, start_new_session=True)
            stack.callback(end, process)
            return process

        workers = [
            start("dynamo.mocker", "--model-path", name, "--model-name", "model", *role) for role in map(mode, roles)
        ]
        port = str(free_port())
        start("dynamo.frontend", "--http-port", port, *words)
        yield f"http://127.0.0.1:{port}/v1/completions", workers[0]


def mode(role: str) -> list[str]:
    """What a worker is told of its role."""
    return [] if role == "colocated" else ["--disaggregation-mode", role]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def lost(url: str, victim: subprocess.Popen[bytes]) -> list[float]:
    """When the requests that failed were sent, after the death of the worker [s]."""
    async with ClientSession(timeout=ClientTimeout(60)) as session:

        async def ask(number: int) -> None:
            body = {"model": "model", "prompt": f"{number} words", "max_tokens": 10, "ignore_eos": True}
            async with session.post(url, json=body) as reply:
                await reply.read()
                reply.raise_for_status()

        async def kill() -> None:
            end(victim)

        async with asyncio.timeout(START):
            while True:
                with contextlib.suppress(ClientError, TimeoutError):
                    await ask(0)
                    break
                await asyncio.sleep(1.0)
        await asyncio.sleep(5.0)  # until the frontend knows all workers
        return await failures(ask, kill, REQUESTS, KILLED_AT)


def main() -> None:
    """Read the plans, kill, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="+", type=Path, metavar="PLAN.json")
    parser.add_argument("--environment", type=Path, required=True, metavar="DIR")
    parser.add_argument("--migrations", type=int, help="most hand-overs of a request; default: as written")
    arguments = parser.parse_args()
    rows, failures = [["plan", "frontend", "requests", "failed", "last sent s after the kill"]], 0
    for path in arguments.plans:
        deployment = describe(parse_plan(path.read_bytes()), default_options("dynamo"))
        words = router_words(deployment)
        if arguments.migrations is not None:
            words[words.index("--migration-limit") + 1] = str(arguments.migrations)
        roles = ["prefill", "prefill", "decode"] if deployment.disaggregated else ["colocated"] * 2
        with fleet(words, roles, arguments.environment.resolve()) as (url, victim):
            failed = asyncio.run(lost(url, victim))
        failures += len(failed)
        rows.append([path.stem, " ".join(words), f"{REQUESTS}", f"{len(failed)}", f"{max(failed, default=0.0):.1f}"])
    print_table(rows)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
