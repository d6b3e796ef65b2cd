"""The emitted gateway as HAProxy runs it, in front of mock engines on loopback; skipped where there is no HAProxy."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from optimizer.plans.plan import Plan
from reports.deploy.files import write_deployment
from reports.deploy.gateway import gateway_rules, placed
from tests.deploy_cases import Ask, Case, classes_plan, deployment_of, options, parted_plan, plan_of
from tests.test_deploy_handshake import free_port

HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"
PATIENCE = 60
"""Seconds after which something that never comes is given up."""
Reply = tuple[int, str]
"""Status and body; engines say their names."""

pytestmark = pytest.mark.skipif(not Path(HAPROXY).exists(), reason="HAProxy is not installed")


class Engine(ThreadingHTTPServer):
    """A mock engine: says its name, or waits until its client has left and notes that."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.name = name
        self.asked, self.left = threading.Event(), threading.Event()


class Answers(BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/slow":
            self.server.asked.set()
            try:
                gone = self.connection.recv(1) == b""
            except ConnectionResetError:
                gone = True
            if gone:
                self.server.left.set()
            return
        self.answer()

    def answer(self) -> None:
        body = self.server.name.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


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
            threading.Thread(target=engines[name].serve_forever, daemon=True).start()
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
    text = reply.status, reply.read().decode()
    connection.close()
    return text


@pytest.fixture(scope="module")
def by_length(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, Engine]]]:
    with gateway(parted_plan(), tmp_path_factory.mktemp("gateway") / "out") as running:
        yield running


ALIKE = plan_of((Case("colocated", replicas=3),), Ask(engine="trtllm"))
"""Engines that do both stages, before which trtllm-serve has no router."""


@pytest.mark.parametrize("plan", [parted_plan(), classes_plan(), ALIKE], ids=["length", "class", "alike"])
def test_haproxy_takes_the_file(plan: Plan, tmp_path: Path) -> None:
    write_deployment(plan, options(plan.engine), tmp_path / "out")
    lines = (tmp_path / "out" / "hosts.env").read_text("utf-8").splitlines()
    hosts = {line.partition("=")[0]: "127.0.0.1" for line in lines if not line.startswith("#")}
    command = [HAPROXY, "-c", "-f", str(tmp_path / "out" / "router.cfg")]
    done = subprocess.run(command, env=os.environ | hosts, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [1, 512 * 4, 4096])
def test_short_prompts_go_where_the_plan_sends_them(by_length: tuple[int, dict[str, Engine]], size: int) -> None:
    status, engine = ask(by_length[0], size)
    assert (status, engine.rpartition("-")[0]) == (200, "colocated-1")


@pytest.mark.parametrize("size", [4097, 2048 * 4, 400_000])
def test_long_prompts_are_parted_as_planned(by_length: tuple[int, dict[str, Engine]], size: int) -> None:
    """Of 200 requests about 20 go to the small GPUs: 1 to 60 but for one time in 10^9."""
    expected = placed(gateway_rules(deployment_of(parted_plan(), "vllm")), float(size), "")
    count = Counter(ask(by_length[0], size)[1].rpartition("-")[0] for _ in range(200))
    assert expected == pytest.approx({"colocated-1": 0.1, "colocated-2": 0.9})
    assert set(count) == set(expected)
    assert 1 <= count["colocated-1"] <= 60


def test_engines_of_tensorrt_llm_all_get_requests(tmp_path: Path) -> None:
    with gateway(ALIKE, tmp_path / "out") as (port, engines):
        assert {ask(port, 100)[1] for _ in range(30)} == set(engines)


def test_the_engines_of_a_pool_take_turns_when_none_is_busy(by_length: tuple[int, dict[str, Engine]]) -> None:
    assert {ask(by_length[0], 8)[1] for _ in range(8)} == {"colocated-1-0", "colocated-1-1"}


def test_a_request_that_does_not_say_how_long_it_is_is_refused(by_length: tuple[int, dict[str, Engine]]) -> None:
    with socket.create_connection(("127.0.0.1", by_length[0]), PATIENCE) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 411"


def test_what_has_no_body_finds_an_engine(by_length: tuple[int, dict[str, Engine]]) -> None:
    assert ask(by_length[0], 0, "GET")[0] == 200


def test_an_engine_hears_that_its_client_has_left(by_length: tuple[int, dict[str, Engine]]) -> None:
    port, engines = by_length
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/v1/slow", b"x")
    deadline = time.monotonic() + PATIENCE
    while not any(one.asked.is_set() for one in engines.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    connection.close()
    asked = next(one for one in engines.values() if one.asked.is_set())
    assert asked.left.wait(PATIENCE)


def test_a_pool_goes_on_without_one_of_its_engines_and_no_other_stands_in(tmp_path: Path) -> None:
    with gateway(parted_plan(), tmp_path / "out") as (port, engines):
        stop(engines["colocated-1-0"])
        assert {ask(port, 8) for _ in range(4)} == {(200, "colocated-1-1")}
        stop(engines["colocated-1-1"])
        assert ask(port, 8)[0] == 503


def stop(engine: Engine) -> None:
    engine.shutdown()
    engine.server_close()


def test_classes_find_their_pools_by_the_header(tmp_path: Path) -> None:
    with gateway(classes_plan(), tmp_path / "out") as (port, _):
        for label, pool in (("interactive", "colocated-1"), ("class-2", "colocated-2")):
            assert ask(port, 100, **{"X-SLO-Class": label}) == (200, f"{pool}-0")
        assert ask(port, 100)[0] == 400
        assert ask(port, 100, **{"X-SLO-Class": "other"})[0] == 400
        assert ask(port, 0, "GET")[0] == 200
