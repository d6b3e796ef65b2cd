"""Result files of benchmark tools as records, one form for all: times in seconds, lengths in tokens, None if unknown.

One row of `result_formats.yaml` is one format, told from the content of a file: it says where the figures are. What a
row cannot say, a function here does (`READERS`, `LOADS`): InferenceX states its own deployment, Dynamo's self-benchmark
has single forward passes that the engine timed itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from costmodel.engine import Parallelism
from costmodel.errors import InputError, shown
from costmodel.units import MILLI

from .files import LARGEST_RESULTS, Keys, Source, read_text, shipped_table, shown_path
from .measurements import SHORTEST, Latency, MeasuredRun, MeasuredStep, Record, Workers
from .quantities import Kind, allowed_units, as_number, unit_size
from .sources import NESTED, JsonText, after_space, json_kind, json_shown, parse_source, value_at


@dataclass(frozen=True, slots=True)
class ResultDocument:
    """One JSON object of a result file, with its place in the file and typed access to its fields.

    Fields are named by dotted paths, in which a number is an index of a list; of several paths the first counts that
    has what is asked for. keys_above: to the content in the file; label: where that is, as results say it.
    """

    file: JsonText | Source
    content: Mapping[str, Any]
    label: str
    keys_above: Keys = ()

    @property
    def where(self) -> str:
        """The file and the place in it, for messages."""
        return f"{self.file.name}{self.label}"

    def error(self, sentence: str, *keys: str | int) -> InputError:
        """The error of the value below these keys: file, line and column, and its keys."""
        return self.file.error(sentence, (*self.keys_above, *keys))

    def item(self, key: str, index: int) -> ResultDocument:
        """An object of the list under `key`; InputError for an item that is none."""
        value = self.content[key][index]
        if not isinstance(value, Mapping):
            raise self.error(f"is {json_kind(value)}, but must be an object", key, index)
        label = f"{self.label}{'.' if self.keys_above else ': '}{key}[{index}]"
        return ResultDocument(self.file, value, label, (*self.keys_above, key, index))

    def _value(self, path: str) -> tuple[Any, Keys]:
        """The value at a path, None where there is none, and the keys to it."""
        keys = tuple(int(key) if key.isdecimal() else key for key in path.split(NESTED))
        return value_at(self.content, path), keys

    def at(self, *paths: str) -> ResultDocument:
        """The object at the first of these paths that has one, else empty."""
        for path in paths:
            value, keys = self._value(path)
            if isinstance(value, Mapping) and value:
                break
        content = value if isinstance(value, Mapping) else {}
        return ResultDocument(self.file, content, self.label, (*self.keys_above, *keys))

    def has(self, path: str) -> bool:
        """Whether a path exists, regardless of its value; `*` stands for any object of a list."""
        above, _, key = path.rpartition(".")
        if above.endswith(".*"):
            items = self._value(above.removesuffix(".*"))[0]
            return isinstance(items, list) and any(isinstance(item, Mapping) and key in item for item in items)
        return key in (self.at(above) if above else self).content

    def number(self, *paths: str) -> float | None:
        """The first figure above zero at these paths: a number, the mean of an object, or a quotient; else None.

        InputError for a value that can be none of these.
        """
        for path in paths:
            first, _, second = path.partition(" / ")
            value, keys = self._value(first)
            is_metric = isinstance(value, Mapping)
            figure = self.number(f"{first}.avg", f"{first}.mean") if is_metric else as_number(value)  # "inf": no limit
            if figure is None and value is not None and not is_metric:
                raise self.error(f"is {json_shown(value)}, but must be a number", *keys)
            if figure is not None and figure < 0 and figure != NO_FIGURE:
                raise self.error(f"is {figure:g}, but must not be below zero", *keys)
            divisor = self.number(second) if second else 1.0
            if figure is not None and figure > 0 and divisor is not None:
                return figure / divisor
        return None

    def needed(self, *paths: str) -> float:
        """The figure at these paths, which must be there and above zero."""
        figure = self.number(*paths)
        if figure is not None and math.isinf(figure):
            raise self.error("is infinite, but must be a number above 0", *paths[0].partition(" / ")[0].split("."))
        if figure is None:
            absent = next(path for path in reversed(paths[0].split(" / ")) if self.number(path) is None)
            raise self.error("is missing or zero, but must be a number above 0", *absent.split("."))
        return figure

    def whole(self, *paths: str) -> int | None:
        """The first whole number above zero at these paths."""
        for path in paths:
            figure = self.number(path)
            if figure is not None and math.isfinite(figure):
                if figure != int(figure):
                    raise self.error(f"is {figure:g}, but must be a whole number", *self._value(path)[1])
                return int(figure)
        return None

    def text(self, *paths: str) -> str | None:
        """The first text at these paths that is not empty."""
        values = (self._value(path)[0] for path in paths)
        return next(filter(None, (value.strip() for value in values if isinstance(value, str))), None)


NO_FIGURE = -1.0
"""How some tools write that there is no limit, or no figure."""
AS_JSON = "give the JSON file of the tool, such as of `vllm bench serve --save-result`, not what it prints"


def documents(path: Path) -> Iterator[ResultDocument]:
    """The objects of a file: of JSON one, one a line, one after the other, or those of a list; of YAML one."""
    name = shown_path(path)
    text = read_text(path, LARGEST_RESULTS, "a benchmark result")
    if path.suffix in {".yaml", ".yml"}:
        source = parse_source(text, name)
        yield ResultDocument(source, source.value, "")
        return
    place = after_space(text, 0)
    if place == len(text):
        raise InputError(f"{name}: is empty, but must have benchmark results")
    alone = True
    while place < len(text):
        file = JsonText(name, text, place)
        if text[place] not in "{[":
            raise file.error(f"is not valid JSON; {AS_JSON}")
        value, place = file.first(constants=True)
        alone = alone and place == len(text)
        label = "" if alone else f":{file.line()}"
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            keys, mark = ((index,), f"{label}[{index}]") if isinstance(value, list) else ((), label)
            if not isinstance(item, dict):
                raise file.error(f"is {json_kind(item)}, but must be an object with results", keys)
            yield ResultDocument(file, item, mark, keys)


TABLE = shipped_table("search_spaces", "result_formats.yaml")
OTHER_COUNT = 0.25
"""How far TPOT may be from (e2e - TTFT) / (OSL - 1) before it was divided by something else than tokens [1]; assumed:
half the gaps of a stream with an empty chunk after every token are off by 50 %, means of unlike requests by less."""
RATE_OF_A_TRACE = "trace"
"""vLLM's name for a request rate that the trace sets."""
Paths = tuple[str, ...]


