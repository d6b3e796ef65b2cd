"""InferenceX's aggregated results (agg_*.json): one object a run, which states its own deployment; times in seconds."""

from __future__ import annotations

import math

from .documents import Document
from .records import BenchmarkRun, Latency, Stated, Tool, Workers

SHORTEST = 0.8
"""InferenceX draws both lengths evenly from [0.8, 1] of the nominal one (random-range-ratio)."""
_WITHOUT_DRAFT = {"", "none", "off", "false", "no"}


def is_inferencex(document: Document) -> bool:
    """Whether the object is one of InferenceX's aggregated results."""
    return "hw" in document and "conc" in document and "framework" in document


def read_inferencex(document: Document) -> BenchmarkRun:
    """One result; fields as of utils/process_result.py@843c6254."""
    mean = (1.0 + SHORTEST) / 2.0
    draft = (document.text("spec_decoding") or document.text("mtp") or "").lower()
    stated = _stated(document)
    output, osl = _output(document, stated), document.needed("osl") * mean
    return BenchmarkRun(
        where=document.where,
        tool=Tool.INFERENCEX,
        isl=document.needed("isl") * mean,
        osl=osl,
        ttft=_latency(document, "ttft"),
        tpot=_latency(document, "tpot"),
        model=document.text("model"),
        engine=document.text("framework"),
        spread=1.0 - SHORTEST,
        concurrency=document.needed("conc"),
        request_rate=math.inf,
        request_throughput=None if output is None else output / osl,
        output_throughput=output,
        speculative=draft not in _WITHOUT_DRAFT,
        stated=stated,
    )


def _latency(document: Document, name: str) -> Latency:
    return Latency(
        mean=document.number(f"mean_{name}"),
        p50=document.number(f"median_{name}"),
        p90=document.number(f"p90_{name}"),
        p99=document.number(f"p99_{name}"),
    )


def _output(document: Document, stated: Stated) -> float | None:
    """Tokens per second of the deployment: the file divides by the GPUs that decode."""
    side = stated.decode or stated.prefill
    gpus = side.count * side.tensor * side.pipeline * side.data
    return document.number("output_tput_per_gpu", float(gpus))


def _stated(document: Document) -> Stated:
    split = document.get("disagg") is True
    if split or "prefill_tp" in document:
        prefill, decode = _workers(document, "prefill_"), _workers(document, "decode_")
    else:
        prefill, decode = _workers(document, ""), None
    return Stated(
        accelerator=document.text("hw") or "",
        precision=document.text("precision") or "",
        prefill=prefill,
        decode=decode if split else None,
    )


def _workers(document: Document, prefix: str) -> Workers:
    """One side; with data-parallel attention its tp counts all ranks, each of which has the attention to itself."""
    ranks = document.whole(f"{prefix}tp")
    if ranks is None:
        raise document.error("is missing, so the layout is not known", f"{prefix}tp")
    attention = str(document.get(f"{prefix}dp_attention", "")).lower() == "true"
    return Workers(
        count=document.whole(f"{prefix}num_workers", 1) or 1,
        tensor=1 if attention else ranks,
        pipeline=document.whole(f"{prefix}pp", 1) or 1,
        data=ranks if attention else 1,
        expert=document.whole(f"{prefix}ep", 1) or 1,
    )
