"""A simulation as files: a row per request, and a timeline of the engines' steps."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from costmodel.simulator import Fleet, Result
from costmodel.simulator.metrics import within
from costmodel.units import MICRO
from optimizer.instance import Instance
from optimizer.judge import Judgement, Run, class_limits

REQUEST_COLUMNS: Final = (
    "replication",
    "request",
    "slo_class",
    "prefill_pool",
    "decode_pool",
    "isl",
    "osl",
    "arrival_s",
    "queue_s",
    "prefill_s",
    "transfer_s",
    "ttft_s",
    "tpot_s",
    "itl_max_s",
    "e2e_s",
    "preemptions",
    "within_slo",
)


def requests_csv(instance: Instance, pools: Sequence[str], judgement: Judgement) -> str:
    """Every request of every replication, warm-up included; a time that never came is left empty.

    pools: ids of the fleet's pools, in its order.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(REQUEST_COLUMNS)
    for number, run in enumerate(judgement.runs):
        writer.writerows(_rows(instance, pools, run, number))
    return stream.getvalue()


def _rows(instance: Instance, pools: Sequence[str], run: Run, replication: int) -> list[list[object]]:
    result, trace, slos = run.result, run.demand.trace, instance.problem.slos
    member = instance.flows.slo[run.demand.flow]
    good = np.zeros(trace.size, dtype=bool)
    for k, slo in enumerate(slos):
        good |= within(result, class_limits(slo)) & (member == k)
    prefill = _pool_names(pools, result, result.engine)
    decode = _pool_names(pools, result, np.where(result.decode_engine < 0, result.engine, result.decode_engine))
    times = (result.arrival, result.queue, result.prefill, result.transfer, result.ttft, result.tpot, result.itl_max)
    told = [[_seconds(value) for value in column.tolist()] for column in (*times, result.e2e)]
    classes = [slos[k].name for k in member.tolist()]
    columns = [classes, prefill, decode, trace.isl.tolist(), trace.osl.tolist(), *told]
    columns += [result.restarts.tolist(), good.astype(int).tolist()]
    return [[replication, number, *row] for number, row in enumerate(zip(*columns, strict=True))]


def _pool_names(pools: Sequence[str], result: Result, engine: np.ndarray[tuple[int, ...], np.dtype[Any]]) -> list[str]:
    names = [pools[use.pool] for use in result.engines]
    return ["" if number < 0 else names[number] for number in engine.tolist()]


def _seconds(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.9g}"


def timeline_json(pools: Sequence[str], engines: Fleet, result: Result, start: float, end: float) -> str:
    """Chrome-trace events of the steps between two times [s], for chrome://tracing or Perfetto.

    One process per engine, one thread per micro-batch in flight; a row of several equal decode steps is one event.
    """
    lanes = [
        (number, lane) for number, use in enumerate(result.engines) for lane in range(engines.pools[use.pool].pipeline)
    ]
    events: list[dict[str, Any]] = []
    for number, use in enumerate(result.engines):
        name = f"{pools[use.pool]} engine {number}"
        events.append({"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}})
    for lane, begin, finish, prompts, decodes, context, steps in result.steps_log.tolist():
        if begin < end and finish > start:
            engine, batch = lanes[int(lane)]
            events.append(
                {
                    "name": _step_name(int(prompts), int(decodes), int(steps)),
                    "cat": "prefill" if prompts and not decodes else "decode" if not prompts else "mixed",
                    "ph": "X",
                    "ts": round(begin / MICRO, 3),
                    "dur": round((finish - begin) / MICRO, 3),
                    "pid": engine,
                    "tid": batch,
                    "args": {
                        "prompt_tokens": int(prompts),
                        "decodes": int(decodes),
                        "context_tokens": int(context),
                        "steps": int(steps),
                    },
                }
            )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _step_name(prompts: int, decodes: int, steps: int) -> str:
    """Name a step by what it holds.

    >>> _step_name(512, 3, 1), _step_name(0, 40, 12)
    ('512 prompt tokens + 3 decodes', '40 decodes x 12')
    """
    parts = [f"{prompts} prompt tokens"] * bool(prompts) + [f"{decodes} decodes"] * bool(decodes)
    return " + ".join(parts) + (f" x {steps}" if steps > 1 else "")
