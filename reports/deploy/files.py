"""All files of a deployment: rendered, read back, checked against the plan, and only then handed out or written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from costmodel.errors import InputError
from costmodel.quoting import shown
from optimizer.plans.plan import Plan
from reports.verdict import kept_by_requests
from reports.whole_files import check_listed, first_bytes, write_listed
from search_spaces.bounds import NO_TARGET, TARGET_NAMES
from search_spaces.fields import faults_of
from search_spaces.files import shown_path
from search_spaces.problem import Pools, length_routers, target_of
from search_spaces.sources import JsonText

from . import facts, lint
from .deployment import Deployment, Device, GatewayRouting, Options, UndeployableError, default_options
from .describe import describe
from .dynamo import coarse_words, dynamo_files
from .gateway import by_size, gateway_rules
from .hosts import host_files
from .kubernetes import llmd_files
from .measurement import benchmark_files, monitoring_files
from .readme import readme_page

README: Final = "README.md"
MARKER: Final = "<!-- pdplan.deployment/2 -->"
"""First line of the page in every directory of ours."""
_MISSHAPEN: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
"""What a reader meets in a file of another shape, such as a list where an object should be."""


WRITERS: Final[Mapping[str, Callable[[Deployment], dict[str, str]]]] = {
    "vllm": host_files,
    "dynamo": dynamo_files,
    "llm-d": llmd_files,
    "sglang": host_files,
    "trtllm": host_files,
}
"""What writes the files of each target that start it."""


def deployment_files(plan: Plan, options: Options, base: Path | None = None) -> dict[str, str]:
    """Every file of a plan's deployment by its path in the directory.

    InputError for the first rule that is broken; it names the other targets that the same plan and options do for.
    base: folder from which files that the plan's problem names are looked up.
    """
    try:
        return target_files(plan, options, base)
    except InputError as error:
        others = [name for name in targets_of(plan) if name != options.target]
        newest = {name: replace(options, target=name, version=facts.checked_version(name, None)) for name in others}
        able = [name for name in others if refusal(plan, newest[name], base) is None]
        if not able:
            raise
        verb = "runs" if len(able) == 1 else "run"
        raise InputError(f"{error}; or choose --target {' or '.join(able)}, which {verb} this plan as it is") from error


def planned_target(plan: Plan) -> str:
    """What the plan has to run on, or else the plain target of the engine that it was evaluated for."""
    target = plan.provenance.inputs.get("target")
    return plan.engine if target in {None, NO_TARGET} else target_of(str(target)).name


def default_target(plan: Plan) -> str:
    """Where a plan is deployed unless a target is named: what it was planned for, else the first that runs it.

    The plain target of its engine where none does, whose refusal then says why.
    """
    if plan.provenance.inputs.get("target") not in {None, NO_TARGET} or len(targets_of(plan)) == 1:
        return planned_target(plan)
    return deployable(plan).target or planned_target(plan)


@dataclass(frozen=True, slots=True)
class Deployable:
    """What runs a plan; target: the first that does, the plan's own or its engine's before all; None where none does.

    refused: by target, why it does not; again: the first target that does not run this plan, but could run another of
    its problem, else None; flags: to plan that one with.
    """

    target: str | None
    refused: Mapping[str, str]
    again: str | None = None
    flags: str = ""


def deployable(plan: Plan) -> Deployable:
    """The first target that runs a plan with every choice left to its default; renders only what starts the fleet."""
    errors: dict[str, InputError] = {}
    for target in targets_of(plan):
        error = refusal(plan, default_options(target))
        if error is None:
            break
        errors[target] = error
    else:
        target = None
    plannable = {name: error for name, error in errors.items() if isinstance(error, UndeployableError)}
    refused = {name: str(error) for name, error in errors.items()}
    refused |= {name: error.reason for name, error in plannable.items()}
    again = next(iter(plannable), None)
    return Deployable(target, refused, again, plannable[again].again if again else "")


def targets_of(plan: Plan) -> list[str]:
    """The targets that run the plan's engine; before all the one that it was planned for, or that engine's own."""
    able = [name for name in TARGET_NAMES if plan.engine in target_of(name).engines]
    return sorted(able, key=lambda name: name != planned_target(plan))


def refusal(plan: Plan, options: Options, base: Path | None = None) -> InputError | None:
    """Why a plan cannot be deployed so, without a word of other targets; None: it can."""
    try:
        fleet_files(plan, options, base)
    except InputError as error:
        return error
    return None


def fleet_files(plan: Plan, options: Options, base: Path | None = None) -> tuple[Deployment, dict[str, str]]:
    """What starts a plan's fleet on a target, without what measures and explains it.

    InputError for the first rule that is broken, without a word of other targets. base: folder from which files that
    the plan's problem names are looked up.
    """
    deployment = describe(plan, options, base)
    refuse_undeployable(plan, deployment)
    files = WRITERS[options.target](deployment)
    if broken := rule_faults(deployment, files):
        rule, sentence = broken[0]
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(f"the deployment breaks the rule {rule}: {sentence}{more}")
    return deployment, files


def target_files(plan: Plan, options: Options, base: Path | None = None) -> dict[str, str]:
    """Every file that a target has for a plan; see `fleet_files`."""
    deployment, files = fleet_files(plan, options, base)
    files |= monitoring_files(deployment) | benchmark_files(deployment)
    page = f"{MARKER}\n{readme_page(plan, deployment, files)}"
    record = DeploymentRecord(
        schema="pdplan.deployment/2",
        plan=deployment.title,
        inputs_sha256=deployment.plan_sha,
        options=deployment.options,
    )
    text = json.dumps(record.model_dump(mode="json", by_alias=True, exclude_none=True), indent=1) + "\n"
    return {README: page, RECORD: text, **files}


def refuse_undeployable(plan: Plan, deployment: Deployment) -> None:
    """Raise an error for what no file of the target could say, of a plan (all of it) or of options."""
    options, target = deployment.options, deployment.target
    vendor = _vendor(deployment)
    checks = (vendor,) if vendor else (_lengths(deployment), _balancing(plan, deployment))
    reasons = [reason for reason in checks if reason]
    if reasons:
        pool_choice = (plan.provenance.inputs.get("constraints") or {}).get("pools")
        apart = (
            pool_choice == Pools.PER_CLASS and not target.by_class
        )  # pools of each class, which it cannot tell apart
        shared = f" --set constraints.pools={Pools.SHARED}" * apart
        raise UndeployableError("; and ".join(reasons), f"--target {target.name}{shared}")
    if options.bytes_per_token is not None and not (deployment.parted and by_size(gateway_rules(deployment))):
        raise InputError(
            "--bytes-per-token is for a router that chooses a pool by the size of a request, and this plan needs none"
        )
    if options.claim is not None and not target.pods:
        raise InputError(f"--claim is for pods, and target {target.name} has none")
    if options.claim is not None and deployment.local_weights:
        raise InputError(
            f"--claim keeps weights that are fetched, and {shown(deployment.weights)} is a folder of the nodes"
        )


def _vendor(deployment: Deployment) -> str:
    """GPUs of a vendor for which the target has no files; empty: it has them for all."""
    target = deployment.target
    able = target.vendors | {Device.CPU}  # which `describe` lets pass where the target has files for it
    pool = next((pool for pool in deployment.pools if pool.vendor not in able), None)
    if pool is None:
        return ""
    return f"pool {pool.id}: {pool.accelerator} is a GPU of {pool.vendor}, for which {target.title} has no files here"


def _lengths(deployment: Deployment) -> str:
    """Requests that are told apart, by a router that does not, or not as the plan does; empty: there are none."""
    roles = {pool.role.value for pool in deployment.pools}
    if deployment.routing is GatewayRouting.BY_LENGTH and deployment.options.target not in length_routers(roles):
        sends = "the plan sends requests of different lengths or classes to different pools of one role"
        where = f"{'with' if deployment.disaggregated else 'without'} prefill replicas"
        return f"{sends}, and the target's router does not do so {where}"
    if deployment.routing is GatewayRouting.BOTH_KINDS:
        return "the plan serves some requests in one engine and hands others over, and no router of a target does both"
    if deployment.routing is GatewayRouting.BY_LENGTH and deployment.disaggregated:
        return coarse_words(deployment)
    if deployment.routing is GatewayRouting.BY_LENGTH:
        try:
            gateway_rules(deployment)
        except InputError as error:
            return str(error)
    return ""


def _balancing(plan: Plan, deployment: Deployment) -> str:
    """A least-requests router where the plan meets the SLO behind a least-tokens one only; empty: neither."""
    alike = deployment.router is deployment.balancing or all(pool.replicas == 1 for pool in deployment.prompt_pools)
    if alike or plan.simulation is None:
        return ""
    behind = plan.simulation.behind_least_requests
    if behind is not None and behind.held:
        return ""
    shown_share = "was not simulated"
    if behind is not None:
        shown_share = f"is not shown to meet the SLO ({kept_by_requests(plan.simulation, behind)})"
    return f"the target has a least-requests router, and behind such a router the plan {shown_share}"


def rule_faults(deployment: Deployment, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules of `lint` that files break, as (rule, sentence); files that cannot be read break the rule `readable`."""
    try:
        return lint.faults(deployment, files)
    except InputError as error:
        return [("readable", str(error))]
    except _MISSHAPEN as error:
        return [("readable", f"a file has not the shape that its program expects ({type(error).__name__}: {error})")]


