"""Result files of vLLM's and SGLang's own load generators: flat objects with times in milliseconds."""

from __future__ import annotations

from costmodel.units import MILLI

from .documents import Document
from .records import BenchmarkRun, Latency, Tool


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
        ttft=_latency(document, "ttft"),
        tpot=_latency(document, "tpot"),
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


def _latency(document: Document, name: str) -> Latency:
    return Latency(
        mean=document.number(f"mean_{name}_ms", MILLI),
        p50=document.number(f"median_{name}_ms", MILLI) or document.number(f"p50_{name}_ms", MILLI),
        p90=document.number(f"p90_{name}_ms", MILLI),
        p99=document.number(f"p99_{name}_ms", MILLI),
    )


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
