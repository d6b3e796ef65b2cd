"""What a validation answers: how far predictions are off, as a document, as JSON, and as docs/accuracy.md."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.serving.interval import ASSUMED_WIDENING, interval_of
from costmodel.serving.policy import ServingPolicy
from costmodel.words import percentage
from reports.document import Document, Section, said, table_of
from reports.table import Column
from reports.text import clean, plural
from search_spaces.catalog import load_catalog
from search_spaces.engines import engine_names, load_serving_policy
from search_spaces.measured_predictions import SERVING_GROUP, Outcome, Predicted
from search_spaces.measurements import Format
from search_spaces.serving_error import ServingError, load_serving_error, step_widths

Figure = tuple[str, str, Callable[[float], str]]
"""A column: header, key of its figure, how that is written."""
SERVING_COLUMNS: Final[tuple[Figure, ...]] = (
    ("TTFT", "ttft_median_abs_pct", "{:.1f} %".format),
    ("p90", "ttft_p90_abs_pct", "{:.0f} %".format),
    ("bias", "ttft_bias_pct", "{:+.1f} %".format),
    ("in 90 %", "ttft_interval90_coverage", percentage),
    ("TPOT", "tpot_median_abs_pct", "{:.1f} %".format),
    ("p90", "tpot_p90_abs_pct", "{:.0f} %".format),
    ("bias", "tpot_bias_pct", "{:+.1f} %".format),
    ("in 90 %", "tpot_interval90_coverage", percentage),
)
STEP_COLUMNS: Final[tuple[Figure, ...]] = (
    ("MAPE", "latency_mape_pct", "{:.1f} %".format),
    ("p90", "latency_p90_abs_pct", "{:.0f} %".format),
    ("bias", "latency_bias_pct", "{:+.1f} %".format),
    ("in 90 %", "latency_interval90_coverage", percentage),
)
KEYS = {"serving": ("model", "accelerator", "engine", "mode"), "steps": ("model", "accelerator", "phase", "dtype")}
QUANTITIES: Final = {"TTFT": "TTFT", "TPOT": "TPOT", "MAPE": "step times"}
LABELS: Final = 4
"""Columns that say what the figures of a row are of."""
FIGURES: Final = 4
"""Columns of one quantity: middle, p90, bias, share in the interval."""


def cells(value: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: every group, then all; a figure without measurements is a dash."""
    figures = SERVING_COLUMNS if value["format"] == "serving" else STEP_COLUMNS
    keys = KEYS[value["format"]]
    totals: list[tuple[str, dict[str, Any]]] = [
        (mode, value[mode]) for mode in ("colocated", "disaggregated") if mode in value
    ]
    rows = [[str(group[key]) for key in keys] + _figures(group, figures) for group in value["groups"]]
    rows += [["all", "", "", mode, *_figures(total, figures)] for mode, total in totals]
    rows.append(["all", "", "", "", *_figures(value, figures)])
    return [*keys, "rows", *(name for name, _, _ in figures)], rows


def _figures(group: dict[str, Any], figures: Sequence[Figure]) -> list[str]:
    count = str(group.get("predicted", group["rows"]))
    return [count, *("–" if group[key] is None else written(group[key]) for _, key, written in figures)]


def validation_document(parts: Mapping[str, dict[str, Any]]) -> Document:
    """The answer: of each file its errors by quantity, and which rows were refused and why."""
    return Document(
        headline=tuple(
            f"{name}: {value['predicted']:,} of {plural(value['rows'], 'row')} predicted."
            for name, value in parts.items()
        ),
        sections=tuple(section for name, value in parts.items() for section in _file(name, value)),
    )