def write_deployment(
    plan: Plan, options: Options, directory: Path, *, force: bool = False, base: Path | None = None
) -> list[Path]:
    """Write a plan's deployment into a directory of its own, and return what was written.

    A directory that holds anything is refused; with `force`, one that holds an earlier deployment of ours is written
    over. Nothing is written where a rule is broken, and nothing outside the directory.
    """
    check_deployment(directory, force=force)
    return write_listed(deployment_files(plan, options, base), directory)


def check_deployment(directory: Path, *, force: bool) -> None:
    """Raise InputError unless a deployment may be written here: a new directory, an empty one, or any with `force`."""
    if check_listed(directory) and not force:
        raise InputError(
            f"{shown_path(directory)} is not empty; choose another directory, or replace the deployment in it with "
            "--force"
        )
    if check_listed(directory) and first_bytes(directory / README, len(MARKER)) != MARKER.encode():
        raise InputError(f"{shown_path(directory)} holds something else than a deployment; choose another directory")


RECORD: Final = "deployment.json"


class DeploymentRecord(BaseModel):
    """What a deployment was written from: a plan, by its name and the hash of its inputs, and choices of the user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["pdplan.deployment/2"] = Field(alias="schema")
    plan: str
    inputs_sha256: str
    options: Options


def recorded_options(text: str, where: str = RECORD) -> Options:
    """The options of a record; InputError if it is none. where: the file, in messages."""
    record = JsonText(where, text)
    try:
        return DeploymentRecord.model_validate(record.value()).options
    except ValidationError as error:
        fault = faults_of(error)[0]
        raise record.error(fault.sentence, fault.path) from error
