"""`pdplan init` and `pdplan schema`: how to write a workload.yaml, or a fleet file."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from pdplan.console import Console, write_text
from pdplan.options import PATH, console_options, force_option, pass_console


@click.command(short_help="Write a commented workload.yaml to start from.")
@click.argument("file", type=PATH, required=False)
@click.option("--fleet", is_flag=True, help="Write a fleet file, of what runs today, for pdplan evaluate.")
@force_option
@console_options
@pass_console
def init(console: Console, file: Path | None, fleet: bool, force: bool) -> None:
    """Examples:

    \b
      pdplan init
      pdplan init chat.yaml
      pdplan init --fleet

    Writes a workload file in which every key is explained, or with --fleet a fleet file. FILE is
    workload.yaml or fleet.yaml unless named. A '-' prints it instead.
    """
    from search_spaces.writing import fleet_text, init_text

    file = file or Path("fleet.yaml" if fleet else "workload.yaml")
    text = fleet_text() if fleet else init_text()
    if str(file) == "-":
        console.show(text)
        return
    write_text(file, text, force=force)
    console.note(f"wrote {file}")
    then = f"evaluate {quote(str(file))}" if fleet else f"optimize {quote(str(file))} -o plan"
    console.note(f"Next: pdplan {then}")


@click.command(short_help="Print the JSON Schema of workload.yaml.")
@console_options
@pass_console
def schema(console: Console) -> None:
    """Examples:

    \b
      pdplan schema > workload.schema.json

    Prints the JSON Schema of workload.yaml. An editor with a YAML language server completes and checks
    the file when its first line is: # yaml-language-server: $schema=workload.schema.json
    """
    from search_spaces.schema import json_schema

    console.show(json_schema())
