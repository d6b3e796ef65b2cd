"""The commands that a reader would want next, made from the one that gave the plan, to be copied as they are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from optimizer.plans.plan import Plan

from .text import clean
from .words import has_fleet

WRITTEN: Final = frozenset(("-o", "--output", "--deploy", "--target"))
"""Options with a value that say where a plan is written, or what it is for: another one has its own."""
HOW_TO_SHOW: Final = frozenset(("-q", "--quiet", "-v", "--verbose", "--no-color"))
"""Options that say how a run shows itself: nothing of the next one's business."""
MOST_COMMAND: Final = 2000
"""Characters of a command; a line that is cut cannot be copied."""


def next_command(plan: Plan) -> str:
    """Name the command that a reader would want next, made from the one that gave the plan, to be copied as it is."""
    words = _words(plan)
    command = shlex.join(words)
    workload = next((word for word in words if word.endswith((".yaml", ".yml"))), "the workload file")
    if not has_fleet(plan):
        if any(word.startswith("--set") for word in words):  # the limit may stand there, so the same would fail again
            return f"relax a limit (in {workload} or --set), then run again"
        return f"relax a limit in {workload}, then {command}"
    for flag in ("-o", "--output"):
        if flag in words[:-1]:
            return f"pdplan simulate {shlex.quote(words[words.index(flag) + 1])}/plan.json"
    return f"{command} -o plan   # writes plan.json and report.html"


def again_command(plan: Plan, flags: str) -> str:
    """The command that plans the same problem again with other flags; it writes nothing over this plan."""
    return f"{shlex.join(_without(_words(plan)))} {flags}"


def _words(plan: Plan) -> list[str]:
    """The words of the command that gave the plan, but for how it shows itself."""
    command = clean(plan.provenance.run.command, MOST_COMMAND) or "pdplan optimize workload.yaml"
    try:
        return [word for word in shlex.split(command) if word not in HOW_TO_SHOW]
    except ValueError:
        return command.split()


def _without(words: Sequence[str]) -> list[str]:
    """Words without the options in WRITTEN and their values, which may stand behind an equals sign."""
    pairs = zip(("", *words), words, strict=False)
    return [word for before, word in pairs if before not in WRITTEN and word.partition("=")[0] not in WRITTEN]
