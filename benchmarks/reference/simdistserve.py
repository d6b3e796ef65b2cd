"""DistServe's simulator: one prefill and one decode instance, or one colocated instance that runs prompts first.

It caps the tokens of context that one decode step reads, beyond which its decodes take turns. No engine that we plan
for does that, so cases in which a step would pass the cap are left out.

A request has its first token there when its prompt is computed, and decode steps make all of its OSL tokens. Our decode
engines do the latter. A colocated engine of ours makes one token by the prompt, so its requests have one token more,
and its decode steps are given for one token of context less (`one_token_less`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.reference.lone_steps import CoefficientSteps
from costmodel.engine import Policy, Role
from costmodel.errors import InputError
from costmodel.simulator.fleet import Limits, SimulatedFleet, SimulatedPool
from costmodel.simulator.run import simulate
from costmodel.units import MILLI

from .files import Comparison, columns_of, compare, rows_of, trace_of

POLICY = Policy(exclusive_prefill=True, chunked=False)
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
    return tuple(pool(role, tp) for role, tp in zip(roles, tensor, strict=False))


def one_token_less(steps: CoefficientSteps) -> CoefficientSteps:
    """Decode steps that take as long as if each request in them had one token of context less."""
    small, large = ((a, b, c - b - steps.overhead_token) for a, b, c in (steps.small, steps.large))
    return replace(steps, small=small, large=large)


def compare_all(folder: Path) -> Iterator[Comparison]:
    """All cases of the folder whose decode steps keep below the cap."""
    data = json.loads((folder / "coefficients.json").read_text("utf-8"))
    for row in rows_of(folder / "results.csv"):
        trace, fleet = trace_of(folder / row["trace"]), fleet_of(row, data)
        osl = trace.osl
        if row["backend"] == "vllm":
            trace = replace(trace, osl=osl + 1)
            fleet = tuple(replace(pool, steps=one_token_less(pool.steps)) for pool in fleet)
        result = simulate(trace, fleet, log_rows=LOG_ROWS)
        _, _, _, _, decodes, context, steps = result.steps_log.T
        if (context + steps * decodes).max() > DECODE_TOKEN_CAP:
            continue
        theirs = columns_of(folder / "per_request" / f"{row['case']}.csv")
        first, decode = result.prompt_end - result.arrival, result.finish - result.prompt_end
        ours = [first / MILLI, decode / MILLI, result.e2e / MILLI, decode / MILLI / osl]
        expected = int(float(row["prefill_iters"])) + int(float(row["decode_iters"]))
        names = ("ttft_ms", "decode_ms", "e2e_ms", "tpot_ms")
        yield compare(row["case"], ours, [theirs[name] for name in names], result.steps, expected)
