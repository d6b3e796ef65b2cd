"""`simulate`: a trace through a fleet."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError

from .backend import chosen_loop
from .compiled import column
from .engine_work import check_floors, engine_work, prefix_use
from .fleet import Fleet, check_fleet, check_pages
from .loop import run_loop
from .result import EngineUse, Result
from .setup import make_world
from .state import LOG, World
from .trace import Trace


def simulate(
    trace: Trace, fleet: Fleet, *, fast_forward: bool = True, until: float = float("inf"), log_rows: int = 0
) -> Result:
    """Serve the requests of the trace with the fleet; pure: same input, same output, to the bit.

    fast_forward: jump over decode steps that are alike (the same result to rounding); until: stop at this time [s];
    log_rows: keep the first so many steps (a jump is one row). Raises PdplanError if a step is faster than its FLOP or
    its HBM traffic allow.
    """
    check_fleet(fleet)
    _check_pools(trace, fleet)
    if trace.pages is not None:
        check_pages(fleet, trace.pages.tokens)
    compiled = chosen_loop(trace.size)
    world = make_world(trace, fleet, fast_forward, log_rows, compiled is not None)
    events = (compiled or run_loop)(world, trace.opened, until)
    check_floors(world, column(world.lanes, "group"))
    return _result(trace, fleet, world, int(events))


def _check_pools(trace: Trace, fleet: Fleet) -> None:
    for name, values in (("pool", trace.pool), ("decode_pool", trace.decode_pool)):
        if values is not None and (values.min() < -1 or values.max() >= len(fleet.pools)):
            raise InputError(f"trace: {name} must be -1 or an index of the fleet's {len(fleet.pools)} pools")


def _result(trace: Trace, fleet: Fleet, world: World, events: int) -> Result:
    pools = [number for number, pool in enumerate(fleet.pools) for _ in range(pool.replicas)]
    q = world.requests
    groups = column(world.lanes, "group")
    first_lane, lane, moved = column(q, "first_lane"), column(q, "lane"), _times(world, "moved")
    log_at, logged = int(column(world.rules, "log_at")[0]), int(column(world.rules, "logged")[0])
    rows = np.array(world.numbers[log_at : log_at + logged * LOG], dtype=np.float64)
    return Result(
        trace=trace,
        arrival=column(q, "arrival"),
        prompt_start=_times(world, "prompt_start"),
        prompt_end=_times(world, "prompt_end"),
        moved=moved,
        first=_times(world, "first"),
        finish=_times(world, "finish"),
        itl_max=column(q, "itl"),
        restarts=column(q, "restarts"),
        engine=np.where(first_lane < 0, -1, groups[first_lane]),
        decode_engine=np.where(np.isnan(moved), -1, groups[lane]),
        engines=_uses(world, pools),
        work=engine_work(world, pools, fleet),
        prefix=prefix_use(world),
        hit=column(q, "hit"),
        events=events,
        steps_log=rows.reshape(-1, LOG),
    )


COUNTERS = {
    "steps": "all_steps",
    "prompt_steps": "prompt_steps",
    "prompt_tokens": "computed_prompts",
    "decode_tokens": "computed_decodes",
    "preemptions": "preemptions",
    "rejected": "rejected",
    "peak_blocks": "peak_blocks",
    "peak_running": "peak_running",
    "busy": "busy",
    "kv_block_seconds": "kv_time",
}
"""Field of `EngineUse`: field of `Group`."""


def _uses(world: World, pools: list[int]) -> tuple[EngineUse, ...]:
    columns = {name: column(world.groups, field).tolist() for name, field in COUNTERS.items()}
    return tuple(
        EngineUse(pool=pool, **{name: values[number] for name, values in columns.items()})
        for number, pool in enumerate(pools)
    )


def _times(world: World, name: str) -> NDArray[np.float64]:
    """Times as an array; -1 means that it never happened."""
    times = column(world.requests, name)
    return cast("NDArray[np.float64]", np.where(times < 0.0, np.nan, times))
