"""Options that every command shares, and the kinds of value that options take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from costmodel.errors import InputError

from .console import Console

Function = TypeVar("Function", bound=Callable[..., Any])

pass_console = click.make_pass_decorator(Console, ensure=True)


def console_options(function: Function) -> Function:
    """Add -q, -v and --no-color; they work before and after the command's name."""
    for flags, attribute, text in (
        (("--no-color",), "plain", "No colour, even on a terminal (also: NO_COLOR=1)."),
        (("-v", "--verbose"), "verbose", "More narration on stderr; traceback of a bug."),
        (("-q", "--quiet"), "quiet", "No narration on stderr."),
    ):
        function = click.option(
            *flags, is_flag=True, expose_value=False, help=text, is_eager=True, callback=_setter(attribute)
        )(function)
    return function


def _setter(attribute: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    def store(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
        if value:
            setattr(context.ensure_object(Console), attribute, True)
        return value

    return store


def seconds(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Turn a time such as 90s or 500ms into seconds [s]."""
    return _quantity(value, "duration")


def per_second(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Turn a rate such as 20/s or 600/min into arrivals per second [1/s]."""
    return None if value is None else _quantity(value, "rate")


def _quantity(value: str, kind: str) -> float:
    """Return the quantity in its base unit; a wrong unit is a usage error that names the right ones."""
    from search_spaces.quantities import Kind, QuantityError, parse

    try:
        found = parse(value, Kind(kind))
    except QuantityError as error:
        raise click.BadParameter(str(error)) from error
    if found <= 0:
        raise click.BadParameter(f"{value!r} is not above zero")
    return found


def pairs(text: str, flag: str) -> dict[str, str]:
    """Split the KEY=VALUE pairs of one flag.

    >>> pairs("isl=prompt, osl=answer", "--columns")
    {'isl': 'prompt', 'osl': 'answer'}
    """
    found = {}
    for pair in filter(str.strip, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"{flag} {pair.strip()!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


catalog_option = click.option(
    "--catalog", type=click.Path(path_type=Path), metavar="FILE", help="YAML file with accelerators of your own."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_setter("json_only"), help="Print one JSON document and nothing else."
)
force_option = click.option("--force", is_flag=True, help="Replace an existing file.")
