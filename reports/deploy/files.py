"""All files of a deployment: rendered, checked against the plan, written, and later checked for changes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import groupby, product
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from yaml import YAMLError

from costmodel.engine import Role
from costmodel.errors import InputError, shown, value_of
from costmodel.words import join_words
from optimizer.plans.plan import Plan
from reports.fleets import undecided
from reports.verdict import kept_by_requests
from reports.whole_files import LARGEST_LISTED, SUMS, check_listed, write_listed
from search_spaces.bounds import NO_TARGET, TARGET_NAMES
from search_spaces.enumeration import degree_refusals, memory_refused
from search_spaces.fields import faults_of
from search_spaces.files import read_file, shown_path
from search_spaces.problem import Pools, length_routers, target_of
from search_spaces.sources import JsonText

from .deployment import (
    DeployedPool,
    Deployment,
    Device,
    GatewayRouting,
    Options,
    UndeployableError,
    checked_version,
    default_options,
    fact,
)
from .describe import describe
from .flags import engine_flags
from .formats import documents_of, manifest
from .hosts import HOSTS, LOCAL, by_size, gateway_rules, host_files
from .kubernetes import coarse_words, dynamo_files, llmd_files
from .measurement import benchmark_files, monitoring_files, readme_page

README: Final = "README.md"
MARKER: Final = "<!-- pdplan.deployment/2 -->"
"""First line of the page in every directory of ours."""


def deployment_files(plan: Plan, options: Options, base: Path | None = None) -> dict[str, str]:
    """Every file of a plan's deployment by its path in the directory.

    InputError for the first fault; it names the other targets that the same plan and options do for.
    base: folder from which files that the plan's problem names are looked up.
    """
    try:
        return target_files(plan, options, base)
    except InputError as error:
        other_targets = [name for name in targets_of(plan) if name != options.target]
        newest = {name: replace(options, target=name, version=checked_version(name, None)) for name in other_targets}
        able = [name for name in other_targets if refusal(plan, newest[name], base) is None]
        if not able:
            raise
        verb = "runs" if len(able) == 1 else "run"
        raise InputError(
            f"{error}; or choose --target {join_words(able, 'or')}, which {verb} this plan as it is"
        ) from error


def planned_target(plan: Plan) -> str:
    """What the plan has to run on, or else the plain target of the engine that it was evaluated for."""
    target = plan.provenance.inputs.get("target")
    return plan.engine if target in {None, NO_TARGET} else target_of(str(target)).name


@dataclass(frozen=True, slots=True)
class Deployable:
    """What runs a plan; target: the first that does, the plan's own or its engine's before all; None where none does.

    refused: by target, why it does not; engines: what the plain target of its engine is told.
    """

    target: str | None
    refused: Mapping[str, InputError]
    engines: Deployment | None


def deployable(plan: Plan) -> Deployable:
    """The first target that runs a plan with every choice left to its default."""
    errors: dict[str, InputError] = {}
    for target in targets_of(plan):
        error = refusal(plan, default_options(target))
        if error is None:
            break
        errors[target] = error
    else:
        target = None
    try:
        engines = describe(plan, default_options(plan.engine))
    except InputError:
        engines = None
    return Deployable(target, errors, engines)


def targets_of(plan: Plan) -> list[str]:
    """The targets that run the plan's engine; before all the one that it was planned for, or that engine's own."""
    able = [name for name in TARGET_NAMES if plan.engine in target_of(name).engines]
    return sorted(able, key=lambda name: name != planned_target(plan))


def refusal(plan: Plan, options: Options, base: Path | None = None) -> InputError | None:
    """Why a plan cannot be deployed so, without a word of other targets; None: it can.

    The flags of its engines show it; nothing else is written for that.
    """
    try:
        deployment = checked_fleet(plan, options, base)
        for pool in deployment.pools:
            engine_flags(deployment, pool)
    except InputError as error:
        return error
    return None


def checked_fleet(plan: Plan, options: Options, base: Path | None = None) -> Deployment:
    """A plan's deployment that files of the target can describe; see `deployment_files`, `refuse_undeployable`."""
    deployment = describe(plan, options, base)
    refuse_undeployable(plan, deployment)
    return deployment


def target_files(plan: Plan, options: Options, base: Path | None = None) -> dict[str, str]:
    """Every file that a target has for a plan; InputError for what it cannot run, without a word of other targets."""
    deployment = checked_fleet(plan, options, base)
    files = start_files(deployment)
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


