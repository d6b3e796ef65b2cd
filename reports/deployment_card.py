"""The files that deploy a plan, as the report names them: by link where the same command wrote them."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from optimizer.plans.plan import Plan

from .deploy.files import planned_target
from .deployable import deployable
from .text import clean

MOST_FILES: Final = 60


@dataclass(frozen=True, slots=True)
class DeploymentCard:
    """Names of the files with where they are, seen from the report; command: what writes them, empty: nothing can.

    A name has no address where the command of the plan did not write the files too.
    """

    files: tuple[tuple[str, str], ...]
    command: str

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """The first files: a fleet of a hundred pools has hundreds."""
        return self.files[:MOST_FILES]

    @property
    def cut(self) -> int:
        """Files beyond those."""
        return len(self.files) - len(self.shown)


def deployment_card(plan: Plan) -> DeploymentCard:
    """The files of a plan's deployment with every choice left to its default; none where there can be none."""
    words = _words(clean(plan.provenance.run.command, 300))
    output, folder = _value(words, ("-o", "--output")), _value(words, ("--deploy",))
    found = deployable(plan)
    target = planned_target(plan) if found is None else found.target
    if found is not None and target is None:
        return DeploymentCard((), "")
    chosen = "" if target == planned_target(plan) else f" --target {target}"
    command = f"pdplan deploy {shlex.quote(posixpath.join(output or 'plan', 'plan.json'))}{chosen} -o deploy"
    where = None if output is None or folder is None else posixpath.relpath(folder, output)
    names = () if found is None else found.files
    return DeploymentCard(tuple((name, "" if where is None else quote(f"{where}/{name}")) for name in names), command)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _value(words: Sequence[str], flags: Sequence[str]) -> str | None:
    """What follows a flag."""
    return next((words[at + 1] for at, word in enumerate(words[:-1]) if word in flags), None)
