"""A simulation as a timeline of the engines' steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from costmodel.simulator import Fleet, Result
from costmodel.units import MICRO


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
