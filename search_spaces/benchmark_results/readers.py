"""Result files of benchmark tools as records: one reader a format; which tool wrote a file is told from its content.

vLLM's and SGLang's load generators write flat objects with times in milliseconds, InferenceX one object a run that
states its own deployment. AIPerf, GenAI-Perf and GuideLLM write every metric as an object with its statistics. Dynamo's
self-benchmark has single forward passes that the engine timed itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from costmodel.quoting import shown
from costmodel.units import MICRO, MILLI
from search_spaces.benchmark_results.records import (
    BenchmarkRun,
    Document,
    Latency,
    MeasuredStep,
    Record,
    Stated,
    Tool,
    Workers,
    documents,
)


def is_vllm(document: Document) -> bool:
    """Whether the object is a result of `vllm bench serve` (--save-result)."""
    return "request_throughput" in document and "tokenizer_id" in document


def is_sglang(document: Document) -> bool:
    """Whether the object is a line of SGLang's bench_serving (--output-file)."""
    return "request_throughput" in document and "dataset_name" in document and "backend" in document


def read_vllm(document: Document) -> BenchmarkRun:
    """One result of `vllm bench serve`; fields as of vLLM 0.33, vllm/benchmarks/serve.py."""
    speculative = (document.number("spec_decode_acceptance_length") or 1.0) > 1.0
    return _run(document, Tool.VLLM, document.text("model_id"), speculative=speculative)


def read_sglang(document: Document) -> BenchmarkRun:
    """One line of SGLang's bench_serving; fields as of SGLang 0.5.23, sglang/benchmark/serving.py."""
    server = document.part("server_info")
    model = server.text("model_path") or server.text("served_model_name")
    hits = document.part("cache_report").number("cache_hit_rate_pct") or 0.0
    speculative = (document.number("accept_length") or 1.0) > 1.0
    return _run(document, Tool.SGLANG, model, speculative=speculative, cached=hits / 100.0)


def _run(document: Document, tool: Tool, model: str | None, *, speculative: bool, cached: float = 0.0) -> BenchmarkRun:
    completed = document.needed("completed")
    return BenchmarkRun(
        where=document.where,
        tool=tool,
        isl=document.needed("total_input_tokens") / completed,
        osl=document.needed("total_output_tokens") / completed,
        ttft=_latency(document, "ttft", "_ms", MILLI),
        tpot=_latency(document, "tpot", "_ms", MILLI),
        model=model,
        engine=document.text("backend"),
        spread=_spread(document),
        concurrency=document.number("max_concurrency"),
        in_flight=document.number("concurrency"),
        request_rate=None if document.get("request_rate") == "trace" else document.number("request_rate"),
        prompts=document.whole("num_prompts", int(completed)),
        completed=int(completed),
        duration=document.number("duration"),
        request_throughput=document.number("request_throughput"),
        output_throughput=document.number("output_throughput"),
        speculative=speculative,
        cached=cached,
    )


def _latency(document: Document, name: str, unit: str = "", scale: float = 1.0) -> Latency:
    """The statistics of a time, which stand beside one another; unit: what ends their keys; scale: its length [s]."""
    mean, median, p50, p90, p99 = (
        document.number(f"{statistic}_{name}{unit}", scale) for statistic in ("mean", "median", "p50", "p90", "p99")
    )
    return Latency(mean, median or p50, p90, p99)


def _spread(document: Document) -> float:
    """1 - shortest / longest prompt: from the prompts where the file has them, else from the option that drew them."""
    lengths = document.get("input_lens")
    if isinstance(lengths, list) and lengths:
        if not all(isinstance(each, int | float) for each in lengths):
            raise document.error("must be an array of numbers", "input_lens")
        longest = max(lengths)
        return 1.0 - min(lengths) / longest if longest > 0 else 0.0
    ratio = document.get("random_range_ratio")
    drawn = document.text("dataset_name") in {"random", "random-ids"} and isinstance(ratio, int | float)
    return min(max(1.0 - float(ratio or 0.0), 0.0), 1.0) if drawn else 0.0


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
    setting = _first(settings.content, key, LARGEST_CONFIG_DEPTH)
    value = setting[0] if isinstance(setting, list) and len(setting) == 1 else setting
    return Document(settings.file, {key: value}, settings.label, settings.path).number(key)


def _model(settings: Document) -> str | None:
    for key in ("model_names", "model_name", "model"):
        names = _first(settings.content, key, LARGEST_CONFIG_DEPTH)
        named = names[0] if isinstance(names, list) and names else names
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
    return next((match for match in below if match is not None), None)


Reader = Callable[[Document], Iterable[Record]]


def _single(read: Callable[[Document], BenchmarkRun]) -> Reader:
    return lambda document: [read(document)]


FORMATS: tuple[tuple[Callable[[Document], bool], Reader], ...] = (
    (is_guidellm, read_guidellm),
    (is_dynamo, read_dynamo),
    (is_aiperf, _single(read_aiperf)),
    (is_inferencex, _single(read_inferencex)),
    (is_vllm, _single(read_vllm)),
    (is_sglang, _single(read_sglang)),
)
"""How an object is recognised, and who reads it; the first that recognises it does."""

_HINTS = {
    "avg_latency": "it looks like `vllm bench latency`, whose file lacks the lengths; use `vllm bench serve`",
    "elapsed_time": "it looks like `vllm bench throughput`, which measures no latency; use `vllm bench serve`",
    "batch_size": "it looks like SGLang's bench_one_batch_server; use bench_serving",
    "metadata": "it looks like AIPerf's records of single requests; give its profile_export_aiperf.json",
}
"""Keys of kindred files that cannot be used, and what to use instead."""


def read_results(paths: Iterable[Path]) -> list[Record]:
    """All runs and steps of the files in their order; InputError names the place of what cannot be read."""
    return [record for path in paths for record in _records(path)]


def _records(path: Path) -> Iterator[Record]:
    for document in documents(path):
        yield from _reader(document)(document)


def _reader(document: Document) -> Reader:
    for recognises, read in FORMATS:
        if recognises(document):
            return read
    tools = ", ".join(Tool)
    hint = next((hint for key, hint in _HINTS.items() if key in document), f"known: {tools}")
    raise document.error(f"is not the result of a known benchmark tool; {hint}")
