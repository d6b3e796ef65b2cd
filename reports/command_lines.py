"""Command lines: the one that made a plan, the next one to run, and the one that plans again with other options."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from optimizer.plans.plan import Plan

from .limits import relaxed_settings
from .question import has_fleet
from .text import clean

MOST_COMMAND: Final = 2000
"""Characters of a command; a line that is cut cannot be copied."""
OUTPUT_OPTIONS: Final = frozenset(("-o", "--output", "--deploy"))
"""Options with a value that say where a plan is written: another one has its own."""
DISPLAY_OPTIONS: Final = frozenset(("-q", "--quiet", "-v", "--verbose", "--no-color"))
"""Options that say how a run shows itself, which the next command does not need."""


def command_of(plan: Plan) -> str:
    """The command line that gave a plan."""
    return clean(plan.provenance.run.command, MOST_COMMAND) or "pdplan optimize workload.yaml"


def command_words(plan: Plan) -> list[str]:
    """The words of the command that gave the plan, but for how it shows itself."""
    command = command_of(plan)
    try:
        return [word for word in shlex.split(command) if word not in DISPLAY_OPTIONS]
    except ValueError:
        return command.split()


def _without_settings(plan: Plan, keys: Iterable[str]) -> list[str]:
    """The words of a plan's command without the --set options of these keys; the key may stand behind an equals sign.

    A class or a GPU type may be told by its name or by its number.
    """
    places, words = {_place(plan, key) for key in keys}, command_words(plan)

    def is_stated_anew(value: str) -> bool:
        return _place(plan, value.partition("=")[0]) in places

    joined = [word for word in words if not (word.startswith("--set=") and is_stated_anew(word[6:]))]
    dropped = {at for at, (flag, value) in enumerate(pairwise(joined)) if flag == "--set" and is_stated_anew(value)}
    return [word for at, word in enumerate(joined) if not {at - 1, at} & dropped]


def _place(plan: Plan, key: str) -> str:
    """A key of --set with the number of an item, which may be told by its name, or not at all where it is alone."""
    section, _, rest = key.partition(".")
    item, _, field = rest.rpartition(".")
    items = plan.provenance.inputs.get(section)
    if not isinstance(items, list):
        return key
    names = [str(row.get("name")).casefold() for row in items if isinstance(row, Mapping)]
    number = str(names.index(item.casefold())) if item.casefold() in names else item or "0"
    return f"{section}.{number}.{field}"


def next_command(plan: Plan) -> str:
    """Name the command that a reader would want next, made from the one that gave the plan, to be copied as it is."""
    words = command_words(plan)
    command = shlex.join(words)
    workload = next((word for word in words if word.endswith((".yaml", ".yml"))), "the workload file")
    if not has_fleet(plan):
        settings = relaxed_settings(plan)
        if not settings:
            return f"relax a limit in {workload}, then {command}"
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return shlex.join([*_without_settings(plan, settings), *options])
    for flag in ("-o", "--output"):
        if flag in words[:-1]:
            has_others = any(row.pools for row in plan.alternatives[1:])
            hint = "   # --alternative N: fleet N" if has_others else ""
            return f"pdplan simulate {shlex.quote(words[words.index(flag) + 1])}/plan.json{hint}"
    return f"{command} -o plan   # writes plan.json and report.html"


def again_command(plan: Plan, flags: str) -> str:
    """The command that plans the same problem again with other flags, without those in OUTPUT_OPTIONS and their values.

    So it writes nothing over this plan; a value may stand behind an equals sign. What the flags say anew is left out:
    an option, or a key behind `--set`.
    """
    flag_words = shlex.split(flags)
    replaced = OUTPUT_OPTIONS | {word.partition("=")[0] for word in flag_words if word.startswith("-")} - {"--set"}
    keys = {word.partition("=")[0] for before, word in pairwise(flag_words) if before == "--set"}
    words = _without_settings(plan, keys)
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before not in replaced and word.partition("=")[0] not in replaced | {"--force"}
    ]
    return f"{shlex.join(kept)} {flags}"
