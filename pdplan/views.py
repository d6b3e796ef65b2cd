"""One result in several views: the options that choose one, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError

from .console import Console, write_text
from .exit_codes import ExitCode
from .options import PATH, Choice, Function

if TYPE_CHECKING:
    from reports.document import Document


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
