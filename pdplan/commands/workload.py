"""`pdplan init`, `schema` and `workload`: how to write a workload.yaml, by hand or from a trace."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError, value_of
from pdplan.console import Console
from pdplan.options import (
    PATH,
    Choice,
    Flags,
    Whole,
    force_option,
    json_option,
    pairs,
    per_second,
    with_console,
)
from reports.document import Document, Section, table_of
from reports.text import MISSING, clean, count, duration, percent, significant
from reports.text import rate as rate_words
from search_spaces.bounds import BUCKETS, MAX_TOKENS, WHOLE
from search_spaces.files import check_name

if TYPE_CHECKING:
    from costmodel.transformer import Transformer
    from search_spaces.prometheus import Traffic
    from search_spaces.trace_summary import TraceSummary

QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)
LEVELS = ("p50", "p90", "p95", "p99", "p100")
MODEL = "Llama-3.1-70B"
"""That of a workload.yaml where nothing says another."""


@click.command(short_help="Measure a request trace, and write a workload.yaml from it.")
@click.argument("trace", type=PATH)
@click.option(
    "--format",
    "trace_format",
    type=Choice(["auto", "azure", "mooncake", "csv", "jsonl"]),
    default="auto",
    help="Format of the trace.",
)
@click.option(
    "--columns",
    metavar="KEY=NAME,...",
    default="",
    show_default=False,
    help="Columns of a CSV or keys of a JSONL (usage.prompt_tokens): arrival=..., isl=..., osl=..., "
    "arrival_unit=s|ms|us|ns|iso.",
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write a workload.yaml.")
@click.option(
    "--model", metavar="NAME", help=f"Model of the workload.yaml; default: that of the metrics, else {MODEL}."
)  # fmt: skip
@click.option("--rate", callback=per_second, metavar="RATE", help="Rate to plan for, e.g. 20/s; default: the trace's.")
@click.option("--buckets", type=Whole(BUCKETS), default=48, help="Buckets of the length histogram.")
@click.option("--limit", type=Whole(WHOLE), help="Read the first N requests only.")
@click.option("--max-tokens", type=Whole(MAX_TOKENS), help="Leave out requests of more than N tokens, ISL + OSL.")
@json_option
@force_option()
@with_console
def workload(console: Console, /, *, trace: Path, **options: Any) -> None:
    """Examples:

    \b
      pdplan workload AzureLLMInferenceTrace_conv.csv -o workload.yaml
      pdplan workload conversation_trace.jsonl --model Llama-3.1-8B -o workload.yaml
      pdplan workload log.jsonl --columns arrival=at.ms,isl=usage.in,osl=usage.out,arrival_unit=ms
      pdplan workload prometheus.json -o workload.yaml

    Reads a trace (of Azure, Mooncake, ServeGen, SplitwiseSim, LLMServingSim, AIPerf, LiteLLM or OpenAI,
    any CSV or JSONL; .gz too), or a Prometheus range query of vLLM's metrics, and prints its rate,
    burstiness, lengths and prefix hits. -o writes a workload.yaml with its length histogram, for
    `pdplan optimize`. It plans for the mean rate, unless --rate states another.
    Rows that no engine can serve (a length missing, n/a or below 1) are left out and counted; more than 5 % are an
    error.
    For a trace of sessions (session_id with delays, or Bailian's chat_id), it shows and writes the sessions.
    """
    from search_spaces.loader import workload_yaml_text
    from search_spaces.models import load_model

    flags = Flags(trace=trace, **options)
    output, model = flags.output, flags.model or MODEL
    model_name = _model_name(model, output)
    config = Path(model) if model.endswith(".json") else None
    console.check_files({"TRACE": trace, "--model": config}, {"-o": output})
    traffic = _traffic(flags)
    served = _served_model(traffic)
    if flags.model is None and served:
        model = model_name = served
    if output is not None:
        check_name(os.path.relpath(trace, output.parent))
    with value_of("--model"):
        transformer = None if output is None else load_model(model)
    reading = _reading_of(console, flags, transformer, traffic)
    if output is not None:
        name = trace.name.partition(".")[0].strip() or trace.name.strip()
        text = workload_yaml_text(reading.mapping, name, model_name, notes=reading.advice)
        console.write(output, text, hint=None)
    key = "sessions_per_s" if "sessions" in reading.figures else "request_rate_rps"
    lacks_rate = reading.figures[key] is None and flags.rate is None
    rate_option = " --rate RATE   # such as 2/s; the trace has no rate" if lacks_rate else ""
    following = f"{console.command} -o workload.yaml{rate_option}" if output is None else ""
    console.answer(replace(_page(reading.figures), next_step=following), reading.figures)
    if output is None:
        return
    unset = reading.unset if flags.model or served else f"model, {reading.unset}"
    console.note(f"\nwrote {output}; set its {unset}")
    if reading.note:
        console.note(reading.note)
    shorter = f"{console.command} --max-tokens {reading.longest}{'' if console.force else ' --force'}"
    console.note(f"Next: {shorter if reading.longest else f'pdplan optimize {quote(str(output))} -o plan'}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file tells: its figures, and for a new workload file the mapping, and advice that stands in it.

    unset: what the new file needs to be told; note: why requests are random; longest: tokens beyond which the model
    takes no request, 0 where all are shorter.
    """

    figures: dict[str, Any]
    mapping: dict[str, Any]
    advice: list[str] = field(default_factory=list)
    unset: str = "slo and accelerators"
    note: str = ""
    longest: int = 0


def _traffic(flags: Flags) -> Traffic | None:
    """What engines' metrics tell; None where the file is no answer of Prometheus."""
    from search_spaces.prometheus import read_traffic
    from search_spaces.trace_reader import first_bytes, is_range_query

    is_metrics = flags.trace_format == "auto" and is_range_query(first_bytes(flags.trace))
    return read_traffic(flags.trace) if is_metrics else None


def _served_model(traffic: Traffic | None) -> str:
    """The only name under which the engines serve, where the catalog has it; else empty."""
    from search_spaces.models import known_names

    names = () if traffic is None else traffic.models
    return names[0] if len(names) == 1 and names[0] in known_names() else ""


def _reading_of(console: Console, flags: Flags, transformer: Transformer | None, traffic: Traffic | None) -> Reading:
    """The metrics, else a trace of sessions or of requests; transformer: that of the file to be written."""
    from search_spaces.trace_summary import is_session_trace, read_sessions

    if traffic is not None:
        limits = [tokens for tokens in (flags.max_tokens, transformer.max_position if transformer else None) if tokens]
        mapping = traffic.mapping(flags.buckets, flags.rate, min(limits, default=None)) if transformer else {}
        return Reading(traffic_dict(flags.trace, traffic), mapping)
    if is_session_trace(flags.trace):
        sessions = read_sessions(flags.trace, flags.limit)
        means = (("turns", "turns"), ("think_time_s", "pause"), ("user_tokens", "user"), ("answer_tokens", "answer"))
        values = {name: getattr(sessions, column) for name, column in means}
        note = "The think times have the time of the answers before in them, as the trace has no delays."
        figures: dict[str, Any] = {
            "path": sessions.path,
            "sessions": sessions.starts.size,
            "requests": sessions.user.size,
            "sessions_per_s": sessions.rate,
            **{f"mean_{name}": float(column.mean()) if column.size else 0.0 for name, column in values.items()},
            "notes": [note] if sessions.answers_in else [],
        }
        unset = "slo, accelerators and sessions.system_prompt, which are not in the trace"
        return Reading(figures, sessions.mapping(flags.rate) if transformer else {}, figures["notes"], unset)
    return _read_requests(console, flags, transformer)


def _read_requests(console: Console, flags: Flags, transformer: Transformer | None) -> Reading:
    """Read a trace of requests, telling how far that is."""
    from search_spaces.problem import LEAST_RECORDED
    from search_spaces.trace_summary import read_trace, trace_source, workload_mapping

    columns, most = pairs(flags.columns, "--columns") or None, flags.max_tokens or int(MAX_TOKENS.high)
    with console.progress() as progress:
        tell = None if progress is None else lambda share: progress("reading the trace", share)
        summary = read_trace(flags.trace, flags.trace_format, columns, flags.limit, tell, most_tokens=most)
    too_long = "" if transformer is None else _context_advice(summary, transformer)
    whole = flags.limit is None or summary.arrivals.requests + summary.dropped + summary.too_long < flags.limit
    keeps_times = whole and summary.tells_waves
    advice = [text for text in (too_long, _peak_advice(summary, flags.rate, keeps_times=keeps_times)) if text]
    figures = summary_dict(summary)
    figures["notes"] += advice
    if transformer is None or flags.output is None:
        return Reading(figures, {})
    mapping = workload_mapping(summary, flags.buckets, flags.rate)
    if keeps_times:
        del mapping["burstiness"]
        mapping["recorded"] = trace_source(summary, flags.output.parent)
    reason = "all came at one moment" if whole else "only part of it was read (--limit)"
    if whole and summary.arrivals.requests < LEAST_RECORDED:
        reason = f"it has fewer than {LEAST_RECORDED:,} requests"
    note = "Note: pdplan optimize will draw random requests of these lengths, not those of the trace as they came: "
    note = "" if keeps_times else f"{note}{reason}."
    return Reading(figures, mapping, advice, note=note, longest=transformer.max_position if too_long else 0)


def _context_advice(summary: TraceSummary, model: Transformer) -> str:
    """What to do about requests that the model cannot take; empty where it takes all."""
    beyond = int((summary.rows.isl + summary.rows.osl > model.max_position).sum())
    if not beyond:
        return ""
    verb, context, requests = "is" if beyond == 1 else "are", count(model.max_position), summary.arrivals.requests
    return (
        f"{count(beyond)} of {count(requests)} requests ({percent(beyond / requests)}) {verb} longer "
        f"than the context of {model.name}, {context} tokens, so pdplan optimize refuses this workload: leave them out "
        f"by pdplan workload --max-tokens {model.max_position}, or name a --model of longer context (pdplan models)."
    )


def _peak_advice(summary: TraceSummary, asked_rate: float | None, *, keeps_times: bool) -> str:
    """What to do about a long time of more requests than are planned for; empty where there is none."""
    planned = summary.arrivals.mean_rate if asked_rate is None else asked_rate
    pauses = asked_rate is None and summary.arrivals.rate_without_pause is not None  # the mean says nothing then
    busy = None if planned is None or pauses else summary.arrivals.busy_window(planned)
    if planned is None or busy is None:
        return ""
    window, peak = busy
    behind = "a fleet that is just large enough for the planned rate then falls behind and misses its SLOs"
    if keeps_times:
        behind = (
            "pdplan optimize serves the recorded requests, these among them, but its SLO is for all of them together"
        )
    return (
        f"{rate_words(peak)} came in the busiest {duration(window)}, {percent(peak / planned - 1.0)} more than the "
        f"{rate_words(planned)} to plan for: {behind}. To plan for the busiest, add --rate {peak:.3g}/s to pdplan "
        f"workload, or --set workload.request_rate={peak:.3g} to pdplan optimize."
    )


def _model_name(model: str, output: Path | None) -> str:
    """The model as the new file must name it: a path is relative to the file."""
    if output is None or not model.endswith(".json"):
        return model
    if not Path(model).is_file():
        raise InputError(f"--model {model}: there is no such file")
    path = os.path.relpath(model, output.parent)
    check_name(path)
    return path


def summary_dict(summary: TraceSummary) -> dict[str, Any]:
    """The trace in numbers, JSON-ready; units are in the keys."""
    import numpy as np

    arrivals, rows = summary.arrivals, summary.rows
    lengths = {
        name: dict(zip(LEVELS, np.quantile(column, QUANTILES, method="inverted_cdf").tolist(), strict=True))
        for name, column in (("isl", rows.isl), ("osl", rows.osl))
    }
    return {
        "path": str(summary.path),
        "format": summary.format,
        "requests": summary.arrivals.requests,
        "dropped": summary.dropped,
        "too_long": summary.too_long,
        "out_of_order": summary.out_of_order,
        "duration_s": arrivals.duration,
        "request_rate_rps": summary.arrivals.mean_rate,
        "peak_rate_rps": {f"{window}s": rate for window, rate in arrivals.peak_rate.items()},
        "burstiness": summary.arrivals.burstiness,
        "mean_isl": summary.mean_isl,
        "mean_osl": summary.mean_osl,
        **lengths,
        "max_tokens": summary.max_tokens,
        "prefix_hit_share": summary.prefix_hit_share,
        "reuse_interval_s": None if summary.reuse_interval is None else summary.reuse_interval[0.5],
        "notes": list(summary.notes),
    }


def traffic_dict(path: Path, traffic: Traffic) -> dict[str, Any]:
    """The traffic that engines' metrics tell, in the numbers of `summary_dict`."""
    peak = float(traffic.steps.max()) / traffic.step
    lengths = {
        name: {level: round(histogram.quantile(share)) for level, share in zip(LEVELS, QUANTILES, strict=True)}
        for name, histogram in (("isl", traffic.isl), ("osl", traffic.osl))
    }
    return {
        "path": str(path),
        "format": "prometheus",
        "requests": round(float(traffic.steps.sum())),
        "duration_s": traffic.steps.size * traffic.step,
        "request_rate_rps": traffic.request_rate,
        "peak_rate_rps": {f"{traffic.step:g}s": peak},
        "burstiness": traffic.burstiness,
        "mean_isl": traffic.isl.mean,
        "mean_osl": traffic.osl.mean,
        **lengths,
        "max_tokens": traffic.max_tokens,
        "prefix_hit_share": traffic.prefix_hit_share,
        "reuse_interval_s": None,
        "notes": list(traffic.notes),
    }


def _page(figures: dict[str, Any]) -> Document:
    """What was measured: rates and lengths, or of sessions their turns."""
    notes = Section(sentences=tuple(f"Note: {note}" for note in figures["notes"]))
    path = (clean(figures["path"], 200),)
    if "sessions" in figures:
        begin = figures["sessions_per_s"]
        facts = (
            ("sessions", f"{count(figures['sessions'])} of {significant(figures['mean_turns'])} turns on average"),
            ("requests", count(figures["requests"])),
            ("new sessions", "all at one moment" if begin is None else f"{significant(begin)} per second"),
            ("think time", f"{duration(figures['mean_think_time_s'])} on average"),
            ("new tokens", f"{count(figures['mean_user_tokens'])} per turn on average"),
            ("output", f"{count(figures['mean_answer_tokens'])} tokens per turn on average"),
        )
        return Document(path, (Section(facts=facts), notes))
    hits, median = figures["prefix_hit_share"], figures["reuse_interval_s"]
    is_exact = figures["format"] != "prometheus"  # buckets have no lengths of requests and no times between arrivals
    basis = "CV of the times between arrivals" if is_exact else "by the spread of the counts per step"
    within = "" if median is None else f", half of them used within {duration(median)} before"
    peaks = ", ".join(
        f"{rate_words(value)} over {window.removesuffix('s')} s" for window, value in figures["peak_rate_rps"].items()
    )
    facts = (
        ("requests", f"{count(figures['requests'])} in {duration(figures['duration_s'])} ({figures['format']})"),
        ("rate", rate_words(figures["request_rate_rps"])),
        ("peaks", peaks or MISSING),
        ("burstiness", f"{significant(figures['burstiness'])} ({basis}; 1 is Poisson)"),
        ("prefix hits", "not in the trace" if hits is None else f"{percent(hits)} of the input tokens{within}"),
        ("longest", f"{'' if is_exact else 'at most '}{count(figures['max_tokens'])} tokens, ISL + OSL"),
    )
    rows = [
        (name, count(figures[f"mean_{key}"]), *map(count, figures[key].values()))
        for name, key in (("ISL", "isl"), ("OSL", "osl"))
    ]
    quantiles = (f"#{name.replace('p100', 'max' if is_exact else 'at most')}" for name in figures["isl"])
    lengths = Section(table=table_of(("token", "#mean", *quantiles), rows))
    return Document(path, (Section(facts=facts), lengths, notes))


@click.command(short_help="Write a commented workload.yaml to start from.")
@click.argument("file", type=PATH, required=False)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="The same as FILE.")
@click.option("--fleet", is_flag=True, help="Write a fleet file, of what runs today, for pdplan evaluate.")
@force_option()
@with_console
def init(console: Console, file: Path | None, output: Path | None, fleet: bool) -> None:
    """Examples:

    \b
      pdplan init
      pdplan init chat.yaml
      pdplan init --fleet

    Writes a workload file in which every key is explained, or with --fleet a fleet file. FILE is
    workload.yaml or fleet.yaml unless named. A '-' prints it instead.
    """
    from search_spaces.files import shipped_text

    if file is not None and output is not None:
        raise InputError("FILE and -o name the file to write; give one of them")
    file = file or output or Path("fleet.yaml" if fleet else "workload.yaml")
    text = shipped_text("search_spaces", f"{'fleet' if fleet else 'init'}_template.yaml")
    if str(file) == "-":
        console.show(text)
        return
    console.write(file, text)
    then = f"pdplan evaluate {quote(str(file))}" if fleet else f"pdplan optimize {quote(str(file))} -o plan"
    workload_file = file.parent / "workload.yaml"
    if fleet and not workload_file.exists():  # what a new fleet file names
        then = f"pdplan init {quote(str(workload_file))} && {then}"
    console.note(f"Next: {then}")


@click.command(short_help="Print the JSON Schema of workload.yaml.")
@with_console
def schema(console: Console) -> None:
    """Examples:

    \b
      pdplan schema > workload.schema.json

    Prints the JSON Schema of workload.yaml. An editor with a YAML language server completes and checks
    the file when its first line is: # yaml-language-server: $schema=workload.schema.json
    """
    from search_spaces.schema import json_schema

    console.show(json_schema())