class ResultFormat(BaseModel):
    """A kind of result file, a row of `result_formats.yaml`.

    shows: which of its figures TPOT is; marks: alternatives of paths that tell it; e2e: of the whole request; chunks:
    whether TPOT may be of chunks of the stream in place of tokens; counted: the output length by which the tool divided
    to get TPOT, where a truer one is known; unit: of times where none stands beside them; accepted: tokens of a step of
    speculative decoding; cached_percent: of prompt tokens found in a prefix cache.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    reader: str = ""
    load: str = ""
    file: str
    shows: str
    marks: tuple[Paths, ...]
    isl: Paths = ()
    osl: Paths = ()
    ttft: str = ""
    tpot: str = ""
    e2e: str = ""
    unit: str = "s"
    chunks: bool = False
    counted: str = ""
    prompts: Paths = ()
    completed: Paths = ()
    throughput: Paths = ()
    in_flight: Paths = ()
    concurrency: Paths = ()
    rate: Paths = ()
    accepted: Paths = ()
    cached_percent: Paths = ()
    model: Paths = ()
    engine: Paths = ()

    def recognizes(self, document: ResultDocument) -> bool:
        """Whether an object has all paths of one of the alternatives."""
        return any(all(map(document.has, paths)) for paths in self.marks)

    def run(self, document: ResultDocument) -> MeasuredRun:
        """The run of an object whose figures are where the row says."""
        isl, osl = document.needed(*self.isl), document.needed(*self.osl)
        ttft, e2e = (self.time(document, pattern) for pattern in (self.ttft, self.e2e))
        if self.load:
            concurrency, rate = LOADS[self.load](document)
        else:
            of_trace = any(document.content.get(path) == RATE_OF_A_TRACE for path in self.rate)
            concurrency, rate = document.number(*self.concurrency), None if of_trace else document.number(*self.rate)
        return MeasuredRun(
            where=document.where,
            source=self.tool,
            isl=isl,
            osl=osl,
            ttft=ttft,
            tpot=self._tpot(document, osl, ttft, e2e),
            model=document.text(*self.model) or "",
            engine=document.text(*self.engine) or "",
            spread=_spread(document, self.isl),
            concurrency=concurrency if concurrency and math.isfinite(concurrency) else None,
            in_flight=document.number(*self.in_flight),
            request_rate=rate,
            prompts=document.whole(*self.prompts),
            completed=document.whole(*self.completed),
            request_throughput=document.number(*self.throughput),
            speculative=(document.number(*self.accepted) or 1.0) > 1.0,
            cached=(document.number(*self.cached_percent) or 0.0) / 100.0,
            e2e=e2e,
        )

    def time(self, document: ResultDocument, pattern: str) -> Latency:
        """The statistics of one time [s], in the unit that stands beside them."""
        if not pattern:
            return Latency()
        unit, place, metric = self.unit, pattern, document
        if "{}" not in pattern:
            metric, place = document.at(pattern), f"{pattern}.{{}}"
            unit = (metric.text("unit", "units") or unit).lower().removesuffix("/token")
        size = unit_size(unit, Kind.DURATION)
        if size is None:
            key = "unit" if "unit" in metric.content else "units"
            raise metric.error(f"{shown(unit)} is not a time; it may be in {allowed_units(Kind.DURATION)}", key)
        figures = (document.number(*map(place.format, words)) for words in TABLE["statistics"])
        return Latency(*figures).times(size)

    def _tpot(self, document: ResultDocument, osl: float, ttft: Latency, e2e: Latency) -> Latency:
        """TPOT of the tokens that were generated [s].

        A client counts tokens of its own tokenizer, or chunks of the stream: its TPOT is (tokens - 1) / (OSL - 1) of
        the true one. Where it does not say what it counted, or has no TPOT, the whole request tells.
        """
        tpot, whole = self.time(document, self.tpot), _tpot_of(ttft, e2e, osl)
        if tpot.typical is None:
            return whole
        if self.counted:
            token_count = document.number(self.counted) or 0.0
            return tpot.times((token_count - 1.0) / (osl - 1.0)) if token_count > 1.0 and osl > 1.0 else tpot
        if not self.chunks or whole.typical is None or abs(tpot.typical / whole.typical - 1.0) <= OTHER_COUNT:
            return tpot
        return tpot.times(whole.typical / tpot.typical)


def _tpot_of(ttft: Latency, e2e: Latency, osl: float) -> Latency:
    """TPOT from the whole request [s]: (e2e - TTFT) / (OSL - 1), of the means and of the medians.

    >>> _tpot_of(Latency(p50=0.5), Latency(p50=2.5), 101.0).p50
    0.02
    """

    def between(first: float | None, last: float | None) -> float | None:
        return (last - first) / (osl - 1.0) if first and last and last > first and osl > 1.0 else None

    return Latency(mean=between(ttft.mean, e2e.mean), p50=between(ttft.p50, e2e.p50))


def _spread(document: ResultDocument, isl: Paths) -> float:
    """1 - shortest / longest prompt: of the metric or of the prompts, else as the option says that drew them."""
    if "/" not in isl[0]:
        shortest, most = document.at(*isl).number("min"), document.at(*isl).number("max")
        return 1.0 - shortest / most if shortest and most else 0.0
    lengths = document.content.get("input_lens")
    if isinstance(lengths, list) and lengths:
        if not all(isinstance(length, int | float) for length in lengths):
            raise document.error("must be an array of numbers", "input_lens")
        longest = max(lengths)
        return 1.0 - min(lengths) / longest if longest > 0 else 0.0
    ratio = document.content.get("random_range_ratio")
    drawn = document.text("dataset_name") in {"random", "random-ids"} and isinstance(ratio, int | float)
    return min(max(1.0 - float(ratio or 0.0), 0.0), 1.0) if drawn else 0.0


GeneratorLoad = tuple[float | None, float | None]
"""Concurrency [1] and request rate [1/s] that a generator was told to keep."""


def _aiperf_load(document: ResultDocument) -> GeneratorLoad:
    """AIPerf 0.13 has phases, of which warm-up ones may stand first; AIPerf before 0.10 and GenAI-Perf have none."""
    settings = document.at("input_config")
    phases = settings.content.get("phases")
    for index in range(len(phases) if isinstance(phases, list) else 0):
        phase = settings.item("phases", index)
        if phase.text("kind") in {None, "profiling"}:
            return phase.number("concurrency"), phase.number("rate")
    load = settings.at("loadgen", "perf_analyzer.stimulus")
    return load.number("concurrency"), load.number("request_rate")


def _guidellm_load(document: ResultDocument) -> GeneratorLoad:
    """Synchronous requests are one stream; an unlimited throughput run has no steady state."""
    strategy = document.at("config.strategy", "args.strategy", "scheduler.strategy")
    kind = strategy.text("type_") or ""
    if kind == "throughput":
        return strategy.number("max_concurrency"), math.inf
    rate = strategy.number("rate") if kind in {"constant", "poisson", "async"} else None
    return 1.0 if kind == "synchronous" else strategy.number("streams"), rate


def _llmd_load(document: ResultDocument) -> GeneratorLoad:
    """v0.1 has the load generator's own words, of which stages need the number of theirs; v0.2 has one form."""
    words = document.at("scenario.load.standardized", "scenario.load.args")
    stage = document.at("scenario.load.metadata").content.get("stage")
    rate = words.number("rate_qps", "request_rate", "rate", f"load.stages.{stage}.rate")
    return words.number("concurrency", "max_concurrency", f"load.stages.{stage}.concurrency_level"), rate