def start_files(deployment: Deployment) -> dict[str, str]:
    """The files that start a fleet: on hosts, as workers of Dynamo, or as pods of llm-d."""
    pods = dynamo_files if deployment.target.workers else llmd_files
    return pods(deployment) if deployment.target.pods else host_files(deployment)


def refuse_undeployable(plan: Plan, deployment: Deployment) -> None:
    """Raise an error for what no file of the target could say, of a plan (all of it) or of options."""
    options, target = deployment.options, deployment.target
    able = target.vendors | {Device.CPU}  # which `describe` lets pass where the target has files for it
    reasons = [
        f"pool {pool.id}: {pool.accelerator} is a GPU of {pool.vendor}, for which {target.title} has no files here"
        for pool in deployment.pools
        if pool.vendor not in able
    ][:1] or [reason for reason in (_lengths(deployment), _balancing(plan, deployment)) if reason]
    if reasons:
        pool_choice = (plan.provenance.inputs.get("constraints") or {}).get("pools")
        # pools of each class, which the target cannot tell apart
        apart = pool_choice == Pools.PER_CLASS and not target.by_class
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
    if (fault := next(_faults(deployment), None)) is not None:
        raise InputError(fault)


LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Values that Kubernetes takes for a label."""


def _faults(deployment: Deployment) -> Iterator[str]:
    """What engines cannot start with, ends of a hand-over cannot agree on, or no object can be called."""
    for pool in deployment.pools:
        yield from (f"pool {pool.id}: {reason}" for reason in _pool_faults(deployment, pool))
    for prefill, decode in product(deployment.of_role(Role.PREFILL), deployment.of_role(Role.DECODE)):
        splits = prefill.config.parallelism, decode.config.parallelism
        for _, reason in degree_refusals(deployment.model, *splits):
            yield f"pools {prefill.id} and {decode.id}: {reason}"
    if deployment.disaggregated_set or deployment.target.workers:
        most = fact("longest_name", "set" if deployment.disaggregated_set else "graph")
        by_length = deployment.routing is GatewayRouting.BY_LENGTH
        for pool in deployment.pools:  # a controller joins the names of a graph or a set and of its components
            name = f"{deployment.name}{f'-{pool.name}' * by_length}-{pool.name}"
            if len(name) > most:
                yield f"the name {shown(name)} has {len(name)} characters, and {most} are allowed"


def _pool_faults(deployment: Deployment, pool: DeployedPool) -> Iterator[str]:
    """Why an engine of a pool does not start, or has no place on its nodes."""
    settings, gpus = pool.settings, pool.node_gpus
    tokens, seqs, longest = settings.max_num_batched_tokens, settings.max_num_seqs, settings.max_model_len
    verified = 1 if pool.role is Role.PREFILL else settings.verified
    if tokens < verified * seqs:
        yield f"max_num_batched_tokens {tokens:,} is below {f'{verified} x ' * (verified > 1)}max_num_seqs {seqs:,}"
    if longest > deployment.own_context and not settings.config_overrides:
        yield f"requests of {longest:,} tokens are longer than the {deployment.own_context:,} positions of the model"
    if (reason := memory_refused(deployment.model, pool.config)) is not None:
        yield reason
    if pool.nodes > 1 and not deployment.target.spans:
        files = f"the files of {deployment.target.name} start engines on one host only"
        yield f"an engine of {settings.gpus} GPUs spans {pool.nodes} hosts, and {files}"
    if settings.gpus != pool.nodes * gpus:
        yield f"an engine of {settings.gpus} GPUs does not fill {pool.nodes} nodes of {gpus} GPUs"
    rank = settings.tensor * settings.pipeline
    if "rank_nodes" in deployment.engine_facts and settings.data > 1 and pool.nodes > 1 and gpus % rank:
        yield f"data ranks of {rank} GPUs do not fill the {gpus} that it has on each node"
    if deployment.target.pods and not pool.node_label:
        name = pool.config.accelerator.name
        yield f"the catalog has no node label of {name}; give it with --label {name}=LABEL"
    elif deployment.target.pods and LABEL.fullmatch(pool.node_label) is None:
        yield f"no node can carry the label {shown(pool.node_label)}; give its GPUs' own with --label"


def _lengths(deployment: Deployment) -> str:
    """Requests that are told apart, by a router that does not, or not as the plan does; empty: there are none."""
    roles = {pool.role.value for pool in deployment.pools}
    if deployment.routing is GatewayRouting.BY_LENGTH and deployment.options.target not in length_routers(roles):
        sends = "the plan sends requests of different lengths or classes, or set shares of them, to pools of one role"
        where = f"{'with' if deployment.disaggregated else 'without'} prefill replicas"
        return f"{sends}, and the target's router does not do so {where}"
    if deployment.routing is GatewayRouting.BOTH_KINDS:
        return "the plan hands some requests over and serves others colocated, and no target's router does both"
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
    if plan.simulation is None or not deployment.balances_otherwise:
        return ""
    behind = plan.simulation.behind_least_requests
    if behind is not None and behind.held:
        return ""
    result = "the plan was not simulated"
    if behind is not None:
        result = "it is undecided whether the plan meets" if undecided(behind, plan) else "the plan misses"
        result += f" the SLO: {kept_by_requests(plan.simulation, behind)}"
    return f"{deployment.target.title} has a least-requests router, behind which {result}"


def write_deployment(
    plan: Plan, options: Options, directory: Path, *, force: bool = False, base: Path | None = None
) -> list[Path]:
    """Write a plan's deployment into a directory of its own, and return what was written.

    A directory that holds anything is refused; with `force`, one that holds an earlier deployment of ours is written
    over. The addresses in it are kept, and other changes of its files are refused. Nothing is written where the plan
    cannot be deployed so, and nothing outside the directory.
    """
    check_deployment(directory, force=force)
    files, hosts = deployment_files(plan, options, base), directory / HOSTS
    merged_files = [HOSTS] if HOSTS in files and hosts.exists() else []
    files |= {name: with_addresses(files[name], _text(hosts)) for name in merged_files}
    return write_listed(files, directory, merged_files)


def with_addresses(planned_text: str, present_text: str) -> str:
    """The planned file of addresses with those that a user gave in the present one; of the same hosts, the present."""
    addresses, names = dict(_ADDRESS_LINE.findall(present_text)), dict(_ADDRESS_LINE.findall(planned_text))
    if addresses.keys() == names.keys():
        return present_text

    def line(match: re.Match[str]) -> str:
        name = match[1]
        defaults = LOCAL, name.removeprefix("HOST_").lower().replace("_", "-")
        return match[0] if addresses.get(name, LOCAL) in defaults else f"{name}={addresses[name]}"

    return _ADDRESS_LINE.sub(line, planned_text)


_ADDRESS_LINE: Final = re.compile(r"(?m)^(HOST_\w+)=(.*)$")
"""A host's variable and its address."""


