"""`simulate`: a trace through a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import IntArray
from costmodel.engine import Role
from costmodel.errors import PdplanError
from costmodel.metric import METRICS, Metric
from costmodel.workload import Trace

from .fleet import MOST_TABLES, EngineUse, Router, SimulatedFleet, SimulatedPool, StepNumbers
from .metrics import Result
from .records import (
    GAPS,
    Array,
    CachedPage,
    Chain,
    Columns,
    Engine,
    Event,
    Gap,
    Lane,
    LogRow,
    PoolRecord,
    Request,
    Rules,
    Slot,
    State,
    StepRecord,
    dtype_of,
    records,
    unpacked,
)


def prepare(say: Callable[[str], None] | None = None) -> None:
    """Load the compiled loop, or compile it: once on a machine for each version of pdplan.

    Else the first `simulate` does. say: told when it is compiled, for that takes some seconds.
    """
    from .compiled import is_kept
    from .loop import run_loop

    if say is not None and not is_kept(run_loop):
        say("compiling the simulator, once")
    run_loop({"rules": records(Rules, 1, {})}, 0.0)  # a fleet without engines that nobody asks: enough to compile for


def simulate(
    trace: Trace,
    fleet: SimulatedFleet,
    *,
    fast_forward: bool = True,
    until: float = float("inf"),
    log_rows: int = 0,
    gap_edges: Sequence[float] = (),
) -> Result:
    """Serve the requests of the trace with the fleet; pure: same input, same output, to the bit.

    fast_forward: jump over decode steps that are alike (the same result to rounding); until: stop at this time [s];
    log_rows: keep the first so many steps (a jump is one row); gap_edges: lengths, in ascending order, at which gaps
    between tokens are counted [s] (`metrics.gap_edges`), as `Result.itl_p99` needs. Raises PdplanError if a step is
    faster than its FLOP or its HBM traffic allow.
    """
    from .loop import run_loop  # numba, which compiles it, takes half a second to import

    world = make_world(trace, fleet, fast_forward, log_rows, gap_edges)
    events = run_loop(world, until)
    _check_floors(world)
    return _result(trace, world, int(events), gap_edges)


def _check_floors(world: State) -> None:
    """Raise PdplanError if a step took less than its FLOP or its bytes need."""
    rules = world["rules"][0]
    if rules["too_fast"] == 0:
        return
    engine = int(world["lanes"]["engine"][rules["fast_lane"]])
    raise PdplanError(
        f"simulator: {rules['too_fast']} steps are faster than their FLOP or HBM traffic allow; the first, on engine "
        f"{engine} at {rules['fast_start']:.6f} s, takes {rules['fast_time']:.6g} s where {rules['fast_floor']:.6g} s "
        "is the least"
    )


def _result(trace: Trace, world: State, events: int, gap_edges: Sequence[float]) -> Result:
    """Times and counters, each in an array of its own; a time of -1 has not come."""
    q = world["requests"]
    times = ("prompt_start", "prompt_end", "moved", "first", "finish")
    columns = ("arrival", *times, "late", "restarts", "engine", "decode_engine", "hit", "tier")
    for name in times:
        q[name][q[name] < 0.0] = np.nan
    log_entries = world["log"][: int(world["rules"]["logged"][0])]
    return Result(
        trace=trace,
        **{name: q[name].copy() for name in columns},
        fixed_ttft=world["engines"]["fixed_ttft"][q["engine"]],
        itl_max=q["itl"].copy(),
        gap_edges=np.array(gap_edges, dtype=np.float64),
        gap_counts=world["request_gaps"].reshape(trace.size, len(gap_edges)),
        engines=tuple(unpacked(EngineUse, use) for use in world["engines"]["use"].tolist()),
        events=events,
        steps_log=log_entries.view(np.float64).reshape(-1, len(LogRow.__dataclass_fields__)),
    )


def pack_steps(models: Sequence[StepNumbers]) -> tuple[Array, NDArray[np.float64]]:
    """Records of several step models, and their tables one behind the other."""
    columns: Columns = {"kind": [model.kind for model in models]}
    names = {name for model in models for name in model.scalars}
    columns |= {name: [model.scalars.get(name, 0.0) for model in models] for name in names}
    sizes = np.zeros((len(models), MOST_TABLES), dtype=np.int64)
    for model, row in zip(models, sizes, strict=True):
        row[: len(model.tables)] = [table.size for table in model.tables]
    starts = _starts(sizes.ravel())[:-1].reshape(sizes.shape)
    columns |= {f"at{k}": starts[:, k] for k in range(MOST_TABLES)}
    tables = [np.zeros(0), *(table.ravel() for model in models for table in model.tables)]
    return records(StepRecord, len(models), columns), np.concatenate(tables)


def make_world(
    trace: Trace, fleet: SimulatedFleet, fast_forward: bool = True, log_rows: int = 0, gap_edges: Sequence[float] = ()
) -> State:
    """State before the first event.

    Slots and events are as many as may ever be needed at once; what is never touched takes no memory.
    """
    engines = [pool for pool in fleet for _ in range(pool.replicas)]
    lanes = [pool for pool in engines for _ in range(pool.pipeline)]
    numbers = [pool.steps.numbers() for pool in fleet]
    models, tables = pack_steps(numbers)
    cache_pages, cache_at, tier_at = _caches(trace, fleet)
    starts, routers = _starts([pool.replicas for pool in fleet]), [list(Router).index(pool.router) for pool in fleet]
    pools = {"first_engine": starts[:-1], "end_engine": starts[1:], "router": routers}
    rules = {
        "fast_forward": int(fast_forward),
        "log_rows": log_rows,
        "edges": len(gap_edges),
        "opened": trace.opened,
        "count": trace.size,
        "released": trace.opened if trace.concurrency else -1,
        "page": 0 if trace.pages is None else trace.pages.tokens,
    }
    return State(
        requests=_requests(trace, fleet),
        slots=np.empty(trace.size, dtype=dtype_of(Slot)),
        chains=records(Chain, 1 + 2 * len(engines) + len(lanes), {}),
        lanes=records(Lane, len(lanes), _lanes(fleet, engines, lanes)),
        engines=records(
            Engine, len(engines), _engines(trace, fleet, engines, numbers) | {"cache": cache_at, "tier_at": tier_at}
        ),
        pools=records(PoolRecord, len(fleet), pools),
        models=models,
        rules=records(Rules, 1, rules),
        events=np.empty(trace.size + len(lanes) + 1, dtype=dtype_of(Event)),
        gaps=np.empty(GAPS * len(lanes), dtype=dtype_of(Gap)),
        gap_edges=np.array(gap_edges, dtype=np.float64) * (1.0 + METRICS[Metric.ITL_P99].rounding),
        lane_gaps=np.zeros(len(gap_edges) * len(lanes), dtype=np.int64),
        slot_gaps=np.empty(len(gap_edges) * trace.size, dtype=np.int64),
        request_gaps=np.zeros(len(gap_edges) * trace.size, dtype=np.int64),
        cached=cache_pages,
        log=np.empty(log_rows, dtype=dtype_of(LogRow)),
        tables=tables,
        free_at=np.zeros(sum(pool.pipeline + 2 * pool.nics for pool in engines)),
        phases=np.zeros(sum(pool.limits.block_size for pool in lanes), dtype=np.int64),
        pages=np.zeros(0, dtype=np.int64) if trace.pages is None else np.array(trace.pages.ids, dtype=np.int64),
    )


def _requests(trace: Trace, fleet: SimulatedFleet) -> Array:
    """The requests, none of which has come."""
    columns: Columns = {"arrival": trace.arrival, "isl": trace.isl, "osl": trace.osl}
    if trace.pages is not None:
        full = np.minimum(trace.pages.counts, trace.isl // trace.pages.tokens)
        columns |= {"pages": full, "page_at": np.cumsum(trace.pages.counts) - trace.pages.counts}
    if trace.after is not None and trace.pause is not None:
        waits = np.flatnonzero(trace.after >= 0)
        next_turn, pause = np.full(trace.size, -1), np.zeros(trace.size)
        next_turn[trace.after[waits]], pause[trace.after[waits]] = waits, trace.pause[waits]
        columns |= {"awaits": (trace.after >= 0).astype(np.int64), "next_turn": next_turn, "pause": pause}
    is_decode = [pool.role is Role.DECODE for pool in fleet]
    columns |= {
        "cached": 0 if trace.cached is None else trace.cached,
        "tier": 0 if trace.tier is None else trace.tier,
        "pool": is_decode.index(False) if trace.pool is None else trace.pool,
        "decode_pool": len(is_decode) - 1 if trace.decode_pool is None else trace.decode_pool,
    }
    return records(Request, trace.size, columns)


def _caches(trace: Trace, fleet: SimulatedFleet) -> tuple[Array, list[int], list[int]]:
    """Prefix caches of the engines that compute prompts, and tiers, and where those of each engine begin (-1: none).

    All are empty but for what the prompts have in common.
    """
    engines = [pool for pool in fleet for _ in range(pool.replicas)]
    if trace.pages is None:
        return records(CachedPage, 0, {}), [-1] * len(engines), [-1] * len(engines)
    size = 1 + int(trace.pages.ids.max(initial=-1)) + 1
    has_cache = [pool.role is not Role.DECODE for pool in engines]
    empty = records(CachedPage, size, {})
    empty["references"][0] = common = trace.pages.common
    if common:
        empty["references"][1 : 1 + common] = 0
        empty["next"][: 1 + common] = np.append(np.arange(common), -1)
        empty["previous"][: 1 + common] = np.append(common - 1, np.arange(common) - 1)
    begins = size * (np.cumsum(has_cache) - 1)
    tiers, count = [], sum(has_cache)
    for pool in fleet:
        has_tier = pool.role is not Role.DECODE and pool.tier.tokens > 0.0
        own = 0 if not has_tier else 1 if pool.tier.shared else pool.replicas
        tiers += [size * (count + k % own) if own else -1 for k in range(pool.replicas)]
        count += own
    return np.tile(empty, count), np.where(has_cache, begins, -1).tolist(), tiers


def _lanes(fleet: SimulatedFleet, engines: list[SimulatedPool], lanes: list[SimulatedPool]) -> Columns:
    """Settings of each lane, and where its lists and its parts of arrays begin."""
    index = np.arange(len(lanes))
    return {
        "policy": [pool.policy for pool in lanes],
        "limits": [pool.limits for pool in lanes],
        "index": index,
        "running": 1 + 2 * len(engines) + index,
        "engine": np.repeat(np.arange(len(engines)), [pool.pipeline for pool in engines]),
        "gap_at": GAPS * index,
        "phase_at": _starts([pool.limits.block_size for pool in lanes])[:-1],
        "model": np.repeat(np.arange(len(fleet)), [pool.replicas * pool.pipeline for pool in fleet]),
        "seqs": [max(1, pool.limits.max_num_seqs // pool.pipeline) for pool in lanes],
        "hands_over": [pool.role is Role.PREFILL for pool in lanes],
        "ahead": [pool.role is Role.COLOCATED and pool.policy.forms_ahead(pool.pipeline) for pool in lanes],
        "yields": [pool.role is Role.COLOCATED for pool in lanes],
        "stages": [pool.pipeline for pool in lanes],
    }


def _engines(trace: Trace, fleet: SimulatedFleet, engines: list[SimulatedPool], models: list[StepNumbers]) -> Columns:
    """Memory, links and lanes of each engine."""
    lane_starts = _starts([pool.pipeline for pool in engines])
    stage_at = _starts([pool.pipeline + 2 * pool.nics for pool in engines])[:-1]
    tokens = 1 if trace.pages is None else trace.pages.tokens
    blocks = [pool.limits.kv_blocks for pool in engines]
    works = [numbers.work for numbers in models]
    uses = [EngineUse(k, works[k]) for k, pool in enumerate(fleet) for _ in range(pool.replicas)]
    return {
        "waiting": 1 + 2 * np.arange(len(engines)),
        "gate": 2 + 2 * np.arange(len(engines)),
        "free": blocks,
        "blocks": blocks,
        "watermark": [int(pool.policy.watermark * pool.limits.kv_blocks) for pool in engines],
        "stage_at": stage_at,
        "link_at": stage_at + [pool.pipeline for pool in engines],
        "nics": [pool.nics for pool in engines],
        "send": [pool.kv_seconds_per_token * pool.nics for pool in engines],
        "page_blocks": [tokens // pool.limits.block_size for pool in engines],
        "tier": [pool.tier for pool in engines],
        "pull": [pool.policy.pulls and pool.role is Role.DECODE for pool in engines],
        "first_token": [pool.first_token for pool in engines],
        "fixed_ttft": [pool.fixed_ttft for pool in engines],
        "first_lane": lane_starts[:-1],
        "end_lane": lane_starts[1:],
        "use": uses,
    }


def _starts(sizes: Sequence[int] | IntArray) -> IntArray:
    """Where each part begins of parts of these sizes one behind the other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
