"""The report in a real browser: no console error, no request, every chart drawn, no text across another or outside.

Skipped where there is no Chromium. With PDPLAN_AXE=path/to/axe.min.js the accessibility rules of axe-core are run too.
"""

from __future__ import annotations

import html
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reports.answers.plan import plan_page
from tests.report_cases import load, simulated, with_accuracy, with_sensitivity
from tests.running import QUICK, tiny, within

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = os.environ.get("PDPLAN_AXE")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=20000",
)  # fmt: skip
PROBE = """
addEventListener("load", async () => {
  const box = e => e.getBoundingClientRect(), charts = [...document.querySelectorAll("svg.chart")];
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  const out = {charts: charts.length, drawn: 0, across: [], outside: [], cut: [], wide: 0, axe: []};
  for (const table of document.querySelectorAll("section.scroll"))
    if (!table.closest("details") && !table.querySelector(".steady") && table.scrollWidth > table.clientWidth + 1)
      out.cut.push(table.ariaLabel);
  for (const chart of charts) {
    const room = box(chart), texts = [...chart.querySelectorAll("text")].map(e => [e.textContent, box(e)]);
    out.drawn += room.width > 150 && room.height > 20 && chart.querySelectorAll("rect,path").length > 1;
    texts.forEach(([name, a], i) => {
      if (a.left < room.left - 2 || a.right > room.right + 2 || a.bottom > room.bottom + 2) out.outside.push(name);
      texts.slice(i + 1).forEach(([other, b]) => { if (meet(a, b)) out.across.push(name + " | " + other); });
    });
  }
  out.wide = document.documentElement.scrollWidth - innerWidth;
  const rules = window.axe ? await axe.run() : {passes: [], violations: []};
  out.rules = rules.passes.length;
  for (const {impact, id, nodes} of rules.violations)
    out.axe.push([impact, id, nodes.slice(0, 3).map(node => node.html.slice(0, 200))]);
  const note = document.createElement("pre");
  note.id = "probe"; note.textContent = JSON.stringify(out); parent.document.body.append(note);
});
"""


@dataclass
class Site:
    """Pages by path, served on this machine, and the paths that were asked for."""

    port: int = 0
    pages: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def visit(self, path: str, profile: Path, width: int = 1240) -> tuple[str, list[str]]:
        """Open a page; return its DOM and what its console said."""
        done = subprocess.run(
            [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},1000", "--dump-dom",
             f"http://127.0.0.1:{self.port}{path}"],
            capture_output=True, text=True, encoding="utf-8", check=False, timeout=180,
        )  # fmt: skip
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def probe(self, page: str, profile: Path, width: int) -> dict[str, Any]:
        """Look at a page from within, in a frame of `width` pixels; this copy of it may run code."""
        library = Path(AXE).read_text("utf-8") if AXE else ""
        opened = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        self.pages["/inner"] = opened.replace("</body>", f"<script>{library}</script><script>{PROBE}</script></body>")
        self.pages["/outer"] = (
            f"<!DOCTYPE html><html lang=en><title>t</title><body><iframe src=/inner width={width} height=900></iframe>"
        )
        dom, _ = self.visit("/outer", profile, 1400)
        found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
        assert found, dom[-500:]
        seen = dict(json.loads(html.unescape(found[1])))
        assert (seen["rules"] > 10) == bool(AXE)
        return seen


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    served = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            body = served.pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def test_it_loads_nothing_says_nothing_and_has_every_chart(site: Site, tmp_path: Path) -> None:
    site.pages["/report"] = plan_page(with_sensitivity(simulated(load("disaggregated"))))
    site.asked.clear()
    dom, console = site.visit("/report", tmp_path)
    assert console == []
    assert site.asked == ["/report"]
    assert dom.count('<svg class="chart"') == 6
    assert dom.rstrip().endswith("</html>")


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", ["disaggregated", "hostile", "infeasible"])
def test_nothing_lies_across_and_the_page_is_as_wide_as_the_screen(
    site: Site, tmp_path: Path, name: str, width: int
) -> None:
    plan = load(name)
    shown = plan if name == "infeasible" else with_accuracy(with_sensitivity(simulated(plan)))
    found = site.probe(plan_page(shown), tmp_path, width)
    assert found["charts"] == found["drawn"] >= (name != "infeasible")
    assert found["across"] == []
    assert found["outside"] == []
    assert found["wide"] <= 0
    assert found["cut"] == [] or name == "hostile"  # whose names are as long as may be
    assert found["axe"] == []


TWO_CLASSES = [
    {"name": "chat", "share": 0.7, "ttft": "800ms", "tpot": "40ms", "itl_p99": "120ms", "attainment": 0.95},
    {"name": "batch", "share": 0.3, "ttft": "5s", "e2e": "60s", "attainment": 0.9},
]


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize(
    "arguments",
    [
        ("frontier", "--over", "ttft", "--between", "0.3:2", "--verify", "0"),
        ("map", "--over", "isl=500,2000", "--over", "rate=3,12", "--jobs", "1"),
        ("simulate", "--curve", "--requests", "1000"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_pages_of_other_commands_are_as_sound(
    site: Site, tmp_path: Path, arguments: tuple[str, ...], width: int
) -> None:
    command, *options = arguments
    asked, page = tiny(tmp_path, slo=TWO_CLASSES), tmp_path / "page.html"
    if command == "simulate":
        assert within("optimize", asked, *QUICK, "-o", tmp_path / "plan").returncode == 0
        asked = tmp_path / "plan" / "plan.json"
    within(command, asked, *options, "--html", page)
    found = site.probe(page.read_text("utf-8"), tmp_path / "profile", width)
    assert found["charts"] == found["drawn"] == 1
    assert [found[name] for name in ("across", "outside", "cut", "axe")] == [[], [], [], []]
    assert found["wide"] <= 0
