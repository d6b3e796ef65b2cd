"""Result files of benchmark tools as records; which tool wrote a file is told from its content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .documents import Document, documents
from .load_generators import is_sglang, is_vllm, read_sglang, read_vllm
from .profilers import is_aiperf, is_guidellm, read_aiperf, read_guidellm
from .published import is_inferencex, read_inferencex
from .records import BenchmarkRun, Record, Tool
from .self_benchmark import is_dynamo, read_dynamo

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
    known = ", ".join(Tool)
    hint = next((hint for key, hint in _HINTS.items() if key in document), f"known: {known}")
    raise document.error(f"is not the result of a known benchmark tool; {hint}")
