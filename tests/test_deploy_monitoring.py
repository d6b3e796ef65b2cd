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
from reports.deploy.measurement import watches
from tests.deploy_cases import Ask, Case, deployment_of, options, parted_plan, plan_of

PROMTOOL = shutil.which("promtool")
ALONE = (Case("colocated", replicas=3, tokens=8192),)


def rules(files: dict[str, str]) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(files["monitoring/rules.yaml"])["groups"]
    return list(group["rules"])


def test_alerts_are_at_the_limits_of_the_plan() -> None:
    alerts = {
        rule["alert"]: rule["expr"] for rule in rules(deployment_files(plan_of(), options("vllm"))) if "alert" in rule
    }
    assert alerts["PdplanTtft"].endswith("> 0.6")
    assert alerts["PdplanTpot"].endswith("> 0.03")
    assert alerts["PdplanReplicas"].endswith("> 0")
    assert set(alerts) >= {"PdplanQueue", "PdplanKvUse", "PdplanPreemptions", "PdplanRouters", "PdplanPassedOver"}


@pytest.mark.parametrize(
    ("capacity", "limit", "says"),
    [(7.81, 7.81, "than the fleet serves within its SLO"), (9.0, 1.05 * 7.5, "than the fleet was planned for")],
)
def test_the_rate_is_told_before_the_fleet_gives_out(capacity: float, limit: float, says: str) -> None:
    plan = plan_of().model_copy(update={"goodput_rps": capacity})
    (watch,) = (watch for watch in watches(deployment_of(plan, "vllm")) if watch.name == "request_rate")
    assert watch.limit == pytest.approx(limit)
    assert says in watch.says


@pytest.mark.parametrize(
    ("plan", "target", "expected"),
    [
        (plan_of(), "vllm", "2 - (count(count by (instance) (up{"),
        (plan_of(ALONE), "vllm", "1 - (count(count by (instance) (up{"),
        (plan_of(), "dynamo", "2 - (count(count by (pod) (up{"),
        (plan_of(), "llmd", "kube_deployment_status_replicas_available"),
        (parted_plan(), "vllm", "haproxy_server_status{"),
        (plan_of(ask=Ask(engine="sglang")), "sglang", "smg_worker_health{"),
        (plan_of(), "vllm", "vllm_router_worker_health{"),
    ],
)
def test_routers_are_watched(plan: Any, target: str, expected: str) -> None:
    deployment = deployment_of(plan, target)
    names = ("routers", "passed_over")
    assert expected in " ".join(watch.expression for watch in watches(deployment) if watch.name in names)
    if target in {"vllm", "sglang"}:
        files = deployment_files(plan, options(target))
        _, routers = yaml.safe_load(files["monitoring/prometheus.yaml"])["scrape_configs"]
        asked = [one["targets"] for one in routers["static_configs"]]
        assert all(address.endswith(":29000") for addresses in asked for address in addresses)
        emitted = files.get("router.cfg", files["router.sh"])
        assert "bind :29000" in emitted or "--prometheus-host 0.0.0.0 --prometheus-port 29000" in emitted


@pytest.mark.parametrize(("target", "engine"), [("llmd", "vllm"), ("dynamo", "vllm"), ("dynamo", "sglang")])
def test_what_is_watched_in_kubernetes_has_its_labels(target: str, engine: str) -> None:
    files = deployment_files(plan_of(ask=Ask(engine=engine)), options(target, namespace="serving"))
    monitor, rule = yaml.safe_load_all(files["monitoring/objects.yaml"])
    assert {one["targetLabel"] for point in monitor["spec"]["podMetricsEndpoints"] for one in point["relabelings"]} == {
        "deployment",
        "pool",
    }
    assert monitor["spec"]["selector"]["matchLabels"] == {"pdplan.dev/deployment": "case"}
    for one in rule["spec"]["groups"][0]["rules"]:
        assert 'deployment="case' in one["expr"]
    assert {monitor["metadata"]["namespace"], rule["metadata"]["namespace"]} == {"serving"}


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


def test_prometheus_asks_every_replica() -> None:
    files = deployment_files(plan_of(), options("vllm"))
    job, _ = yaml.safe_load(files["monitoring/prometheus.yaml"])["scrape_configs"]
    assert [one["targets"] for one in job["static_configs"]] == [["h100-0:8100"], ["h100-0:8200"], ["h200-0:8100"]]


def test_what_has_no_known_metrics_is_not_watched() -> None:
    files = deployment_files(plan_of(ALONE, Ask(engine="trtllm")), options("trtllm"))
    assert not [path for path in files if path.startswith("monitoring/")]
    assert "Prometheus" not in files["README.md"]


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
