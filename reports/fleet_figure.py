"""The fleet as a diagram: pools as boxes of GPU squares, what flows between them, and how it was routed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import Plan, Pool, Transfer

from .drawing import FleetDiagram, LinkLine, PoolBox
from .numbers import count, duration, hourly, percent, rate, si, significant
from .text import clean, plural
from .verdict import served_rate
from .words import busiest_words, gpus_per_engine, is_overloaded, split_words

MOST_BOXES: Final = 5
MOST_ENGINES: Final = 8
MOST_GPUS_OF_MANY: Final = 8
"""GPUs drawn of each pool when a stage has more than two pools; two engines at least."""
MOST_SQUARES: Final = 16
MOST_LINKS: Final = 8
LEAST_SHARE: Final = 5e-4
"""Share of all requests below which a route is not told: percentages have one decimal."""


@dataclass(frozen=True, slots=True)
class ClassShare:
    """What of one class is routed to one pool: share of all requests and their mean lengths [token]."""

    pool: str
    stage: str
    slo_class: str
    share: float
    isl: float
    osl: float


def fleet_diagram(plan: Plan) -> FleetDiagram:
    """Lay the plan's pools out by role; of the links those of most requests, beside the pools that they join."""
    prefill, decode = _of_role(plan, "prefill"), _of_role(plan, "decode")
    flow = _flow(plan)
    drawn = {pool.id for pool in (*prefill[: MOST_BOXES - 1], *decode[: MOST_BOXES - 1])}
    links = sorted(
        plan.transfers,
        key=lambda t: (t.source not in drawn or t.target not in drawn, -t.requests_per_second, t.source, t.target),
    )
    place = {pool.id: index for index, pool in enumerate((*prefill, *decode))}
    nearest = sorted(links[:MOST_LINKS], key=lambda t: (place.get(t.source, 0), place.get(t.target, 0)))
    return FleetDiagram(
        prefill=_boxes(prefill, flow),
        decode=_boxes(decode, flow),
        colocated=_boxes(_of_role(plan, "colocated"), flow),
        links=tuple(_link(item) for item in nearest),
        more_links=max(0, len(links) - MOST_LINKS),
        entry=_entry(plan),
        exit=_exit(plan),
    )


def _entry(plan: Plan) -> tuple[str, str]:
    served, length = served_rate(plan), f"{significant(plan.workload.mean_isl)} input tokens each"
    if plan.objective == "min_cost":
        return rate(served), length
    of = f"served of {rate(plan.demand_rps)}" if served < plan.demand_rps else f"the demand is {rate(plan.demand_rps)}"
    return rate(served), f"{of}; {length}"


def _exit(plan: Plan) -> tuple[str, str]:
    generated = served_rate(plan) * plan.workload.mean_osl
    return si(generated, "tokens/s").replace(" k", "k "), f"{significant(plan.workload.mean_osl)} output tokens each"


def _of_role(plan: Plan, role: str) -> list[Pool]:
    members = [pool for pool in plan.pools if pool.role == role]
    return sorted(members, key=lambda pool: (-pool.usd_per_hour, pool.id))


def _boxes(ordered: Sequence[Pool], flow: Mapping[str, str]) -> tuple[PoolBox, ...]:
    drawn = ordered if len(ordered) <= MOST_BOXES else ordered[: MOST_BOXES - 1]
    boxes = [_box(pool, flow.get(pool.id, ""), len(drawn) > 2) for pool in drawn]
    rest = ordered[len(drawn) :]
    if rest:
        boxes.append(_rest_box(rest))
    return tuple(boxes)


