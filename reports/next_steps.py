"""What comes after a plan: which targets run it, its deployment files, and the commands to copy."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.words import join_words
from optimizer.plans.plan import Plan
from search_spaces.problem import target_of
from search_spaces.quantities import Kind, format_quantity

from .asked import asked
from .deploy.deployment import Deployment, default_options
from .deploy.describe import describe
from .deploy.files import Deployable, deployable, planned_target, target_files
from .numbers import is_number
from .text import clean
from .words import command_of, enough_as_shown, has_fleet, violated

REASON_LIMIT: Final = 600
"""Characters of the reasons of a target."""


@dataclass(frozen=True, slots=True)
class Deployability:
    """What runs a plan, worked out once for all views of it.

    targets: the first target that runs it, and why others do not; engines: what the plain target of its engine is told.
    Views must not depend on what lies on the disk, so both are None where a file of the user describes the model or the
    accelerators, and for a plan without a fleet.
    """

    targets: Deployable | None = None
    engines: Deployment | None = None

    @classmethod
    def of(cls, plan: Plan) -> Deployability:
        """What runs a plan with every choice left to its default."""
        inputs = plan.provenance.inputs
        model = inputs.get("model")
        is_of_catalog = not inputs.get("catalog") and isinstance(model, Mapping) and bool(model.get("name"))
        if not has_fleet(plan) or not is_of_catalog:
            return cls()
        try:
            engines = describe(plan, default_options(plan.engine))
        except InputError:
            engines = None
        return cls(deployable(plan), engines)


def deploy_sentence(plan: Plan, runs: Deployable | None, *, brief: bool = False) -> str:
    """Say which targets cannot run a plan and why; empty where its own can, or its engine's, or where none is known.

    The targets named are those that run the plan's engine. brief: without the reasons.
    """
    if runs is None or not runs.refused:
        return ""
    if brief and runs.target is None:
        return "No deployment target runs this plan (see -v)."
    if brief:
        unable = [f"{target_of(name).title}{' alone' * (name == plan.engine)}" for name in runs.refused]
        return f"Deploy it with {target_of(str(runs.target)).title}: {join_words(unable)} cannot run it (see -v)."
    able = "" if runs.target is None else f"pdplan deploy writes files for {_target_words(runs.target, plan.engine)}. "
    targets_by_reason: dict[str, list[str]] = {}
    for name, why in runs.refused.items():
        targets_by_reason.setdefault(clean(why, REASON_LIMIT), []).append(_target_words(name, plan.engine))
    reasons = " ".join(f"{join_words(names)} cannot run this plan: {why}." for why, names in targets_by_reason.items())
    if runs.again is None:
        return f"{able}{reasons}"
    return f"{able}{reasons} For a plan that --target {runs.again} runs: {again_command(plan, runs.flags)}"


def backend_sentence(engines: Deployment | None) -> str:
    """Say that GPU types have to share one attention backend, which step times do not allow for; else empty."""
    backend = None if engines is None else engines.pools[0].settings.attention_backend
    if engines is None or backend is None:
        return ""
    names = list(dict.fromkeys(pool.accelerator for pool in engines.pools))
    every = "both" if len(names) == 2 else "all"
    return (
        f"Risk: to hand over KV, {join_words(names)} {every} run the attention backend {backend}. Step times are "
        "predicted for the backend that each would choose by itself."
    )


def _target_words(name: str, engine: str) -> str:
    """What a target is beside its engine, such as "--target dynamo (vLLM under NVIDIA Dynamo)"."""
    stack = "alone" if name == engine else f"under {target_of(name).title}"
    return f"--target {name} ({target_of(engine).title} {stack})"


WRITTEN: Final = frozenset(("-o", "--output", "--deploy"))
"""Options with a value that say where a plan is written: another one has its own."""
HOW_TO_SHOW: Final = frozenset(("-q", "--quiet", "-v", "--verbose", "--no-color"))
"""Options that say how a run shows itself: nothing of the next one's business."""


def next_command(plan: Plan) -> str:
    """Name the command that a reader would want next, made from the one that gave the plan, to be copied as it is."""
    words = _words(plan)
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


_SETTINGS: Final = {"budget": "budget", "power": "power", "max_gpus": "max_gpus", "max_pools": "max_pools"}
"""Keys under `constraints:` of the limits that one number relaxes."""
_UNITS: Final = {"budget": "/h", "power": "W"}


def _without_settings(words: list[str], keys: Container[str]) -> list[str]:
    """The words of a command without the --set options of these keys; the key may stand behind an equals sign."""
    joined = [word for word in words if not (word.startswith("--set=") and word.split("=")[1] in keys)]
    dropped = {
        at for at, (flag, value) in enumerate(pairwise(joined)) if flag == "--set" and value.partition("=")[0] in keys
    }
    return [word for at, word in enumerate(joined) if not {at - 1, at} & dropped]


def relaxed_settings(plan: Plan) -> dict[str, str]:
    """The values by dotted path that make the nearest miss a fleet; empty where no single value of the file does it."""
    settings: dict[str, str] = {}
    for limit in violated(plan):
        if not is_number(limit.used):
            return {}
        enough = enough_as_shown(limit.used, limit.unit)
        if limit.constraint in _SETTINGS:
            dollar = "$" if limit.constraint == "budget" else ""
            value = f"{dollar}{enough:g}{_UNITS.get(limit.constraint, '')}"
            settings[f"constraints.{_SETTINGS[limit.constraint]}"] = value
        elif limit.constraint == "inventory":
            settings[f"accelerators.{clean(limit.where)}.inventory"] = f"{enough:g}"
        elif limit.constraint in set(Metric):
            place = f"slo.{clean(limit.where)}" if len(asked(plan)) > 1 else "slo"
            settings[f"{place}.{limit.constraint}"] = format_quantity(enough, Kind.DURATION)
        else:
            return {}
    return settings


def again_command(plan: Plan, flags: str) -> str:
    """The command that plans the same problem again with other flags, without those in WRITTEN and their values.

    So it writes nothing over this plan; a value may stand behind an equals sign. What the flags say anew is left out:
    an option, or a key behind `--set`.
    """
    flag_words = shlex.split(flags)
    replaced = WRITTEN | {word.partition("=")[0] for word in flag_words if word.startswith("-")} - {"--set"}
    keys = {word.partition("=")[0] for before, word in pairwise(flag_words) if before == "--set"}
    words = _without_settings(_words(plan), keys)
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before not in replaced and word.partition("=")[0] not in replaced | {"--force"}
    ]
    return f"{shlex.join(kept)} {flags}"


def _words(plan: Plan) -> list[str]:
    """The words of the command that gave the plan, but for how it shows itself."""
    command = command_of(plan)
    try:
        return [word for word in shlex.split(command) if word not in HOW_TO_SHOW]
    except ValueError:
        return command.split()


def deployment(plan: Plan, runs: Deployable | None) -> tuple[tuple[str, ...], str]:
    """Names of the files that deploy a plan with every choice left to its default, and the command that writes them.

    There are no names where views cannot tell, and no command where no target runs the plan.
    """
    target = planned_target(plan) if runs is None else runs.target
    if target is None:
        return (), ""
    words = _words(plan)
    folder = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in {"-o", "--output"}), "plan")
    target_flag = "" if target == planned_target(plan) else f" --target {target}"
    command = f"pdplan deploy {shlex.quote(posixpath.join(folder, 'plan.json'))}{target_flag} -o deploy"
    return () if runs is None else tuple(sorted(target_files(plan, default_options(target)))), command
