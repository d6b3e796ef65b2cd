"""Files that commands read and write: plans, fleets, problems, and answers in several views."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from costmodel.errors import InputError
from costmodel.units import MIB
from costmodel.words import plural
from pdplan.console import Console
from pdplan.exits import ExitCode
from pdplan.options import (
    PATH,
    Choice,
    alternative_option,
    console_options,
    force_option,
    json_option,
    parse_settings,
    pass_console,
    prices_option,
    set_option,
)
from search_spaces.files import read_file, shown_path

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan
    from reports.document import Document
    from reports.rows import Columns
    from search_spaces.fleet_file import StatedFleet
    from search_spaces.problem import Problem

LARGEST_PLAN: Final = 32 * MIB
"""A plan file is some 100 kB; one larger than this [byte] is something else."""


def read_plan(path: Path, alternative: int = 1) -> Plan:
    """Read a plan file, or say in one sentence why it is none; alternative: see `numbered`."""
    from optimizer.plans.plan import parse_plan
    from search_spaces.fleet_file import is_fleet_file

    data = read_file(path, LARGEST_PLAN, "a plan.json")
    try:
        return numbered(parse_plan(data, shown_path(path)), alternative, path)
    except InputError as error:
        file = shown_path(path)
        if is_fleet_file(path):
            raise InputError(f"{file}: this is a fleet file, not a plan; pdplan evaluate {file} takes it") from error
        if b'"pdplan.evaluation/' in data:
            page = "open evaluation.html beside it, or give the plan.json that pdplan optimize -o DIR writes"
            raise InputError(f"{file}: this is an evaluation, not a plan; {page}") from error
        if path.suffix.lower() in {".yaml", ".yml"}:
            made = f"if it is a workload, pdplan optimize {file} -o DIR plans it"
            raise InputError(f"{file}: this is not a plan.json; {made}") from error
        raise


def numbered(plan: Plan, alternative: int, path: Path) -> Plan:
    """The plan of an alternative by its number in the report, from 1, the recommended one, which is the plan itself."""
    if alternative == 1:
        return plan
    from optimizer.recommend.evaluate import plan_of_alternative
    from reports.alternatives import distinct_alternatives

    rows = distinct_alternatives(plan)
    if alternative > len(rows):
        where = "" if path == Path() else f"; pdplan report {shown_path(path)} -v numbers them"
        raise InputError(f"--alternative {alternative}: the plan has {plural(len(rows), 'fleet')}{where}")
    chosen = plan_of_alternative(plan, rows[alternative - 1], path.parent)
    return chosen.model_copy(update={"name": f"alternative {alternative} of plan {plan.name}"})


def read_fleet(path: Path, alternative: int = 1) -> Plan:
    """Read a plan, or a fleet file (YAML) as the plan of the fleet that it states, by formula and not simulated."""
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if not is_fleet_file(path):
        return read_plan(path, alternative)
    if alternative != 1:
        raise InputError(f"--alternative {alternative}: {shown_path(path)} is a fleet file, which states one fleet")
    from optimizer.recommend.evaluate import plan_of, subject_of

    return plan_of(subject_of(load_fleet(path)))


def stated_fleet(path: Path, workload: Path | None, overrides: dict[str, Any]) -> StatedFleet | Plan:
    """The fleet that is to be evaluated: of a fleet file, or of a plan; workload: what the fleet serves, if not stated.

    overrides: values of the workload by dotted path.
    """
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if workload is not None or is_fleet_file(path):
        return load_fleet(path, workload, overrides)
    if path.suffix.lower() in {".yaml", ".yml"}:
        raise InputError(
            f"{shown_path(path)}: states no pools, so it is not a fleet file (pdplan init --fleet writes one); if it "
            "is a workload, name the fleet with --fleet"
        )
    if overrides:
        raise InputError(
            "--set, --confidence and --prices change the workload of a fleet file; a plan is evaluated as it was made"
        )
    return read_plan(path)


@dataclass(frozen=True, slots=True)
class Output:
    """Where an answer goes: to files, and to stdout.

    files: an option, the form that it asks for (text, html, md, json, csv or parquet) and the file; screen: the form on
    stdout, empty where a file takes its place.
    """

    files: Sequence[tuple[str, str, Path]]
    screen: str
    force: bool

    @property
    def rows_flag(self) -> str:
        """The option that asks for a table of rows; empty where none does."""
        return next((flag for flag, form, _ in self.files if form in {"csv", "parquet"}), "")

    def check(self, others: Mapping[str, Path | None] = MappingProxyType({}), **inputs: Path | None) -> None:
        """Refuse files that cannot be written; others: by option; inputs: what is read, by argument or option."""
        outputs = {flag: path for flag, _, path in self.files}
        read_files = {name if name.isupper() else f"--{name}": path for name, path in inputs.items()}
        check_files({**outputs, **others}, read_files, force=self.force)

    def show(
        self,
        console: Console,
        document: Document,
        record: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]] | Callable[[], Columns] = (),
        *,
        name: str = "result",
    ) -> ExitCode:
        """Write the files that were asked for, show the answer, and return the exit code.

        rows: those of csv and parquet; of many, what makes their columns; name: of the record in a page.
        """
        from reports.rows import columns_csv, columns_parquet, row_columns
        from reports.text import json_text
        from reports.views import html_view, markdown_view

        columns = functools.cache(lambda: rows() if callable(rows) else row_columns(rows))
        writers: dict[str, Callable[[], str | bytes]] = {
            "text": lambda: console.render(document, color=False),
            "json": lambda: json_text(record),
            "html": lambda: html_view(document, record, name),
            "md": lambda: markdown_view(document),
            "csv": lambda: columns_csv(columns()),
            "parquet": lambda: columns_parquet(columns()),
        }
        for _, form, path in self.files:
            console.write(path, writers[form](), force=self.force)
        screen = "json" if self.screen and console.json_only else self.screen
        if screen:
            console.show(document if screen == "text" else writers[screen]())
        return ExitCode.DONE if document.positive else ExitCode.INFEASIBLE


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def gathered(argument: str, gather: Callable[..., Any], options: Sequence[Decorator]) -> Decorator:
    """Add options; those that `gather` takes reach the command as one argument that it makes of them."""
    names = inspect.signature(gather).parameters

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @pass_console
        @wraps(function)
        def command(console: Console, /, **values: Any) -> Any:
            own = {name: values.pop(name) for name in names if name in values}
            return function(console, **{argument: gather(**own)}, **values)

        return functools.reduce(lambda command, option: option(command), reversed(options), command)

    return add


def answer_options(page: str, *others: Decorator, rows: str = "", parquet: bool = False) -> Decorator:
    """Add --html, --json, --force and those of the console, gathered in the argument `output`, an `Output`.

    page, rows: what --html and --csv write, as their help says; parquet: --parquet too; others: options that stand
    between those of files and --json.
    """
    options: list[Decorator] = [click.option("--csv", type=PATH, metavar="OUT", help=rows)] if rows else []
    if parquet:
        options.append(click.option("--parquet", type=PATH, metavar="OUT", help="The same as Parquet (needs pyarrow)."))
    options.append(click.option("--html", type=PATH, metavar="OUT", help=page))
    options += [*others, json_option, force_option, console_options]

    def output(html: Path | None, force: bool, csv: Path | None = None, parquet: Path | None = None) -> Output:
        paths = {"csv": csv, "parquet": parquet, "html": html}
        files = [(f"--{form}", form, path) for form, path in paths.items() if path is not None]
        return Output(files, "text", force)

    return gathered("output", output, options)


def problem_options(
    page: str, *others: Decorator, rows: str = "", parquet: bool = False, reads: Sequence[str] = ()
) -> Decorator:
    """Add FILE, --set, --prices and the options of an answer; the command gets the problem of FILE, read and checked.

    page, others, rows, parquet: as of `answer_options`; reads: options that name files which are read too.
    """

    def add(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def command(
            console: Console,
            /,
            *,
            file: Path,
            settings: tuple[str, ...],
            output: Output,
            prices: str | None,
            **others: Any,
        ) -> int:
            output.check(FILE=file, **{name: others[name] for name in reads})
            problem = random_problem(console, file, settings, prices)
            return function(console, problem, file=file, output=output, **others)

        named = click.argument("file", type=PATH)(command)
        return answer_options(page, *others, prices_option, set_option, rows=rows, parquet=parquet)(named)

    return add


def view_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -o, --format, --json, --force and those of the console, gathered in the argument `view`, an `Output`."""
    options: list[Decorator] = [
        click.option("-o", "--output", type=PATH, metavar="FILE", help="Write to FILE, not to stdout."),
        click.option(
            "--format",
            "form",
            type=Choice(["text", "html", "md", "json"]),
            help="Default: by the ending of -o, or text on stdout.",
        ),
        json_option,
        alternative_option,
        force_option,
        console_options,
    ]

    def view(output: Path | None, form: str | None, force: bool) -> Output:
        as_json = click.get_current_context().ensure_object(Console).json_only
        if as_json and form not in {None, "json"}:
            raise InputError(f"--json is one form of the answer and --format {form} another; leave one out")
        endings = {".html": "html", ".htm": "html", ".json": "json", ".md": "md", ".txt": "text", "": "text"}
        ending = output.suffix.lower() if output else ""
        form = form or ("json" if as_json else endings.get(ending))
        if form is None:
            views = "end it in .html, .md, .json or .txt, or state --format"
            raise InputError(f"-o {output}: no view ends in {ending}; {views}")
        return Output([], form, force) if output is None else Output([("-o", form, output)], "", force)

    return gathered("view", view, options)(function)


