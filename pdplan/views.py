"""One result in several views: the options that choose one, and where it goes."""

from __future__ import annotations

from pathlib import Path

import click

from costmodel.errors import InputError

from .console import Console, write_text
from .options import PATH, Function
from .plan_files import is_plan


def view_options(function: Function) -> Function:
    """Add -o and --format."""
    form = click.option(
        "--format",
        "view",
        type=click.Choice(["text", "html", "md", "json"]),
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


def keep_plan(output: Path, rival: str) -> None:
    """Raise InputError where a plan stands in the place of what is to be written."""
    if is_plan(output):
        raise InputError(f"{output} is a plan, which {rival} would replace; choose another name")


def show_or_write(console: Console, text: str, output: Path | None, *, force: bool) -> None:
    """Show a view on stdout, or write it to the file named."""
    if output is None:
        console.show(text)
        return
    write_text(output, text, force=force)
    console.note(f"wrote {output}")
