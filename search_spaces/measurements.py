"""Measured serving results and engine steps as rows: two CSV formats, told apart by their header.

A closed-loop file has one row per benchmark run at fixed concurrency (model, accelerator, engine, layout, ISL, OSL,
ttft_ms, tpot_ms); a step file has one row per engine step (system, backend, model, phase, batch, seq, latency_ms).
Unknown columns are kept out of the way, missing optional ones count as empty, and a cell that cannot be read makes its
row a refusal with a reason: nothing is dropped in silence.

Flags that the rows of InferenceX do not state come from a table of the scripts that ran them (`read_scripts`): a row
for each of its single-node runs, with the flags of the engine's command line. A flag may hold a variable of the script
or two values; only what is one number or one word counts, and SGLang's poll interval, whose variable has the same two
values in all of its scripts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from costmodel.engine import Draft, Parallelism
from costmodel.errors import InputError, shown
from costmodel.units import KILO, MEGA, MILLI
from costmodel.words import plural

from .bounds import ACCEPTANCE, DEGREE, MAX_GPUS, MAX_NUM_SEQS, SPECULATIVE_TOKENS, TOKENS, TPOT, TTFT, Bounds
from .catalog import load_catalog, normalized_name
from .fields import Reader, choice, count, csv_rows, number, read_cell, share
from .files import LARGEST_RESULTS, read_text, shipped_table

ATTENTION_DATA = re.compile(r"\(?\s*attention\s*dp\s*(\d+)\s*\)?", re.IGNORECASE)
"""A layout written in words: the attention's data ranks stand where the tensor ranks are expected."""
RANKS = Bounds(DEGREE.low, DEGREE.high)
FIRST_TOKEN = Bounds(TTFT.low / MILLI, TTFT.high / MILLI, "ms")
"""Also of a step, which takes no longer than the wait for a first token, of which it is a part."""
NEXT_TOKEN = Bounds(TPOT.low / MILLI, TPOT.high / MILLI, "ms")


class RowKind(StrEnum):
    """What a row of the file measures."""

    SERVING = "serving"
    STEPS = "steps"


NEEDED: Mapping[RowKind, tuple[str, tuple[str, ...]]] = {
    RowKind.SERVING: ("serving results", ("model", "accelerator", "isl", "osl")),
    RowKind.STEPS: ("engine steps", ("system", "model", "phase", "batch", "seq")),
}
"""Columns without which a file cannot be read, by format and its words; all others are optional."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers that share the requests, and how each splits the model."""

    count: int = 1
    split: Parallelism = field(default_factory=Parallelism)

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.count * self.split.gpus


