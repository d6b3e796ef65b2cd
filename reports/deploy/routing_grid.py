"""Routing by prompt length as Dynamo's global router does it: a grid of lengths, and one pool for each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.words import percentage

from .description import DeployedPool, Deployment, Lane

CELLS: Final = 256
"""Prompt lengths that the grid tells apart."""
MISROUTED: Final = 0.05
"""Largest share of requests [1] that may find another pool than planned."""
STAGES: Final = {
    Role.PREFILL: ("prefill", "isl", "ttft"),
    Role.DECODE: ("decode", "context_length", "itl"),
}
"""Words of the router's configuration: the stage, the length and the latency that its grid has."""


def parts_of(lane: Lane, role: Role) -> Mapping[str, float]:
    """The part of a lane that each pool of a role takes."""
    return lane.prefill if role is Role.PREFILL else lane.decode


def longest(deployment: Deployment) -> int:
    """End of the grid [token]: the longest prompt planned for."""
    return max(int(max(lane.isl for lane in deployment.lanes)) + 1, CELLS)


def cells(deployment: Deployment, role: Role) -> list[int]:
    """Number of the pool for each cell: the one that the plan gives most of the cell's requests.

    A cell without requests takes what the nearest cell below it has, the first ones what the first above has.
    """
    pools = deployment.of_role(role)
    weight = [[0.0] * len(pools) for _ in range(CELLS)]
    for lane in deployment.lanes:
        cell = cell_of(lane.isl, 0.0, float(longest(deployment)), CELLS)
        for number, pool in enumerate(pools):
            weight[cell][number] += lane.share * parts_of(lane, role).get(pool.name, 0.0)
    chosen = [row.index(max(row)) if max(row) > 0.0 else None for row in weight]
    first = next((one for one in chosen if one is not None), 0)
    filled, last = [], first
    for one in chosen:
        last = last if one is None else one
        filled.append(last)
    return filled


def cell_of(length: float, low: float, high: float, count: int) -> int:
    """The cell of a length, as the router finds it: outside the grid the nearest.

    >>> cell_of(50.0, 0.0, 100.0, 4), cell_of(1e9, 0.0, 100.0, 4)
    (2, 3)
    """
    return max(0, min(int((length - low) / ((high - low) / count)), count - 1))


def strategy(deployment: Deployment, role: Role) -> dict[str, Any]:
    """The router's entry for one stage; latency targets of requests make no difference."""
    stage, length, latency = STAGES[role]
    return {
        f"{latency}_min_ms": 1,
        f"{latency}_max_ms": 1_000_000,
        f"{latency}_resolution": 1,
        f"{length}_min": 0,
        f"{length}_max": longest(deployment),
        f"{length}_resolution": CELLS,
        f"{stage}_pool_mapping": [[one] for one in cells(deployment, role)],
    }


def router_config(deployment: Deployment, namespace: Callable[[DeployedPool], str]) -> dict[str, Any]:
    """The whole configuration; namespace: Dynamo's name of a pool."""
    config: dict[str, Any] = {"mode": "disagg"}
    for role, (stage, *_) in STAGES.items():
        pools = deployment.of_role(role)
        config[f"num_{stage}_pools"] = len(pools)
        config[f"{stage}_pool_dynamo_namespaces"] = [namespace(pool) for pool in pools]
        config[f"{stage}_pool_selection_strategy"] = strategy(deployment, role)
    return config


def misrouted(deployment: Deployment, role: Role, config: Mapping[str, Any]) -> float:
    """Share of requests [1] that a configuration sends to another pool of a role than the plan does."""
    stage, length, _ = STAGES[role]
    try:
        grid = config[f"{stage}_pool_selection_strategy"]
        low, high, count = (grid[f"{length}_{end}"] for end in ("min", "max", "resolution"))
        mapping: Sequence[Sequence[int]] = grid[f"{stage}_pool_mapping"]
        pools = deployment.of_role(role)
        kept = sum(
            lane.share * parts_of(lane, role).get(pools[mapping[cell_of(lane.isl, low, high, count)][0]].name, 0.0)
            for lane in deployment.lanes
        )
    except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"the router's grid for {stage} cannot be read: {error!r}") from error
    return max(0.0, 1.0 - kept / sum(lane.share for lane in deployment.lanes))


def coarse_words(deployment: Deployment) -> str:
    """Why no grid of lengths comes near the plan's routing; empty where one does."""
    for role in STAGES:
        lost = misrouted(deployment, role, router_config(deployment, lambda pool: pool.name))
        if lost > MISROUTED:
            return (
                f"{percentage(lost)} of the requests would find another {role.value} pool than planned, for Dynamo's "
                "router chooses by the prompt's length alone"
            )
    return ""