def check_files(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None], *, force: bool) -> None:
    """Refuse files, by the option that asks for each, that cannot be written: before the work, not after it.

    inputs: files that are read, by option.
    """
    from reports.whole_files import check_distinct, check_free, check_target

    targets = {flag: path for flag, path in outputs.items() if path is not None}
    for path in targets.values():
        check_target(path, force=True)
    check_distinct(targets, {flag: path for flag, path in inputs.items() if path is not None})
    for path in targets.values():
        check_free(path, force=force)
    if "--parquet" in targets and importlib.util.find_spec("pyarrow") is None:
        raise InputError("--parquet needs pyarrow, which is not installed; install pdplan[parquet], or write --csv")


def random_problem(console: Console, file: Path, settings: tuple[str, ...], prices: str | None = None) -> Problem:
    """The problem of a file, with random requests in place of recorded ones; where it has some, that is noted."""
    from search_spaces.loader import load_problem, without_recording

    problem = load_problem(file, overrides=parse_settings(settings, prices=prices))
    if problem.recorded is None:
        return problem
    from reports.numbers import significant
    from reports.text import clean

    console.note(
        f"Note: requests are random here, with burstiness {significant(problem.workload.burstiness)}; pdplan optimize "
        f"simulates those of {clean(problem.recorded.source, 60)} themselves, and may choose another fleet."
    )
    return without_recording(problem)
