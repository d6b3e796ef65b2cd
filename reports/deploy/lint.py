"""Lint: the commands that a set of files starts, read back from them, and rules that they must follow.

A rule is a named function of the plan's deployment and of the commands read back; it yields one sentence for each
place that breaks it. Rules judge what the files say, not what was meant. Everything that no rule covers is compared
with what pdplan writes (`files.checked_directory`). The rules on hand-overs are those of the search
(`search_spaces.enumeration`).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any, Final

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError, shown
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from reports.deploy.deployment import SWITCH, fact, legal_flag, transfer_facts
from reports.deploy.hosts import GATEWAY_FILE, check_words
from search_spaces.enumeration import degree_refusals

from .deployment import DeployedPool, Deployment, GatewayRouting, WorkerSettings, reach
from .flags import KV_ROLES, PUSH, Words, read_role, read_settings, read_transfer, words_of
from .formats import dig, load_documents
from .hosts import ROUTER_FILE, health_flags
from .kubernetes import POOL, vendor_fact

LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Values that Kubernetes takes for a label."""
SCRIPT: Final = re.compile(r"workers/([^/]+?)(\.node[0-9]+)?\.sh")
"""A start script: name of the replica, and which of its hosts it is for if there are several."""
NUMBERS: Final = {"int": re.compile(r"-?\d+"), "float": re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)}
"""How engines read the numbers of their flags, by kind."""
PINNED: Final = re.compile(r".+(@sha256:[0-9a-f]+|:v?\d[^/:]*)")
"""Images with a digest, or the tag of a release."""
MANIFEST: Final = re.compile(r"dgd\.yaml|pools/.*\.yaml")
"""Files whose pods are the fleet's."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One replica, or equal ones, as a file starts them.

    where: file and, in it, object; pool: name of its pool; role: prefill, decode or colocated; replicas, nodes,
    node_gpus: as the file asks for them; words: its flags, none of TensorRT-LLM on hosts; transfer: settings of its
    connector, None without one; label: GPU product asked for.
    """

    where: str
    pool: str
    role: str
    weights: str
    replicas: int
    nodes: int
    node_gpus: int
    words: Words
    settings: WorkerSettings
    transfer: Mapping[str, Any] | None
    label: str | None = None
    image: str | None = None


def launches(deployment: Deployment, files: Mapping[str, str]) -> tuple[Launch, ...]:
    """Every replica that the files start; InputError where they cannot be read, or leave a setting to the engine."""
    scripts: dict[str, list[str]] = {}
    for path in sorted(files):
        if match := SCRIPT.fullmatch(path):
            scripts.setdefault(match[1], []).append(path)
    hosts = [_script(deployment, files, name, paths) for name, paths in scripts.items()]
    pods = (
        _pod(deployment, path, pod, _count(path, replicas), _count(path, nodes))
        for path in sorted(files)
        if MANIFEST.fullmatch(path)
        for document in load_documents(path, files[path])
        for pod, replicas, nodes in _pods(document)
    )
    return (*hosts, *pods)


def _count(path: str, value: Any) -> int:
    """A whole number of a manifest; InputError for anything else."""
    if not re.fullmatch(r"\d+", str(value), re.ASCII):
        raise InputError(f"{path}: {shown(value)} is not a count")
    return int(value)


def _launch(deployment: Deployment, where: str, values: Mapping[str, Any], **stated: Any) -> Launch:
    """A replica with what its flags, or its options, say."""
    return Launch(
        where=where,
        role=read_role(deployment, where, values),
        settings=read_settings(deployment, where, values),
        transfer=read_transfer(deployment, where, values),
        **stated,
    )


