"""Which targets run a plan as it is, by the rules that its deployment files are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.errors import InputError
from costmodel.words import join_words
from optimizer.plans.plan import Plan
from reports.deploy.deployment import Options

from .deploy import facts
from .deploy.files import target_files, targets_of
from .deploy.refusals import UndeployableError
from .next_step import again_command
from .text import clean
from .words import has_fleet

REASON_LIMIT: Final = 600
"""Characters of one reason."""


@dataclass(frozen=True, slots=True)
class Deployable:
    """What runs a plan; target: the first that does, the plan's own or its engine's before all; None where none does.

    files: names of what is written for it; refused: why others do not, each reason with the titles of its targets;
    again: the first target that does not run this plan, but could run another of its problem, else None; flags: to plan
    that one with.
    """

    target: str | None
    files: tuple[str, ...]
    refused: Mapping[str, Sequence[str]]
    again: str | None = None
    flags: str = ""


def described_by_catalog(plan: Plan) -> bool:
    """Tell whether a plan has a fleet, and a model and accelerators that no file of the user describes.

    Only then views, which must not depend on what lies on the disk, can say what an engine is told.
    """
    inputs = plan.provenance.inputs
    model = inputs.get("model")
    return has_fleet(plan) and not inputs.get("catalog") and isinstance(model, Mapping) and bool(model.get("name"))


def deployable(plan: Plan) -> Deployable | None:
    """The first target that runs a plan with every choice left to its default; None where views cannot tell."""
    if not described_by_catalog(plan):
        return None
    refused: dict[str, list[str]] = {}
    again: tuple[str | None, str] = None, ""
    for target in targets_of(plan):
        try:
            files = target_files(plan, Options(target, facts.checked_version(target, None)))
        except UndeployableError as error:
            for reason in error.reasons:
                refused.setdefault(clean(reason, REASON_LIMIT), []).append(facts.target_title(target))
            again = again if again[0] else (target, error.again)
        except InputError as error:
            refused.setdefault(clean(str(error), REASON_LIMIT), []).append(facts.target_title(target))
        else:
            return Deployable(target, tuple(sorted(files)), refused, *again)
    return Deployable(None, (), refused, *again)


def deploy_sentence(plan: Plan) -> str:
    """Say which targets cannot run a plan and why; empty where its own can, or its engine's, or where none is known.

    The targets named are those that run the plan's engine.
    """
    found = deployable(plan)
    if found is None or not found.refused:
        return ""
    able = "" if found.target is None else f"with {facts.target_title(found.target)}, "
    reasons = "; ".join(f"not with {join_words(names)}: {why}" for why, names in found.refused.items())
    if found.again is None:
        return f"Deploy: {able}{reasons}."
    for_it = facts.target_title(found.again)
    return f"Deploy: {able}{reasons}. For a plan that {for_it} runs: {again_command(plan, found.flags)}"
