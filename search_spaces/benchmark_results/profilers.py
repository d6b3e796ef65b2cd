"""Result files of AIPerf, its forerunner GenAI-Perf, and GuideLLM: every metric is an object with its statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from costmodel.quoting import shown
from costmodel.units import MICRO, MILLI

from .documents import Document
from .records import BenchmarkRun, Latency, Tool

TIME_UNITS = {"ns": 1e-9, "us": MICRO, "µs": MICRO, "ms": MILLI, "s": 1.0, "sec": 1.0, "seconds": 1.0}
"""How AIPerf and GenAI-Perf write the unit of a time; milliseconds where they do not."""
LARGEST_CONFIG_DEPTH = 8


def is_aiperf(document: Document) -> bool:
    """Whether the object is the summary of AIPerf or GenAI-Perf (profile_export_aiperf.json, ..._genai_perf.json)."""
    return isinstance(document.get("request_throughput"), Mapping) and "input_config" in document


def read_aiperf(document: Document) -> BenchmarkRun:
    """One summary; fields as of AIPerf 0.13 and GenAI-Perf 0.0.16.

    Their inter-token latency is (request latency - TTFT) / (OSL - 1) of each request: TPOT.
    """
    tool = Tool.AIPERF if "aiperf_version" in document or "schema_version" in document else Tool.GENAI_PERF
    count = document.part("request_count").whole("avg")
    settings = document.part("input_config")
    return BenchmarkRun(
        where=document.where,
        tool=tool,
        isl=document.part("input_sequence_length").needed("avg"),
        osl=document.part("output_sequence_length").needed("avg"),
        ttft=_timed(document.part("time_to_first_token")),
        tpot=_timed(document.part("inter_token_latency")),
        model=_model(settings),
        concurrency=_setting(settings, "concurrency"),
        request_rate=_setting(settings, "request_rate"),
        spread=_length_spread(document.part("input_sequence_length")),
        prompts=count,
        completed=count,
        duration=_timed(document.part("benchmark_duration"), "s").mean,
        request_throughput=document.part("request_throughput").number("avg"),
        output_throughput=document.part("output_token_throughput").number("avg"),
    )


def is_guidellm(document: Document) -> bool:
    """Whether the object is GuideLLM's benchmarks.json."""
    runs = document.get("benchmarks")
    return isinstance(runs, list) and any(isinstance(run, Mapping) and "metrics" in run for run in runs)


def read_guidellm(document: Document) -> Iterator[BenchmarkRun]:
    """The runs of one file; fields as of GuideLLM 0.8.

    TPOT is its inter-token latency; what it calls time per output token divides by OSL, not OSL - 1.
    """
    model = _first(document.part("config").content, "model", LARGEST_CONFIG_DEPTH)
    for index, run in enumerate(document["benchmarks"]):
        if not isinstance(run, Mapping) or not isinstance(run.get("metrics"), Mapping):
            raise document.error("has no metrics", "benchmarks", index)
        yield _guidellm_run(document.item("benchmarks", index), model if isinstance(model, str) else None)


def _guidellm_run(run: Document, model: str | None) -> BenchmarkRun:
    strategy = run.part("config", "strategy")
    kind = strategy.text("type_") or ""
    streams = 1.0 if kind == "synchronous" else strategy.number("streams")
    totals = run.part("metrics", "request_totals")
    flight = _successful(run, "request_concurrency").number("mean")
    return BenchmarkRun(
        where=run.where,
        tool=Tool.GUIDELLM,
        isl=_successful(run, "prompt_token_count").needed("mean"),
        osl=_successful(run, "output_token_count").needed("mean"),
        ttft=_distribution(_successful(run, "time_to_first_token_ms"), MILLI),
        tpot=_distribution(_successful(run, "inter_token_latency_ms"), MILLI),
        model=model,
        spread=_length_spread(_successful(run, "prompt_token_count")),
        concurrency=streams,
        in_flight=flight,
        request_rate=strategy.number("rate") if kind in {"constant", "poisson", "async"} else None,
        prompts=totals.whole("total"),
        completed=totals.whole("successful"),
        duration=run.number("duration"),
        request_throughput=_successful(run, "requests_per_second").number("mean"),
        output_throughput=_successful(run, "output_tokens_per_second").number("mean"),
    )


def _successful(run: Document, metric: str) -> Document:
    return run.part("metrics", metric, "successful")


def _distribution(metric: Document, scale: float) -> Latency:
    shares = metric.part("percentiles")
    median = metric.number("median", scale) or shares.number("p50", scale)
    return Latency(metric.number("mean", scale), median, shares.number("p90", scale), shares.number("p99", scale))


def _timed(metric: Document, default: str = "ms") -> Latency:
    """The statistics of one time, in the unit that stands beside them."""
    unit = (metric.text("unit") or default).lower()
    if unit not in TIME_UNITS:
        raise metric.error(f"{shown(unit)} is not a time; known: {', '.join(TIME_UNITS)}", "unit")
    scale = TIME_UNITS[unit]
    return Latency(*(metric.number(key, scale) for key in ("avg", "p50", "p90", "p99")))


def _length_spread(metric: Document) -> float:
    shortest, longest = metric.number("min"), metric.number("max")
    return 1.0 - shortest / longest if shortest and longest else 0.0


def _setting(settings: Document, key: str) -> float | None:
    """A number anywhere among the settings: its place differs from version to version."""
    found = _first(settings.content, key, LARGEST_CONFIG_DEPTH)
    value = found[0] if isinstance(found, list) and len(found) == 1 else found
    return Document(settings.file, {key: value}, settings.label, settings.path).number(key)


def _model(settings: Document) -> str | None:
    for key in ("model_names", "model_name", "model"):
        found = _first(settings.content, key, LARGEST_CONFIG_DEPTH)
        named = found[0] if isinstance(found, list) and found else found
        if isinstance(named, str):
            return named
    return None


def _first(value: Any, key: str, depth: int) -> Any:
    """The first value under `key` that is not null, nearest the top."""
    if not isinstance(value, Mapping) or depth == 0:
        return None
    if value.get(key) is not None and not isinstance(value[key], Mapping):
        return value[key]
    below = (_first(item, key, depth - 1) for item in value.values())
    return next((found for found in below if found is not None), None)
