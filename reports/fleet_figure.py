"""The fleet as a diagram: pools as boxes of GPU squares, what flows between them, and how it was routed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import Plan, Pool, Transfer

from .numbers import count, duration, hourly, is_number, percent, rate, si
from .text import clean, plural
from .words import busiest_words, gpus_per_engine, split_words

MOST_BOXES: Final = 5
MOST_ENGINES: Final = 8
MOST_ENGINES_OF_MANY: Final = 2
"""Engines drawn of each pool when a stage has more than two pools."""
MOST_SQUARES: Final = 16
MOST_LINKS: Final = 8


@dataclass(frozen=True, slots=True)
class PoolBox:
    """One pool: caption lines and, for each engine that is drawn, its GPU squares.

    columns: squares side by side (the tensor-parallel ranks, at most 8); more: engines or GPUs not drawn, in words.
    """

    title: str
    role: str
    lines: tuple[str, ...]
    engines: tuple[tuple[int, bool], ...]
    columns: int
    more: str
    use: float | None
    gpus: int
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class LinkLine:
    """One hand-over of KV cache between two pools."""

    source: str
    target: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetDiagram:
    """Columns of the diagram; a fleet may have prefill and decode pools, colocated ones, or both."""

    prefill: tuple[PoolBox, ...]
    decode: tuple[PoolBox, ...]
    colocated: tuple[PoolBox, ...]
    links: tuple[LinkLine, ...]
    more_links: int


@dataclass(frozen=True, slots=True)
class PoolShare:
    """What is routed to one pool: share of all requests and their mean lengths [token]."""

    pool: str
    stage: str
    share: float
    mean_isl: float
    mean_osl: float


def fleet_diagram(plan: Plan) -> FleetDiagram:
    """Lay the plan's pools out by role."""
    prefill, decode = _of_role(plan, "prefill"), _of_role(plan, "decode")
    drawn = {pool.id for pool in (*prefill[: MOST_BOXES - 1], *decode[: MOST_BOXES - 1])}
    links = sorted(
        plan.transfers,
        key=lambda t: (t.source not in drawn or t.target not in drawn, -t.requests_per_second, t.source, t.target),
    )
    return FleetDiagram(
        prefill=_boxes(prefill),
        decode=_boxes(decode),
        colocated=_boxes(_of_role(plan, "colocated")),
        links=tuple(_link(item) for item in links[:MOST_LINKS]),
        more_links=max(0, len(links) - MOST_LINKS),
    )


def _of_role(plan: Plan, role: str) -> list[Pool]:
    members = [pool for pool in plan.pools if pool.role == role]
    return sorted(members, key=lambda pool: (-pool.usd_per_hour, pool.id))


def _boxes(ordered: Sequence[Pool]) -> tuple[PoolBox, ...]:
    shown = ordered if len(ordered) <= MOST_BOXES else ordered[: MOST_BOXES - 1]
    most_engines = MOST_ENGINES if len(shown) <= 2 else MOST_ENGINES_OF_MANY
    boxes = [_box(pool, most_engines) for pool in shown]
    rest = ordered[len(shown) :]
    if rest:
        boxes.append(_rest_box(rest))
    return tuple(boxes)


def _box(pool: Pool, most_engines: int) -> PoolBox:
    at = pool.operating_point
    each = gpus_per_engine(pool)
    what = busiest_words(at)
    drawn = min(pool.replicas, most_engines)
    squares = min(each, MOST_SQUARES)
    working = pool.replicas - pool.spare_replicas
    hidden = [plural(pool.replicas - drawn, "more engine")] if pool.replicas > drawn else []
    hidden += [f"{each} GPUs in each engine"] if each > squares else []
    spare = f", {pool.spare_replicas} spare" if pool.spare_replicas else ""
    return PoolBox(
        title=f"{clean(pool.id, 20)} · {pool.role}",
        role=pool.role,
        lines=(
            f"{plural(pool.replicas, 'engine')} of {each} × {clean(pool.accelerator, 24)}{spare} · {split_words(pool)}",
            f"{rate(at.request_rate_rps)} · {what} · {hourly(pool.usd_per_hour)}",
        ),
        engines=tuple((squares, index >= working) for index in range(drawn)),
        columns=max(1, min(8, squares, max(pool.tensor_parallel, pool.data_parallel))),
        more=", ".join(hidden),
        use=max((value for value in at.utilization.values() if is_number(value)), default=None),
        gpus=pool.gpus,
        usd_per_hour=pool.usd_per_hour,
    )


def _rest_box(pools: Sequence[Pool]) -> PoolBox:
    gpus, usd = sum(pool.gpus for pool in pools), math.fsum(pool.usd_per_hour for pool in pools)
    engines = sum(pool.replicas for pool in pools)
    return PoolBox(
        title=plural(len(pools), f"more {pools[0].role} pool"),
        role=pools[0].role,
        lines=(f"{plural(engines, 'engine')} on {count(gpus)} GPUs · {hourly(usd)}", "All are under Settings."),
        engines=(),
        columns=1,
        more="",
        use=None,
        gpus=gpus,
        usd_per_hour=usd,
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


def routed(plan: Plan) -> tuple[PoolShare, ...]:
    """Sum the routes by pool and stage; the shares of each stage sum to the share of all routes."""
    sums: dict[tuple[str, str], list[float]] = {}
    for route in plan.routing:
        both = route.prefill == route.decode
        stages = (
            (("prefill and decode", route.prefill),) if both else (("prefill", route.prefill), ("decode", route.decode))
        )
        for stage, fractions in stages:
            for pool, fraction in fractions.items():
                weight = fraction * route.share
                sums.setdefault((stage, pool), []).extend((weight, weight * route.isl, weight * route.osl))
    rows = []
    for (stage, pool), terms in sums.items():
        share = math.fsum(terms[0::3])
        if share > 0:
            rows.append(
                PoolShare(clean(pool, 20), stage, share, math.fsum(terms[1::3]) / share, math.fsum(terms[2::3]) / share)
            )
    return tuple(sorted(rows, key=lambda row: (row.stage != "prefill", -row.share, row.pool)))
