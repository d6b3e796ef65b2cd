"""Whether the fleet does what the plan says while it serves: rules and alerts at the plan's own limits, a dashboard.

Every series carries the labels `deployment` and `pool`, put there by what scrapes it: PodMonitors in Kubernetes, a
configuration of Prometheus elsewhere. So the rules are the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from . import facts
from .deployment import DeployedPool, Deployment
from .formats import manifest, objects
from .hosts import place, router_hosts
from .kubernetes import fleet_objects

WINDOW: Final = "5m"
"""Over what quantiles and rates are taken: a few hundred requests at the rates of most plans."""


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


def watches(deployment: Deployment) -> list[Watch]:
    """Everything that is watched of a deployment; nothing where no metrics of its engine are known.

    Of several classes the loosest limits count, for engines do not tell classes apart.
    """
    target, metrics = deployment.options.target, facts.fact("metrics")
    limits = [(slo.ttft, slo.tpot) for slo in deployment.classes]
    ttft, tpot = (None if None in values else max(filter(None, values)) for values in zip(*limits, strict=True))
    share = min(slo.attainment for slo in deployment.classes)
    passed_over = facts.fact("router_metrics").get("haproxy" if deployment.parted else target, "")

    def series(pools: Sequence[DeployedPool] = ()) -> str:
        named = f', pool=~"{"|".join(pool.name for pool in pools)}"' if pools else ""
        return f'{{deployment="{deployment.name}"{named}}}'

    rows = objects(
        "monitoring/watches.yaml",
        fleet=deployment,
        engine=metrics.get(deployment.engine, {}),
        front=metrics["dynamo"] if target == "dynamo" else {},
        series=series,
        quantile=lambda name, where: (
            f"histogram_quantile({share:g}, sum by (le) (rate({name}_bucket{where}[{WINDOW}])))"
        ),
        window=WINDOW,
        percentile=f"p{100.0 * share:g}",
        ttft=ttft,
        tpot=tpot,
        routers=router_count(deployment),
        passed_over=passed_over.format(series=f'deployment="{deployment.name}", pool=""'),
    )
    return [Watch(**row) for row in (rows[0] if rows else [])]


def router_count(deployment: Deployment) -> int:
    """Routers that clients can send to."""
    if deployment.options.target == "dynamo":
        return int(facts.fact("routers"))
    return len(router_hosts(place(deployment)))


def monitoring_files(deployment: Deployment, *, pods: bool) -> dict[str, str]:
    """What watches a deployment; pods: in Kubernetes, by the objects of Prometheus's operator. None for no metrics."""
    watched = watches(deployment)
    if not watched:
        return {}
    (chart,) = objects("monitoring/dashboard.yaml", fleet=deployment, watches=watched)
    (rules,) = objects("monitoring/rules.yaml", fleet=deployment, watches=watched)
    files = {"dashboard.json": json.dumps(chart, indent=1) + "\n"}
    if pods:
        name = f"{deployment.name}-pdplan"
        *monitors, listed = fleet_objects("monitoring/objects.yaml", deployment, name=name, rules=rules)
        about = "What Prometheus's operator scrapes, and the alerts at the limits of the plan."
        files["objects.yaml"] = manifest(about, *monitors)
        files["kustomization.yaml"] = manifest("kubectl apply -k <this folder>", listed)
    else:
        about = "Recording rules, and alerts at the limits of the plan: rule_files of Prometheus."
        files["rules.yaml"] = manifest(about, rules)
        engines = place(deployment)
        scraped = objects(
            "monitoring/prometheus.yaml",
            fleet=deployment,
            fact=facts.fact,
            engines=engines,
            routers=router_hosts(engines),
        )
        about = "Whom Prometheus asks: let the names of hosts resolve to yours, by DNS or /etc/hosts."
        files["prometheus.yaml"] = manifest(about, *scraped)
    return {f"monitoring/{file}": text for file, text in files.items()}
