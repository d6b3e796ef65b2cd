"""Which engine the engines' own routers send a request to: the one with the fewest, or any.

    python benchmarks/router_policies.py [--router vllm|sglang] [--python PYTHON] [--requests 400] [--engines 3]
                                         [--texts 12] [--kill]

Starts the router (vllm-router comes with the extra `test`; --python names the Python that has sglang-router) before
mock engines on loopback, which take one prompt after another, of exponential times, and all answers at once. Poisson
arrivals keep them busy for 0.8 of the time. Prints for every policy, of one stage and of two, the share of the requests
that went to an engine with the fewest of that moment, where engines had different numbers of them (by chance about 40 %
of three engines), and the mean and P90 of the time that a request takes. With --texts every prompt is one of so many
long texts with a few words behind it, and the share of those is printed too that met the engine of the last one with
their text. With --kill the first engine of the first stage dies under a steady load instead, behind the router as
`pdplan deploy` writes it: prints the requests that fail. It exits with 1 where one fails that was sent over 5 s after
the death.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout, web

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_requests import print_table  # noqa: E402 -- the repository is found first
from reports.deploy.formats import render  # noqa: E402

LIMITS = [render("plain/router_limits.sh", prefixes=prefixes).split() for prefixes in (False, True)]
WRITTEN = [("cache_aware", *limits) for limits in LIMITS]
POLICIES = (("round_robin",), ("power_of_two",), ("cache_aware",), *WRITTEN)
"""As they come, and as `pdplan deploy` writes them for a plan without prefixes and with."""
LOAD, SECONDS, ANSWER = 0.8, 0.06, 4.0
"""Busy share of a prompt server; mean time of a prompt [s]; of an answer, over that of its prompt."""
WORDS = 60
"""Characters by which a text is known."""
START = 60.0
"""Longest time that a router may take to start [s]."""
LIVES, WATCHED, BETWEEN, OUTAGE = 5.0, 35.0, 0.05, 5.0
"""Times of --kill [s]: until an engine dies, how long requests are sent after that, between two, the longest outage."""
BLOCKS = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [1], "remote_host": "127.0.0.1"}


@dataclass
class Engine:
    """A mock engine; load: requests in it.

    chosen: its load and those of all engines of its stage when a request came to it; last: where the last prompt with a
    text went, by its first words; back: of those with a text known there, how many came to the same engine.
    """

    role: str
    stage: list[Engine]
    port: int = 0
    load: int = 0
    chosen: list[tuple[int, ...]] = field(default_factory=list)
    last: dict[str, Engine] = field(default_factory=dict)
    back: list[bool] = field(default_factory=list)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    runner: web.AppRunner | None = None

    async def get(self, _request: web.Request) -> web.Response:
        """Healthy, with one model."""
        return web.json_response({"status": "ok", "object": "list", "data": [{"id": "model"}]})

    async def post(self, request: web.Request) -> web.Response:
        """A completion, after the seconds that the prompt ends with."""
        if request.path != "/v1/completions":
            raise web.HTTPNotFound
        prompt = (await request.json())["prompt"]
        seconds, first = float(prompt.split()[-1]), self.stage[0]
        if prompt[:WORDS] in first.last:
            first.back.append(first.last[prompt[:WORDS]] is self)
        first.last[prompt[:WORDS]] = self
        self.chosen.append((self.load, *(one.load for one in self.stage)))
        self.load += 1
        try:
            if self.role == "decode":
                await asyncio.sleep(ANSWER * seconds)
            else:
                async with self.turn:
                    await asyncio.sleep(seconds)
        finally:
            self.load -= 1
        choice = {"index": 0, "text": self.role, "finish_reason": "length"}
        extra = {"kv_transfer_params": BLOCKS} if self.role == "prefill" else {}
        shown = {"id": "1", "object": "text_completion", "created": 1, "model": "model", "choices": [choice]}
        return web.json_response(shown | extra)


@contextlib.asynccontextmanager
async def serving(engines: Sequence[Engine]) -> AsyncIterator[None]:
    """The engines listen, each on a port of its own."""
    async with contextlib.AsyncExitStack() as stack:
        for one in engines:
            app = web.Application(client_max_size=2**24)
            app.router.add_get("/{path:.*}", one.get)
            app.router.add_post("/{path:.*}", one.post)
            one.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
            await one.runner.setup()
            stack.push_async_callback(one.runner.cleanup)
            one.port = free_port()
            await web.TCPSite(one.runner, "127.0.0.1", one.port).start()
        yield


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def command(router: str, python: str, stages: Sequence[list[Engine]], policy: Sequence[str], port: int) -> list[str]:
    """What starts the router."""
    program = (
        [f"{Path(python).parent}/vllm-router"] if router == "vllm" else [python, "-m", "sglang_router.launch_router"]
    )
    words = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()), "--policy", *policy]
    urls = [[f"http://127.0.0.1:{one.port}" for one in stage] for stage in stages]
    if len(stages) == 1:
        return [*program, *words, "--worker-urls", *urls[0]]
    split = "--vllm-pd-disaggregation" if router == "vllm" else "--pd-disaggregation"
    ends = [
        word
        for role, these in zip(("--prefill", "--decode"), urls, strict=True)
        for url in these
        for word in (role, url)
    ]
    return [*program, *words, split, *ends]


@contextlib.asynccontextmanager
async def started(words: list[str], port: int) -> AsyncIterator[Callable[[str], Awaitable[float]]]:
    """A router that runs; yields what sends a prompt and says how long it took [s].

    Raises TimeoutError where the router does not start.
    """
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with ClientSession(timeout=ClientTimeout(600)) as session:

            async def ask(prompt: str) -> float:
                body = {"model": "model", "prompt": prompt, "max_tokens": 5}
                begin = time.monotonic()
                async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as reply:
                    await reply.text()
                    reply.raise_for_status()
                return time.monotonic() - begin

            async with asyncio.timeout(START):
                while True:
                    with contextlib.suppress(ClientError):
                        await ask("0.001")
                        break
                    await asyncio.sleep(0.2)
            yield ask
    finally:
        process.terminate()
        process.wait(20)


async def times_behind(words: list[str], port: int, asked: argparse.Namespace) -> list[float]:
    """Times that requests take behind a router [s]."""
    draw = random.Random(7)
    async with started(words, port) as ask:
        under_way = []
        texts = [" ".join(str(draw.random()) for _ in range(40)) for _ in range(asked.texts or asked.requests)]
        for number in range(asked.requests):
            await asyncio.sleep(draw.expovariate(LOAD * asked.engines / SECONDS))
            text = draw.choice(texts) if asked.texts else texts[number]
            prompt = f"{text} {number} {draw.expovariate(1.0 / SECONDS):.4f}"
            under_way.append(asyncio.create_task(ask(prompt)))
        return list(await asyncio.gather(*under_way))


async def failures(
    ask: Callable[[int], Awaitable[object]], kill: Callable[[], Awaitable[None]], requests: int, before: int
) -> list[float]:
    """When the requests that failed were sent, after the death of an engine [s].

    ask: sends a request and raises ClientError or TimeoutError if that fails; before: requests after which `kill` is
    called. One is sent every BETWEEN.
    """
    sent: list[tuple[float, asyncio.Task[bool]]] = []
    dies = time.monotonic()

    async def answered(number: int) -> bool:
        with contextlib.suppress(ClientError, TimeoutError):
            await ask(number)
            return True
        return False

    for number in range(requests):
        if number == before:
            await kill()
            dies = time.monotonic()
        sent.append((time.monotonic(), asyncio.create_task(answered(number))))
        await asyncio.sleep(BETWEEN)
    return [at - dies for at, task in sent if not await task]


async def outage_row(arguments: argparse.Namespace, roles: Sequence[str], outages: list[float]) -> list[str]:
    """Cells of a killed engine; the time between its death and the last request that failed goes into `outages` [s]."""
    stages, requests = made_stages(roles, arguments.engines), round((LIVES + WATCHED) / BETWEEN)

    async def kill() -> None:
        victim = stages[0][0].runner
        assert victim is not None
        await victim.cleanup()

    async with serving([one for stage in stages for one in stage]):
        port = free_port()
        words = command(arguments.router, arguments.python, stages, WRITTEN[0], port)
        async with started(words, port) as ask:
            failed = await failures(lambda number: ask(f"{number} 0.01"), kill, requests, round(LIVES / BETWEEN))
    outages.append(max(failed, default=0.0))
    return [" and ".join(roles), f"{requests}", f"{len(failed)}", f"{outages[-1]:.1f}"]


def made_stages(roles: Sequence[str], count: int) -> list[list[Engine]]:
    """Mock engines of each role, so many."""
    stages: list[list[Engine]] = [[] for _ in roles]
    for role, stage in zip(roles, stages, strict=True):
        stage += [Engine(role, stage) for _ in range(count)]
    return stages


async def row_of(arguments: argparse.Namespace, roles: Sequence[str], policy: Sequence[str]) -> list[str]:
    """Cells of one policy."""
    stages = made_stages(roles, arguments.engines)
    async with serving([one for stage in stages for one in stage]):
        port = free_port()
        words = command(arguments.router, arguments.python, stages, policy, port)
        taken = sorted(await times_behind(words, port, arguments))
    shares = []
    for stage in stages:
        uneven = [loads for one in stage for loads in one.chosen if len(set(loads[1:])) > 1]
        shares.append(f"{sum(loads[0] == min(loads[1:]) for loads in uneven) / len(uneven):.0%}")
    mean, tail = sum(taken) / len(taken), taken[int(0.9 * len(taken))]
    back = [stage[0].back for stage in stages]
    again = [" and ".join(f"{sum(one) / len(one):.0%}" for one in back)] if arguments.texts else []
    return [" and ".join(roles), " ".join(policy), " and ".join(shares), *again, f"{mean:.3f}", f"{tail:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--python", default=sys.executable, help="whose packages have the router")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--engines", type=int, default=3, help="of each role")
    parser.add_argument("--texts", type=int, default=0, help="that prompts begin with; 0: all differ")
    parser.add_argument("--kill", action="store_true", help="an engine dies; how long do requests fail")
    arguments = parser.parse_args()
    stages = (("prefill", "decode"), ("colocated",))
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # SGLang's router also asks in HTTP/2
    if arguments.kill:
        outages: list[float] = []
        rows = [["engines", "requests", "failed", "last sent s after the kill"]]
        rows += [asyncio.run(outage_row(arguments, roles, outages)) for roles in stages]
        print_table(rows)
        sys.exit(max(outages) > OUTAGE)
    again = ["as the text before"] * bool(arguments.texts)
    rows = [["engines", "policy", "to one of the fewest", *again, "mean s", "P90 s"]]
    for roles in stages:
        rows += [asyncio.run(row_of(arguments, roles, policy)) for policy in POLICIES]
    print_table(rows)


if __name__ == "__main__":
    main()
