"""Whether the fleet does what the plan says while it serves: rules and alerts at the plan's own limits, a dashboard.

Every series carries the labels `deployment` and `pool`, put there by what scrapes it: PodMonitors in Kubernetes, a
configuration of Prometheus elsewhere. So the rules are the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from costmodel.engine import Role

from . import facts
from .deployment import DeployedPool, Deployment
from .formats import manifest
from .hosts import Instance, place, router_hosts
from .kubernetes import DEPLOYMENT, POOL, metadata

FOLDER: Final = "monitoring/"
RULES_FILE: Final = f"{FOLDER}rules.yaml"
WINDOW: Final = "5m"
"""Over what quantiles and rates are taken: a few hundred requests at the rates of most plans."""
SLACK: Final = 1.05
"""A demand this much above the planned one is told [1], unless the fleet serves less than that within its SLO."""
FULL: Final = 0.95
"""Share of the KV cache in use [1] beyond which requests soon wait or are preempted."""
PREEMPTED: Final = 0.01
"""Preemptions per request that are told [1]; the plan's batch limits leave room for all, so it has none."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One thing that is watched: what it is called, how Prometheus computes it, and the plan's line.

    limit: the plan's line, above which values are bad, None where it has none; minutes: how long they may be; unit:
    Grafana's; says: what is wrong above the line.
    """

    name: str
    title: str
    expression: str
    unit: str
    limit: float | None = None
    says: str = ""
    minutes: int = 5

    @property
    def record(self) -> str:
        """Name of the recorded series."""
        return f"pdplan:{self.name}"

    @property
    def alert(self) -> str:
        """Name of the alert."""
        return "Pdplan" + "".join(word.capitalize() for word in self.name.split("_"))


def watches(deployment: Deployment) -> list[Watch]:
    """Everything that is watched of a deployment; nothing where no metrics of its engine are known."""
    dynamo = deployment.options.target == "dynamo"
    known: dict[str, dict[str, str]] = facts.fact("metrics")
    engine, front = known.get(deployment.engine, {}), known["dynamo"] if dynamo else {}
    return [
        *(_latencies(deployment, engine, front) if engine or front else []),
        *(_engines(deployment, engine) if engine else []),
        *(_routers(deployment) if engine or front else []),
    ]


def _latencies(deployment: Deployment, engine: Mapping[str, str], front: Mapping[str, str]) -> list[Watch]:
    """What clients feel, and how many of them there are."""
    every, answers = _series(deployment), _series(deployment, _answering(deployment))
    limits = [(one.ttft, one.tpot) for one in deployment.classes]
    loosest = [None if None in values else max(filter(None, values)) for values in zip(*limits, strict=True)]
    share = min(one.attainment for one in deployment.classes)
    names = front or engine
    where = every if front else answers
    ttft = _quantile(share, names["ttft"], where)
    if deployment.engine == "vllm" and deployment.disaggregated and not front:  # which measures the two parts apart
        prompts = _series(deployment, deployment.of_role(Role.PREFILL))
        ttft = f"{_quantile(share, engine['whole'], prompts)} + {ttft}"
    percentile, tpot = f"p{100.0 * share:g}", _quantile(share, names["tpot"], where)
    come = f"sum(rate({names['whole']}_count{where}[{WINDOW}]))"
    planned = SLACK * deployment.demand.rate
    most, says = planned, "More requests come than the fleet was planned for."
    if deployment.capacity < planned:
        most, says = deployment.capacity, "More requests come than the fleet serves within its SLO, by the plan."
    return [
        Watch("ttft", f"TTFT {percentile}", ttft, "s", loosest[0], "First tokens are later than the SLO allows."),
        Watch("tpot", f"TPOT {percentile}", tpot, "s", loosest[1], "Tokens are slower than the SLO allows."),
        Watch("request_rate", "Request rate", come, "reqps", most, says, minutes=15),
    ]


def _engines(deployment: Deployment, engine: Mapping[str, str]) -> list[Watch]:
    """What goes on inside the replicas."""
    every, rate = _series(deployment), deployment.demand.rate
    waiting = max(rate * deployment.limits.ttft, 1.0)  # Little's law: as many as come while a prompt may wait
    answering = _series(deployment, _answering(deployment))
    down = " + ".join(_missing(deployment, pool, engine["running"]) for pool in deployment.pools)
    late = "More requests wait than come within the limit of TTFT, so that limit breaks next."
    full = "The KV cache of a replica is full: requests wait, or are preempted."
    watched = [
        Watch("queue", "Waiting requests", f"sum({engine['queue']}{every})", "none", waiting, late),
        Watch("running", "Running requests", f"sum by (pool) ({engine['running']}{every})", "none"),
        Watch("kv_use", "KV cache in use", f"max by (pool) ({engine['kv']}{answering})", "percentunit", FULL, full, 10),
        Watch("replicas", "Replicas that are down", down, "none", 0.0, "Fewer replicas answer than planned.", 2),
    ]
    if "preempted" in engine:
        preempted = f"sum(rate({engine['preempted']}{every}[{WINDOW}]))"
        says = "Replicas preempt requests, which the plan does not: prompts or answers are longer."
        watched.append(Watch("preemptions", "Preemptions", preempted, "ops", PREEMPTED * rate, says, 10))
    return watched


def _routers(deployment: Deployment) -> list[Watch]:
    """Whether clients find a router, and whether it finds the replicas.

    Routers are scraped without the label `pool`. llm-d's picker asks for a token before it tells anything, so what
    Kubernetes says of its Deployment stands in; its second replica waits, and is not available while it does.
    """
    target, name = deployment.options.target, deployment.name
    routers = f'{{deployment="{name}", pool=""}}'
    if target == "llmd":
        series = f'{{namespace="{deployment.options.namespace}", deployment="{name}-epp"}}'
        expected, up = 1, f"max(kube_deployment_status_replicas_available{series})"
    else:
        source = "pod" if target == "dynamo" else "instance"  # a pod may have several ports
        expected, up = router_count(deployment), f"count(count by ({source}) (up{routers} == 1))"
    down = f"clamp_min({expected} - ({up} or vector(0)), 0)"
    says = "A router does not answer; where it was the only one, no request finds a replica."
    watched = [Watch("routers", "Routers that are down", down, "none", 0.0, says, minutes=2)]
    lost = facts.fact("router_metrics").get("haproxy" if deployment.parted else target)
    if lost is not None:
        passed = f"sum({lost.format(series=routers[1:-1])}) or vector(0)"
        says = "A router passes over replicas: they are down, or it does not reach them."
        watched.append(Watch("passed_over", "Replicas that routers pass over", passed, "none", 0.0, says))
    return watched


def router_count(deployment: Deployment) -> int:
    """Routers that clients can send to."""
    if deployment.options.target == "dynamo":
        return int(facts.fact("routers"))
    return len(router_hosts(place(deployment)))


def _missing(deployment: Deployment, pool: DeployedPool, metric: str) -> str:
    """How many replicas of a pool say nothing; one of several data ranks has a series for each."""
    answering = f"count(count by (instance) ({metric}{_series(deployment, [pool])}))"
    return f"clamp_min({pool.replicas} - ({answering} or vector(0)), 0)"


def _answering(deployment: Deployment) -> Sequence[DeployedPool]:
    """Pools that send tokens to clients."""
    return deployment.of_role(Role.DECODE) or deployment.of_role(Role.COLOCATED)


def _series(deployment: Deployment, pools: Sequence[DeployedPool] | None = None) -> str:
    named = "" if pools is None else f', pool=~"{"|".join(pool.name for pool in pools)}"'
    return f'{{deployment="{deployment.name}"{named}}}'


def _quantile(share: float, metric: str, series: str) -> str:
    return f"histogram_quantile({share:g}, sum by (le) (rate({metric}_bucket{series}[{WINDOW}])))"


def rule_groups(deployment: Deployment) -> dict[str, Any]:
    """Recording rules, and an alert for each that has a line in the plan."""
    labels = {"deployment": deployment.name}
    found = watches(deployment)
    alerts = [
        {
            "alert": watch.alert,
            "expr": f'{watch.record}{{deployment="{deployment.name}"}} > {watch.limit:.6g}',
            "for": f"{watch.minutes}m",
            "labels": {"severity": "warning", **labels},
            "annotations": {
                "summary": watch.says,
                "description": f"{watch.title} is {{{{ $value }}}}; the alert is for more than {watch.limit:.6g}.",
            },
        }
        for watch in found
        if watch.limit is not None
    ]
    records = [{"record": watch.record, "expr": watch.expression, "labels": labels} for watch in found]
    return {"groups": [{"name": f"pdplan-{deployment.name}", "interval": "30s", "rules": [*records, *alerts]}]}


def dashboard(deployment: Deployment) -> dict[str, Any]:
    """A dashboard of Grafana: a chart for each thing that is watched, with the plan's line in it."""
    panels = []
    for number, watch in enumerate(watches(deployment)):
        series = [f'{watch.record}{{deployment="{deployment.name}"}}']
        targets = [{"refId": "A", "expr": series[0], "legendFormat": "{{pool}}"}]
        if watch.limit is not None:
            targets.append({"refId": "B", "expr": f"vector({watch.limit:.6g})", "legendFormat": "plan"})
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": watch.title,
                "description": watch.says,
                "datasource": {"type": "prometheus", "uid": "${source}"},
                "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
                "targets": targets,
                "fieldConfig": {"defaults": {"unit": watch.unit, "min": 0}, "overrides": [PLAN_LINE]},
            }
        )
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": f"pdplan-{deployment.name}",
        "title": f"pdplan: {deployment.name}",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": panels,
    }


