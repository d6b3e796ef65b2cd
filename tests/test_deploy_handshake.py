"""A real handshake on loopback: the engines' own routers, started by the emitted scripts, reach prefill and decode.

vllm-router comes with the extra `test` where it has wheels. SGLang's router is tried where a Python has it: this one,
or that of PDPLAN_SGLANG_PYTHON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reports.deploy.files import write_deployment
from tests.deploy_cases import Ask, Case, options, plan_of

PROGRAMS = Path(sys.executable).parent
SGLANG = Path(os.environ.get("PDPLAN_SGLANG_PYTHON", sys.executable)).parent
BLOCKS = {"remote_engine_id": "engine-of-prefill", "remote_block_ids": [3, 1, 4], "remote_host": "127.0.0.1"}
START_SECONDS = 60
Seen = list[tuple[str, dict[str, Any]]]

needs_vllm_router = pytest.mark.skipif(
    not (PROGRAMS / "vllm-router").exists(), reason="vllm-router has no wheel for this machine, or is not installed"
)
needs_sglang_router = pytest.mark.skipif(
    not list(SGLANG.parent.glob("lib/python*/site-packages/sglang_router")),
    reason="sglang-router is not installed (PDPLAN_SGLANG_PYTHON)",
)
PD = (Case("prefill", seqs=8, tokens=8192), Case("decode"))


class Held:
    """A prompt "hold" occupies its engine until it is released; port: of that engine."""

    def __init__(self) -> None:
        self.arrived, self.released = threading.Event(), threading.Event()
        self.port = 0

    def occupy(self, port: int) -> None:
        """Keep the engine at this port busy."""
        self.port = port
        self.arrived.set()
        self.released.wait(START_SECONDS)


@contextmanager
def engine(role: str, seen: Seen, held: Held | None = None) -> Iterator[int]:
    """A mock engine with the engines' HTTP interface; yields its port, and notes what it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.answer({"status": "ok", "object": "list", "data": [{"id": "model"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":  # routers ask engines to split prompts into tokens, and do without
                self.send_error(404)
                return
            seen.append((role, asked | {"port": self.server.server_address[1]}))
            if held is not None and role != "decode" and asked["prompt"] == "hold":
                held.occupy(self.server.server_address[1])
            choices = [{"index": 0, "text": role, "finish_reason": "length"}]
            extra = {"kv_transfer_params": {"do_remote_prefill": True, **BLOCKS}} if role == "prefill" else {}
            self.answer(
                {"id": "1", "object": "text_completion", "created": 1, "model": "model", "choices": choices} | extra
            )

        def answer(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def router(folder: Path, programs: Path, ports: dict[str, int]) -> Iterator[int]:
    """The emitted script with its ports replaced by free ones; yields the port for clients."""
    client, metrics = free_port(), free_port()
    text = (folder / "router.sh").read_text("utf-8").replace("--port 8000", f"--port {client}")
    for emitted, used in ports.items():
        text = text.replace(emitted, f"{emitted.partition(':')[0]}:{used}")
    script = folder / "router-here.sh"
    script.write_text(text.rstrip() + f" --prometheus-port {metrics}\n", "utf-8")
    folders = f"{programs}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(["bash", str(script)], env=os.environ | {"PATH": folders}, stdout=subprocess.DEVNULL)
    try:
        yield client
    finally:
        process.terminate()
        process.wait(20)


def ask(port: int, seen: Seen, prompt: str = "hello", seconds: float = 10.0) -> dict[str, Any]:
    """Ask for five tokens; tries until the router has started and knows its engines, and forgets what failed."""
    body = json.dumps({"model": "model", "prompt": prompt, "max_tokens": 5}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + START_SECONDS
    while True:
        seen.clear()
        try:
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                return dict(json.load(reply))
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def handed_over(folder: Path, programs: Path, ask_for: Ask) -> tuple[dict[str, Any], Seen]:
    """What a request to the router of one prefill and one decode engine is answered, and what these were asked."""
    write_deployment(plan_of(PD, ask_for), options(ask_for.engine), folder)
    seen: Seen = []
    with ExitStack() as stack:
        prefill, decode = (stack.enter_context(engine(role, seen)) for role in ("prefill", "decode"))
        hosts = {"HOST_H100_0}:8100": prefill, "HOST_H100_0}:8200": decode}
        client = stack.enter_context(router(folder, programs, hosts))
        return ask(client, seen), seen


@needs_vllm_router
def test_a_request_goes_through_prefill_to_decode_with_the_blocks(tmp_path: Path) -> None:
    answer, seen = handed_over(tmp_path / "out", PROGRAMS, Ask(prefix=0.5))
    assert answer["choices"][0]["text"] == "decode"
    assert [role for role, _ in seen] == ["prefill", "decode"]
    first, second = (asked for _, asked in seen)
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert first["max_tokens"] == 1
    assert second["kv_transfer_params"].items() >= ({"do_remote_prefill": True} | BLOCKS).items()
    assert second["max_tokens"] == 5


@needs_sglang_router
def test_sglangs_router_tells_both_ends_where_to_meet(tmp_path: Path) -> None:
    answer, seen = handed_over(tmp_path / "out", SGLANG, Ask(engine="sglang", prefix=0.5))
    assert answer["choices"][0]["text"] == "decode"
    assert sorted(role for role, _ in seen) == ["decode", "prefill"]
    rooms = [(asked["bootstrap_port"], asked["bootstrap_room"]) for _, asked in seen]
    assert rooms[0] == rooms[1]
    assert rooms[0][0] == 8998


@needs_vllm_router
def test_a_single_engine_of_both_stages_is_reached(tmp_path: Path) -> None:
    """Routers start with the policy where there is nothing to choose from, too."""
    write_deployment(plan_of((Case("colocated", tokens=8192),)), options("vllm"), tmp_path / "out")
    seen: Seen = []
    with ExitStack() as stack:
        only = stack.enter_context(engine("colocated", seen))
        client = stack.enter_context(router(tmp_path / "out", PROGRAMS, {"HOST_H100_0}:8100": only}))
        assert ask(client, seen)["choices"][0]["text"] == "colocated"
    assert "kv_transfer_params" not in seen[-1][1]


def sent_to_the_busy(
    folder: Path, programs: Path, pools: tuple[Case, ...], ask_for: Ask, emitted: dict[str, str]
) -> int:
    """How many of twelve prompts reach the one engine of three that is busy with another; emitted: roles by URL."""
    write_deployment(plan_of(pools, ask_for), options(ask_for.engine), folder)
    seen: Seen = []
    held = Held()
    with ExitStack() as stack:
        ports = {url: stack.enter_context(engine(role, seen, held)) for url, role in emitted.items()}
        client = stack.enter_context(router(folder, programs, ports))
        ask(client, seen)
        waiting = threading.Thread(target=ask, args=(client, [], "hold", 2.0 * START_SECONDS))
        waiting.start()
        try:
            assert held.arrived.wait(START_SECONDS)
            answers: Seen = []
            for number in range(12):
                ask(client, seen, f"{number}: {'not the same ' * number}")
                answers += [one for one in seen if one[0] != "decode" and one[1]["prompt"] != "hold"]
        finally:
            held.released.set()
            waiting.join(START_SECONDS)
    assert len(answers) == 12
    return sum(asked["port"] == held.port for _, asked in answers)


PREFILLS = {f"HOST_H100_0}}:8{number}00": "prefill" for number in (1, 2, 3)}
PAIR = (Case("prefill", replicas=3, seqs=8, tokens=8192), Case("decode")), PREFILLS | {"HOST_H100_0}:8400": "decode"}
ALIKE = (Case("colocated", replicas=3, tokens=8192),), dict.fromkeys(PREFILLS, "colocated")


@needs_vllm_router
@pytest.mark.parametrize(("pools", "emitted"), [PAIR, ALIKE], ids=["prefill", "colocated"])
def test_prompts_avoid_a_busy_engine(tmp_path: Path, pools: tuple[Case, ...], emitted: dict[str, str]) -> None:
    """As in the simulation. By the router's own power_of_two a third of them would meet a busy prefill engine."""
    assert sent_to_the_busy(tmp_path / "out", PROGRAMS, pools, Ask(), emitted) == 0


@needs_sglang_router
@pytest.mark.parametrize(("pools", "emitted"), [PAIR, ALIKE], ids=["prefill", "colocated"])
def test_sglangs_router_avoids_a_busy_engine(tmp_path: Path, pools: tuple[Case, ...], emitted: dict[str, str]) -> None:
    assert sent_to_the_busy(tmp_path / "out", SGLANG, pools, Ask(engine="sglang"), emitted) == 0


def outage(folder: Path, programs: Path, ask_for: Ask) -> float:
    """Seconds from the end of one prefill engine of two to the last request that failed."""
    pools = (Case("prefill", replicas=2, seqs=8, tokens=8192), Case("decode"))
    write_deployment(plan_of(pools, ask_for), options(ask_for.engine), folder)
    seen: Seen = []
    with ExitStack() as stack, ExitStack() as dying:
        ports = {"HOST_H100_0}:8100": dying.enter_context(engine("prefill", seen))}
        ports |= {f"HOST_H100_0}}:8{number}00": stack.enter_context(engine(role, seen))
                  for number, role in ((2, "prefill"), (3, "decode"))}  # fmt: skip
        client = stack.enter_context(router(folder, programs, ports))
        ask(client, seen)
        dying.close()
        died = failed = time.monotonic()
        while time.monotonic() < failed + 10.0 and failed < died + 60.0:
            request = urllib.request.Request(
                f"http://127.0.0.1:{client}/v1/completions",
                json.dumps(
                    {"model": "model", "prompt": f"{time.monotonic()} goes where it can", "max_tokens": 5}
                ).encode(),
                {"Content-Type": "application/json"},
            )
            try:
                urllib.request.urlopen(request, timeout=5.0).close()
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                failed = time.monotonic()
            time.sleep(0.1)
    return failed - died


@needs_vllm_router
def test_a_dead_prefill_engine_takes_no_requests_for_long(tmp_path: Path) -> None:
    """By the router's own defaults it takes them for minutes."""
    assert outage(tmp_path / "out", PROGRAMS, Ask()) <= 15.0


@needs_sglang_router
def test_sglangs_router_passes_over_a_dead_engine(tmp_path: Path) -> None:
    assert outage(tmp_path / "out", SGLANG, Ask(engine="sglang")) <= 15.0