@dataclass(frozen=True, slots=True)
class RowFlags:
    """Flags of the engine that a row states; None or empty where it does not.

    kv_dtype: the file's word for the dtype of the KV cache; memory_fraction: share of HBM that the engine takes [1];
    token_budget: most prompt tokens in a step [token]; looks: decode steps from one look at the queue to the next [1];
    marlin: whether MXFP4 experts run by Marlin's kernel; draft: who drafts tokens, if anybody; draft_tokens: how many a
    step [1]; acceptance: share accepted at each position, given those before it [1].
    """

    kv_dtype: str = ""
    memory_fraction: float | None = None
    token_budget: int | None = None
    looks: int | None = None
    marlin: bool = False
    draft: Draft | None = None
    draft_tokens: int | None = None
    acceptance: tuple[float, ...] = ()

    def over(self, habit: RowFlags) -> RowFlags:
        """These flags, and those of `habit` where nothing is stated."""
        flags = {item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name)}
        return replace(habit, **flags)


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency over the requests of a run [s]: its mean and quantiles."""

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
        figures = (self.mean, self.p50, self.p90, self.p99, self.p95)
        return Latency(*(None if figure is None else figure * factor for figure in figures))

    def share_within(self, limit: float) -> tuple[float, float]:
        """Least and largest share of requests that took no longer than `limit` [s], as far as the quantiles tell [1].

        >>> Latency(p50=0.1, p90=0.2, p99=0.4).share_within(0.3)
        (0.9, 0.99)
        """
        quantiles = ((0.5, self.p50), (0.9, self.p90), (0.95, self.p95), (0.99, self.p99))
        met = [share for share, time in quantiles if time is not None and time <= limit]
        above = [share for share, time in quantiles if time is not None and time > limit]
        return max(met, default=0.0), min(above, default=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Where a measurement stands, and what ran, as far as it is stated, in the source's words.

    where: file, and line or index in it; line: of a table; source: the table's set, or the tool.
    """

    where: str = ""
    line: int = 0
    source: str = ""
    model: str = ""
    accelerator: str = ""
    engine: str = ""
    gemm_dtype: str = ""
    moe_dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun(Measured):
    """One benchmark run of a deployment, as a row of a table or the result file of a load generator has it.

    isl, osl: mean lengths [token], in tables the nominal ones; spread: 1 - shortest / longest prompt [1];
    tpot: (end - first token) / (OSL - 1); e2e: of the whole request; warmed_up: the mean TTFT is far above the median,
    which is what stands here; concurrency: requests that the generator keeps in flight at most, None where not stated
    [1]; in_flight: their measured mean [1]; request_rate: rate at which it sends [1/s], infinite where only the
    concurrency limits it; prompts: requests sent; completed: of these, finished; request_throughput: requests that end
    [1/s]; goals: limits of TTFT, TPOT and e2e [s] that the generator checked, None where it had none; attainment: share
    of requests within all of them [1]; speculative: more than one token came from a step; cached: share of prompt
    tokens found in a prefix cache [1].

    precision: of the checkpoint, which counts where gemm_dtype is not given; gpus: of the whole deployment, 0 where
    nothing is said of it; prefill, decode: its workers, decode is None where one kind does both; settings: flags of the
    engine.
    """

    isl: float
    osl: float
    ttft: Latency
    tpot: Latency
    e2e: Latency = Latency()
    warmed_up: bool = False
    spread: float = 0.0
    concurrency: float | None = None
    in_flight: float | None = None
    request_rate: float | None = None
    prompts: int | None = None
    completed: int | None = None
    request_throughput: float | None = None
    goals: tuple[float | None, ...] = ()
    attainment: float | None = None
    speculative: bool = False
    cached: float = 0.0
    precision: str = ""
    gpus: int = 0
    prefill: Workers = Workers()
    decode: Workers | None = None
    settings: RowFlags = RowFlags()

    @property
    def mode(self) -> str:
        """Return "colocated" or "disaggregated"."""
        return "colocated" if self.decode is None else "disaggregated"

    @property
    def scored(self) -> tuple[float, float]:
        """TTFT and TPOT that a prediction is held against [s]; NaN where there is none."""
        ttft, tpot = self.ttft.typical, self.tpot.typical
        return math.nan if ttft is None else ttft, math.nan if tpot is None else tpot

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep(Measured):
    """One engine step of a data-parallel rank, as a row of a table has it or the engine that timed itself.

    prompts: in the step, with `new` tokens each after `past` cached ones; decodes: requests that decode, at a mean
    context of `context` tokens; seconds: wall time [s], NaN: not measured; dtype: the table's word for all precisions
    together.
    """

    seconds: float
    prompts: float = 0.0
    new: float = 0.0
    past: float = 0.0
    decodes: float = 0.0
    context: float = 0.0
    dtype: str = ""
    kv_dtype: str = ""
    split: Parallelism = field(default_factory=Parallelism)

    def load(self, ranks: int) -> tuple[float, ...]:
        """The arguments of `StepLoad.of`, where all data-parallel ranks are as busy."""
        return self.prompts * ranks, self.new, self.past, self.decodes * ranks, self.context


Record = MeasuredRun | MeasuredStep


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be predicted, and why."""

    line: int
    reason: str


Row = Record | Refused


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of a row by column; each is read as what it must be, or refused with the reason."""

    row: Mapping[str, str]

    def word(self, *columns: str) -> str:
        """The text of the first of these columns that has one; empty where none has."""
        return next((self.row[column] for column in columns if self.row.get(column)), "")

    def text(self, column: str) -> str:
        """A text that must be there."""
        if not self.row.get(column):
            raise InputError(f"{column} is empty")
        return self.row[column]

    def read(self, column: str, reader: Reader) -> Any:
        """What a field type makes of a cell that must be there."""
        return read_cell(column, self.text(column), reader)

    def optional(self, column: str, reader: Reader) -> Any:
        """The same of a cell that may be empty; None where it is."""
        return self.read(column, reader) if self.word(column) else None

    def ranks(self, column: str, default: int, bounds: Bounds = RANKS) -> int:
        """A whole number; empty and 0 mean `default`."""
        return self.optional(column, count(Bounds(0, bounds.high, bounds.unit))) or default

    def seconds(self, column: str, bounds: Bounds) -> float | None:
        """A measured time in milliseconds as seconds; None where there is none (the row is predicted all the same)."""
        try:
            time = self.optional(column, number(bounds))
        except InputError as error:
            raise InputError(f"{error}; leave it empty where nothing was measured") from None
        return None if time is None else float(time) / KILO


