"""What runs a plan: its targets, why others cannot, and the command that writes the files that deploy it."""

from __future__ import annotations

import posixpath
import shlex
from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import Plan, Status
from reports.command_lines import again_command, command_words
from reports.deploy.deployment import NamelessWeightsError, UndeployableError
from reports.deploy.files import Deployable, deployable, planned_target
from reports.document import Section
from reports.question import has_fleet, inputs_of
from reports.text import clean
from search_spaces.problem import target_of

REASON_LIMIT: Final = 600
"""Characters of the reasons of a target."""


def what_runs(plan: Plan) -> Deployable | None:
    """What runs a plan with every choice left to its default, worked out once for all views of it.

    None for a plan without a fleet, and where a file of the user describes the model or the accelerators: views must
    not depend on what lies on the disk.
    """
    is_of_catalog = not plan.provenance.inputs.get("catalog") and bool(inputs_of(plan, "model").get("name"))
    return deployable(plan) if has_fleet(plan) and is_of_catalog else None


def deploy_sentence(plan: Plan, runs: Deployable | None, *, brief: bool = False) -> str:
    """Say which targets cannot run a plan and why; empty where its own can, or its engine's, or where none is known.

    The targets named are those that run the plan's engine. brief: without the reasons.
    """
    if runs is None or not runs.refused:
        return ""
    if brief and runs.target is None:
        return f"{no_target_words(runs)} (see -v)."
    if brief:
        unable = [f"{target_of(name).title}{' alone' * (name == plan.engine)}" for name in runs.refused]
        return f"Deploy it with {target_of(str(runs.target)).title}: {join_words(unable)} cannot run it (see -v)."
    able = "" if runs.target is None else f"pdplan deploy writes files for {_target_words(runs.target, plan.engine)}. "
    targets_by_reason: dict[str, list[str]] = {}
    another = ""  # the first target that could run another plan of the same problem
    for name, error in runs.refused.items():
        why = str(error)
        if isinstance(error, UndeployableError):
            why = error.reason
            if plan.status is not Status.STATED:  # a stated fleet is not searched for
                another = another or f" For a plan that --target {name} runs: {again_command(plan, error.again)}"
        targets_by_reason.setdefault(clean(why, REASON_LIMIT), []).append(_target_words(name, plan.engine))
    reasons = " ".join(f"{join_words(names)} cannot run this plan: {why}." for why, names in targets_by_reason.items())
    return f"{able}{reasons}{another}"


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


def _target_words(name: str, engine: str) -> str:
    """What a target is beside its engine, such as "--target dynamo (vLLM under NVIDIA Dynamo)"."""
    stack = "alone" if name == engine else f"under {target_of(name).title}"
    return f"--target {name} ({target_of(engine).title} {stack})"


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
