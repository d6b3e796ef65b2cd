"""Colocated pools that take different lengths or classes: a gateway that sends requests where the plan does."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.plans.plan import Plan, Route
from reports.answers.plan_details import deploy_sentence, what_runs
from reports.deploy.deployment import Deployment
from reports.deploy.files import deployment_files, write_deployment
from reports.deploy.hosts import PARTS, Rule, gateway_rules, misplacing, placed
from tests.deploy_cases import (
    Ask,
    Case,
    classes_plan,
    deployment_of,
    options,
    parted_plan,
    plan_of,
    served_by,
    with_routes,
)


def test_the_edge_lies_between_the_lengths_in_proportion() -> None:
    """512 and 2,048 tokens meet at 1,024, at four bytes each; a tenth of the long prompts go to the small GPUs."""
    deployment = deployment_of(parted_plan(), "vllm")
    assert gateway_rules(deployment) == (
        Rule("colocated-1", 4096),
        Rule("colocated-1", None, PARTS // 10),
        Rule("colocated-2"),
    )
    assert placed(gateway_rules(deployment), 4096.0, "") == {"colocated-1": 1.0}
    assert placed(gateway_rules(deployment), 4097.0, "") == pytest.approx({"colocated-1": 0.1, "colocated-2": 0.9})
    assert misplacing(deployment, gateway_rules(deployment)) == pytest.approx(0.0, abs=1e-12)


def test_pools_that_share_every_length_get_their_own_shares_of_it() -> None:
    """Behind a least-requests router, the faster GPUs would get as many requests at a time as the slower ones."""
    plan = plan_of((Case("colocated", "H100"), Case("colocated", "L40S")))
    shares = {"colocated-1": 0.7, "colocated-2": 0.3}
    shared = with_routes(plan, served_by(shares), served_by(shares))
    rules = (Rule("colocated-1", None, 7 * PARTS // 10), Rule("colocated-2"))
    assert gateway_rules(deployment_of(shared, "vllm")) == rules
    files = dict(deployment_files(shared, options("vllm")))
    assert "\n  # all requests\n  use_backend colocated-1 if { rand(10000) lt 7000 }" in files["router.cfg"]
    assert "The router chooses a pool at random, in the plan's shares (`router.cfg`)" in files["README.md"]


def test_lengths_that_a_gateway_cannot_tell_apart_are_refused() -> None:
    plan = parted_plan()
    alike = with_routes(plan, {}, {"isl": plan.routing[0].isl})
    with pytest.raises(InputError, match=r"a pool would get 81.8 % on top of .* optimize FILE --target vllm$"):
        deployment_files(alike, options("vllm"))
    assert deploy_sentence(alike, what_runs(alike)) == "No deployment target runs this plan (pdplan deploy says why)."


@st.composite
def parted(draw: st.DrawFn) -> Deployment:
    """Any routing by length of three pools: what a plan with fractional routing may say."""
    deployment = deployment_of(plan_of(tuple(Case("colocated", gpu) for gpu in ("H100", "L40S", "H200"))), "vllm")
    lengths = draw(st.lists(st.integers(1, 60_000), min_size=2, max_size=8, unique=True))
    routes = []
    for length in lengths:
        weights = draw(st.tuples(*[st.sampled_from([0, 0, 1, 2, 7])] * 3).filter(any))
        parts = {pool.name: weight / sum(weights) for pool, weight in zip(deployment.pools, weights, strict=True)}
        fields = {"slo_class": "", "isl": length, "osl": 64.0, "share": 1.0 / len(lengths), "attainment": 1.0}
        routes.append(Route.model_validate(fields | {"prefill": parts, "decode": parts}))
    return replace(deployment, routes=tuple(routes))


@given(deployment=parted())
def test_every_length_finds_the_pools_of_the_plan(deployment: Deployment) -> None:
    lengths = sorted(route.isl for route in deployment.routes)
    if any(longer < 1.001 * length + 1.0 for length, longer in pairwise(lengths)):
        return  # closer than a byte can tell
    rules = gateway_rules(deployment)
    for route in deployment.routes:
        parts = placed(rules, 4.0 * route.isl, "")
        assert sum(parts.values()) == pytest.approx(1.0)
        for pool in deployment.pools:
            assert parts.get(pool.name, 0.0) == pytest.approx(route.decode.get(pool.name, 0.0), abs=3.0 / PARTS)


# --- the emitted gateway as HAProxy runs it, in front of mock engines on loopback; skipped where there is no HAProxy

HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"
PATIENCE = 60
"""Seconds after which something that never comes is given up."""
Reply = tuple[int, str]
"""Status, and the name of the engine that answered."""
Seen = list[tuple[str, bytes]]
"""Engines by name, and the bodies of the requests that they got."""
BLOCKS = {"remote_engine_id": "engine-of-prefill", "remote_block_ids": [3, 1, 4], "remote_host": "127.0.0.1"}

needs_haproxy = pytest.mark.skipif(not Path(HAPROXY).exists(), reason="HAProxy is not installed")


class Engine(ThreadingHTTPServer):
    """A mock engine with the engines' HTTP interface: its completions say its name, and `seen` notes what was asked."""

    daemon_threads = True

    def __init__(self, name: str, seen: Seen | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.name, self.seen = name, seen if seen is not None else []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.answer({"status": "ok", "object": "list", "data": [{"id": "model"}]})

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/completions":  # routers ask engines to split prompts into tokens, and do without
            self.send_error(404)
            return
        name = self.server.name
        self.server.seen.append((name, asked))
        extra = {"kv_transfer_params": {"do_remote_prefill": True, **BLOCKS}} if name == "prefill" else {}
        choices = [{"index": 0, "text": name, "finish_reason": "length"}]
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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def gateway(plan: Plan, folder: Path) -> Iterator[tuple[int, dict[str, Engine]]]:
    """The emitted script on free ports; yields the port for clients, and the engines by name."""
    write_deployment(plan, options(plan.engine), folder)
    config, client = (folder / "router.cfg").read_text("utf-8"), free_port()
    config = config.replace("bind :8000", f"bind 127.0.0.1:{client}")
    config = config.replace("bind :29000", f"bind 127.0.0.1:{free_port()}")
    with ExitStack() as stack:
        engines = {}
        for name in re.findall(r"^  server (\S+)", config, flags=re.MULTILINE):
            engines[name] = stack.enter_context(Engine(name))
            stack.callback(engines[name].shutdown)
            config = re.sub(rf'(server {name} "\S+):\d+"', rf'\g<1>:{engines[name].server_port}"', config)
        (folder / "router.cfg").write_text(config, "utf-8")
        hosts = (folder / "hosts.env").read_text("utf-8")
        (folder / "hosts.env").write_text(re.sub(r"(?m)^(HOST_\w+)=.*", r"\1=127.0.0.1", hosts), "utf-8")
        path = f"{Path(HAPROXY).parent}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", str(folder / "router.sh")],
            env=os.environ | {"PATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait, PATIENCE)
        stack.callback(process.terminate)
        wait_for(client)
        yield client, engines


def wait_for(port: int) -> None:
    """Until somebody listens on a port."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "HAProxy did not start"
            time.sleep(0.05)
        else:
            return


def ask(port: int, size: int, method: str = "POST", **headers: str) -> Reply:
    """One request with a body of a size."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, "/v1/completions", b"x" * size, headers)
    reply = connection.getresponse()
    choices = re.findall(r'"text": "([^"]*)"', reply.read().decode())
    connection.close()
    return reply.status, "".join(choices)


@pytest.fixture(scope="module")
def by_length(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, Engine]]]:
    with gateway(parted_plan(), tmp_path_factory.mktemp("gateway") / "out") as running:
        yield running


