"""Writes docs/accuracy.md and docs/appendix/accuracy.md: how wrong predictions are, in brief and group by group.

python benchmarks/accuracy_page.py DATA
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from serving_suspects import suspicions

from costmodel.words import percentage
from pdplan.commands.predictions import FILES
from reports.answers.accuracy import LABELS, QUANTITIES, error_cells, labelled, validation_dict
from search_spaces.catalog import load_catalog
from search_spaces.engines import ENGINES, load_serving_policy
from search_spaces.measured_engines import (
    Predictions,
    batches_of,
    deployments_of,
    predict_serving,
    predict_steps,
    steady_state,
)
from search_spaces.measurements import SCRIPTS, Row, RowKind, read_measurements, read_scripts, with_settings
from search_spaces.serving_error import ASSUMED_WIDENING, Factors, interval_of, shipped_errors, step_widths

ORIGIN = """Written by `python benchmarks/accuracy_page.py DATA`: figures of the data folder given, and of the catalog's
own record of its fits. Errors are relative to the measured value. For TTFT and TPOT the tables have medians, and the
bias is the median of predicted / measured − 1; for single steps both are means. "in 90 %" is the share of measured
values inside the 90 % interval that every prediction carries.
"""
INTRODUCTION = f"# Accuracy\n\n{ORIGIN}\nEvery model and engine by itself: [the whole record](appendix/accuracy.md).\n"
WHOLE = f"# Accuracy, the whole record\n\nThe tables behind [accuracy](../accuracy.md). {ORIGIN}"

FLATTERED = """These figures flatter a little. Some choices saw every model's rows, and no refit undoes them: how FP4
kernels of B200 move bytes, what expanding narrow weights costs, and how unevenly experts are chosen. So did the list of
suspect rows, the form of the equations and the priors. The shared parameters of disaggregation rest on DeepSeek alone;
without it they keep their priors."""

SUSPECT = """### Suspect rows

These rows contradict physics or their own description, with wide margins. They count in the tables above like all
others; no parameter is fitted to them. *load not stated*: no concurrency. *more prompts than the kernels can compute*:
1.25 times what the roofline of the fitted kernels allows, so a prefix cache or another load. *tokens faster than the
memory*: less than one read of the active weights. *first token later than any queue*: over three times what all
requests in flight take to prefill one after the other, with memory for all of them: compilation or warm-up."""

DISTRUST = """## Where not to trust it