LOADS: Mapping[str, Callable[[ResultDocument], GeneratorLoad]] = {
    "aiperf": _aiperf_load,
    "guidellm": _guidellm_load,
    "llmd": _llmd_load,
}
"""Tools whose load stands in no one place."""
AIPERF_GOALS = ("time_to_first_token", "inter_token_latency", "request_latency")
"""AIPerf's words for TTFT, TPOT and the whole request among its goals (`--goodput`), in milliseconds."""


def _aiperf(form: ResultFormat, document: ResultDocument) -> Iterator[MeasuredRun]:
    """One summary of AIPerf; which requests met its goals counts where it counted the server's tokens."""
    run = form.run(document)
    goals, met = document.at("input_config.slos"), document.at("good_request_fraction").content.get("avg")
    server = document.at("input_config.endpoint").content.get("use_server_token_count") is True
    if server and isinstance(met, int | float) and set(goals.content) <= set(AIPERF_GOALS):
        limits = (goals.number(name) for name in AIPERF_GOALS)
        run = replace(run, goals=tuple(limit and limit * MILLI for limit in limits), attainment=float(met))
    yield run


def _guidellm(form: ResultFormat, document: ResultDocument) -> Iterator[MeasuredRun]:
    """The runs of one file."""
    model = document.text("config.model", "args.model") or ""
    for index, run in enumerate(document.content["benchmarks"]):
        if not isinstance(run, Mapping) or not isinstance(run.get("metrics"), Mapping):
            raise document.error("has no metrics", "benchmarks", index)
        benchmark = form.run(document.item("benchmarks", index))
        yield replace(benchmark, model=benchmark.model or model)