def _file(name: str, value: dict[str, Any]) -> Iterator[Section]:
    """A table of each quantity, then what was refused and assumed."""
    figures = SERVING_COLUMNS if value["format"] == "serving" else STEP_COLUMNS
    _, rows = cells(value)
    for start in range(0, len(figures), FIGURES) if value["predicted"] else ():
        quantity, *others = (header for header, _, _ in figures[start : start + FIGURES])
        middle = quantity if quantity == "MAPE" else "median"
        columns = (Column("", shrink=True, lines=4), *(Column(header, "right") for header in ("rows", middle, *others)))
        yield Section(f"{name}: errors of {QUANTITIES[quantity]}", table=table_of(columns, _quantity_rows(rows, start)))
    tau = value.get("throughput_kendall_tau")
    yield Section(
        sentences=said(
            *(f"{plural(n, 'row')} not predicted: {reason}" for reason, n in value["refused_reasons"].items()),
            *(f"{plural(n, 'row')}: {note}" for note, n in value["notes"].items()),
            "" if tau is None else f"Kendall's tau of throughput per GPU: {tau:.2f}",
        )
    )


def _quantity_rows(rows: Sequence[Sequence[str]], start: int) -> list[tuple[str, ...]]:
    """Of each row what it is of, in one cell, how many rows were measured, and the figures of one quantity."""
    names = _short_names({row[0] for row in rows})
    first = LABELS + 1 + start
    return [
        (
            ", ".join(clean(word) for word in (names[row[0]], *row[1:LABELS]) if word),
            row[LABELS],
            *row[first : first + FIGURES],
        )
        for row in rows
    ]


def _short_names(models: Collection[str]) -> dict[str, str]:
    """Models without their organization, save those that two organizations name alike."""
    shared = Counter(model.rpartition("/")[2] for model in models)
    return {model: name if shared[name := model.rpartition("/")[2]] == 1 else model for model in models}


FloatArray = NDArray[np.float64]

LEAST_RANKED = 5
"""Configs of one model and accelerator below which their order says nothing."""
SERVING_QUANTITIES = ("ttft", "tpot")
MOST_REASONS = 1000
"""Refusals listed one by one; beyond, they are only counted."""


def validation_dict(kind: Format, outcome: Outcome, *, with_rows: bool = False) -> dict[str, Any]:
    """The errors of one file as JSON-ready values.

    Percentages are of the measured value: `*_bias_pct` is the median of (predicted / measured - 1) of TTFT and TPOT,
    and the mean of it for step latencies, whose `mape` is a mean too; coverage is a share of rows.
    """
    value: dict[str, Any] = {
        "format": str(kind),
        "rows": outcome.rows,
        "predicted": len(outcome.predicted),
        **_errors(kind, outcome.predicted),
        "groups": [
            {**dict(group), "rows": len(members), "predicted": len(members), **_errors(kind, members)}
            for group, members in _groups(outcome.predicted)
        ],
        "refused": [{"line": one.line, "reason": one.reason} for one in outcome.refused[:MOST_REASONS]],
        "refused_reasons": dict(Counter(one.reason for one in outcome.refused)),
        "notes": dict(Counter(note for one in outcome.predicted for note in one.notes)),
    }
    if kind is Format.SERVING:
        sound = [one for one in outcome.predicted if not one.suspect]
        doubts = Counter((one.suspect, *one.group.values()) for one in outcome.predicted if one.suspect)
        value["suspect"] = [
            dict(zip(("rule", *SERVING_GROUP, "rows"), (*key, rows), strict=True))
            for key, rows in sorted(doubts.items())
        ]
        value["without_suspect"] = {"rows": len(sound), **_errors(kind, sound)}
        value["throughput_kendall_tau"] = throughput_tau(outcome.predicted)
        for mode in sorted({one.group["mode"] for one in outcome.predicted}):
            members = [one for one in outcome.predicted if one.group["mode"] == mode]
            value[mode] = {"rows": len(members), **_errors(kind, members)}
    if with_rows:
        value["predictions"] = [_row(one) for one in outcome.predicted]
    return value


