"""A real handshake on loopback: vllm-router, started by the emitted script, sends a request through prefill to decode.

Needs `vllm-router` (PyPI; a minute to install at most) on the PATH, or its path in PDPLAN_VLLM_ROUTER.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
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
from tests.deploy_cases import Case, options, plan_of

ROUTER = os.environ.get("PDPLAN_VLLM_ROUTER") or shutil.which("vllm-router")
BLOCKS = {"remote_engine_id": "engine-of-prefill", "remote_block_ids": [3, 1, 4], "remote_host": "127.0.0.1"}
START_SECONDS = 60

pytestmark = pytest.mark.skipif(ROUTER is None, reason="vllm-router is not installed (PDPLAN_VLLM_ROUTER)")


@contextmanager
def engine(role: str, seen: list[tuple[str, dict[str, Any]]]) -> Iterator[int]:
    """A mock engine with the engines' HTTP interface; yields its port, and notes what it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.answer({"status": "ok", "object": "list", "data": [{"id": "model"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((role, asked))
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
def router(folder: Path, ports: dict[int, int]) -> Iterator[int]:
    """The emitted script with its ports replaced by free ones; yields the port for clients."""
    client, metrics = free_port(), free_port()
    text = (folder / "router.sh").read_text("utf-8").replace("--port 8000", f"--port {client}")
    for emitted, used in ports.items():
        text = text.replace(f":{emitted}", f":{used}")
    script = folder / "router-here.sh"
    script.write_text(text.rstrip() + f" --prometheus-port {metrics}\n", "utf-8")
    folders = f"{Path(str(ROUTER)).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(["bash", str(script)], env=os.environ | {"PATH": folders}, stdout=subprocess.DEVNULL)
    try:
        yield client
    finally:
        process.terminate()
        process.wait(20)


def ask(port: int) -> dict[str, Any]:
    """Ask for five tokens; tries until the router has started."""
    body = json.dumps({"model": "model", "prompt": "hello", "max_tokens": 5}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return dict(json.load(reply))
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_a_request_goes_through_prefill_to_decode_with_the_blocks(tmp_path: Path) -> None:
    write_deployment(plan_of((Case("prefill", seqs=8, tokens=8192), Case("decode"))), options("vllm"), tmp_path / "out")
    seen: list[tuple[str, dict[str, Any]]] = []
    with ExitStack() as stack:
        prefill, decode = (stack.enter_context(engine(role, seen)) for role in ("prefill", "decode"))
        client = stack.enter_context(router(tmp_path / "out", {8100: prefill, 8101: decode}))
        answer = ask(client)
    assert answer["choices"][0]["text"] == "decode"
    assert [role for role, _ in seen] == ["prefill", "decode"]
    first, second = (asked for _, asked in seen)
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert first["max_tokens"] == 1
    assert second["kv_transfer_params"].items() >= ({"do_remote_prefill": True} | BLOCKS).items()
    assert second["max_tokens"] == 5


def test_engines_of_both_stages_share_requests(tmp_path: Path) -> None:
    write_deployment(plan_of((Case("colocated", replicas=2, tokens=8192),)), options("vllm"), tmp_path / "out")
    seen: list[tuple[str, dict[str, Any]]] = []
    with ExitStack() as stack:
        first, second = (stack.enter_context(engine("colocated", seen)) for _ in range(2))
        client = stack.enter_context(router(tmp_path / "out", {8100: first, 8101: second}))
        assert ask(client)["choices"][0]["text"] == "colocated"
    assert "kv_transfer_params" not in seen[-1][1]