def _dynamo(form: ResultFormat, document: ResultDocument) -> Iterator[MeasuredStep]:
    """One step a point: the median of its repetitions, without the first where there are several (it warms up)."""
    for index, item in enumerate(document.content["results"]):
        passes = item.get("fpms") if isinstance(item, Mapping) else None
        if not isinstance(passes, list):
            raise document.error("has no forward passes (fpms)", "results", index)
        point, steps = document.item("results", index), list[MeasuredStep]()
        for number in range(len(passes)):
            forward = point.item("fpms", number)
            names = ("num_prefill_requests", "num_decode_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens")
            prompts, decodes, new, past, context = (
                forward.number(f"scheduled_requests.{name}") or 0.0 for name in (*names, "sum_decode_kv_tokens")
            )
            if prompts or decodes:
                each, one = max(prompts, 1.0), max(decodes, 1.0)
                load: dict[str, Any] = {"prompts": prompts, "new": new / each, "past": past / each}
                load |= {"decodes": decodes, "context": context / one, "seconds": forward.needed("wall_time")}
                steps.append(MeasuredStep(where=point.where, source=form.tool, **load))
        if steps:
            steady = steps[1:] or steps
            middle = median(step.seconds for step in steady)
            yield min(steady, key=lambda step: abs(step.seconds - middle))


