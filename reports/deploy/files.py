"""All files of a deployment: rendered, read back, checked against the plan, and only then handed out or written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.units import MIB
from optimizer.plans.plan import Plan
from optimizer.plans.reading import first_fault
from reports.whole_files import check_origin, first_bytes, write_whole
from search_spaces.files import read_file, shown_path
from search_spaces.json_source import JsonText
from search_spaces.targets import NO_TARGET, TARGET_NAMES, target_of

from . import facts, lint
from .benchmark import benchmark_files
from .deployment import Deployment, Device, Options
from .describe import describe
from .dynamo import dynamo_files
from .hosts import sglang_files, trtllm_files, vllm_files
from .kubernetes import llmd_files
from .monitoring import monitoring_files
from .readme import readme_page
from .refusals import refuse_undeployable

README: Final = "README.md"
SUMS: Final = "SHA256SUMS"
"""Checksums of all files, for `sha256sum -c`, and the list of what a later deployment may replace."""
MARKER: Final = "<!-- pdplan.deployment/1 -->"
"""First line of the page in every directory of ours."""
LARGEST: Final = 16 * MIB
"""A larger file [byte] is none of ours."""
_MISSHAPEN: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
"""What a reader meets in a file of another shape, such as a list where an object should be."""


@dataclass(frozen=True, slots=True)
class Target:
    """How a target's files are written.

    url: where its clients send requests, seen from the benchmark; pods: in Kubernetes.
    """

    files: Callable[[Deployment], dict[str, str]]
    url: Callable[[Deployment], str]
    pods: bool = False


def _local(_deployment: Deployment) -> str:
    return f"http://127.0.0.1:{facts.fact('ports', 'http')}"


def _frontend(deployment: Deployment) -> str:
    return f"http://{deployment.name}-frontend.{deployment.options.namespace}:{facts.fact('ports', 'http')}"


def _gateway(deployment: Deployment) -> str:
    return f"http://{deployment.name}-epp.{deployment.options.namespace}"


TARGETS: Final[Mapping[str, Target]] = {
    "vllm": Target(vllm_files, _local),
    "dynamo": Target(dynamo_files, _frontend, pods=True),
    "llmd": Target(llmd_files, _gateway, pods=True),
    "sglang": Target(sglang_files, _local),
    "trtllm": Target(trtllm_files, _local),
}


def deployment_files(plan: Plan, options: Options, base: Path | None = None) -> dict[str, str]:
    """Every file of a plan's deployment by its path in the directory.

    InputError for the first rule that is broken; it names the other targets that the same plan and options do for.
    base: folder from which files that the plan's problem names are looked up.
    """
    try:
        return target_files(plan, options, base)
    except InputError as error:
        able = [name for name in targets_of(plan) if name != options.target and _accepted(plan, options, name, base)]
        if not able:
            raise
        verb = "runs" if len(able) == 1 else "run"
        raise InputError(f"{error}; or choose --target {' or '.join(able)}, which {verb} this plan as it is") from error


def planned_target(plan: Plan) -> str:
    """What the plan has to run on, or else the plain target of the engine that it was evaluated for."""
    stated = plan.provenance.inputs.get("target")
    return plan.engine if stated in {None, NO_TARGET} else str(stated)


def targets_of(plan: Plan) -> list[str]:
    """The targets that run the plan's engine; before all the one that it was planned for, or that engine's own."""
    able = [name for name in TARGET_NAMES if plan.engine in target_of(name).engines]
    return sorted(able, key=lambda name: name != planned_target(plan))


def _accepted(plan: Plan, options: Options, target: str, base: Path | None) -> bool:
    """Whether another target, of the newest version known, deploys the plan with the same options."""
    try:
        target_files(plan, replace(options, target=target, version=facts.checked_version(target, None)), base)
    except InputError:
        return False
    return True


def target_files(plan: Plan, options: Options, base: Path | None = None) -> dict[str, str]:
    """Every file that a target has for a plan; InputError for the first rule that is broken, without a word of others.

    base: folder from which files that the plan's problem names are looked up.
    """
    deployment = describe(plan, options, base)
    refuse_undeployable(plan, deployment)
    target = TARGETS[options.target]
    _check_claim(deployment)
    files = target.files(deployment)
    refuse_faults(deployment, files)
    files |= monitoring_files(deployment, pods=target.pods)
    files |= benchmark_files(deployment, target.url(deployment), in_cluster=target.pods)
    page = f"{MARKER}\n{readme_page(plan, deployment, pods=target.pods)}"
    return {README: page, RECORD: record_text(deployment), **files}


def refuse_faults(deployment: Deployment, files: Mapping[str, str]) -> None:
    """Raise InputError with the first rule that the files break, read back as their programs would read them."""
    broken = rule_faults(deployment, files)
    if broken:
        rule, sentence = broken[0]
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(f"the deployment breaks the rule {rule}: {sentence}{more}")


def rule_faults(deployment: Deployment, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules of `lint` that files break, as (rule, sentence); files that cannot be read break the rule `readable`."""
    try:
        return lint.faults(deployment, files)
    except InputError as error:
        return [("readable", str(error))]
    except _MISSHAPEN as error:
        return [("readable", f"a file has not the shape that its program expects ({type(error).__name__}: {error})")]


