"""DistServe's simulator: one prefill and one decode instance, or one colocated instance that runs prompts first.

It caps the tokens of context that one decode step reads, beyond which its decodes take turns. No engine that we plan
for does that, so cases in which a step would pass the cap are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reference.lone_steps import CoefficientSteps
from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.policy import Policy
from costmodel.simulator import FirstToken, HandOver, Limits, SimulatedFleet, SimulatedPool, simulate
from costmodel.units import MILLI

from .files import Comparison, columns_of, compare, rows_of, trace_of

POLICY = Policy("simdistserve", exclusive_prefill=True, chunked=False)
OVERHEAD_STEP, OVERHEAD_TOKEN, STAGE_CONSTANT = 2.0, 1e-4, 1.0
"""Milliseconds of an iteration, per token of its context, and per prompt iteration."""
DECODE_TOKEN_CAP = 50_000
"""Tokens of context, and new ones, of a decode step."""
LOG_ROWS = 100_000


def steps_of(table: dict[str, Any]) -> CoefficientSteps:
    """Step times of an engine [s]."""
    prefill, small, large = (
        tuple(value * MILLI for value in table[name]) for name in ("prefill", "decoding_smallbs", "decoding_largebs")
    )
    return CoefficientSteps(
        prefill_abc=prefill,
        small=small,
        large=large,
        large_batch=int(table["decoding_large_small_bs_threshold"]),
        prefill_constant=STAGE_CONSTANT * MILLI,
        overhead_step=OVERHEAD_STEP * MILLI,
        overhead_token=OVERHEAD_TOKEN * MILLI,
    )


def entry(tables: dict[str, Any], model: str, key: str, what: str) -> Any:
    """The entry of a model (opt_13b is facebook/opt-13b in the tables)."""
    for name in (model, f"facebook/{model.replace('_', '-')}"):
        if key in tables.get(name, {}):
            return tables[name][key]
    raise InputError(f"coefficients.json: no {what} of {model} for {key}")


def fleet_of(row: dict[str, str], data: dict[str, Any]) -> SimulatedFleet:
    """The fleet of a case; those with pipeline stages are not replayed, as our stages overlap otherwise."""
    model, backend = row["model"], row["backend"]
    tensor = row["tp_prefill"], row["tp_decode"]

    def pool(role: Role, tp: str) -> SimulatedPool:
        budget = int(entry(data["max_num_tokens"], model, f"{tp},1", "token limit"))
        limits = Limits(max_num_seqs=1 << 40, max_num_batched_tokens=budget)
        return SimulatedPool(role, steps_of(entry(data[backend], model, tp, "coefficients")), POLICY, limits)

    roles = (Role.COLOCATED,) if backend == "vllm" else (Role.PREFILL, Role.DECODE)
    pools = tuple(pool(role, tp) for role, tp in zip(roles, tensor, strict=False))
    return SimulatedFleet(pools, hand_over=HandOver(first_token=FirstToken.REPEATED))


def compare_all(folder: Path) -> Iterator[Comparison]:
    """All cases of the folder whose decode steps keep below the cap."""
    data = json.loads((folder / "coefficients.json").read_text("utf-8"))
    for row in rows_of(folder / "results.csv"):
        trace = trace_of(folder / row["trace"])
        result = simulate(trace, fleet_of(row, data), log_rows=LOG_ROWS)
        _, _, _, _, decodes, context, steps = result.steps_log.T
        if (context + steps * decodes).max() > DECODE_TOKEN_CAP:
            continue
        theirs = columns_of(folder / "per_request" / f"{row['case']}.csv")
        decode = (result.finish - result.first) / MILLI
        ours = [result.ttft / MILLI, decode, result.e2e / MILLI, decode / trace.osl]
        expected = int(float(row["prefill_iters"])) + int(float(row["decode_iters"]))
        names = ("ttft_ms", "decode_ms", "e2e_ms", "tpot_ms")
        yield compare(row["case"], ours, [theirs[name] for name in names], result.steps, expected)