def check_deployment(directory: Path, *, force: bool) -> None:
    """Raise InputError unless a deployment may be written here: a new directory, an empty one, or any with `force`."""
    if check_listed(directory) and not force:
        raise InputError(
            f"{shown_path(directory)} is not empty; choose another directory, or replace the deployment in it with "
            "--force"
        )
    page = b""
    with suppress(InputError):
        page = read_file(directory / README, LARGEST_LISTED)
    if check_listed(directory) and not page.startswith(MARKER.encode()):
        raise InputError(f"{shown_path(directory)} holds something else than a deployment; choose another directory")


RECORD: Final = "deployment.json"


class DeploymentRecord(BaseModel):
    """What a deployment was written from: a plan, by its name and the hash of its inputs, and choices of the user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["pdplan.deployment/2"] = Field(alias="schema")
    plan: str
    inputs_sha256: str
    options: Options


def read_record(text: str, where: str = RECORD) -> DeploymentRecord:
    """A record, and InputError if it is none. where: the file, in messages."""
    source = JsonText(where, text)
    try:
        record = DeploymentRecord.model_validate(source.value())
    except ValidationError as error:
        fault = faults_of(error)[0]
        raise source.error(fault.sentence, fault.path) from error
    with value_of(where):
        checked_version(record.options.target, record.options.version, unchecked=record.options.unchecked)
    return record


def checked_directory(plan: Plan, directory: Path, target: str | None = None) -> tuple[list[str], list[str]]:
    """Each place of a directory's files that is not as it was written, as of `differences`; and files that are others.

    The choices that the plan does not make are those of the directory's own record. target: what the
    deployment is for, None: as its record says. Raises InputError for a directory that holds no deployment, or one for
    another target or of another plan.
    """
    if not (directory / RECORD).exists():
        raise InputError(f"{shown_path(directory)} has no {RECORD}, so it is no directory that pdplan deploy wrote")
    record = read_record(_text(directory / RECORD), shown_path(directory / RECORD))
    options = record.options
    if target not in {None, options.target}:
        raise InputError(f"{shown_path(directory)} holds a deployment for {options.target}, not for {target}")
    if record.plan != plan.name:
        raise InputError(
            f"{shown_path(directory)} holds a deployment of {shown(record.plan)}, not of {shown(plan.name)}; check it "
            "with its own plan, and one of a plan's other fleets with --alternative"
        )
    plan_files = deployment_files(plan, options)
    there = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    present = {path: _text(directory / path) for path in plan_files if (directory / path).exists()}
    return differences(plan_files, present), strays([*plan_files, SUMS], there)


def _text(path: Path) -> str:
    try:
        return read_file(path, LARGEST_LISTED).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{shown_path(path)} is not UTF-8 text") from error


RESULTS: Final = "benchmark/"
"""Folder in which the benchmark leaves its results."""
MOST_SHOWN: Final = 1000
"""Characters of a line that is shown."""
ADDRESS: Final = re.compile(r"[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f:.]+\]?")
"""A host's name or address, as it may stand in a URL and in a shell's file of variables."""
CLUSTER_KEYS: Final = {"labels": "metadata", "storageClassName": "spec"}
"""Keys that a user may add where the plan has none, as a cluster may ask for them; below which key."""


def differences(plan_files: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Every place in which a planned file is not as it was written, as `diff` shows it: -, planned, and +, here.

    plan_files, present: texts by path.
    """
    places: list[str] = []
    for path, text in plan_files.items():
        if path.endswith(".md"):
            continue
        if path not in present:
            places.append(f"{path} is missing")
            continue
        try:
            planned, here = _compared_lines(path, text, present[path])
        except InputError as error:
            places.append(str(error))
            continue
        lines = list(unified_diff(planned, here, lineterm="", n=1))[2:]
        for is_head, group in groupby(lines, key=lambda line: line.startswith("@@")):
            if not is_head:
                places.append("\n".join([f"{path}:", *(line[:MOST_SHOWN] for line in group)]))
    return places