def _script(deployment: Deployment, files: Mapping[str, str], name: str, paths: Sequence[str]) -> Launch:
    """The replica of a start script, and of its file of options where it has one."""
    engine, where, config = deployment.engine, paths[0], f"workers/{name}.yaml"
    program, env, command, words = fact("programs", engine), dict[str, str](), list[str](), Words()
    for line in files[where].splitlines():
        if line.startswith("export "):
            variable, _, value = line.removeprefix("export ").partition("=")
            env[variable] = "".join(shlex.split(value))
        elif line.startswith("exec "):
            command = shlex.split(line)[1:]
    if command[: len(program)] != program:
        raise InputError(f"{where} does not start {' '.join(program)}")
    command, options = command[len(program) :], {}
    if engine != "sglang":
        at = command.index("--config") if "--config" in command else len(command)
        if command[at + 1 : at + 2] != [f"$here/{name}.yaml"] or config not in files:
            raise InputError(f"{where} does not start its engine with its own config file")
        (options,), command, where = load_documents(config, files[config]), command[:at] + command[at + 2 :], config
    if engine != "trtllm":
        flags = ((f"--{key}", None if value is True else str(value)) for key, value in options.items())
        words = (*flags, *words_of(where, command))
    visible = [vendor["visible"] for vendor in fact("vendors").values()]
    gpus = next((env[variable] for variable in visible if variable in env), None)
    return _launch(
        deployment,
        where,
        options if engine == "trtllm" else dict(words),
        pool=name.rpartition("-")[0],
        weights=command[0] if engine == "trtllm" else _weights(words),
        replicas=1,
        nodes=len(paths),
        node_gpus=0 if gpus is None else len(re.split("[,|]", gpus)),
        words=words,
    )


def _weights(words: Words) -> str:
    values = dict(words)
    return str(values.get("--model") or values.get("--model-path"))


def _pods(value: Any, replicas: Any = 1, nodes: Any = 1) -> Iterator[tuple[Mapping[str, Any], Any, Any]]:
    """Every pod of a pool, with the replicas and the nodes of each of the object that starts it.

    Of those of a group that spans nodes only the leader, which says what all are told.
    """
    if isinstance(value, Mapping):
        replicas = value.get("replicas", replicas)
        nodes = dig(value, "multinode", "nodeCount") or value.get("size", nodes)
        if POOL in (dig(value, "metadata", "labels") or {}) and dig(value, "spec", "containers"):
            yield value, replicas, nodes
        value = [inner for key, inner in value.items() if key != "workerTemplate" or "leaderTemplate" not in value]
    if isinstance(value, list):
        for inner in value:
            yield from _pods(inner, replicas, nodes)


def _pod(deployment: Deployment, path: str, pod: Mapping[str, Any], replicas: int, nodes: int) -> Launch:
    name, container = str(pod["metadata"]["labels"][POOL]), pod["spec"]["containers"][0]
    where = path if path == f"pools/{name}.yaml" else f"{path}: {name}"
    text = [str(word).replace("$$(", "$(") for word in container.get("args") or []]  # as Kubernetes takes them
    named = not text or text[0].startswith("-")  # `vllm serve` is told the model without a flag
    words = words_of(where, text if named else ["--model", *text])
    plan_pool = deployment.pool(name) or deployment.pools[0]  # one of no plan is told by the rules
    limits = dig(container, "resources", "limits") or {}
    return _launch(
        deployment,
        where,
        dict(words),
        pool=name,
        weights=_weights(words),
        replicas=replicas,
        nodes=nodes,
        node_gpus=int(limits.get(vendor_fact(plan_pool, "resource"), 0)),
        words=words,
        label=(pod["spec"].get("nodeSelector") or {}).get(vendor_fact(plan_pool, "label")),
        image=container.get("image"),
    )


@dataclass(frozen=True, slots=True)
class Started:
    """What files start; pairs: each replica with the pool that it is of; files: their texts by path."""

    launches: tuple[Launch, ...]
    pairs: tuple[tuple[Launch, DeployedPool], ...]
    files: Mapping[str, str]

    @property
    def router_words(self) -> dict[str, str]:
        """Every word of the script that starts the router, with the next one, which is a flag's value."""
        return dict(pairwise(shlex.split(self.files.get(ROUTER_FILE, ""), comments=True)))


Rule = Callable[[Deployment, Started], Iterator[str]]


