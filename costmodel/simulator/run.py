"""`simulate`: a trace through a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError, PdplanError

from .fleet import Fleet, check_fleet, check_pages
from .kept import is_kept
from .records import LogRow, State, empty_world, make_world
from .result import EngineUse, EngineWork, PrefixUse, Result
from .step_model import StepContent, StepWork, least_bytes, least_flop
from .trace import Trace

FloatArray = NDArray[np.float64]


def prepare(say: Callable[[str], None] | None = None) -> None:
    """Load the compiled loop, or compile it: once on a machine for each version of pdplan.

    Else the first `simulate` does. say: told when it is compiled, for that takes some seconds.
    """
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
    return Result(
        trace=trace,
        arrival=q["arrival"],
        prompt_start=q["prompt_start"],
        prompt_end=q["prompt_end"],
        moved=q["moved"],
        first=q["first"],
        finish=q["finish"],
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
