"""Dynamo's self-benchmark: single forward passes that the engine timed itself; the purest measurement of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from .documents import Document
from .records import MeasuredStep, Tool


def is_dynamo(document: Document) -> bool:
    """Whether the object is the file of `--benchmark-mode` (/tmp/benchmark_results.json by default)."""
    results = document.get("results")
    return isinstance(results, list) and any(isinstance(item, Mapping) and "fpms" in item for item in results)


def read_dynamo(document: Document) -> Iterator[MeasuredStep]:
    """One step a point: the median of its repetitions, without the first where there are several (it warms up).

    Fields as of ai-dynamo 1.6, schema 2.
    """
    for index, item in enumerate(document["results"]):
        passes = item.get("fpms") if isinstance(item, Mapping) else None
        if not isinstance(passes, list):
            raise document.error("has no forward passes (fpms)", "results", index)
        point = document.item("results", index)
        timed = [_pass(point, number) for number in range(len(passes))]
        steps = [step for step in timed if step is not None]
        if steps:
            kept = steps[1:] or steps
            middle = median(step.seconds for step in kept)
            yield min(kept, key=lambda step: abs(step.seconds - middle))


def _pass(point: Document, number: int) -> MeasuredStep | None:
    """One forward pass, or None where it held no request."""
    document = point.item("fpms", number)
    load = document.part("scheduled_requests")
    prompts, decodes = (load.number(f"num_{kind}_requests") or 0.0 for kind in ("prefill", "decode"))
    if not prompts and not decodes:
        return None
    cached = load.number("sum_prefill_kv_tokens") or 0.0
    return MeasuredStep(
        where=point.where,
        tool=Tool.DYNAMO,
        prompts=prompts,
        new=(load.number("sum_prefill_tokens") or 0.0) / prompts if prompts else 0.0,
        past=cached / prompts if prompts else 0.0,
        decodes=decodes,
        context=(load.number("sum_decode_kv_tokens") or 0.0) / decodes if decodes else 0.0,
        seconds=document.needed("wall_time"),
    )