PLAN_LINE: Final = {
    "matcher": {"id": "byName", "options": "plan"},
    "properties": [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
    ],
}
"""How the plan's line is drawn."""


def monitoring_files(deployment: Deployment, *, pods: bool) -> dict[str, str]:
    """What watches a deployment; pods: in Kubernetes, by the objects of Prometheus's operator. None for no metrics."""
    if not watches(deployment):
        return {}
    files = {f"{FOLDER}dashboard.json": json.dumps(dashboard(deployment), indent=1) + "\n"}
    if not pods:
        about = "Recording rules, and alerts at the limits of the plan: rule_files of Prometheus."
        return files | {RULES_FILE: manifest(about, rule_groups(deployment)), **_scraping(deployment)}
    name, space = f"{deployment.name}-pdplan", deployment.options.namespace
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(deployment, name),
        "spec": rule_groups(deployment),
    }
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": space,
        "resources": ["objects.yaml"],
        "configMapGenerator": [
            {
                "name": f"{deployment.name}-dashboard",
                "files": ["dashboard.json"],
                "options": {"labels": {"grafana_dashboard": "1"}, "disableNameSuffixHash": True},
            }
        ],
    }
    about = "What Prometheus's operator scrapes, and the alerts at the limits of the plan."
    return files | {
        f"{FOLDER}objects.yaml": manifest(about, _pod_monitor(deployment, name), rule),
        f"{FOLDER}kustomization.yaml": manifest("kubectl apply -k <this folder>", listed),
    }


