"""Command lines: the one that made a plan, the next one to run, and the one that plans again with other options."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
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


def _without_settings(words: Sequence[str], keys: Collection[str]) -> list[str]:
    """The words of a command without the --set options of these keys; of others that say the same the last counts."""
    pairs = enumerate(pairwise(words))
    places = {at for at, (flag, value) in pairs if flag == "--set" and value.partition("=")[0] in keys}
    return [word for at, word in enumerate(words) if not {at, at - 1} & places]


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
        return shlex.join([*_without_settings(words, settings), *options])
    for flag in ("-o", "--output"):
        if flag in words[:-1]:
            has_others = any(row.pools for row in plan.alternatives[1:])
            hint = "   # --alternative N: fleet N" if has_others else ""
            return f"pdplan simulate {shlex.quote(words[words.index(flag) + 1])}/plan.json{hint}"
    return f"{command} -o plan   # writes plan.json and report.html"


def again_command(plan: Plan, flags: str) -> str:
    """The command that plans the same problem again with other flags, and writes nothing over this plan."""
    words = command_words(plan)
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before not in OUTPUT_OPTIONS and word.partition("=")[0] not in {*OUTPUT_OPTIONS, "--force"}
    ]
    return f"{shlex.join(kept)} {flags}"
