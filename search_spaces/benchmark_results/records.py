"""What a benchmark tool measured, in one form for all: times in seconds, lengths in tokens, None where unknown.

A result file is read as JSON objects that know where they stand, so that each fault is a sentence that says where.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from costmodel.errors import InputError
from search_spaces.faults import Fault, Source
from search_spaces.faults import Path as Keys
from search_spaces.files import LARGEST_RESULTS, read_file, shown_path
from search_spaces.json_source import JsonText, json_kind, json_shown
from search_spaces.plain_text import decoded
from search_spaces.yaml_source import parse_source


class Tool(StrEnum):
    """Whose result file it is."""

    VLLM = "vllm bench serve"
    SGLANG = "sglang bench_serving"
    AIPERF = "AIPerf"
    GENAI_PERF = "GenAI-Perf"
    GUIDELLM = "GuideLLM"
    INFERENCE_PERF = "inference-perf"
    LLMD = "llm-d benchmark report"
    INFERENCEX = "InferenceX"
    DYNAMO = "Dynamo self-benchmark"


@dataclass(frozen=True, slots=True)
class Latency:
    """A time over the requests of a run [s]: its mean and quantiles."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p95: float | None = None

    @property
    def typical(self) -> float | None:
        """The mean, which the model predicts, or else the median [s]."""
        return self.p50 if self.mean is None else self.mean

    def times(self, factor: float) -> Latency:
        """The same statistics of a time `factor` [1] as long."""
        times = (self.mean, self.p50, self.p90, self.p99, self.p95)
        return Latency(*(None if time is None else time * factor for time in times))

    def share_within(self, limit: float) -> tuple[float, float]:
        """Least and largest share of requests that took no longer than `limit` [s], as far as the quantiles tell [1].

        >>> Latency(p50=0.1, p90=0.2, p99=0.4).share_within(0.3)
        (0.9, 0.99)
        """
        quantiles = ((0.5, self.p50), (0.9, self.p90), (0.95, self.p95), (0.99, self.p99))
        met = [share for share, time in quantiles if time is not None and time <= limit]
        missed = [share for share, time in quantiles if time is not None and time > limit]
        return max(met, default=0.0), min(missed, default=1.0)


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers of a stated layout: tensor x pipeline x data ranks each, experts over `expert` ranks."""

    count: int
    tensor: int
    pipeline: int
    data: int
    expert: int


@dataclass(frozen=True, slots=True)
class Stated:
    """A deployment that the result file itself states (InferenceX).

    accelerator, precision: its words; decode: None where one kind of worker does both.
    """

    accelerator: str
    precision: str
    prefill: Workers
    decode: Workers | None


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run of a load generator.

    where: file, and line or index in it; model, engine: the file's words;
    isl, osl: mean lengths [token]; spread: 1 - shortest / longest prompt [1];
    concurrency: requests that the generator keeps in flight at most [1]; in_flight: their measured mean [1];
    request_rate: rate at which it sends [1/s], infinite where only the concurrency limits it;
    prompts: requests sent; completed: of these, finished;
    tpot: (end - first token) / (OSL - 1); e2e: of the whole request;
    goals: limits of TTFT, TPOT and e2e [s] that the generator checked, None where it had none; attainment: share of
    requests within all of them [1];
    request_throughput: requests that end [1/s];
    speculative: more than one token came from a step; cached: share of prompt tokens found in a prefix cache [1];
    stated: the deployment, where the file names it.
    """

    where: str
    tool: Tool
    isl: float
    osl: float
    ttft: Latency
    tpot: Latency
    model: str | None = None
    engine: str | None = None
    spread: float = 0.0
    concurrency: float | None = None
    in_flight: float | None = None
    request_rate: float | None = None
    prompts: int | None = None
    completed: int | None = None
    request_throughput: float | None = None
    speculative: bool = False
    cached: float = 0.0
    stated: Stated | None = None
    e2e: Latency = Latency()
    goals: tuple[float | None, ...] = ()
    attainment: float | None = None

    @property
    def gaps(self) -> float:
        """Gaps between the tokens of a request: OSL - 1, at least one [1]."""
        return max(self.osl - 1.0, 1.0)

    @property
    def residence(self) -> float | None:
        """Time of a request from arrival to its last token [s]: TTFT + (OSL - 1) TPOT."""
        ttft, tpot = self.ttft.typical, self.tpot.typical
        return None if ttft is None or tpot is None else ttft + self.gaps * tpot

    @property
    def occupancy(self) -> float | None:
        """Mean requests in flight by Little's law: throughput x residence [1]."""
        rate, residence = self.request_throughput, self.residence
        return None if rate is None or residence is None else rate * residence


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One forward pass that an engine timed itself.

    prompts: in the step, with `new` tokens each after `past` cached ones; decodes: requests that decode, at a mean
    context of `context` tokens; seconds: wall time of the pass [s].
    """

    where: str
    tool: Tool
    prompts: float
    new: float
    past: float
    decodes: float
    context: float
    seconds: float


Record = BenchmarkRun | MeasuredStep

_MISSING = object()


class Document(Mapping[str, Any]):
    """One JSON object of a result file, which knows where it stands and reads its fields as what they must be."""

    def __init__(self, file: JsonText | YamlText, content: Mapping[str, Any], label: str, path: Keys = ()) -> None:
        """Take the object at a path below a value of the file; label: where that is, as results say it."""
        self.file = file
        self.content = content
        self.label = label
        self.path = path

    @property
    def where(self) -> str:
        """The file and where in it this stands, as results say it."""
        return f"{self.file.name}{self.label}"

    def error(self, sentence: str, *keys: str | int) -> InputError:
        """The error of the value below these keys: file, line and column, and its keys."""
        return self.file.error(sentence, (*self.path, *keys))

    def item(self, key: str, index: int) -> Document:
        """An object of the list under `key`; InputError for an item that is none."""
        value = self.content[key][index]
        if not isinstance(value, Mapping):
            raise self.error(f"is {json_kind(value)}, but must be an object", key, index)
        return Document(
            self.file, value, f"{self.label}{'.' if self.path else ': '}{key}[{index}]", (*self.path, key, index)
        )

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def part(self, *keys: str) -> Document:
        """The object below these keys, empty where there is none."""
        value: Any = self.content
        path = list(self.path)
        for key in keys:
            step = int(key) if isinstance(value, list) and key.isdecimal() else key
            value = _below(value, step)
            path.append(step)
        content = value if isinstance(value, Mapping) else {}
        return Document(self.file, content, f"{self.label}: {'.'.join(keys)}", tuple(path))

    def at(self, *paths: str) -> Document:
        """The object at the first of these dotted paths that has one, else at the last, empty."""
        parts = [self.part(*path.split(".")) for path in paths]
        return next((part for part in parts if part), parts[-1])

    def number_at(self, *paths: str) -> float | None:
        """The number at the first of these dotted paths that has one above zero."""
        for path in paths:
            *above, key = path.split(".")
            figure = self.part(*above).number(key)
            if figure is not None:
                return figure
        return None

    def whole_at(self, *paths: str) -> int | None:
        """The whole number at the first of these dotted paths that has one above zero."""
        for path in paths:
            *above, key = path.split(".")
            figure = self.part(*above).whole(key)
            if figure is not None:
                return figure
        return None

    def has(self, path: str) -> bool:
        """Whether something stands at a dotted path."""
        *above, key = path.split(".")
        return key in self.part(*above)

    def text_at(self, path: str) -> str | None:
        """The text at a dotted path, in which a number is an index; None where there is none."""
        value: Any = self.content
        for key in path.split("."):
            value = _below(value, int(key) if isinstance(value, list) and key.isdecimal() else key)
        return value.strip() or None if isinstance(value, str) else None

    def number(self, key: str, scale: float = 1.0) -> float | None:
        """The number under `key` times `scale`; None where it is missing, null or not above zero."""
        value = self.content.get(key, _MISSING)
        if value is _MISSING or value is None:
            return None
        figure = _as_number(value)
        if figure is None:
            raise self.error(f"is {json_shown(value)}, but must be a number", key)
        return figure * scale if figure > 0 else None

    def needed(self, key: str) -> float:
        """The number under `key`, which must be there and above zero."""
        figure = self.number(key)
        if figure is None:
            raise self.error("is missing or zero, but must be a number above 0", key)
        return figure

    def whole(self, key: str, default: int | None = None) -> int | None:
        """The whole number under `key`; `default` where it is missing or zero."""
        figure = self.number(key)
        if figure is None or not math.isfinite(figure):
            return default
        if figure != int(figure):
            raise self.error(f"is {figure:g}, but must be a whole number", key)
        return int(figure)

    def text(self, key: str) -> str | None:
        """The text under `key`; None where it is missing or empty."""
        value = self.content.get(key)
        return value.strip() or None if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class YamlText:
    """A YAML file of results, with the questions that a `JsonText` answers."""

    source: Source

    @property
    def name(self) -> str:
        """What stands for the file in messages."""
        return self.source.name

    def error(self, sentence: str, path: Keys = ()) -> InputError:
        """The error of the value at a path, with its line."""
        return InputError(self.source.render([Fault(path, sentence)]))


def documents(path: Path) -> Iterator[Document]:
    """The objects of a file: of JSON one, one a line, one after the other, or those of a list; of YAML one."""
    name = shown_path(path)
    text = decoded(read_file(path, LARGEST_RESULTS, "a benchmark result"), name)
    if path.suffix in {".yaml", ".yml"}:
        source, _ = parse_source(text, name)
        yield Document(YamlText(source), source.value, "")
        return
    decoder = json.JSONDecoder()
    place, count = 0, 0
    while place := _next_value(text, place):
        file = JsonText(name, text, place - 1)
        try:
            value, end = decoder.raw_decode(text, place - 1)
        except RecursionError:
            raise InputError(f"{name}: the JSON is nested too deeply for a benchmark result") from None
        except ValueError as error:
            line = text.count("\n", 0, getattr(error, "pos", place - 1)) + 1
            reason = str(error).split(":", maxsplit=1)[0]
            raise InputError(f"{name}:{line}: is not valid JSON ({reason})") from None
        alone = not count and not _next_value(text, end)
        yield from _objects(file, value, "" if alone else f":{file.line()}")
        place, count = end, count + 1
    if not count:
        raise InputError(f"{name}: is empty, but must have benchmark results")


def _next_value(text: str, start: int) -> int:
    """One past the index of the next character that is no white space; 0 where there is none."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start + 1 if start < len(text) else 0


def _objects(file: JsonText, value: Any, label: str) -> Iterator[Document]:
    items = enumerate(value) if isinstance(value, list) else [(None, value)]
    for index, item in items:
        path = () if index is None else (index,)
        if not isinstance(item, dict):
            raise file.error(f"is {json_kind(item)}, but must be an object with results", path)
        yield Document(file, item, label if index is None else f"{label}[{index}]", path)


def _below(value: Any, step: str | int) -> Any:
    """What stands under a key of an object, or at an index of a list; None where nothing does."""
    if isinstance(value, list):
        return value[step] if isinstance(step, int) and step < len(value) else None
    return value.get(step) if isinstance(value, Mapping) else None


def _as_number(value: object) -> float | None:
    """A JSON number, or a text that is one ("inf" is how tools write no limit)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