* **Warm-up and mislabeled load.** Some measured rows include compilation in their TTFT (seconds at concurrency 4).
  Some have a prefix cache (more prompt tokens per second than the GPU computes) or another concurrency than stated. All
  are scored like the others. Those that a rule detects are [listed](appendix/accuracy.md#suspect-rows) and not fitted;
  the fit lets go of other outliers.
* **Where the goals are missed** (disaggregated and TensorRT-LLM's TTFT, vLLM's Qwen3-235B, experts of B200), the
  evidence why stands in [calibration.md](appendix/calibration.md#what-is-still-missed-and-why).
* **Equal lengths or spread ones.** Whether requests that start together stay together decides TTFT at high concurrency
  by a factor of up to ten on engines that run prompts first. Real traffic is spread, fixed lengths are not.
* **Disaggregated serving** was measured for one model with a stated load, so its hand-over time rests on it.
* **Accelerators without measured kernels** take efficiencies from a relative; their intervals are widened.
* **Beyond the data**: prompts over 10,000 tokens, more than 8 tensor ranks, other speculative decoding than MTP of
  DeepSeek-R1, prefix caches, LoRA.
"""


ENGINE_GROUP = 2
"""Words in the name of a group of one mode and engine, all models together."""


class _Shipped(BaseModel):
    """An entry of a file of the catalog."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Errors(_Shipped):
    """Errors of predictions whose parameters never saw the model: medians and bias in percent."""

    rows: int
    ttft_median_abs_pct: float
    ttft_bias_pct: float
    tpot_median_abs_pct: float
    tpot_bias_pct: float


class HeldOut(_Errors):
    """Those of a group of rows, with the share that the 90 % intervals cover."""

    group: str
    ttft_interval90_coverage: float
    tpot_interval90_coverage: float


class HeldOutOn(_Errors):
    """Those on one accelerator: of one engine and one model; empty: of all."""

    accelerator: str
    mode: str
    engine: str = ""
    model: str = ""


class ServingError(_Shipped):
    """The whole of serving_error.yaml."""

    source: str
    date: str
    held_out: tuple[HeldOut, ...]
    held_out_on: tuple[HeldOutOn, ...] = ()
    kendall_tau: float
    quantities: dict[str, dict[str, Factors]]


def cells(value: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one table of all quantities."""
    quantities, header = QUANTITIES[value["format"]], [*LABELS[value["format"]], "rows"]
    for name in quantities:
        header += [name if value["format"] == "serving" else "MAPE", "p90", "bias", "in 90 %"]
    rows = [
        [
            *labels,
            str(group.get("predicted", group["rows"])),
            *(cell for quantity in quantities.values() for cell in error_cells(group, quantity)),
        ]
        for labels, group in labelled(value)
    ]
    return header, rows


def accuracy_page(files: Mapping[str, dict[str, Any]]) -> str:
    """The page in brief; `files` holds the errors of each file by its name."""
    error = ServingError.model_validate(shipped_errors())
    groups = tuple(row for row in error.held_out if len(row.group.split()) <= ENGINE_GROUP)
    brief = error.model_copy(
        update={"held_out": groups, "held_out_on": tuple(row for row in error.held_out_on if not row.engine)}
    )
    rows = [
        [name, *row[labels:]]
        for name, value in files.items()
        for labels, row in [(len(LABELS[value["format"]]), cells(value)[1][-1])]
        if value["format"] == "serving"
    ]
    header = ["file", *cells(files[FILES[0]])[0][len(LABELS["serving"]) :]]
    table = markdown_table(header, rows, 1)
    scored = f"## Every measured row\n\nWith the fit to all models:\n\n{table}\n"
    return "\n".join([INTRODUCTION, _fitted(error), _held_out(brief), by_accelerator(brief), scored, DISTRUST])


def appendix_page(files: Mapping[str, dict[str, Any]]) -> str:
    """The page with every group of rows."""
    error = ServingError.model_validate(shipped_errors())
    sections = [WHOLE, _held_out(error), by_accelerator(error), _intervals(error)]
    for name, value in files.items():
        header, rows = cells(value)
        head = f"## {name}\n\n{value['predicted']} of {value['rows']} rows predicted."
        tau = value.get("throughput_kendall_tau")
        if tau is not None:
            head += f" Kendall's tau of throughput per GPU among the configs of one model and GPU: {tau:.2f}."
        sections.append(f"{head}\n\n{markdown_table(header, rows, 4)}\n")
        sections += _suspects(value)
    return "\n".join(sections)


def _suspects(value: dict[str, Any]) -> list[str]:
    """Rows that contradict physics or their own description, and the errors without them."""
    suspects, rest = value.get("suspect", {}), value.get("without_suspect", {})
    if not suspects:
        return []
    rows = [[*key, str(count)] for key, count in sorted(suspects.items())]
    table = markdown_table(["rule", *LABELS["serving"], "rows"], rows, 5)
    errors = ", ".join(
        f"{name.upper()} {rest[f'{name}_median_abs_pct']:.1f} % (bias {rest[f'{name}_bias_pct']:+.1f} %)"
        for name in ("ttft", "tpot")
    )
    return [f"{SUSPECT}\n\n{table}\n\nThe other {rest['rows']} rows: {errors}.\n"]


def with_suspects(value: dict[str, Any], outcome: Predictions, rows: Sequence[Row], models: Path) -> dict[str, Any]:
    """The errors of a file of serving rows, with how many rows break each rule and the errors of the others."""
    doubts: dict[int, str] = {}
    for batch in batches_of(deployments_of(rows, load_catalog(), models)[0]):
        broken = suspicions(batch, steady_state(batch, load_serving_policy(batch.engine)))
        doubts |= {each.row.line: rule for each, rule in zip(batch.deployments, broken, strict=True) if rule}
    suspects = Counter((doubts[row.line], *row.group.values()) for row in outcome.predicted if row.line in doubts)
    sound = tuple(row for row in outcome.predicted if row.line not in doubts)
    return value | {
        "suspect": suspects,
        "without_suspect": validation_dict(RowKind.SERVING, Predictions(sound, ())),
    }


def _fitted(error: ServingError) -> str:
    names = tuple(sorted(ENGINES))
    policies = [load_serving_policy(name) for name in names]
    rows = [
        [meaning, *(write(policy) for policy in policies)]
        for meaning, write in (
            ("CPU time per step [µs]", lambda p: f"{p.overhead.step * 1e6:.0f}"),
            ("CPU time per request in a step [µs]", lambda p: f"{p.overhead.per_request * 1e6:.1f}"),
            ("launching a kernel of a step with prompts [µs]", lambda p: f"{p.launch * 1e6:.1f}"),
            ("before a lone prompt starts [ms]", lambda p: f"{p.arrival * 1e3:.1f}"),
            ("hand-over between workers [ms]", lambda p: f"{p.handover * 1e3:.0f}"),
            ("later requests that find all others' prompts ahead of them", lambda p: percentage(p.handover_burst)),
        )
    ]
    table = markdown_table(["parameter", *names], rows, 1)
    head = f"## What was fitted\n\nKernels: see [calibration.md](theory/calibration.md). Serving: {error.source}."
    return f"{head}\n\n{table}\n\n{_prompts()}\n"


def _prompts() -> str:
    """What prompts take beyond their kernels, by generation of GPUs."""
    catalog = load_catalog()
    gpus = [catalog.accelerator(name) for name in ("H100", "B200", "MI355X")]
    factors = [f"{gpu.in_engine.first_token:g} on {gpu.name}" for gpu in gpus]
    return (
        "First tokens of models with routed experts take longer than their steps, by the factor "
        f"{', '.join(factors)}.\n"
        f"On workers that only prefill, these steps take {gpus[0].in_engine.prefill_worker:g} times as long as their "
        "kernels instead.\n"
        "GPUs of a generation share a figure. Measured, not fitted to serving: kernels bound by compute take\n"
        f"{gpus[0].in_engine.arithmetic:g} times as long in an engine as in the kernel tables, whose short runs do not "
        "reach the power limit."
    )


def by_accelerator(error: ServingError) -> str:
    """The section on each accelerator and way of serving; of each engine and model too, where the record has them."""
    has_engines = any(row.engine for row in error.held_out_on)
    rows = [
        [
            row.accelerator,
            row.mode,
            *([row.engine or "any", row.model or "any"] if has_engines else ()),
            str(row.rows),
            f"{row.ttft_median_abs_pct:.1f} %",
            f"{row.ttft_bias_pct:+.1f} %",
            f"{row.tpot_median_abs_pct:.1f} %",
            f"{row.tpot_bias_pct:+.1f} %",
        ]
        for row in error.held_out_on
    ]
    labels = ["accelerator", "mode", *(["engine", "model"] if has_engines else ())]
    also = ": of all engines, of each engine, and of each engine with each model" if has_engines else ", of all engines"
    return (
        f"## By accelerator and mode\n\nThe same predictions, on each accelerator that serving was measured on{also}. "
        "A report shows this record under Trust; what was not measured has no row, and the report says so.\n\n"
        f"{markdown_table([*labels, 'rows', 'TTFT', 'bias', 'TPOT', 'bias'], rows, len(labels))}\n"
    )


def _held_out(error: ServingError) -> str:
    rows = [
        [
            row.group,
            str(row.rows),
            f"{row.ttft_median_abs_pct:.1f} %",
            f"{row.ttft_bias_pct:+.1f} %",
            percentage(row.ttft_interval90_coverage),
            f"{row.tpot_median_abs_pct:.1f} %",
            f"{row.tpot_bias_pct:+.1f} %",
            percentage(row.tpot_interval90_coverage),
        ]
        for row in error.held_out
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
        [quantity, key, str(factors.rows), f"{factors.low:.2f}", f"{factors.high:.2f}"]
        for quantity, strata in error.quantities.items()
        for key, factors in strata.items()
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


def main(data: Path) -> None:
    """Predict every measured row of a data folder, and write both pages."""
    catalog, files = load_catalog(None), {}
    for file in (data / "serving" / name for name in FILES):
        kind, rows = read_measurements(file)
        rows = with_settings(rows, read_scripts(file.parent / SCRIPTS))
        predict = predict_serving if kind is RowKind.SERVING else predict_steps
        outcome = predict(rows, catalog, data / "models")
        value = validation_dict(kind, outcome)
        serving = kind is RowKind.SERVING
        files[file.name] = with_suspects(value, outcome, rows, data / "models") if serving else value
    docs = Path(__file__).parent.parent / "docs"
    (docs / "accuracy.md").write_text(accuracy_page(files), "utf-8")
    (docs / "appendix" / "accuracy.md").write_text(appendix_page(files), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
