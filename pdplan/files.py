"""Files that commands read and write: plans and fleets, problems, and one result in several views."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from costmodel.errors import InputError
from costmodel.units import MIB
from pdplan.console import Console, write_text
from pdplan.exits import ExitCode
from pdplan.options import PATH, Choice, Function
from search_spaces.files import read_file, shown_path

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan
    from reports.document import Document
    from search_spaces.problem import Problem

LARGEST_PLAN: Final = 32 * MIB
"""A plan file is some 100 kB; one larger than this [byte] is something else."""
OTHERS: Final = {
    "fleet": ("fleet file", re.compile(rb"^(pools\s*:|schema\s*:\s*pdplan\.fleet/)", re.MULTILINE)),
    "workload": ("workload", re.compile(rb"^(workload\s*:|schema\s*:\s*pdplan\.workload/)", re.MULTILINE)),
}
"""Our other files: their names, and a key by which YAML is known for one."""


def read_plan(path: Path, alternative: int = 1) -> Plan:
    """Read a plan file, or say in one sentence why it is none; alternative: see `numbered`."""
    from optimizer.plans.reading import parse_plan
    from search_spaces.faults import taken_by

    data = read_file(path, LARGEST_PLAN, "a plan.json")
    try:
        return numbered(parse_plan(data, shown_path(path)), alternative, path)
    except InputError as error:
        file = shown_path(path)
        for kind, (name, pattern) in OTHERS.items():
            if pattern.search(data) is not None:
                raise InputError(f"{file}: this is a {name}, not a plan{taken_by(kind, file)}") from error
        if path.suffix.lower() in {".yaml", ".yml"}:
            raise InputError(f"{file}: a plan is the plan.json that pdplan optimize -o DIR writes") from error
        raise


def numbered(plan: Plan, alternative: int, path: Path) -> Plan:
    """The plan of an alternative by its number in the report, from 1, the recommended one, which is the plan itself."""
    if alternative == 1:
        return plan
    from optimizer.recommend.evaluate import plan_of_alternative
    from reports.words import distinct_alternatives

    rows = distinct_alternatives(plan)
    if alternative > len(rows):
        where = f"pdplan report {shown_path(path)} -v numbers them"
        raise InputError(f"--alternative {alternative}: the plan has {len(rows)} fleets; {where}")
    found = plan_of_alternative(plan, rows[alternative - 1], path.parent)
    return found.model_copy(update={"name": f"alternative {alternative} of plan {plan.name}"})


def read_fleet(path: Path, alternative: int = 1) -> Plan:
    """Read a plan, or a fleet file (YAML) as the plan of the fleet that it states, by formula and not simulated."""
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if not is_fleet_file(path):
        return read_plan(path, alternative)
    if alternative != 1:
        raise InputError(f"--alternative {alternative}: {shown_path(path)} is a fleet file, which states one fleet")
    from optimizer.recommend.evaluate import plan_of, subject_of

    return plan_of(subject_of(load_fleet(path)))


def view_options(function: Function) -> Function:
    """Add -o and --format."""
    form = click.option(
        "--format",
        "view",
        type=Choice(["text", "html", "md", "json"]),
        help="Default: by the ending of -o, or text on stdout.",
    )
    out = click.option("-o", "--output", type=PATH, metavar="FILE", help="Write to FILE, not to stdout.")
    return out(form(function))


def view_of(output: Path | None) -> str:
    """Tell the view that the ending of a file asks for."""
    endings = {".html": "html", ".htm": "html", ".json": "json", ".md": "md", ".txt": "text", "": "text"}
    ending = output.suffix.lower() if output else ""
    if ending not in endings:
        raise InputError(
            f"-o {output}: no view ends in {ending}; end it in .html, .md, .json or .txt, or state --format"
        )
    return endings[ending]


def show_or_write(console: Console, text: str, output: Path | None, *, force: bool, rival: str) -> None:
    """Show a view on stdout, or write it to the file named; rival: as of `check_files`."""
    if output is None:
        console.show(text)
        return
    write_text(output, text, force=force, rival=rival)
    console.note(f"wrote {output}")


def check_files(
    outputs: Mapping[str, Path | None],
    inputs: Mapping[str, Path | None],
    *,
    force: bool,
    rival: str = "the file",
) -> None:
    """Refuse files, by the option that asks for each, that cannot be written: before the work, not after it.

    inputs: files that are read, by option; rival: what would take the place of a plan, empty for a plan.
    """
    from reports.request_rows import check_parquet
    from reports.whole_files import check_distinct, check_free, check_target

    targets = {flag: path for flag, path in outputs.items() if path is not None}
    for path in targets.values():
        check_target(path, force=True, rival=rival)
    check_distinct(targets, {flag: path for flag, path in inputs.items() if path is not None})
    for path in targets.values():
        check_free(path, force=force)
    if "--parquet" in targets:
        check_parquet()


def write_page(console: Console, path: Path | None, render: Callable[[], str | bytes], *, force: bool) -> None:
    """Write the page of a result where one was asked for."""
    if path is not None:
        write_text(path, render(), force=force)
        console.note(f"wrote {path}")


def show_answer(
    console: Console, document: Document, record: Mapping[str, Any], *, page: Path | None, as_json: bool, force: bool
) -> int:
    """Write the page of an answer where one was asked for, and show the answer or its record; return the exit code."""
    from reports.views.html import render_document

    write_page(console, page, lambda: render_document(document, record), force=force)
    console.show(record if as_json else document)
    return 0 if document.positive else ExitCode.INFEASIBLE


def random_arrivals(console: Console, problem: Problem) -> Problem:
    """The problem without recorded requests; where it has some, what that means is noted."""
    if problem.recorded is None:
        return problem
    from reports.numbers import significant
    from reports.text import clean
    from search_spaces.loader import without_recording

    console.note(
        f"Note: requests are random here, with burstiness {significant(problem.workload.burstiness)}; pdplan optimize "
        f"simulates those of {clean(problem.recorded.source, 60)} themselves, and may choose another fleet."
    )
    return without_recording(problem)