def pools_are_complete(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Every pool of the plan is there with its role and all its replicas, and nothing else."""
    count: Counter[str] = Counter()
    for launch in fleet.launches:
        count[launch.pool] += launch.replicas
        if deployment.pool(launch.pool) is None:
            yield f"{launch.where}: the plan has no pool {shown(launch.pool)}"
    for launch, pool in fleet.pairs:
        if launch.role != pool.role.value:
            yield f"{launch.where}: its role is {launch.role}, but pool {pool.id} is for {pool.role.value}"
    for pool in deployment.pools:
        if count[pool.name] != pool.replicas:
            yield f"pool {pool.id}: {count[pool.name]} engines are started, but the plan has {pool.replicas}"


def settings_are_the_plans(deployment: Deployment, fleet: Started) -> Iterator[str]:  # noqa: ARG001
    """Engines are told exactly what was evaluated."""
    for launch, pool in fleet.pairs:
        for name in WorkerSettings.__dataclass_fields__:
            file_value, plan_value = getattr(launch.settings, name), getattr(pool.settings, name)
            if file_value != plan_value:
                value = "(unset)" if file_value == "" else file_value
                yield f"{launch.where}: {name} is {value}, but the plan was evaluated with {plan_value}"


def weights_are_one_model(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """All engines load the planned model under one name: a hand-over compares the string."""
    for launch in fleet.launches:
        if launch.weights != deployment.weights:
            yield f"{launch.where}: it loads {shown(launch.weights)}, not {shown(deployment.weights)}"


def flags_are_legal(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Every flag exists in this version of its program, with a value that it takes, and stands once."""
    for launch in fleet.launches:
        for name, value in launch.words:
            fault = _flag_fault(deployment, name, value)
            if fault:
                yield f"{launch.where}: {fault}"
        for name, times in Counter(name for name, _ in launch.words).items():
            if times > 1:
                yield f"{launch.where}: {name} is stated {times} times"


def _flag_fault(deployment: Deployment, name: str, value: str | None) -> str:
    engine, version = deployment.engine, deployment.engine_version
    kind = legal_flag(engine, version, name) if engine != "trtllm" else None
    program = f"{engine} {version}"
    if kind is None and deployment.target.workers:
        options, title = deployment.options, deployment.target.title
        kind = legal_flag(options.target, options.version, name, f"{engine}_worker")
        program += f" and {title} {options.version}"
    if kind is None:
        return f"{name} is no flag of {program}"
    if (kind == SWITCH) != (value is None):
        return f"{name} {'takes no value' if kind == SWITCH else 'needs a value'}"
    if isinstance(kind, list):
        return "" if value in kind else f"{name} {shown(value)} is none of {', '.join(kind)}"
    is_of_kind = kind not in NUMBERS or NUMBERS[kind].fullmatch(str(value))
    return "" if is_of_kind else f"{name} {shown(value)} is not of type {kind}"


def gpus_are_the_engines(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """A replica asks for as many GPUs as its ranks need, on nodes that have them."""
    for launch, pool in fleet.pairs:
        needed_gpus, asked_gpus = launch.settings.gpus, launch.nodes * launch.node_gpus
        gpus = f"{launch.nodes} x {launch.node_gpus}"
        if needed_gpus != asked_gpus:
            yield f"{launch.where}: TP x PP x DP needs {needed_gpus} GPUs, but {gpus} are asked for"
        if launch.node_gpus > pool.config.accelerator.node_size:
            yield (
                f"{launch.where}: {launch.node_gpus} GPUs on a node, but nodes of {pool.accelerator} have "
                f"{pool.config.accelerator.node_size}"
            )
        rank = launch.settings.tensor * launch.settings.pipeline
        spread = launch.settings.data > 1 and launch.nodes > 1
        if deployment.engine == "vllm" and spread and launch.node_gpus % rank:
            yield (
                f"{launch.where}: data ranks of {rank} GPUs do not fill the {launch.node_gpus} that it has on each node"
            )


def engines_start(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """A step has room for what running requests verify, and the longest fits the KV cache and the positions."""
    for launch, pool in fleet.pairs:
        settings, model = launch.settings, deployment.model
        tokens, seqs, longest = settings.max_num_batched_tokens, settings.max_num_seqs, settings.max_model_len
        verified = 1 if launch.role == Role.PREFILL.value else settings.verified
        if tokens < verified * seqs:
            times = f"{verified} x " if verified > 1 else ""
            yield f"{launch.where}: max_num_batched_tokens {tokens} is below {times}max_num_seqs {seqs}"
        need = float(kv_bytes_peak_per_gpu(model, pool.config, float(longest)))
        room = kv_capacity_bytes(model, replace(pool.config, memory_fraction=settings.memory_fraction))
        if need > room:
            yield (
                f"{launch.where}: a request of {longest} tokens needs {need / 1e9:.1f} GB of KV cache per GPU, "
                f"and {max(room, 0.0) / 1e9:.1f} GB are free"
            )
        most = reach(deployment, settings)
        if longest > most:
            yield (
                f"{launch.where}: it shall take requests of {longest} tokens, but by what it is told of the model's "
                f"config.json its positions end at {most}"
            )


def ends_have_connectors(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Prefill and decode name a connector that the version has, and their end of it; others have none."""
    if deployment.engine != "vllm":
        return
    version, vllm_facts = deployment.engine_version, transfer_facts(deployment.engine_version)
    roles = {name: role.value for role, name in KV_ROLES.items()}
    for launch in fleet.launches:
        transfer = launch.transfer
        if (transfer is None) != (launch.role == Role.COLOCATED.value):
            has = "has no KV connector" if transfer is None else "hands nothing over, but has a KV connector"
            yield f"{launch.where}: a {launch.role} engine {has}"
        if transfer is None:
            continue
        if roles.get(str(transfer.get("kv_role"))) != launch.role:
            yield f"{launch.where}: kv_role {shown(transfer.get('kv_role'))} is not that of a {launch.role} engine"
        if transfer.get("kv_connector") not in vllm_facts["connectors"]:
            yield f"{launch.where}: vLLM {version} has no connector {shown(transfer.get('kv_connector'))}"
        for name in sorted(set(transfer) - set(vllm_facts["transfer_fields"])):
            yield f"{launch.where}: vLLM {version} has no {name} in --kv-transfer-config"


def ends_agree(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Both ends have one connector, KV dtype, block size and attention kernel, and degrees that allow a hand-over."""
    for prefill, decode in _ends(fleet.launches):
        pushes = (prefill.transfer or {}).get("kv_connector") == PUSH
        place = f"{prefill.where} and {decode.where}"
        for name, first, second in (
            ("KV dtypes", prefill.settings.kv_dtype, decode.settings.kv_dtype),
            ("block sizes", prefill.settings.block_tokens, decode.settings.block_tokens),
            ("overrides of config.json", prefill.settings.config_overrides, decode.settings.config_overrides),
            ("methods that draft tokens", prefill.settings.draft, decode.settings.draft),
            ("draft models", prefill.settings.draft_model, decode.settings.draft_model),
            ("attention backends", prefill.settings.attention_backend, decode.settings.attention_backend),
            ("connectors", (prefill.transfer or {}).get("kv_connector"), (decode.transfer or {}).get("kv_connector")),
            ("images", prefill.image, decode.image),
        ):
            if first != second:
                yield f"{place}: {name} {first} and {second} differ"
        ends = (prefill.settings, decode.settings)
        splits = (Parallelism(end.tensor, end.pipeline, end.expert, end.data) for end in ends)
        reason = next((reason for _, reason in degree_refusals(deployment.model, *splits)), None)
        if reason is not None:
            yield f"{place}: {reason}"
        if deployment.engine == "vllm" and prefill.settings.pipeline > 1 and not pushes:
            yield f"{prefill.where}: PP {prefill.settings.pipeline} of prefill needs the {PUSH}"


def _ends(all_launches: Sequence[Launch]) -> Iterator[tuple[Launch, Launch]]:
    """One replica of every prefill pool with one of every decode pool: routers let any two meet."""
    first = {(launch.pool, launch.role, launch.settings, str(launch.transfer)): launch for launch in all_launches}
    of_role = {role: [launch for launch in first.values() if launch.role == role] for role in ("prefill", "decode")}
    return iter(product(of_role["prefill"], of_role["decode"]))


def labels_are_the_gpus(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Pods ask for nodes of the GPU that the pool was planned on, by a label that a node can carry."""
    if not deployment.target.pods:
        return
    for launch, pool in fleet.pairs:
        if launch.label != pool.node_label:
            yield (
                f"{launch.where}: its node selector asks for {shown(launch.label)}, but nodes with {pool.accelerator} "
                f"carry {shown(pool.node_label)}"
            )
        elif LABEL.fullmatch(pool.node_label) is None:
            yield (
                f"{launch.where}: no node can carry the label {shown(pool.node_label)}; give its GPUs' own with --label"
            )


def names_are_short(deployment: Deployment, fleet: Started) -> Iterator[str]:  # noqa: ARG001
    """Names that a controller joins, those of a graph or a set and of its components, are not too long together."""
    most = fact("longest_name", "set" if deployment.disaggregated_set else "graph")
    for pool in deployment.pools if deployment.disaggregated_set or deployment.target.workers else ():
        graph = f"{deployment.name}-{pool.name}" if deployment.routing is GatewayRouting.BY_LENGTH else deployment.name
        name = f"{graph}-{pool.name}"
        if len(name) > most:
            yield f"the name {shown(name)} has {len(name)} characters, and {most} are allowed"


def routers_pass_over_the_dead(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """A replica that is down gets no requests after two failed checks, a second apart; Dynamo hands its own on."""
    if deployment.target.workers:
        for path, text in fleet.files.items():
            if "--router-mode\n" in text and "--migration-limit\n" not in text and "round-robin" not in text:
                yield f"{path}: without --migration-limit, the requests of a worker that dies are lost"
    elif deployment.behind_gateway:
        checks = check_words()
        for line in fleet.files.get(GATEWAY_FILE, "").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["server"] and words[3:] != checks:
                yield f"{GATEWAY_FILE}: {words[1]} is not checked as `{' '.join(checks)}`"
    elif not deployment.target.pods and deployment.engine in fact("router"):
        router_flags = fleet.router_words
        for name, value in health_flags().items():
            file_value = router_flags.get(name, "not stated")
            if file_value != value:
                yield f"{ROUTER_FILE}: {name} is {file_value}, not {value}, so a replica that is down gets requests"


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object within a document."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _mappings(inner)


def _objects(fleet: Started) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object of the YAML files, with the path of its file."""
    for path in sorted(fleet.files):
        if path.endswith(".yaml"):
            for document in load_documents(path, fleet.files[path]):
                yield from ((path, value) for value in _mappings(document))


def images_are_pinned(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Images have the tag of a release or a digest, so that a restart brings what was tested; but for the user's."""
    for path, value in _objects(fleet):
        image = value.get("image")
        own = deployment.options.image or ""
        if isinstance(image, str) and image not in {own, own.replace("$", "$$")} and not PINNED.fullmatch(image):
            yield f"{path}: the image {shown(image)} has no release tag or digest, so a restart may bring another image"


def loading_has_time(deployment: Deployment, fleet: Started) -> Iterator[str]:  # noqa: ARG001
    """Nothing restarts or gives up an engine, or waits for it too briefly, while it loads its weights."""
    least = float(fact("startup_seconds"))
    for path, value in _objects(fleet):
        startup = value.get("startupProbe") or {}
        seconds = float(startup.get("periodSeconds", 10)) * float(startup.get("failureThreshold", 3))
        seconds = seconds if startup else 0.0
        if "livenessProbe" in value and seconds < least:
            yield f"{path}: an engine is restarted {seconds:g} s after its start, but loading may take {least:g} s"
        period = dig(value, "healthcheck", "start_period")
        if "healthcheck" in value and float(str(period or 0).rstrip("s")) < least:
            yield f"{path}: an engine is unhealthy {period or 0} after its start, but loading may take {least:g} s"
    for name in ("--worker-startup-timeout-secs", "-t"):
        limit = fleet.router_words.get(name, "inf")
        if float(limit) < least:
            yield f"{ROUTER_FILE}: {name} is {limit}, but loading may take {least:g} s"


def a_replica_stays(deployment: Deployment, fleet: Started) -> Iterator[str]:
    """Neither an update nor a drain of nodes takes all replicas of a pool at once."""
    for path, value in _objects(fleet):
        update = dig(value, "strategy", "rollingUpdate") or dig(value, "rolloutStrategy", "rollingUpdateConfiguration")
        if update and int(update.get("maxUnavailable", 1)) >= int(value.get("replicas", 1)):
            yield f"{path}: an update may take all {value.get('replicas', 1)} replicas at once"
        pool = deployment.pool(str(dig(value, "spec", "selector", "matchLabels", POOL)))
        if value.get("kind") == "PodDisruptionBudget" and pool is not None:
            stay, go = value["spec"].get("minAvailable"), value["spec"].get("maxUnavailable", pool.replicas)
            if not stay and int(go) >= pool.replicas:
                yield f"{path}: a drain of nodes may take all {pool.replicas} replicas of {pool.name} at once"


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            pools_are_complete,
            settings_are_the_plans,
            weights_are_one_model,
            flags_are_legal,
            gpus_are_the_engines,
            engines_start,
            ends_have_connectors,
            ends_agree,
            labels_are_the_gpus,
            names_are_short,
            routers_pass_over_the_dead,
            images_are_pinned,
            loading_has_time,
            a_replica_stays,
        )
    }
)
"""Every rule by name, in the order in which they are told."""


def faults(deployment: Deployment, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules broken, as (rule, sentence)."""
    all_launches = launches(deployment, files)
    pools = {pool.name: pool for pool in deployment.pools}
    pairs = tuple((launch, pools[launch.pool]) for launch in all_launches if launch.pool in pools)
    fleet = Started(all_launches, pairs, files)
    return [(name, sentence) for name, rule in RULES.items() for sentence in rule(deployment, fleet)]