def _pod_monitor(deployment: Deployment, name: str) -> dict[str, Any]:
    port = (
        {"targetPort": facts.fact("ports", "system")} if deployment.options.target == "dynamo" else {"port": "metrics"}
    )
    ports = [port]
    if deployment.options.target == "dynamo":
        ports.append({"targetPort": facts.fact("ports", "http")})  # of the frontend
    labels = [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_{_label(label)}"], "targetLabel": target}
        for label, target in ((DEPLOYMENT, "deployment"), (POOL, "pool"))
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(deployment, name),
        "spec": {
            "selector": {"matchLabels": {DEPLOYMENT: deployment.name}},
            "podMetricsEndpoints": [{**port, "interval": "15s", "relabelings": labels} for port in ports],
        },
    }


def _label(name: str) -> str:
    """What Prometheus makes of a label's name."""
    return name.replace(".", "_").replace("/", "_")


def _scraping(deployment: Deployment) -> dict[str, str]:
    """Whom Prometheus asks on hosts, and what it calls them."""

    def target(instance: Instance) -> dict[str, Any]:
        labels = {"deployment": deployment.name, "pool": instance.pool.name}
        return {"targets": [f"{instance.hosts[0].name}:{instance.port('worker')}"], "labels": labels}

    port = facts.fact("ports", "router_metrics")
    routers = [f"{host.name}:{port}" for host in router_hosts(place(deployment))]
    config = {
        "global": {"scrape_interval": "15s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": "replicas", "static_configs": [target(one) for one in place(deployment)]},
            {
                "job_name": "routers",
                "static_configs": [{"targets": routers, "labels": {"deployment": deployment.name}}],
            },
        ],
    }
    about = "Whom Prometheus asks: let the names of hosts resolve to yours, by DNS or /etc/hosts."
    return {f"{FOLDER}prometheus.yaml": manifest(about, config)}