def deploy_plan(plan: Plan, directory: Path, *, target: str | None = None, force: bool = False) -> list[Path]:
    """Write the deployment of a plan with every choice left to its default; see `write_deployment`.

    target: None for the one that it was planned for, or else the plain one of the engine that it was evaluated for.
    """
    name = target or planned_target(plan)
    return write_deployment(plan, Options(name, facts.checked_version(name, None)), directory, force=force)


def write_deployment(
    plan: Plan, options: Options, directory: Path, *, force: bool = False, base: Path | None = None
) -> list[Path]:
    """Write a plan's deployment into a directory of its own, and return what was written.

    A directory that holds anything is refused; with `force`, one that holds an earlier deployment of ours is written
    over. Nothing is written where a rule is broken, and nothing outside the directory.
    """
    check_deployment(directory, force=force)
    files = deployment_files(plan, options, base)
    files[SUMS] = "".join(f"{sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items()))
    paths = {directory / name: text for name, text in files.items()}
    old = _listed(directory)
    check_origin(directory, paths, old.__contains__)
    with _nothing_left(directory, paths):
        write_whole(paths)
    _remove(old - set(paths))
    for path in paths:
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o444) >> 2)
    return list(paths)


def _listed(directory: Path) -> set[Path]:
    """Files of an earlier deployment in the directory, by its own list; whatever leads out of it is left alone."""
    try:
        lines = read_file(directory / SUMS, LARGEST).decode("utf-8").splitlines()
    except (InputError, ValueError):
        return set()
    root = directory.resolve()
    named = {directory / name for name in (SUMS, *(line.partition("  ")[2] for line in lines)) if name}
    return {path for path in named if path.is_file() and path.resolve().is_relative_to(root)}


def _remove(paths: set[Path]) -> None:
    """Take away what an earlier deployment left, or a fleet would have engines that no plan has."""
    for path in sorted(paths):
        try:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        except OSError as error:
            raise InputError(f"{shown_path(path)} cannot be removed: {error.strerror}") from error


def check_deployment(directory: Path, *, force: bool) -> None:
    """Raise InputError unless a deployment may be written here: a new directory, an empty one, or any with `force`."""
    try:
        if directory.is_symlink() and not directory.exists():
            raise InputError(f"{shown_path(directory)} is a link that leads nowhere; choose another name")
        if not directory.exists():
            return
        if not directory.is_dir():
            raise InputError(f"{shown_path(directory)} is a file, not a directory; choose another name")
        if not any(directory.iterdir()):
            return
    except OSError as error:
        raise InputError(f"{shown_path(directory)} cannot be read: {error.strerror}") from error
    if not force:
        raise InputError(
            f"{shown_path(directory)} is not empty; choose another directory, or replace the deployment in it with "
            "--force"
        )
    if first_bytes(directory / README, len(MARKER)) != MARKER.encode():
        raise InputError(f"{shown_path(directory)} holds something else than a deployment; choose another directory")


@contextmanager
def _nothing_left(directory: Path, paths: Iterable[Path]) -> Iterator[None]:
    """Make the folders; where writing fails or ends early, take those away that were made, with what is in them."""
    new = [folder for folder in sorted({directory, *(path.parent for path in paths)}) if not folder.exists()]
    written = False
    try:
        for folder in new:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{shown_path(folder)} cannot be made: {error.strerror}") from error
        yield
        written = True
    finally:
        for folder in () if written else new:
            shutil.rmtree(folder, ignore_errors=True)


def _check_claim(deployment: Deployment) -> None:
    options = deployment.options
    if options.claim is not None and not TARGETS[options.target].pods:
        raise InputError(f"--claim is for pods, and target {options.target} has none")
    if options.claim is not None and deployment.weights.startswith("/"):
        raise InputError(
            f"--claim keeps weights that are fetched, and {shown(deployment.weights)} is a folder of the nodes"
        )


RECORD: Final = "deployment.json"
SCHEMA: Final = "pdplan.deployment/1"


class Record(BaseModel):
    """The choices that the plan does not make; see `Options`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_: Literal["pdplan.deployment/1"] = Field(alias="schema")
    plan: str
    """Name of the plan."""
    inputs_sha256: str
    """Of the plan's inputs."""
    target: str
    version: str
    model: str | None
    image: str | None
    namespace: str
    rdma: str
    labels: dict[str, str]
    claim: str | None
    bytes_per_token: float | None = None
    """Written where it was asked for, so that records without it stay as they were."""
    unchecked: bool = False
    device: Device = Field(default=Device.GPU, strict=False)


def record_text(deployment: Deployment) -> str:
    """The record of a deployment."""
    record = Record(
        schema=SCHEMA, plan=deployment.title, inputs_sha256=deployment.plan_sha, **asdict(deployment.options)
    )
    return json.dumps(record.model_dump(by_alias=True, exclude_defaults=True), indent=1) + "\n"


def recorded_options(text: str, where: str = RECORD) -> Options:
    """The options of a record; InputError if it is none. where: the file, in messages."""
    record = JsonText(where, text)
    try:
        found = Record.model_validate(record.value())
    except ValidationError as error:
        raise record.fault(first_fault(error)) from error
    return Options(**found.model_dump(include=set(Options.__dataclass_fields__)))