def _box(pool: Pool, flow: str, of_many: bool) -> PoolBox:
    at = pool.operating_point
    gpus, gpu = gpus_per_engine(pool), clean(pool.accelerator, 24)
    used = "overloaded by formula" if is_overloaded(pool) else busiest_words(at)
    squares = min(gpus, MOST_SQUARES)
    drawn = min(pool.replicas, max(2, MOST_GPUS_OF_MANY // squares) if of_many else MOST_ENGINES)
    working = pool.replicas - pool.spare_replicas
    hidden = [plural(pool.replicas - drawn, "more replica")] if pool.replicas > drawn else []
    hidden += [f"{gpus} GPUs in each replica"] if gpus > squares else []
    spare = f", {pool.spare_replicas} spare" if pool.spare_replicas else ""
    return PoolBox(
        title=f"{clean(pool.id, 20)} · {pool.role}",
        role=pool.role,
        lines=(
            f"{plural(pool.replicas, 'replica')} of {gpus} × {gpu}{spare} · {split_words(pool)}",
            f"{rate(at.request_rate_rps)} · {used} · {hourly(pool.usd_per_hour)}",
            *([flow] if flow else []),
        ),
        engines=tuple((squares, index >= working) for index in range(drawn)),
        columns=max(1, min(8, squares, max(pool.tensor_parallel, pool.data_parallel))),
        more=", ".join(hidden),
    )


def _rest_box(pools: Sequence[Pool]) -> PoolBox:
    gpus, usd = sum(pool.gpus for pool in pools), math.fsum(pool.usd_per_hour for pool in pools)
    replicas = sum(pool.replicas for pool in pools)
    return PoolBox(
        title=plural(len(pools), f"more {pools[0].role} pool"),
        role=pools[0].role,
        lines=(f"{plural(replicas, 'replica')} on {count(gpus)} GPUs · {hourly(usd)}", "All are under Settings."),
        engines=(),
        columns=1,
        more="",
    )


def _link(item: Transfer) -> LinkLine:
    return LinkLine(
        source=clean(item.source, 20),
        target=clean(item.target, 20),
        lines=(
            f"{rate(item.requests_per_second)} · {si(item.bytes_per_second, 'B/s')} of KV cache",
            f"{duration(item.seconds_per_request)} each · {percent(item.link_utilization)} of the link",
        ),
    )


def routed(plan: Plan) -> tuple[ClassShare, ...]:
    """Sum the routes by stage, pool and class; the shares of each stage sum to the share of all routes."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for route in plan.routing:
        both = route.prefill == route.decode
        stages = (
            (("prefill and decode", route.prefill),) if both else (("prefill", route.prefill), ("decode", route.decode))
        )
        for stage, fractions in stages:
            for pool, fraction in fractions.items():
                weight = fraction * route.share
                key = (stage, pool, route.slo_class)
                sums.setdefault(key, []).extend((weight, weight * route.isl, weight * route.osl))
    rows = []
    for (stage, pool, slo_class), terms in sums.items():
        share = math.fsum(terms[0::3])
        if share > LEAST_SHARE:
            means = math.fsum(terms[1::3]) / share, math.fsum(terms[2::3]) / share
            rows.append(ClassShare(clean(pool, 20), stage, clean(slo_class, 30), share, *means))
    return tuple(sorted(rows, key=lambda row: (row.stage != "prefill", row.pool, -row.share, row.slo_class)))


def _flow(plan: Plan) -> dict[str, str]:
    """Say for each pool which requests it serves; nothing where one pool serves all requests of one class."""
    by_pool: dict[str, list[ClassShare]] = {}
    for row in routed(plan):
        by_pool.setdefault(row.pool, []).append(row)
    several = len({route.slo_class for route in plan.routing}) > 1
    flow = {}
    for pool in plan.pools:
        rows = by_pool.get(clean(pool.id, 20), [])
        stage = [row for row in rows if row.stage == rows[0].stage]
        share = math.fsum(row.share for row in stage)
        if not stage or (share > 1 - LEAST_SHARE and not several):
            continue
        isl, osl = (math.fsum(row.share * getattr(row, name) for row in stage) / share for name in ("isl", "osl"))
        of = f" ({', '.join(dict.fromkeys(row.slo_class for row in stage[:3]))})" if several else ""
        flow[pool.id] = f"{percent(share)} of requests{of}: {significant(isl)} tokens in, {significant(osl)} out"
    return flow