def read_measurements(path: Path) -> tuple[RowKind, list[Row]]:
    """All rows of a measurement file in its order; InputError where the file as a whole cannot be read."""
    lines = csv_rows(read_text(path, LARGEST_RESULTS, "a CSV file of measurements"), str(path))
    _, header = next(lines, (1, []))
    kind = _kind_of(header, path)
    read_row = _serving_row if kind is RowKind.SERVING else _step_row
    rows: list[Row] = []
    for line, cells in lines:
        try:
            if len(cells) < len(header) or any(cells[len(header) :]):
                raise InputError(f"the row has {plural(len(cells), 'field')}, the header {len(header)}")
            rows.append(read_row(line, _Cells(dict(zip(header, cells, strict=False)))))
        except InputError as fault:
            rows.append(Refused(line, str(fault)))
    return kind, rows


def _kind_of(header: Sequence[str], path: Path) -> RowKind:
    """The format of a header, or an error that says what the nearer format lacks, if either is near at all."""
    twice = [name for name, times in Counter(header).items() if name and times > 1]
    lacking = {kind: [name for name in columns if name not in header] for kind, (_, columns) in NEEDED.items()}
    nearest = min(lacking, key=lambda kind: len(lacking[kind]) / len(NEEDED[kind][1]))
    words, columns = NEEDED[nearest]
    if twice:
        fault = f"the header has the column {shown(twice[0])} {header.count(twice[0])} times"
    elif not lacking[nearest]:
        return nearest
    elif not any(header):
        fault = "there is no header; the first line must name the columns"
    elif len(lacking[nearest]) < len(columns):
        fault = f"the header lacks {', '.join(lacking[nearest])}; {words} need {', '.join(columns)}"
    else:
        kinds = " nor that of ".join(f"{words} ({', '.join(columns)}, ...)" for words, columns in NEEDED.values())
        fault = f"the header is neither that of {kinds}"
    raise InputError(f"{path}: {fault}")


def _serving_row(line: int, cells: _Cells) -> MeasuredRun:
    gpus = cells.ranks("num_gpus", 0, MAX_GPUS)
    prefill, decode = _sides(cells, gpus)
    draft = cells.optional("spec_method", choice("none", *Draft, same=WORDS["drafts"]))
    mean, middle = (cells.seconds(name, FIRST_TOKEN) for name in ("ttft_ms", "ttft_median_ms"))
    draft_tokens, accepted = cells.optional("spec_tokens", count(SPECULATIVE_TOKENS)), cells.word("spec_acceptance")
    if draft is None and (draft_tokens or accepted):
        raise InputError(f"tokens are drafted, but spec_method is empty; allowed: none, {', '.join(Draft)}")
    if draft not in (None, "none") and draft_tokens == 0:
        raise InputError(f"spec_tokens is 0, but spec_method is {draft}; state none where no tokens are drafted")
    chunk = "max_num_batched_tokens" if cells.word("max_num_batched_tokens") else "chunked_prefill_size"
    return MeasuredRun(
        line=line,
        source=cells.word("set"),
        model=cells.text("model"),
        accelerator=cells.text("accelerator"),
        engine=cells.word("engine").lower(),
        gemm_dtype=cells.word("gemm_dtype", "precision"),
        moe_dtype=cells.word("moe_dtype", "gemm_dtype", "precision"),
        isl=cells.read("isl", number(TOKENS)),
        osl=cells.read("osl", number(TOKENS)),
        concurrency=cells.optional("concurrency", number(Bounds(1, MEGA, "requests"))),
        gpus=gpus or sum(side.gpus for side in (prefill, decode) if side),
        prefill=prefill,
        decode=decode,
        ttft=Latency(mean) if middle is None else Latency(p50=middle),
        tpot=Latency(cells.seconds("tpot_median_ms" if cells.word("tpot_median_ms") else "tpot_ms", NEXT_TOKEN)),
        warmed_up=middle is not None and mean is not None and mean > WARMED_UP * middle,
        precision=cells.word("precision"),
        settings=RowFlags(  # under the names of this module or of the engines' command lines
            kv_dtype=cells.word("kv_dtype", "kv_cache_dtype"),
            memory_fraction=cells.optional("memory_fraction", number(Bounds(0.01, 1))),
            token_budget=cells.optional(chunk, count(TOKENS)),
            looks=cells.optional("scheduler_recv_interval", count(TOKENS)),
            draft=None if draft in (None, "none") else Draft(draft),
            draft_tokens=draft_tokens,
            acceptance=tuple(read_cell("spec_acceptance", value, share(ACCEPTANCE)) for value in accepted.split()),
        ),
    )


