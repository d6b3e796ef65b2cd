"""`pdplan validate`: how wrong the predictions are, computed from measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError
from pdplan.console import Console, write_text
from pdplan.options import (
    PATH,
    ROUTERS,
    Choice,
    catalog_option,
    console_options,
    force_option,
    json_option,
    pass_console,
)
from pdplan.views import check_files

if TYPE_CHECKING:
    from search_spaces.catalog import AcceleratorCatalog

FILES = ("closed_loop.csv", "r1_2026.csv", "engine_steps.csv")
"""What is looked for in a data folder and in its `serving` folder: serving results and composed engine steps."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line of `pdplan validate`, by the names of its options."""

    data_dir: Path | None
    against: Path | None
    plan: Path | None
    slo_class: str | None
    balancing: str | None
    models: Path | None
    catalog: Path | None
    page: Path | None
    with_rows: bool
    force: bool


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
@click.option("--slo-class", metavar="NAME", help="With --plan: the class whose requests FILE is about.")
@click.option(
    "--balancing",
    type=Choice(ROUTERS),
    help="With --plan: how the router chose a replica of a pool; default: as in the plan.",
)
@click.option(
    "--models", type=PATH, metavar="DIR",
    help="Models that the catalog lacks: DIR/ORG/NAME/config.json; default: DATA_DIR/models.",
)  # fmt: skip
@click.option(
    "--write",
    "page",
    type=PATH,
    metavar="FILE",
    help="Also write the errors as a page in Markdown.",
)
@click.option("--rows", "with_rows", is_flag=True, help="With --json: also every prediction with its interval.")
@force_option
@catalog_option
@json_option
@console_options
@pass_console
def validate(console: Console, /, as_json: bool, **options: Any) -> None:
    """Examples:

    \b
      pdplan validate data/
      pdplan validate --against my_results.csv --models my_models/ --json
      pdplan validate data/ --write accuracy.md
      pdplan validate --against benchmark/results/profile_export_aiperf.json --plan plan.json

    Predicts every measured row and prints the errors by model, accelerator, engine and mode: median,
    90th percentile, bias, and how many measured values the 90 % intervals cover. A row that cannot be
    predicted says why.

    FILE and the files of DATA_DIR have the columns of serving/closed_loop.csv (TTFT and TPOT at fixed
    concurrency) or of serving/engine_steps.csv (single steps); the header decides. Flags of the engine
    are taken from the columns kv_dtype, memory_fraction, max_num_batched_tokens and
    scheduler_recv_interval, else from engine_settings.csv beside the file. Exits with 2 where no row
    can be predicted.
    """
    from reports.answers.validation import accuracy_page, validation_document
    from search_spaces.catalog import load_catalog

    flags = Flags(**options)
    for flag, value in (("--slo-class", flags.slo_class), ("--balancing", flags.balancing)):
        if value is not None and flags.plan is None:
            raise click.UsageError(f"{flag} goes with --plan")
    if flags.plan is not None:
        _promise(console, flags, as_json=as_json)
        return
    files = _files(flags)
    check_files(
        {"--write": flags.page}, {**{file.name: file for file in files}, "--catalog": flags.catalog}, force=flags.force
    )
    known, folder = load_catalog(flags.catalog), _models(flags)
    parts: dict[str, dict[str, Any]] = {}
    for file in files:
        console.note(f"predicting the rows of {file.name}")
        parts[file.name] = _errors(file, known, folder, flags.with_rows)
    nothing = _unpredicted(parts)
    if flags.page is not None and not nothing:
        write_text(flags.page, accuracy_page(parts), force=flags.force)
        console.note(f"{flags.page} written")
    console.show(_document(parts) if as_json else validation_document(parts))
    if nothing:
        raise InputError(nothing)


def _promise(console: Console, flags: Flags, *, as_json: bool) -> None:
    """Show what a plan promised beside what a run of its benchmark measured."""
    from pdplan.plan_files import read_plan
    from reports.deploy.benchmark import behind, promise_dict, promise_document
    from search_spaces.problem import Balancing

    others = [flags.data_dir, flags.models, flags.catalog, flags.page, flags.with_rows]
    if flags.plan is None or flags.against is None or any(others):
        raise click.UsageError("--plan goes with --against FILE alone, a benchmark's result")
    plan = read_plan(flags.plan)
    promised = plan if flags.balancing is None else behind(plan, Balancing(flags.balancing))
    value = promise_dict(promised, flags.against, flags.slo_class)
    console.show(value if as_json else promise_document(value))


def _unpredicted(parts: dict[str, dict[str, Any]]) -> str:
    """What to say of the first file of which no row could be predicted; empty where all files have some."""
    for name, value in parts.items():
        if not value["rows"]:
            return f"{name} has no rows below its header"
        if not value["predicted"]:
            first = value["refused"][0]
            where = f"{name}: none of its rows can be predicted; the first"
            return f"{where}, line {first['line']}: {first['reason']}"
    return ""


def _models(flags: Flags) -> Path | None:
    """The folder of models that was named, else that of the data folder if there is one."""
    if flags.models is not None:
        if not flags.models.is_dir():
            raise InputError(f"--models {flags.models} is not a directory")
        return flags.models
    beside = flags.data_dir / "models" if flags.data_dir else None
    return beside if beside is not None and beside.is_dir() else None


def _files(flags: Flags) -> list[Path]:
    """The one file that was named, else those of the data folder."""
    if flags.against is not None:
        return [flags.against]
    if flags.data_dir is None:
        raise click.UsageError("give DATA_DIR, or --against FILE")
    folder = flags.data_dir
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; a single file goes behind --against")
    found = [path for name in FILES for path in (folder / "serving" / name, folder / name) if path.is_file()]
    if not found:
        raise InputError(f"{folder} has none of {', '.join(FILES)}, nor has its folder 'serving'")
    return found


def _errors(file: Path, known: AcceleratorCatalog, models: Path | None, with_rows: bool) -> dict[str, Any]:
    from reports.answers.validation import validation_dict
    from search_spaces.measured_predictions import predict_serving, predict_steps
    from search_spaces.measured_settings import SCRIPTS, read_scripts, with_settings
    from search_spaces.measurements import Format, read_measurements

    kind, rows = read_measurements(file)
    rows = with_settings(rows, read_scripts(file.parent / SCRIPTS))
    predict = predict_serving if kind is Format.SERVING else predict_steps
    return validation_dict(kind, predict(rows, known, models), with_rows=with_rows)


def _document(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One object: the errors of the first file, with those of any other beside them under its format.

    A further file of the first one's format stands under its own name.
    """
    (_, first), *others = parts.items()
    named = {name if part["format"] == first["format"] else part["format"]: part for name, part in others}
    return {"schema": "pdplan.validation/1", **first, **named}
