"""`simulate`: a trace through a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import InputError, PdplanError
from costmodel.metric import METRICS, Metric

from .fleet import (
    OFFSETS,
    SCALARS,
    STAGES,
    FirstToken,
    Fleet,
    Pool,
    Router,
    StepContent,
    StepModel,
    StepNumbers,
    StepWork,
    caches,
    check_fleet,
    check_pages,
    least_bytes,
    least_flop,
)
from .metrics import EngineUse, EngineWork, PrefixUse, Result
from .records import (
    GAPS,
    LINKS,
    Array,
    CachedPage,
    Chain,
    Column,
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
)
from .trace import Trace

FloatArray = NDArray[np.float64]


def prepare(say: Callable[[str], None] | None = None) -> None:
    """Load the compiled loop, or compile it: once on a machine for each version of pdplan.

    Else the first `simulate` does. say: told when it is compiled, for that takes some seconds.
    """
    from .compiled import is_kept

    if say is not None and not is_kept():
        say("compiling the simulator, once")
    from .loop import run_loop

    run_loop(empty_world(), 0.0)


def simulate(
    trace: Trace,
    fleet: Fleet,
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
    check_fleet(fleet)
    _check_pools(trace, fleet)
    if trace.pages is not None:
        check_pages(fleet, trace.pages.tokens)
    from .loop import run_loop  # numba, which compiles it, takes half a second to import

    world = make_world(trace, fleet, fast_forward, log_rows, gap_edges)
    events = run_loop(world, until)
    _check_floors(world)
    return _result(trace, fleet, world, int(events), gap_edges)


def step_seconds(
    steps: StepModel,
    lengths: Sequence[int] = (),
    past: Sequence[int] | None = None,
    batch: int = 0,
    total_context: int = 0,
) -> float:
    """How long the loop says that a step takes [s].

    lengths, past: new tokens of each prompt, and tokens of each already in the cache; batch, total_context: decoding
    requests and tokens of all of them together.
    """
    from .step_times import lone_step

    models, tables = _pack([steps.numbers()])
    new = np.array(lengths, dtype=np.int64)
    old = np.zeros_like(new) if past is None else np.array(past, dtype=np.int64)
    if new.shape != old.shape:
        raise ValueError(f"{new.size} prompts need as many numbers of cached tokens; found {old.size}")
    return float(lone_step({"models": models, "tables": tables}, new, old, batch, total_context))


def _check_pools(trace: Trace, fleet: Fleet) -> None:
    for name, values in (("pool", trace.pool), ("decode_pool", trace.decode_pool)):
        if values is not None and (values.min() < -1 or values.max() >= len(fleet.pools)):
            raise InputError(f"trace: {name} must be -1 or an index of the fleet's {len(fleet.pools)} pools")


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


def _result(trace: Trace, fleet: Fleet, world: State, events: int, gap_edges: Sequence[float]) -> Result:
    """Times and counters, which stay where the loop wrote them; a time of -1 has not come."""
    q = world["requests"]
    for name in ("prompt_start", "prompt_end", "moved", "first", "finish"):
        q[name][q[name] < 0.0] = np.nan
    logged = world["log"][: int(world["rules"]["logged"][0])]
    longer = np.array([fleet.pools[pool].first_token - 1.0 for pool in world["engines"]["pool"]])
    return Result(
        trace=trace,
        arrival=q["arrival"],
        prompt_start=q["prompt_start"],
        prompt_end=q["prompt_end"],
        moved=q["moved"],
        first=q["first"],
        finish=q["finish"],
        late=longer[q["engine"]] * (q["prompt_end"] - q["prompt_start"]),
        itl_max=q["itl"],
        gap_edges=np.array(gap_edges, dtype=np.float64),
        gap_counts=world["request_gaps"].reshape(trace.size, len(gap_edges)),
        restarts=q["restarts"],
        engine=q["engine"],
        decode_engine=q["decode_engine"],
        engines=_uses(world),
        work=_work(world, fleet),
        prefix=PrefixUse(
            *(world["engines"][name].astype(np.float64) for name in ("asked", "hit", "fetched", "evicted"))
        ),
        hit=q["hit"],
        events=events,
        steps_log=logged.view(np.float64).reshape(-1, len(LogRow.__dataclass_fields__)),
    )


COUNTERS = {"prompt_tokens": "computed_prompts", "decode_tokens": "computed_decodes"}
"""Fields of `EngineUse` that a record of an engine has under another name."""


def _uses(world: State) -> tuple[EngineUse, ...]:
    names = EngineUse.__dataclass_fields__
    rows = zip(*(world["engines"][COUNTERS.get(name, name)].tolist() for name in names), strict=True)
    return tuple(EngineUse(*row) for row in rows)


def _work(world: State, fleet: Fleet) -> EngineWork:
    """Work of all engines from the counters that the loop kept."""
    engines, models = world["engines"], world["models"]
    stages = np.array([fleet.pools[pool].pipeline for pool in engines["pool"]], dtype=np.float64)
    names = StepWork.__dataclass_fields__
    works = [StepWork(*(models[name][pool].item() for name in names)) for pool in engines["pool"]]
    contents = [_content(engine) for engine in engines]
    return EngineWork(
        flop=np.array([least_flop(work, held) for work, held in zip(works, contents, strict=True)]),
        hbm_bytes=np.array([least_bytes(work, held) for work, held in zip(works, contents, strict=True)]),
        peak_flops=stages * models["peak"][engines["pool"]],
        hbm_bandwidth=stages * models["bandwidth"][engines["pool"]],
        busy_seconds=engines["busy"],
        prompt_tokens=engines["computed_prompts"].astype(np.float64),
        output_tokens=(engines["computed_decodes"] + engines["yielded"]).astype(np.float64),
        kv_block_seconds=engines["kv_block_seconds"],
    )


def _content(engine: Any) -> StepContent:
    """All steps of one engine together."""
    decodes = int(engine["decode_rows"])
    return StepContent(
        steps=int(engine["steps"]),
        tokens=int(engine["computed_prompts"]) + decodes,
        capped=int(engine["capped"]),
        rows=int(engine["chunks"]) + decodes,
        pairs=int(engine["pairs"]),
        reach=int(engine["reach"]),
        decodes=decodes,
        context=int(engine["decode_context"]),
    )


def _pack(models: Sequence[StepNumbers]) -> tuple[Array, NDArray[np.float64]]:
    """Records of several step models, and their tables one behind the other."""
    columns: dict[str, list[float]] = {"kind": [float(model.kind) for model in models]}
    for name in SCALARS:
        columns[name] = [model.scalars.get(name, 0.0) for model in models]
    for name in StepWork.__dataclass_fields__:
        columns[name] = [getattr(model.work, name) for model in models]
    bases = np.cumsum([0] + [model.data.size for model in models]).tolist()
    for k in range(OFFSETS):
        starts = [model.offsets[k] if k < len(model.offsets) else model.data.size for model in models]
        columns[f"at{k}"] = [float(base + start) for base, start in zip(bases, starts, strict=False)]
    return records(StepRecord, len(models), columns), np.concatenate([model.data for model in models])


def make_world(
    trace: Trace, fleet: Fleet, fast_forward: bool = True, log_rows: int = 0, gap_edges: Sequence[float] = ()
) -> State:
    """State before the first event.

    Slots and events are as many as may ever be needed at once; what is never touched takes no memory.
    """
    engines = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    lanes = [pool for pool in engines for _ in range(pool.pipeline)]
    models, tables = _pack([pool.steps.numbers() for pool in fleet.pools])
    links = STAGES * len(engines) + _starts([2 * pool.nics for pool in engines])
    cached, cache_at = _caches(trace, fleet, engines)
    rules = _rules(trace, fleet, fast_forward, log_rows, cache_at[-1]) | {"edges": len(gap_edges)}
    return State(
        requests=_requests(trace),
        slots=np.empty(trace.size, dtype=dtype_of(Slot)),
        chains=records(Chain, 1 + 2 * (len(engines) + len(lanes)), {}),
        lanes=records(Lane, len(lanes), _lanes(fleet, lanes)),
        engines=records(Engine, len(engines), _engines(trace, fleet, engines, links, cache_at[:-1])),
        pools=records(PoolRecord, len(fleet.pools), _pools(fleet)),
        models=models,
        rules=records(Rules, 1, rules),
        events=np.empty(trace.size + len(lanes) + 1, dtype=dtype_of(Event)),
        gaps=np.empty(GAPS * len(lanes), dtype=dtype_of(Gap)),
        gap_edges=np.array(gap_edges, dtype=np.float64) * (1.0 + METRICS[Metric.ITL_P99].rounding),
        lane_gaps=np.zeros(len(gap_edges) * len(lanes), dtype=np.int64),
        slot_gaps=np.empty(len(gap_edges) * trace.size, dtype=np.int64),
        request_gaps=np.zeros(len(gap_edges) * trace.size, dtype=np.int64),
        cached=cached,
        log=np.empty(log_rows, dtype=dtype_of(LogRow)),
        tables=tables,
        free_at=np.zeros(int(links[-1])),
        phases=np.zeros(sum(pool.limits.block_size for pool in lanes), dtype=np.int64),
        pages=np.zeros(0, dtype=np.int64) if trace.pages is None else np.array(trace.pages.ids, dtype=np.int64),
    )


def empty_world() -> State:
    """A fleet without engines that nobody asks: enough to compile for."""
    return {"rules": records(Rules, 1, dict.fromkeys(Rules.__dataclass_fields__, 0))}


def _requests(trace: Trace) -> Array:
    columns: dict[str, Column] = {"cached": 0, "itl": 0.0, "pages": 0, "restarts": 0, "hit": 0}
    if trace.pages is not None:
        full = np.minimum(trace.pages.counts, trace.isl // trace.pages.tokens)
        columns |= {"pages": full, "page_at": np.cumsum(trace.pages.counts) - trace.pages.counts}
    columns |= {"arrival": trace.arrival, "isl": trace.isl, "osl": trace.osl, "awaits": 0}
    if trace.after is not None and trace.pause is not None:
        waits = np.flatnonzero(trace.after >= 0)
        next_turn, pause = np.full(trace.size, -1), np.zeros(trace.size)
        next_turn[trace.after[waits]], pause[trace.after[waits]] = waits, trace.pause[waits]
        columns |= {"awaits": (trace.after >= 0).astype(np.int64), "next_turn": next_turn, "pause": pause}
    for name in ("cached", "pool", "decode_pool", "prefix"):
        values = getattr(trace, name)
        columns |= {} if values is None else {name: values}
    return records(Request, trace.size, columns)


def _caches(trace: Trace, fleet: Fleet, engines: list[Pool]) -> tuple[Array, list[int]]:
    """Prefix caches of the engines that have one and of the store, and where each begins (-1: none).

    All are empty but for what the prompts have in common.
    """
    if trace.pages is None:
        return records(CachedPage, 0, {}), [-1] * (len(engines) + 1)
    size = 1 + int(trace.pages.ids.max(initial=-1)) + 1
    has_cache = [caches(pool) for pool in engines] + [fleet.store is not None]
    empty = records(CachedPage, size, {})
    empty["references"][0] = common = trace.pages.common
    if common:
        empty["references"][1 : 1 + common] = 0
        empty["next"][: 1 + common] = np.append(np.arange(common), -1)
        empty["previous"][: 1 + common] = np.append(common - 1, np.arange(common) - 1)
    begins = size * (np.cumsum(has_cache) - 1)
    return np.tile(empty, sum(has_cache)), np.where(has_cache, begins, -1).tolist()


def _lanes(fleet: Fleet, lanes: list[Pool]) -> dict[str, Column]:
    """Settings of each lane, all else at rest."""
    engines = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    index = np.arange(len(lanes))
    early = fleet.hand_over.first_token is not FirstToken.DECODE
    yields = int(fleet.hand_over.first_token is FirstToken.PREFILL)
    here = [pool.role is Role.COLOCATED for pool in lanes]
    columns: dict[str, Column] = {name: 0 for name in Lane.__dataclass_fields__ if name not in LINKS}
    return columns | {
        "index": index,
        "running": 1 + 2 * (len(engines) + index),
        "rotated": 2 + 2 * (len(engines) + index),
        "engine": np.repeat(np.arange(len(engines)), [pool.pipeline for pool in engines]),
        "gap_at": GAPS * index,
        "phase_at": _starts([pool.limits.block_size for pool in lanes])[:-1],
        "model": [number for number, pool in enumerate(fleet.pools) for _ in range(pool.replicas * pool.pipeline)],
        "exclusive": [int(pool.policy.exclusive_prefill) for pool in lanes],
        "chunked": [int(pool.policy.chunked) for pool in lanes],
        "static": [int(pool.policy.static) for pool in lanes],
        "padded": [int(pool.policy.padded_budget) for pool in lanes],
        "whole": [int(pool.policy.whole_prompt_blocks) for pool in lanes],
        "after_preemption": [int(pool.policy.admit_after_preemption) for pool in lanes],
        "spare": [int(pool.policy.spare_block) for pool in lanes],
        "partial_ends": [int(pool.policy.partial_prompt_ends) for pool in lanes],
        "reserve": [pool.policy.reserve_output for pool in lanes],
        "seqs": [max(1, pool.limits.max_num_seqs // pool.pipeline) for pool in lanes],
        "budget": [pool.limits.max_num_batched_tokens for pool in lanes],
        "threshold": [pool.limits.long_prefill_threshold for pool in lanes],
        "cap": [pool.limits.decode_token_cap for pool in lanes],
        "hands_over": [int(pool.role is Role.PREFILL) for pool in lanes],
        "yields": [fleet.prompt_yields if colocated else yields for colocated in here],
        "early": [int(colocated or early) for colocated in here],
        "stages": [pool.pipeline for pool in lanes],
        "block": [pool.limits.block_size for pool in lanes],
    }


def _engines(
    trace: Trace, fleet: Fleet, engines: list[Pool], links: NDArray[np.int64], cache_at: list[int]
) -> dict[str, Column]:
    lane_starts = _starts([pool.pipeline for pool in engines])
    tokens = 1 if trace.pages is None else trace.pages.tokens
    columns: dict[str, Column] = dict.fromkeys(Engine.__dataclass_fields__, 0)
    hand_over = fleet.hand_over
    return columns | {
        "waiting": 1 + 2 * np.arange(len(engines)),
        "gate": 2 + 2 * np.arange(len(engines)),
        "free": [pool.limits.kv_blocks for pool in engines],
        "blocks": [pool.limits.kv_blocks for pool in engines],
        "watermark": [int(pool.policy.watermark * pool.limits.kv_blocks) for pool in engines],
        "stage_at": STAGES * np.arange(len(engines)),
        "link_at": links[:-1],
        "nics": [pool.nics for pool in engines],
        "send": [pool.kv_seconds_per_token * pool.nics for pool in engines],
        "cache": cache_at,
        "page_blocks": [tokens // pool.limits.block_size for pool in engines],
        "store_read": 0.0 if fleet.store is None else fleet.store.engine_seconds_per_token,
        "pull": int(hand_over.pull),
        "bound": hand_over.max_coming,
        "gated": int(hand_over.pull or hand_over.max_coming > 0),
        "first_lane": lane_starts[:-1],
        "end_lane": lane_starts[1:],
        "pool": [number for number, pool in enumerate(fleet.pools) for _ in range(pool.replicas)],
    }


def _pools(fleet: Fleet) -> dict[str, Column]:
    starts = _starts([pool.replicas for pool in fleet.pools])
    return {
        "first_engine": starts[:-1],
        "end_engine": starts[1:],
        "router": [list(Router).index(pool.router) for pool in fleet.pools],
        "turn": 0,
        "decode": [int(pool.role is Role.DECODE) for pool in fleet.pools],
    }


def _rules(trace: Trace, fleet: Fleet, fast_forward: bool, log_rows: int, store_at: int) -> dict[str, Column]:
    columns: dict[str, Column] = dict.fromkeys(Rules.__dataclass_fields__, 0)
    columns |= {
        "fast_forward": int(fast_forward),
        "opened": trace.opened,
        "count": trace.size,
        "released": trace.opened if trace.concurrency else -1,
        "free_slot": -1,
        "pools": len(fleet.pools),
        "log_rows": log_rows,
        "latency": fleet.hand_over.latency,
        "think": trace.think,
        "hidden": 1.0 - 1.0 / fleet.hand_over.layers,
        "page": 0 if trace.pages is None else trace.pages.tokens,
        "store": store_at,
    }
    if fleet.store is not None:
        columns |= {
            "store_pages": fleet.store.pages,
            "store_read": fleet.store.seconds_per_token,
            "store_latency": fleet.store.latency,
        }
    return columns


def _starts(sizes: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
