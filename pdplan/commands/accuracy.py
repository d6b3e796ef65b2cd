"""`pdplan calibrate` and `pdplan validate`: fit the predictions to measurements, or say how wrong they are."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError
from costmodel.words import join_words
from pdplan.console import Console
from pdplan.files import check_files
from pdplan.options import (
    DEGREE,
    PATH,
    Choice,
    Flags,
    alternative_option,
    catalog_option,
    console_options,
    json_option,
    pass_console,
    replica_options,
    share_within,
    value_of,
    weight_dtype_option,
    whole,
)
from search_spaces import bounds
from search_spaces.bounds import ROUTER_SPELLINGS, ROUTERS

if TYPE_CHECKING:
    from search_spaces.calibration import Calibration, Setup


@click.command(short_help="Fit the predictions to your own benchmark results.")
@click.argument("results", type=PATH, nargs=-1, required=True)
@replica_options
@click.option("--replicas", type=DEGREE, default=1, show_default=True, help="Equal replicas that shared the load.")
@click.option("--engine", metavar="NAME", help="vllm, sglang or trtllm; default: as the results say, else vllm.")
@weight_dtype_option
@click.option("--kv-dtype", type=Choice(["bf16", "fp8"]), help="Precision of the KV cache; default: the engine's own.")
@click.option(
    "--memory-fraction", callback=share_within(bounds.MEMORY_FRACTION), metavar="SHARE",
    help="Share of HBM that the engine used; default: the engine's.",
)  # fmt: skip
@click.option(
    "--max-num-seqs", type=whole(bounds.MAX_NUM_SEQS), help="Most requests that run at once; default: no limit."
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write a catalog file with the fitted figures.")
@json_option
@click.option("--force", is_flag=True, help="Replace an existing file, and keep a fit that does not explain the data.")
@console_options
@pass_console
def calibrate(
    console: Console, /, *, results: tuple[Path, ...], output: Path | None, as_json: bool, force: bool, **options: Any
) -> None:
    """Examples:

    \b
      pdplan calibrate results.json --model Llama-3.1-70B --gpu H100 --tp 4 -o overlay.yaml
      pdplan calibrate runs/*.jsonl --model Qwen3-32B --gpu H200 --engine sglang -o overlay.yaml
      pdplan calibrate agg_*.json --model DeepSeek-V3 --gpu H200 --json

    Reads the results of vllm bench serve, SGLang's bench_serving, AIPerf, GenAI-Perf, GuideLLM,
    inference-perf, llm-d, InferenceX or Dynamo's self-benchmark and compares them with the prediction.
    Fits four scales: of arithmetic, of memory traffic, of the engine's host time and of its TTFT
    overhead. -o writes a catalog file: use it as pdplan estimate --catalog FILE, or as catalog: FILE in
    workload.yaml.

    Exits with 2 and writes nothing when the fit does not explain the results: a flag is wrong, or the
    cost model does not know what ran. --force keeps the fit.
    """
    from costmodel.words import plural
    from reports.answers.accuracy import calibration_dict, calibration_document
    from search_spaces.benchmark_results import read_results
    from search_spaces.calibration import calibrate as fit

    catalog: Path | None = options["catalog"]
    inputs = {f"result {number}": path for number, path in enumerate(results, start=1)}
    check_files({"-o": output}, {**inputs, "--catalog": catalog}, force=force)
    setup = _setup(options)
    records = read_results(results)
    if not records:
        raise InputError(f"no results in {join_words([str(path) for path in results])}")
    console.note(f"read {plural(len(records), 'result')} from {plural(len(results), 'file')}; fitting to them")
    source = _source(results, records, setup)
    calibration = fit(records, setup, source)
    is_kept = not calibration.refusal or force
    if output is not None and is_kept:
        console.write(output, _overlay(calibration, source, catalog, console.command), force=force, hint=None)
    value = calibration_dict(calibration, str(output) if output is not None and is_kept else None)
    writing = "" if output is not None else f"{console.command} -o overlay.yaml   # writes the fitted figures to a file"
    console.show(value if as_json else replace(calibration_document(value), next_step=writing if is_kept else ""))
    if not is_kept:
        raise InputError(f"{calibration.refusal} (--force keeps the fit)")
    if output is not None:
        flags = shlex.join(["--model", setup.model_name, "--gpu", options["gpu"], "--catalog", str(output)])
        console.note(f"\nwrote {output}\nNext: pdplan estimate {flags}")


def _setup(options: dict[str, Any]) -> Setup:
    """What ran, as the options say it."""
    from search_spaces.calibration import Setup
    from search_spaces.catalog import load_catalog
    from search_spaces.engines import engine_name
    from search_spaces.measurements import Layout
    from search_spaces.models import load_model

    tp, pp, ep, dp = (options[name] for name in ("tp", "pp", "ep", "dp"))
    if (tp * dp) % ep:
        raise InputError(f"--ep {ep} does not divide --tp {tp} x --dp {dp}")
    catalog = load_catalog(options["catalog"])
    with value_of("--model"):
        model = load_model(options["model"])
    with value_of("--gpu"):
        accelerator = catalog.accelerator(options["gpu"])
    with value_of("--engine"):
        engine = None if options["engine"] is None else engine_name(options["engine"])
    layout = Layout(options["replicas"], tp, pp, dp, ep)
    settings = {name: options[name] for name in ("weight_dtype", "kv_dtype", "memory_fraction", "max_num_seqs")}
    return Setup(catalog, options["model"], model, accelerator, layout, engine, **settings)


def _source(results: tuple[Path, ...], records: list[Any], setup: Setup) -> str:
    """What the fitted figures rest on, for the catalog file."""
    tools = ", ".join(dict.fromkeys(record.source for record in records))
    files = results[0].name if len(results) == 1 else f"{results[0].name} and {len(results) - 1} more"
    return f"calibrated on {len(records)} results of {setup.model.name} ({tools}; {files})"


def _overlay(calibration: Calibration, source: str, catalog: Path | None, command: str) -> str:
    from search_spaces.calibration import calibrated_overlay

    scales = ", ".join(f"{name} x {getattr(calibration.fit.scales, name):.3g}" for name in calibration.fit.free)
    kept_scales = f"; not seen in the data and kept: {', '.join(calibration.kept)}" if calibration.kept else ""
    heading = [
        f"catalog file written by: {command}",
        source,
        f"scales: {scales}{kept_scales}",
        "kernels that these results did not use stay as shipped",
    ]
    return calibrated_overlay(calibration, heading, source, catalog)


FILES = ("closed_loop.csv", "r1_2026.csv", "engine_steps.csv")
"""What is looked for in a data folder and in its `serving` folder: serving results and composed engine steps."""


@click.command(short_help="Recompute the prediction errors from measurements.")
@click.argument("data_dir", required=False, type=PATH)
@click.option(
    "--against",
    type=PATH,
    metavar="FILE",
    help="One CSV file of measurements, in place of DATA_DIR; with --plan: the result of a benchmark.",
)
@click.option(
    "--plan", type=PATH, metavar="PLAN",
    help="With --against: compare the benchmark of this plan's deployment with the plan's prediction.",
)  # fmt: skip
@alternative_option
@click.option(
    "--prometheus", type=PATH, metavar="FILE",
    help="With --plan: a Prometheus range query of its fleet; say whether real traffic meets the SLO.",
)  # fmt: skip
@click.option("--slo-class", metavar="NAME", help="With --plan: the class whose requests FILE is about.")
@click.option(
    "--balancing",
    type=Choice(ROUTERS, ROUTER_SPELLINGS),
    help="With --plan: how the router chose a replica of a pool; default: as in the plan.",
)
@click.option(
    "--models", type=PATH, metavar="DIR",
    help="Models that the catalog lacks: DIR/ORG/NAME/config.json; default: DATA_DIR/models.",
)  # fmt: skip
@click.option("--rows", "with_rows", is_flag=True, help="With --json: also every prediction with its interval.")
@catalog_option
@json_option
@console_options
@pass_console
def validate(console: Console, /, as_json: bool, **options: Any) -> int | None:
    """Examples:

    \b
      pdplan validate data/
      pdplan validate --against my_results.csv --models my_models/ --json
      pdplan validate --against benchmark/results/profile_export_aiperf.json --plan plan.json
      pdplan validate --prometheus prometheus.json --plan plan.json

    Predicts every measured row and prints the errors by model, accelerator, engine and mode: median,
    90th percentile, bias, and how many measured values the 90 % intervals cover. A row that cannot be
    predicted says why.

    FILE and the files of DATA_DIR have the columns of serving/closed_loop.csv (TTFT and TPOT at fixed
    concurrency) or of serving/engine_steps.csv (single steps); the header decides. Flags of the engine
    are taken from the columns kv_dtype, memory_fraction, max_num_batched_tokens and
    scheduler_recv_interval, else from engine_settings.csv beside the file. Exits with 2 where no row
    can be predicted.

    With --plan it says whether the fleet meets the plan's SLO, and exits with 3 where it does not, or
    where that cannot be told.
    """
    from reports.answers.accuracy import validation_dict, validation_document
    from search_spaces.catalog import load_catalog
    from search_spaces.measured_engines import predict_serving, predict_steps
    from search_spaces.measurements import SCRIPTS, RowKind, read_measurements, read_scripts, with_settings

    flags = Flags(**options)
    for flag, value in (("--slo-class", flags.slo_class), ("--balancing", flags.balancing)):
        if value is not None and flags.plan is None:
            raise click.UsageError(f"{flag} goes with --plan")
    if flags.alternative > 1 and flags.plan is None:
        raise click.UsageError("--alternative goes with --plan")
    if flags.plan is not None or flags.prometheus is not None:
        return _against_plan(console, flags, as_json=as_json)
    files, catalog, folder = _files(flags), load_catalog(flags.catalog), _models(flags)
    errors: dict[str, dict[str, Any]] = {}
    for file in files:
        console.note(f"predicting the rows of {file.name}")
        kind, rows = read_measurements(file)
        rows = with_settings(rows, read_scripts(file.parent / SCRIPTS))
        predict = predict_serving if kind is RowKind.SERVING else predict_steps
        errors[file.name] = validation_dict(kind, predict(rows, catalog, folder), with_rows=flags.with_rows)
    console.show(_validation(errors) if as_json else validation_document(errors))
    for name, result in errors.items():
        if not result["rows"]:
            raise InputError(f"{name} has no rows below its header")
        if not result["predicted"]:
            first = result["refused"][0]
            where = f"{name}: none of its rows can be predicted; the first"
            raise InputError(f"{where}, line {first['line']}: {first['reason']}")
    return None


def _against_plan(console: Console, flags: Flags, *, as_json: bool) -> int:
    """Show what a plan predicts beside what was measured, and say whether its fleet meets the SLO."""
    from pdplan.files import read_fleet
    from reports.answers.measured import comparison_dict, comparison_document, watch_dict, watch_document
    from reports.deploy.measurement import behind
    from search_spaces.problem import Balancing

    foreign_flags = any([flags.data_dir, flags.models, flags.catalog, flags.with_rows])
    if flags.prometheus is not None:
        plan_file = flags.plan or flags.against
        if plan_file is None or foreign_flags or (flags.plan and flags.against):
            raise click.UsageError("--prometheus FILE goes with --plan PLAN alone")
        value = watch_dict(read_fleet(plan_file, flags.alternative), flags.prometheus, flags.slo_class)
        return console.answer(watch_document(value), value, as_json=as_json)
    if flags.plan is None or flags.against is None or foreign_flags:
        raise click.UsageError("--plan goes with --against FILE alone, a benchmark's result")
    plan = read_fleet(flags.plan, flags.alternative)
    prediction = plan if flags.balancing is None else behind(plan, Balancing(flags.balancing))
    value = comparison_dict(prediction, flags.against, flags.slo_class)
    return console.answer(comparison_document(value), value, as_json=as_json)


def _models(flags: Flags) -> Path | None:
    """The folder of models that was named, else that of the data folder if there is one."""
    if flags.models is not None and not flags.models.is_dir():
        raise InputError(f"--models {flags.models} is not a directory")
    folder = flags.data_dir / "models" if flags.data_dir else None
    return flags.models or (folder if folder is not None and folder.is_dir() else None)


def _files(flags: Flags) -> list[Path]:
    """The one file that was named, else those of the data folder."""
    folder = flags.data_dir
    if flags.against is not None:
        return [flags.against]
    if folder is None:
        raise click.UsageError("give DATA_DIR, or --against FILE")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; a single file goes behind --against")
    paths = [path for name in FILES for path in (folder / "serving" / name, folder / name) if path.is_file()]
    if not paths:
        raise InputError(f"{folder} has none of {', '.join(FILES)}, nor has its folder 'serving'")
    return paths


def _validation(files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One object: the errors of the first file, with those of any other beside them under its format.

    A further file of the first one's format stands under its own name.
    """
    (_, first), *further_files = files.items()
    others_by_name = {
        name if value["format"] == first["format"] else value["format"]: value for name, value in further_files
    }
    return {"schema": "pdplan.validation/1", **first, **others_by_name}