def _step_row(line: int, cells: _Cells) -> MeasuredStep:
    latency = cells.seconds("latency_ms", FIRST_TOKEN)
    step = MeasuredStep(
        line=line,
        model=cells.text("model"),
        accelerator=cells.text("system"),
        engine=cells.word("backend").lower(),
        dtype=cells.word("dtype", "gemm_quant") or "bf16",
        gemm_dtype=cells.word("gemm_quant", "dtype") or "bf16",
        moe_dtype=cells.word("moe_quant", "gemm_quant", "dtype") or "bf16",
        kv_dtype=cells.word("kv_quant") or "bf16",
        split=Parallelism(*(cells.ranks(name, 1) for name in ("tp", "pp", "moe_ep", "dp"))),
        seconds=math.nan if latency is None else latency,
    )
    phase = cells.read("phase", choice("prefill", "decode"))
    batch = cells.read("batch", count(Bounds(1, MAX_NUM_SEQS.high, "requests")))
    length = cells.read("seq", count(TOKENS))
    return (
        replace(step, prompts=batch, new=length) if phase == "prefill" else replace(step, decodes=batch, context=length)
    )


def _sides(cells: _Cells, gpus: int) -> tuple[Workers, Workers | None]:
    """Layout of the workers that prefill and, where these are apart, of those that decode.

    Where the mode is not stated, decode workers tell; where the GPUs are fewer than both sides add up to, tp counts all
    ranks and dp says how many groups the attention makes of them. Colocated, words in place of tp may give these.
    """
    workers = cells.word("decode_workers")
    apart = workers not in ("", "0")
    mode = cells.optional("mode", choice("colocated", "disaggregated"))
    mode = mode or ("disaggregated" if apart else "colocated")
    if mode == "colocated":
        if apart:
            raise InputError(
                f"mode {shown(cells.row['mode'])} has no decode workers, but decode_workers is {shown(workers)}"
            )
        pipeline, expert = cells.ranks("pp", 1), cells.ranks("ep", 1)
        words = ATTENTION_DATA.fullmatch(cells.word("tp"))
        if words:
            data = _Cells({"tp": words[1]}).ranks("tp", 1)
            tensor = max((gpus or data) // (data * pipeline), 1)
            return Workers(1, Parallelism(tensor, pipeline, expert, data)), None
        tensor, data = cells.ranks("tp", 1), cells.ranks("dp", 1)
        if gpus and tensor * pipeline == gpus and tensor % data == 0:
            tensor //= data  # tp counts all ranks, dp says how many groups the attention makes of them
        size = tensor * pipeline * data
        if gpus and gpus % size:
            raise InputError(f"tp {tensor} x pp {pipeline} x dp {data} does not divide num_gpus {gpus}")
        return Workers(max(gpus // size, 1), Parallelism(tensor, pipeline, expert, data)), None
    prefill, decode = _side(cells, "prefill_"), _side(cells, "decode_")
    if gpus and prefill.gpus + decode.gpus > gpus:
        prefill, decode = (
            side
            if side.split.tensor % side.split.data
            else replace(side, split=replace(side.split, tensor=side.split.tensor // side.split.data))
            for side in (prefill, decode)
        )
    return prefill, decode


def _side(cells: _Cells, prefix: str) -> Workers:
    """The workers of one side of a disaggregated deployment; one that nothing is said of is not guessed."""
    columns = [prefix + name for name in ("workers", "tp", "pp", "ep", "dp")]
    if not cells.word(*columns):
        raise InputError(
            f"a disaggregated row needs {columns[0]} and {columns[1]}, but all {prefix}... columns are empty"
        )
    count, *degrees = (cells.ranks(column, 1) for column in columns)
    return Workers(count, Parallelism(*degrees))


SCRIPTS = "engine_settings.csv"
"""Name of the table of scripts, beside the measurements."""
RUNS = "ix"
"""How the `set` of rows begins that these scripts ran."""
WARMED_UP = 3.0
"""Mean TTFT over the median beyond which the first requests of the run, not its steady state, make the mean [1]."""
SHORTEST = 0.8
"""InferenceX draws both lengths evenly from [0.8, 1] of the nominal one (random-range-ratio); others are as stated."""
INTERVAL = "SCHEDULER_RECV_INTERVAL"
FEW, LOOKS_OF_FEW, LOOKS_OF_MANY = 16, 10, 30
"""SGLang's scripts set the interval to 10 for fewer than 16 requests in flight and else to 30."""
PLAIN = re.compile(r"[^a-z0-9]")
YAML_KV = re.compile(r"(?:^|\|)dtype=(\w+)")


def read_scripts(path: Path) -> list[Mapping[str, str]]:
    """The rows of the table; none where there is no such file."""
    if not path.is_file():
        return []
    lines = csv_rows(read_text(path, LARGEST_RESULTS, "a CSV file of engine settings"), str(path))
    _, header = next(lines, (1, []))
    return [dict(zip(header, cells, strict=False)) for _, cells in lines]


def with_settings(rows: Iterable[Row], scripts: Iterable[Mapping[str, str]]) -> list[Row]:
    """The rows with the flags of their script where they state none; those of other benchmarks stay as they are."""
    by_run: dict[tuple[str, str, str, bool], list[Mapping[str, str]]] = defaultdict(list)
    names = load_catalog().spellings
    for script in scripts:
        gpu, drafts = names.get(normalized_name(script["gpu"]), ""), Draft.MTP in script.get("variant", "")
        by_run[script["engine"], gpu, script["precision"], drafts].append(script)
    rows_out = list(rows)
    for place, row in enumerate(rows_out):
        if isinstance(row, MeasuredRun) and row.decode is None and row.source.startswith(RUNS):
            name = PLAIN.sub("", row.model.lower())
            gpu, drafts = names.get(normalized_name(row.accelerator), row.accelerator), row.settings.draft is Draft.MTP
            for script in reversed(by_run[row.engine, gpu, row.precision, drafts]):
                words = WORDS["script_models"].get(script["model"], (PLAIN.sub("", script["model"]),))
                if not any(word in name for word in words):  # the first of the table counts
                    continue
                yaml = YAML_KV.search(script.get("trtllm_yaml", ""))
                interval = script.get("scheduler-recv-interval", "")
                share = script.get("gpu-memory-utilization") or script.get("mem-fraction-static") or ""
                budget = script.get("max-num-batched-tokens") or script.get("chunked-prefill-size") or ""
                by_load = LOOKS_OF_FEW if (row.concurrency or 0.0) < FEW else LOOKS_OF_MANY
                habit = RowFlags(
                    kv_dtype=((yaml[1] if yaml else script.get("kv-cache-dtype")) or "auto").split("|")[0],
                    memory_fraction=float(share) if re.fullmatch(r"0\.\d+", share) else None,
                    token_budget=int(budget) if budget.isdigit() else None,
                    looks=int(interval) if interval.isdigit() else by_load if INTERVAL in interval else None,
                    marlin="MXFP4_USE_MARLIN=1" in script.get("env", ""),
                )
                rows_out[place] = replace(row, settings=row.settings.over(habit))
    return rows_out


WORDS: Mapping[str, Any] = shipped_table("search_spaces", "benchmark_words.yaml")
"""How benchmarks write dtypes, engines and models."""
DTYPE_WORDS: Mapping[str, re.Pattern[str]] = {dtype: re.compile(pattern) for dtype, pattern in WORDS["dtypes"].items()}


def stored_dtype(word: str) -> str:
    """The weight format meant by a benchmark's word for it; empty means the 16-bit default.

    >>> [stored_dtype(word) for word in ("nvfp4", "fp8_block", "w4a16_mxfp4", "int4_wo", "int8_wo", "sq", "")]
    ['fp4', 'fp8', 'mxfp4', 'int4', 'w8a16', 'int8', 'bf16']
    """
    plain = word.strip().lower()
    for dtype, pattern in DTYPE_WORDS.items():
        if pattern.search(plain):
            return dtype
    raise InputError(f"dtype {shown(word)} is not known; known: bf16, fp8, int8, int4, fp4 and their usual variants")


def weight_dtype(word: str) -> str:
    """The same as a dtype that a whole engine may have.

    >>> [weight_dtype(word) for word in ("nvfp4", "fp8_block", "w4a16_mxfp4", "int4_wo", "")]
    ['fp4', 'fp8', 'fp4', 'int4', 'bf16']
    """
    dtype = stored_dtype(word)
    return str(WORDS["served_as"].get(dtype, dtype))
