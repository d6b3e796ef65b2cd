"""What runs a plan: its targets, which others cannot, and the command that writes the files that deploy it."""

from __future__ import annotations

import posixpath
import shlex

from costmodel.words import join_words
from optimizer.plans.plan import Plan
from reports.command_lines import command_words
from reports.deploy.deployment import NamelessWeightsError
from reports.deploy.files import Deployable, deployable, planned_target
from reports.document import Section
from reports.question import has_fleet, inputs_of
from search_spaces.problem import target_of


def what_runs(plan: Plan) -> Deployable | None:
    """What runs a plan with every choice left to its default, worked out once for all views of it.

    None for a plan without a fleet, and where a file of the user describes the model or the accelerators: views must
    not depend on what lies on the disk.
    """
    is_of_catalog = not plan.provenance.inputs.get("catalog") and bool(inputs_of(plan, "model").get("name"))
    return deployable(plan) if has_fleet(plan) and is_of_catalog else None


def deploy_sentence(plan: Plan, runs: Deployable | None) -> str:
    """Say which targets cannot run a plan; empty where its own can, or its engine's, or where none is known.

    The targets named are those that run the plan's engine.
    """
    if runs is None or not runs.refused:
        return ""
    if runs.target is None:
        return f"{no_target_words(runs)} (pdplan deploy says why)."
    unable = [f"{target_of(name).title}{' alone' * (name == plan.engine)}" for name in runs.refused]
    title, why = target_of(runs.target).title, f"pdplan deploy --target {next(iter(runs.refused))} says why"
    return f"Deploy it with {title}: {join_words(unable)} cannot run it ({why})."


def no_target_words(runs: Deployable) -> str:
    """Say of a plan that no target runs that none does, or that one would if its weights had a name."""
    is_nameless = all(isinstance(error, NamelessWeightsError) for error in runs.refused.values())
    return (
        "To deploy this plan, name a checkpoint with --model" if is_nameless else "No deployment target runs this plan"
    )


def backend_sentence(runs: Deployable | None) -> str:
    """Say that GPU types have to share one attention backend, which step times do not allow for; else empty."""
    engines = None if runs is None else runs.engines
    backend = None if engines is None else engines.pools[0].settings.attention_backend
    if engines is None or backend is None:
        return ""
    names = list(dict.fromkeys(pool.accelerator for pool in engines.pools))
    every = "both" if len(names) == 2 else "all"
    return (
        f"Shared attention backend: to hand over KV, {join_words(names)} {every} run the attention backend {backend}. "
        "Step times are predicted for the backend that each would choose by itself."
    )


def deploy_command(plan: Plan, runs: Deployable | None) -> str:
    """The command that writes the files that deploy a plan; empty where no target runs it."""
    target = planned_target(plan) if runs is None else runs.target
    if target is None:
        return ""
    words = command_words(plan)
    folder = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in {"-o", "--output"}), "plan")
    target_flag = "" if target == planned_target(plan) else f" --target {target}"
    return f"pdplan deploy {shlex.quote(posixpath.join(folder, 'plan.json'))}{target_flag} -o deploy"


def files_section(plan: Plan, runs: Deployable | None) -> Section:
    """The command that writes the files that deploy a plan, or why none does."""
    words = "They tell the engines these settings, and a max_model_len with room for a chat template."
    words = f"{no_target_words(runs)}." if runs is not None and runs.target is None else words
    return Section("Deployment files", (words,), code=deploy_command(plan, runs))