_WITHOUT_DRAFT = {"", "none", "off", "false", "no"}


def _inferencex(form: ResultFormat, document: ResultDocument) -> Iterator[MeasuredRun]:
    """One result, which states its own deployment and the nominal lengths.

    Files of 2025 state these in their name alone (agg_dsr1_1k8k_fp8_...json).
    """
    thousands = re.search(r"_(\d+)k(\d+)k_", document.file.name)
    if thousands:
        by_name = {"isl": 1024 * int(thousands[1]), "osl": 1024 * int(thousands[2])}
        document = replace(document, content={**by_name, **document.content})
    split = document.content.get("disagg") is True
    prefill = _workers(document, "prefill_" if split or "prefill_tp" in document.content else "")
    decode = _workers(document, "decode_") if split else None
    run, mean = form.run(document), (1.0 + SHORTEST) / 2.0
    output = document.number("output_tput_per_gpu")  # of the GPUs that decode
    yield replace(
        run,
        isl=run.isl * mean,
        osl=run.osl * mean,
        spread=1.0 - SHORTEST,
        request_rate=math.inf,
        request_throughput=None if output is None else output * (decode or prefill).gpus / (run.osl * mean),
        speculative=(document.text("spec_decoding", "mtp") or "").lower() not in _WITHOUT_DRAFT,
        accelerator=document.text("hw") or "",
        precision=document.text("precision") or "",
        prefill=prefill,
        decode=decode,
        gpus=prefill.gpus + (decode.gpus if decode else 0),
    )


def _workers(document: ResultDocument, prefix: str) -> Workers:
    """One side; with data-parallel attention its tp counts all ranks, each of which has the attention to itself."""
    ranks = document.whole(f"{prefix}tp")
    if ranks is None:
        raise document.error("is missing, so the layout is not known", f"{prefix}tp")
    attention = str(document.content.get(f"{prefix}dp_attention", "")).lower() == "true"
    workers, pipeline, expert = (document.whole(f"{prefix}{name}") or 1 for name in ("num_workers", "pp", "ep"))
    tensor, data = (1, ranks) if attention else (ranks, 1)
    return Workers(workers, Parallelism(tensor, pipeline, expert, data))


READERS: Mapping[str, Callable[[ResultFormat, ResultDocument], Iterable[Record]]] = {
    "aiperf": _aiperf,
    "guidellm": _guidellm,
    "dynamo": _dynamo,
    "inferencex": _inferencex,
}
"""Tools whose files say more than their row of figures does."""


@cache
def formats() -> tuple[ResultFormat, ...]:
    """Every format; the first that recognizes an object reads it.

    >>> formats()[0].tool
    'vllm bench serve'
    """
    return tuple(map(ResultFormat.model_validate, TABLE["formats"].values()))


def read_results(paths: Iterable[Path]) -> list[Record]:
    """All runs and steps of the files in their order; InputError names the place of what cannot be read."""
    records: list[Record] = []
    for document in (document for path in paths for document in documents(path)):
        form = next((form for form in formats() if form.recognizes(document)), None)
        if form is None:
            tools = f"known: {', '.join(dict.fromkeys(form.tool for form in formats()))}"
            hint = next((hint for key, hint in TABLE["kindred"].items() if key in document.content), tools)
            raise document.error(f"is not the result of a known benchmark tool; {hint}")
        records += READERS[form.reader](form, document) if form.reader else [form.run(document)]
    return records
