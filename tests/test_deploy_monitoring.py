"""What watches a fleet: the lines are the plan's own, the same everywhere, and Prometheus takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports.deploy.files import deployment_files
from reports.deploy.monitoring import watches
from tests.deploy_cases import Case, deployment_of, options, parted_plan, plan_of

PROMTOOL = shutil.which("promtool")
ALONE = (Case("colocated", replicas=3, tokens=8192),)


def rules(files: dict[str, str]) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(files["monitoring/rules.yaml"])["groups"]
    return list(group["rules"])


@pytest.mark.parametrize(
    ("capacity", "limit", "says"),
    [(7.81, 7.81, "than the fleet serves within its SLO"), (9.0, 1.05 * 7.5, "than the fleet was planned for")],
)
def test_the_rate_is_told_before_the_fleet_gives_out(capacity: float, limit: float, says: str) -> None:
    plan = plan_of().model_copy(update={"goodput_rps": capacity})
    (watch,) = (watch for watch in watches(deployment_of(plan, "vllm")) if watch.name == "request_rate")
    assert watch.limit == pytest.approx(limit)
    assert says in watch.says


@pytest.mark.parametrize("plan", [plan_of(), plan_of(ALONE), parted_plan()], ids=["pair", "alone", "parted"])
def test_a_chart_has_the_line_of_its_alert(plan: Any) -> None:
    files = deployment_files(plan, options("vllm"))
    panels = json.loads(files["monitoring/dashboard.json"])["panels"]
    lines = {panel["title"]: panel["targets"][1]["expr"] for panel in panels if len(panel["targets"]) > 1}
    limits = {watch.title: watch.limit for watch in watches(deployment_of(plan, "vllm"))}
    assert lines == {title: f"vector({limit:.6g})" for title, limit in limits.items() if limit is not None}
    recorded = {rule["record"] for rule in rules(files) if "record" in rule}
    used = {re.match(r"[a-z_:]+", panel["targets"][0]["expr"])[0] for panel in panels}  # type: ignore[index]
    assert used == recorded


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules_and_tells_of_a_dead_replica(tmp_path: Path) -> None:
    files = deployment_files(plan_of(), options("vllm"))
    for name in ("rules.yaml", "prometheus.yaml"):
        (tmp_path / name).write_text(files[f"monitoring/{name}"], "utf-8")
    here = 'deployment="case", pool="prefill-1", instance="{}"'
    series = [
        {"series": f"vllm:num_requests_running{{{here.format('a')}}}", "values": "1x20"},
        {"series": f"vllm:num_requests_running{{{here.format('b')}}}", "values": "1x5 _x15"},
        {"series": 'vllm:num_requests_running{deployment="case", pool="decode-2", instance="c"}', "values": "1x20"},
    ]
    told = {
        "alertname": "PdplanReplicas",
        "eval_time": "15m",
        "exp_alerts": [{"exp_labels": LABELS, "exp_annotations": SAYS}],
    }
    quiet = {"alertname": "PdplanReplicas", "eval_time": "4m", "exp_alerts": []}
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": [quiet, told]}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test), "utf-8")
    for command in (["check", "config", "prometheus.yaml"], ["test", "rules", "test.yaml"]):
        done = subprocess.run([str(PROMTOOL), *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


LABELS = {"severity": "warning", "deployment": "case"}
SAYS = {
    "summary": "Fewer replicas answer than planned.",
    "description": "Replicas that are down is 1; the plan has 0.",
}