def _errors(kind: Format, members: Sequence[Predicted]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for quantity in SERVING_QUANTITIES if kind is Format.SERVING else ("latency",):
        values = [one.values[quantity] for one in members if one.values[quantity].measured > 0]
        error = np.array([value.error for value in values])
        covered = [value.covered for value in values]
        steps = quantity == "latency"
        found[f"{quantity}_mape_pct" if steps else f"{quantity}_median_abs_pct"] = _of(
            np.mean if steps else np.median, np.abs(error)
        )
        found[f"{quantity}_p90_abs_pct"] = _of(lambda data: np.quantile(data, 0.9), np.abs(error))
        found[f"{quantity}_bias_pct"] = _of(np.mean if steps else np.median, error)
        found[f"{quantity}_interval90_coverage"] = float(np.mean(covered)) if covered else None
    return found


def _of(statistic: Any, error: FloatArray) -> float | None:
    return float(100.0 * statistic(error)) if error.size else None


def _groups(members: Iterable[Predicted]) -> list[tuple[tuple[tuple[str, str], ...], list[Predicted]]]:
    """Rows by model, accelerator, engine and mode (steps: phase and dtype), in alphabetical order."""
    groups: dict[tuple[tuple[str, str], ...], list[Predicted]] = defaultdict(list)
    for one in members:
        groups[tuple(one.group.items())].append(one)
    return sorted(groups.items())


def throughput_tau(members: Iterable[Predicted]) -> float | None:
    """Kendall's tau of throughput per GPU, predicted against measured, among the configs of one model and GPU [1].

    Mean over (model, accelerator), weighted by configs; pairs that the measurement ties do not count.
    """
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in members:
        if math.isfinite(sum(one.throughput)):
            groups[one.group["model"], one.group["accelerator"]].append(one.throughput)
    sizes = [len(pairs) for pairs in groups.values() if len(pairs) >= LEAST_RANKED]
    taus = [kendall_tau(*np.array(pairs).T) for pairs in groups.values() if len(pairs) >= LEAST_RANKED]
    return float(np.average(taus, weights=sizes)) if taus else None


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Kendall's rank correlation [1]: (concordant - discordant pairs) / pairs without ties.

    >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == 1 / 3
    True
    """
    above = np.triu_indices(first.size, 1)
    agreement = np.sign(np.subtract.outer(first, first)[above]) * np.sign(np.subtract.outer(second, second)[above])
    untied = int(np.count_nonzero(agreement))
    return float(agreement.sum() / untied) if untied else 1.0


def _row(one: Predicted) -> dict[str, Any]:
    times = {
        f"{quantity}_{name}_ms": 1e3 * number if math.isfinite(number) else None
        for quantity, value in one.values.items()
        for name, number in (
            ("predicted", value.predicted),
            ("low", value.low),
            ("high", value.high),
            ("measured", value.measured),
        )
    }
    return {"line": one.line, **one.group, **times, "notes": list(one.notes), "suspect": one.suspect or None}


INTRODUCTION = """# Accuracy

Written by `pdplan validate DATA --write docs/accuracy.md`; every figure below is computed from the data folder given
and from the catalog's own record of its fits. Errors are relative to the measured value. For TTFT and TPOT the tables
have medians, and the bias is the median of predicted / measured − 1; for single steps both are means. "in 90 %" is the
share of measured values inside the 90 % interval that every prediction carries.
"""

FLATTERED = """These figures flatter a little. Some choices saw every model's rows, and no refit undoes them: how FP4
kernels of B200 move bytes, what expanding narrow weights costs, how unevenly experts are chosen, which rows are
suspect,
the form of the equations and where their parameters are drawn to. The shared parameters of disaggregation rest on
DeepSeek alone; without it they are what they are drawn to."""

SUSPECT = """### Suspect rows

These rows contradict physics or their own description, with wide margins. They count in the tables above like all
others; no parameter is fitted to them. *load not stated*: no concurrency. *more prompts than the kernels can compute*:
1.25 times what the roofline of the fitted kernels allows, so a prefix cache or another load. *tokens faster than the
memory*: less than one read of the active weights. *first token later than any queue*: over three times what all
requests in flight take to prefill one after the other, with memory for all of them: compilation or warm-up."""

DISTRUST = """## Where not to trust it

* **Warm-up and mislabeled load.** Some measured rows include compilation in their TTFT (seconds at concurrency 4), a
  prefix cache (more prompt tokens per second than the GPU computes) or another concurrency than stated. They are scored
  like all others; those that a rule detects are listed above and not fitted, and the fit lets go of other outliers.
* **Where the goals are missed** (disaggregated and SGLang's TTFT, vLLM's Qwen3-235B, experts of B200), the evidence
  why stands in [calibration.md](calibration.md#what-is-still-missed-and-why).
* **Equal lengths or spread ones.** Whether requests that start together stay together decides TTFT at high concurrency
  by a factor of up to ten on engines that run prompts first. Real traffic is spread, fixed lengths are not.
* **Disaggregated serving** was measured for one model with a stated load, so its hand-over time rests on it.
* **Accelerators without measured kernels** take efficiencies from a relative; their intervals are widened.
* **Beyond the data**: prompts over 10,000 tokens, more than 8 tensor ranks, speculative decoding, prefix caches, LoRA.
"""


def accuracy_page(parts: dict[str, dict[str, Any]]) -> str:
    """The page; `parts` holds the errors of each file by its name."""
    error = load_serving_error()
    sections = [INTRODUCTION, _fitted(error), _held_out(error), by_accelerator(error), _intervals(error)]
    for name, value in parts.items():
        header, rows = cells(value)
        head = f"## {name}\n\n{value['predicted']} of {value['rows']} rows predicted."
        tau = value.get("throughput_kendall_tau")
        if tau is not None:
            head += f" Kendall's tau of throughput per GPU among the configs of one model and GPU: {tau:.2f}."
        sections.append(f"{head}\n\n{markdown_table(header, rows, 4)}\n")
        sections += _suspects(value)
    return "\n".join([*sections, DISTRUST])


def _suspects(value: dict[str, Any]) -> list[str]:
    """Rows that contradict physics or their own description, and the errors without them."""
    found, rest = value.get("suspect", []), value.get("without_suspect", {})
    if not found:
        return []
    rows = [[str(one[key]) for key in ("rule", "model", "accelerator", "engine", "mode", "rows")] for one in found]
    table = markdown_table(["rule", "model", "accelerator", "engine", "mode", "rows"], rows, 5)
    errors = ", ".join(
        f"{name.upper()} {rest[f'{name}_median_abs_pct']:.1f} % (bias {rest[f'{name}_bias_pct']:+.1f} %)"
        for name in ("ttft", "tpot")
    )
    return [f"{SUSPECT}\n\n{table}\n\nThe other {rest['rows']} rows: {errors}.\n"]


def _fitted(error: ServingError) -> str:
    names = engine_names()
    policies = [load_serving_policy(name) for name in names]
    rows = [
        [meaning, *(write(policy) for policy in policies)]
        for meaning, write in (
            ("CPU time per step [µs]", lambda p: f"{p.overhead.step * 1e6:.0f}"),
            ("CPU time per request in a step [µs]", lambda p: f"{p.overhead.per_request * 1e6:.1f}"),
            ("launching a kernel of a step with prompts [µs]", lambda p: f"{p.launch * 1e6:.1f}"),
            ("before a lone prompt starts [ms]", lambda p: f"{p.arrival * 1e3:.1f}"),
            ("prompts of equal length that one waits for", lambda p: f"{p.equal_wait:.2f}"),
            ("data-parallel lanes: time of a prompt over even lanes", _lane),
            ("hand-over between workers [ms]", lambda p: f"{p.handover * 1e3:.0f}"),
            ("later requests that find all others' prompts ahead of them", lambda p: percentage(p.handover_burst)),
        )
    ]
    table = markdown_table(["parameter", *names], rows, 1)
    head = f"## What was fitted\n\nKernels: see [calibration.md](calibration.md). Serving: {error.source}."
    return f"{head}\n\n{table}\n\n{_prompts()}\n"


def _prompts() -> str:
    """What prompts take inside an engine, by generation of GPUs."""
    catalog = load_catalog()
    gpus = [catalog.accelerator(name) for name in ("H100", "B200", "MI355X")]
    shares = [f"{gpu.in_engine.prompts:g} ({gpu.in_engine.prefill:g}) on {gpu.name}" for gpu in gpus]
    return (
        "Prompts of models with routed experts take longer in an engine than their kernels timed alone, and less so\n"
        f"on workers that only prefill (in brackets): {', '.join(shares)} times as long. "
        "GPUs\nof a generation share a figure."
    )


def _lane(policy: ServingPolicy) -> str:
    return f"{policy.lane_balance:.2f}"


def by_accelerator(error: ServingError) -> str:
    """The section on each accelerator and way of serving, which the report of a plan shows of its own ones."""
    rows = [
        [
            one.accelerator,
            one.mode,
            one.engine or "any",
            one.model or "any",
            str(one.rows),
            f"{one.ttft_median_abs_pct:.1f} %",
            f"{one.ttft_bias_pct:+.1f} %",
            f"{one.tpot_median_abs_pct:.1f} %",
            f"{one.tpot_bias_pct:+.1f} %",
        ]
        for one in error.held_out_on
    ]
    headers = ["accelerator", "mode", "engine", "model", "rows", "TTFT", "bias", "TPOT", "bias"]
    return (
        "## By accelerator and mode\n\nThe same predictions, on each accelerator that serving was measured on: of all "
        "engines, of each engine, and of each engine with each model. This is the record that a report shows under "
        "Trust; what has no row here was not measured, and the report says so.\n\n"
        f"{markdown_table(headers, rows, 4)}\n"
    )


def _held_out(error: ServingError) -> str:
    rows = [
        [
            one.group,
            str(one.rows),
            f"{one.ttft_median_abs_pct:.1f} %",
            f"{one.ttft_bias_pct:+.1f} %",
            percentage(one.ttft_interval90_coverage),
            f"{one.tpot_median_abs_pct:.1f} %",
            f"{one.tpot_bias_pct:+.1f} %",
            percentage(one.tpot_interval90_coverage),
        ]
        for one in error.held_out
    ]
    table = markdown_table(["held out", "rows", "TTFT", "bias", "in 90 %", "TPOT", "bias", "in 90 %"], rows, 1)
    return (
        "## How wrong, on models that the fit never saw\n\nEach model's rows are predicted with serving parameters "
        f'fitted to all other models (`benchmarks/fit_serving.py`, {error.date}), and "in 90 %" is the share inside '
        f"intervals from the other models' rows. Kendall's tau of throughput per GPU: {error.kendall_tau:.2f}."
        f"\n\n{FLATTERED}"
        f"\n\n{table}\n"
    )


def _intervals(error: ServingError) -> str:
    rows = [
        [quantity, key, str(one.rows), f"{one.low:.2f}", f"{one.high:.2f}"]
        for quantity, strata in error.quantities.items()
        for key, one in strata.items()
    ]
    for kind, widths in step_widths().items():
        for origin, width in widths.items():
            low, high = interval_of(width)
            rows.append(["step", f"{kind}, kernels {origin}", "", f"{low:.2f}", f"{high:.2f}"])
    table = markdown_table(["quantity", "stratum", "rows", "low", "high"], rows, 2)
    return (
        "## Error bars\n\nThe measured value lies between low × and high × the prediction nine times in ten, by the "
        "residuals of held-out rows. For TTFT and TPOT on accelerators without measured kernels both are raised to the "
        f"power {ASSUMED_WIDENING:g}.\n\n{table}\n"
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table, the first `left` columns set left."""
    rule = ["---" if index < left else "---:" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