ALIKE = plan_of((Case("colocated", replicas=3),), Ask(engine="trtllm"))
"""Engines that do both stages, before which trtllm-serve has no router."""


@needs_haproxy
@pytest.mark.parametrize("plan", [parted_plan(), classes_plan(), ALIKE], ids=["length", "class", "alike"])
def test_haproxy_takes_the_file(plan: Plan, tmp_path: Path) -> None:
    write_deployment(plan, options(plan.engine), tmp_path / "out")
    lines = (tmp_path / "out" / "hosts.env").read_text("utf-8").splitlines()
    hosts = {line.partition("=")[0]: "127.0.0.1" for line in lines if not line.startswith("#")}
    command = [HAPROXY, "-c", "-f", str(tmp_path / "out" / "router.cfg")]
    done = subprocess.run(command, env=os.environ | hosts, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_haproxy
@pytest.mark.parametrize("size", [4097, 2048 * 4, 400_000])
def test_long_prompts_are_parted_as_planned(by_length: tuple[int, dict[str, Engine]], size: int) -> None:
    """Of 200 requests about 20 go to the small GPUs: 1 to 60 but for one time in 10^9."""
    expected = placed(gateway_rules(deployment_of(parted_plan(), "vllm")), float(size), "")
    count = Counter(ask(by_length[0], size)[1].rpartition("-")[0] for _ in range(200))
    assert expected == pytest.approx({"colocated-1": 0.1, "colocated-2": 0.9})
    assert set(count) == set(expected)
    assert 1 <= count["colocated-1"] <= 60


@needs_haproxy
def test_a_pool_goes_on_without_one_of_its_engines_and_no_other_stands_in(tmp_path: Path) -> None:
    with gateway(parted_plan(), tmp_path / "out") as (port, engines):
        stop(engines["colocated-1-0"])
        assert {ask(port, 8) for _ in range(4)} == {(200, "colocated-1-1")}
        stop(engines["colocated-1-1"])
        assert ask(port, 8)[0] == 503


def stop(engine: Engine) -> None:
    engine.shutdown()
    engine.server_close()


@needs_haproxy
def test_classes_find_their_pools_by_the_header(tmp_path: Path) -> None:
    with gateway(classes_plan(), tmp_path / "out") as (port, _):
        for label, pool in (("interactive", "colocated-1"), ("class-2", "colocated-2")):
            assert ask(port, 100, **{"X-SLO-Class": label}) == (200, f"{pool}-0")
        assert ask(port, 100)[0] == 400
        assert ask(port, 100, **{"X-SLO-Class": "other"})[0] == 400
        assert ask(port, 0, "GET")[0] == 200


# --- a real handshake on loopback: the engines' own routers, started by the emitted scripts, reach prefill and decode

PROGRAMS = Path(sys.executable).parent

needs_vllm_router = pytest.mark.skipif(
    not (PROGRAMS / "vllm-router").exists(), reason="vllm-router has no wheel for this machine, or is not installed"
)


@contextmanager
def router(folder: Path, ports: dict[str, int]) -> Iterator[int]:
    """The emitted script with its ports replaced by free ones; yields the port for clients."""
    client, metrics = free_port(), free_port()
    text = (folder / "router.sh").read_text("utf-8").replace("--port 8000", f"--port {client}")
    for emitted, used in ports.items():
        text = text.replace(emitted, f"{emitted.partition(':')[0]}:{used}")
    script = folder / "router-here.sh"
    script.write_text(text.rstrip() + f" --prometheus-port {metrics}\n", "utf-8")
    folders = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(["bash", str(script)], env=os.environ | {"PATH": folders}, stdout=subprocess.DEVNULL)
    try:
        yield client
    finally:
        process.terminate()
        process.wait(20)


def completion(port: int, seen: Seen) -> dict[str, Any]:
    """Ask for five tokens; tries until the router has started and knows its engines, and forgets what failed."""
    body = json.dumps({"model": "model", "prompt": "hello", "max_tokens": 5}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        seen.clear()
        try:
            with urllib.request.urlopen(request, timeout=10.0) as reply:
                return dict(json.load(reply))
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@needs_vllm_router
def test_a_request_goes_through_prefill_to_decode_with_the_blocks(tmp_path: Path) -> None:
    pair = (Case("prefill", seqs=8, tokens=8192), Case("decode"))
    write_deployment(plan_of(pair, Ask(prefix=0.5)), options("vllm"), tmp_path / "out")
    seen: Seen = []
    with Engine("prefill", seen) as prefill, Engine("decode", seen) as decode:
        ports = {"HOST_H100_0}:8100": prefill.server_port, "HOST_H100_0}:8200": decode.server_port}
        with router(tmp_path / "out", ports) as client:
            answer = completion(client, seen)
    assert answer["choices"][0]["text"] == "decode"
    assert [name for name, _ in seen] == ["prefill", "decode"]
    first, second = (json.loads(asked) for _, asked in seen)
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert first["max_tokens"] == 1
    assert second["kv_transfer_params"].items() >= ({"do_remote_prefill": True} | BLOCKS).items()
    assert second["max_tokens"] == 5