def _compared_lines(path: str, planned: str, here: str) -> list[list[str]]:
    """The lines of a planned file and of that here: of YAML as it is read, without what only a cluster asks for."""
    if not path.endswith(".yaml"):
        return [_words_apart(path, text) for text in (planned, here)]
    try:
        documents = documents_of(planned), documents_of(here)
        texts = manifest("", *documents[0]), manifest("", *_without_cluster_keys(*documents))
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    return [text.splitlines()[1:] for text in texts]


def _without_cluster_keys(planned: Any, here: Any, parent: object = "") -> Any:
    """What stands here, without keys of CLUSTER_KEYS that the plan does not have, and without what is below them.

    parent: the key that it is the value of.
    """
    if isinstance(planned, dict) and isinstance(here, dict):
        kept = {key: value for key, value in here.items() if key in planned or CLUSTER_KEYS.get(key) != parent}
        return {key: _without_cluster_keys(planned.get(key), value, key) for key, value in kept.items()}
    if isinstance(planned, list) and isinstance(here, list) and len(planned) == len(here):
        return [_without_cluster_keys(*pair) for pair in zip(planned, here, strict=True)]
    return here


def _words_apart(path: str, text: str) -> list[str]:
    """The lines of a file without comments; each word of a command is one, and of an address only its name."""
    if ".json" in path:
        return text.splitlines()
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if path.endswith(".env"):
        return _addressed_names(path, lines)
    return [f"{'    ' * bool(number)}{word}" for line in lines for number, word in enumerate(line.split())]


def _addressed_names(path: str, lines: Iterable[str]) -> list[str]:
    """The names that have an address; which one is the user's affair."""
    names: dict[str, str] = {}
    for line in lines:
        name, _, address = line.partition("=")
        if ADDRESS.fullmatch(address) is None:
            raise InputError(f"{path}: {shown(line)} gives {name} no address")
        if address in names:
            raise InputError(
                f"{path}: {names[address]} and {name} are both {address}, so their engines would share ports and "
                "GPUs; give each a machine of its own"
            )
        names[address] = name
    return list(names.values())


def strays(plan_files: Collection[str], there: Iterable[str]) -> list[str]:
    """Files that are not the plan's, in order; hidden ones and results of the benchmark are nobody's concern.

    >>> strays(["a.sh"], ["notes.txt", "a.sh", ".git/config", "benchmark/results/c.json", "b.sh"])
    ['b.sh', 'notes.txt']
    """
    rest = (path for path in sorted(there) if path not in plan_files and not path.startswith(RESULTS))
    return [path for path in rest if not any(name.startswith(".") for name in path.split("/"))]
