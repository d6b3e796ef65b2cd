"""Rules that deployment files must keep, checked on what the files say, not on what was meant, before any is written.

A rule is a named function of the plan's deployment and of what was read back from the files; it yields one sentence
for each place where it is broken. The rules on hand-overs are those that the search itself keeps to
(`search_spaces.kv_hand_over`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any, Final

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from costmodel.quoting import shown
from costmodel.words import percentage
from search_spaces.kv_hand_over import cannot_talk

from . import facts
from .deployment import Deployment, Settings
from .describe import reach
from .dynamo import FROM_FILES
from .flags import PUSH
from .gateway import MISROUTED, STAGES, SURPLUS, bytes_per_token, check_words, misplaced, misrouted
from .hosts import BALANCES, health_flags, router_limits, seen_gpus
from .kubernetes import grace_seconds
from .readback import Found, FoundWorker
from .vllm import containers_fit_together

Rule = Callable[[Deployment, Found], Iterator[str]]

LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Values that Kubernetes takes for a label."""
OWNED_BY_OPERATOR: Final = frozenset(
    (
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--headless",
        "--dist-init-addr",
        "--data-parallel-size-local",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-start-rank",
    )
)
"""Flags that Dynamo's operator adds to the workers of an engine that spans nodes."""


def pools_are_complete(deployment: Deployment, found: Found) -> Iterator[str]:
    """Every pool of the plan is there with its role and all its replicas, and nothing else."""
    count: Counter[str] = Counter()
    for one in found.workers:
        count[one.pool] += one.replicas
        pool = deployment.pool(one.pool)
        if pool is None:
            yield f"{one.where}: the plan has no pool {shown(one.pool)}"
        elif one.role != pool.role.value:
            yield f"{one.where}: its role is {one.role}, but pool {pool.id} is for {pool.role.value}"
    for pool in deployment.pools:
        if count[pool.name] != pool.replicas:
            yield f"pool {pool.id}: {count[pool.name]} engines are started, but the plan has {pool.replicas}"


def settings_are_the_plans(deployment: Deployment, found: Found) -> Iterator[str]:
    """Engines are told exactly what was evaluated."""
    for one in found.workers:
        pool = deployment.pool(one.pool)
        if pool is not None:
            for name in Settings.__dataclass_fields__:
                told, planned = getattr(one.settings, name), getattr(pool.settings, name)
                if told != planned:
                    shown = "(unset)" if told == "" else told
                    yield f"{one.where}: {name} is {shown}, but the plan was evaluated with {planned}"


def weights_are_one_model(deployment: Deployment, found: Found) -> Iterator[str]:
    """All engines load the planned model under one name: a hand-over compares the string."""
    for one in found.workers:
        if one.weights != deployment.weights:
            yield f"{one.where}: it loads {shown(one.weights)}, not {shown(deployment.weights)}"


def flags_are_legal(deployment: Deployment, found: Found) -> Iterator[str]:
    """Every flag exists in this version of its program, with a value that it takes."""
    for one in found.workers:
        for name, value in one.words:
            fault = _flag_fault(deployment, one, name, value)
            if fault is not None:
                yield f"{one.where}: {fault}"


def _flag_fault(deployment: Deployment, one: FoundWorker, name: str, value: str | None) -> str | None:
    engine, version = deployment.engine, deployment.engine_version
    kind = facts.legal_flag(engine, version, name) if engine != "trtllm" else None
    who = f"{engine} {version}"
    if kind is None and one.program is not None:
        kind = _program_flag(deployment, one.program, name)
        who += f" and Dynamo {deployment.options.version}"
    if kind is None:
        return f"{name} is no flag of {who}"
    if (kind == facts.SWITCH) != (value is None):
        return f"{name} {'takes no value' if kind == facts.SWITCH else 'needs a value'}"
    if isinstance(kind, list) and value not in kind:
        return f"{name} {shown(value)} is none of {', '.join(kind)}"
    return None if _is_of_kind(kind, value) else f"{name} {shown(value)} is not of type {kind}"


def _program_flag(deployment: Deployment, program: str, name: str) -> Any:
    if program not in {"vllm_worker", "sglang_worker", "trtllm_worker"}:
        return None
    return facts.legal_flag("dynamo", deployment.options.version, name, program)


def _is_of_kind(kind: object, value: str | None) -> bool:
    if kind not in ("int", "float") or value is None:
        return True
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and (kind == "float" or number == int(number))


def flags_stand_once(deployment: Deployment, found: Found) -> Iterator[str]:
    """No flag is stated twice, and none that the target adds to an engine of several nodes itself."""
    for one in found.workers:
        for name, times in Counter(name for name, _ in one.words).items():
            if times > 1:
                yield f"{one.where}: {name} is stated {times} times"
            if deployment.options.target == "dynamo" and name in OWNED_BY_OPERATOR:
                yield f"{one.where}: {name} is added by Dynamo's operator itself"


def gpus_are_the_engines(deployment: Deployment, found: Found) -> Iterator[str]:
    """A worker asks for as many GPUs as its ranks need, on nodes that have them."""
    for one in found.workers:
        needed, given = one.settings.gpus, one.nodes * one.node_gpus
        if needed != given:
            yield f"{one.where}: TP x PP x DP needs {needed} GPUs, but {one.nodes} x {one.node_gpus} are asked for"
        pool = deployment.pool(one.pool)
        if pool is not None and one.node_gpus > pool.node_size:
            yield f"{one.where}: {one.node_gpus} GPUs on a node, but nodes of {pool.accelerator} have {pool.node_size}"
        rank = one.settings.tensor * one.settings.pipeline
        if deployment.engine == "vllm" and one.settings.data > 1 and one.nodes > 1 and one.node_gpus % rank:
            yield f"{one.where}: data ranks of {rank} GPUs do not fill the {one.node_gpus} that it has on each node"


def tokens_cover_requests(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """A step has room for one token of every running request, or engines refuse to start."""
    for one in found.workers:
        told = one.settings
        if told.max_num_batched_tokens < told.max_num_seqs:
            yield (
                f"{one.where}: max_num_batched_tokens {told.max_num_batched_tokens} is below max_num_seqs "
                f"{told.max_num_seqs}"
            )


def longest_request_fits(deployment: Deployment, found: Found) -> Iterator[str]:
    """The KV cache of one request of the longest length fits, or engines refuse to start."""
    for one in found.workers:
        pool = deployment.pool(one.pool)
        if pool is None:
            continue
        told, model = one.settings, deployment.model
        need = float(kv_bytes_peak_per_gpu(model, pool.config, float(told.max_model_len)))
        room = kv_capacity_bytes(model, replace(pool.config, memory_fraction=told.memory_fraction))
        if need > room:
            yield (
                f"{one.where}: a request of {told.max_model_len} tokens needs {need / 1e9:.1f} GB of KV cache per GPU, "
                f"and {max(room, 0.0) / 1e9:.1f} GB are free"
            )


def contexts_are_reached(deployment: Deployment, found: Found) -> Iterator[str]:
    """The model has positions for the longest request, or engines refuse to start, or take less (TensorRT-LLM)."""
    for one in found.workers:
        most = reach(deployment, one.settings)
        if one.settings.max_model_len > most:
            yield (
                f"{one.where}: it shall take requests of {one.settings.max_model_len} tokens, but by what it is told "
                f"of the model's config.json its positions end at {most}"
            )


def ends_have_connectors(deployment: Deployment, found: Found) -> Iterator[str]:
    """Prefill and decode name the connector and their end of it; engines that do both have none."""
    if deployment.engine != "vllm":
        return
    known = facts.transfer_facts(deployment.engine_version)
    for one in found.workers:
        role = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str((one.transfer or {}).get("kv_role")))
        if one.role == Role.COLOCATED.value:
            if one.transfer is not None:
                yield f"{one.where}: it hands nothing over, but has a KV connector"
            continue
        if one.transfer is None:
            yield f"{one.where}: a {one.role} engine without a KV connector computes for nobody"
            continue
        if role != one.role:
            yield f"{one.where}: kv_role {shown(one.transfer.get('kv_role'))} is not that of a {one.role} engine"
        if one.transfer.get("kv_connector") not in known["connectors"]:
            yield (
                f"{one.where}: vLLM {deployment.engine_version} has no connector "
                f"{shown(one.transfer.get('kv_connector'))}"
            )
        for name in sorted(set(one.transfer) - set(known["transfer_fields"])):
            yield f"{one.where}: vLLM {deployment.engine_version} has no {name} in --kv-transfer-config"


def ends_agree(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """Both ends have one connector, KV dtype, block size, attention kernel and image, or the handshake fails."""
    for prefill, decode in _pairs(found):
        for name, left, right in (
            ("KV dtypes", prefill.settings.kv_dtype, decode.settings.kv_dtype),
            ("block sizes", prefill.settings.block_tokens, decode.settings.block_tokens),
            ("overrides of config.json", prefill.settings.config_overrides, decode.settings.config_overrides),
            ("attention backends", prefill.settings.attention_backend, decode.settings.attention_backend),
            ("connectors", (prefill.transfer or {}).get("kv_connector"), (decode.transfer or {}).get("kv_connector")),
            ("images", prefill.image, decode.image),
        ):
            if left != right:
                yield f"{prefill.where} and {decode.where}: {name} {left} and {right} differ"


def ends_can_talk(deployment: Deployment, found: Found) -> Iterator[str]:
    """Parallel degrees of every prefill and decode pair allow a hand-over."""
    for prefill, decode in _pairs(found):
        reason = cannot_talk(deployment.model, _split(prefill.settings), _split(decode.settings))
        if reason is not None:
            yield f"{prefill.where} and {decode.where}: {reason}"
        pushes = (prefill.transfer or {}).get("kv_connector") == PUSH
        if deployment.engine == "vllm" and prefill.settings.pipeline > 1 and not pushes:
            yield f"{prefill.where}: PP {prefill.settings.pipeline} of prefill needs the {PUSH}"


def _pairs(found: Found) -> Iterator[tuple[FoundWorker, FoundWorker]]:
    """One worker of every prefill pool with one of every decode pool: routers let any two meet."""
    first = {(one.pool, one.role, one.settings, str(one.transfer), one.image): one for one in found.workers}
    of_role = {role: [one for one in first.values() if one.role == role] for role in ("prefill", "decode")}
    return iter(product(of_role["prefill"], of_role["decode"]))


def _split(settings: Settings) -> Parallelism:
    return Parallelism(settings.tensor, settings.pipeline, settings.expert, settings.data)


def addresses_are_free(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """No two engines bind one port of one host."""
    taken: dict[tuple[str, int], str] = {}
    for one in found.workers:
        for address in one.addresses:
            if address in taken:
                yield f"{one.where} and {taken[address]}: both bind port {address[1]} of {address[0]}"
            taken[address] = one.where


def gpus_are_given_once(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """No two engines of a host compute on one GPU."""
    taken: dict[tuple[str, str], str] = {}
    for one in found.workers:
        host = one.addresses[0][0] if one.addresses else one.where
        for gpu in seen_gpus(one.env):
            if (host, gpu) in taken:
                yield f"{one.where} and {taken[host, gpu]}: both compute on GPU {gpu} of {host}"
            taken[host, gpu] = one.where


def peers_can_find_each_other(deployment: Deployment, found: Found) -> Iterator[str]:
    """The side channel is bound where other hosts reach it: not localhost, unless one host holds everything."""
    if deployment.options.target not in {"vllm", "llmd"} or not deployment.disaggregated:
        return
    for one in found.workers:
        host = one.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "")
        if host in {"", "localhost", "127.0.0.1", "0.0.0.0"}:  # noqa: S104
            yield (
                f"{one.where}: VLLM_NIXL_SIDE_CHANNEL_HOST {shown(host or '(unset)')} cannot be reached "
                "from other hosts"
            )
        if "VLLM_NIXL_SIDE_CHANNEL_PORT" not in one.env:
            yield f"{one.where}: VLLM_NIXL_SIDE_CHANNEL_PORT is not set, so engines of one host would share it"


def blocks_have_a_road(deployment: Deployment, found: Found) -> Iterator[str]:
    """Engines that hand over KV state how it travels, for what UCX finds by itself may be TCP."""
    for one in found.workers:
        if deployment.disaggregated and not one.env.get("UCX_TLS"):
            yield f"{one.where}: UCX_TLS is not set, so KV blocks may travel over TCP"


def pods_can_move_blocks(deployment: Deployment, found: Found) -> Iterator[str]:
    """Pods that talk to others have RDMA devices and may lock memory, for NVLink ends at the pod; all share memory."""
    for one in found.workers:
        if one.pod is None:
            continue
        if not one.pod.get("shared_memory"):
            yield f"{one.where}: /dev/shm is not enlarged, and 64 MB are too little for ranks to talk"
        if one.role != Role.COLOCATED.value or one.nodes > 1:
            if deployment.options.rdma not in (one.pod.get("devices") or {}):
                yield f"{one.where}: no {deployment.options.rdma} device, so what it sends would travel over TCP"
            if "IPC_LOCK" not in (one.pod.get("capabilities") or []):
                yield f"{one.where}: without IPC_LOCK, RDMA memory cannot be registered"


def pods_end_and_start_well(deployment: Deployment, found: Found) -> Iterator[str]:
    """A pod that is down gets no requests, one that shall end finishes those it has, and each asks for all it needs."""
    grace = grace_seconds(deployment)
    for one in found.workers:
        if one.pod is None:
            continue
        if one.nodes == 1 or deployment.options.target != "dynamo":  # whose operator has probes of its own
            yield from _probe_faults(one.where, one.pod["probes"])
        if int(one.pod["grace"] or 30) < grace:
            yield f"{one.where}: it is killed after {one.pod['grace'] or 30} s, while its requests may take {grace} s"
        for name in ("cpu", "memory", "ephemeral-storage"):
            if name not in one.pod["requests"]:
                yield f"{one.where}: it asks for no {name}, so its node may run out of it"


def _probe_faults(where: str, probes: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{where}: it has no {name}" for name, probe in probes.items() if probe is None)
    ready, health = probes["readinessProbe"], facts.fact("health")
    seconds = int(ready.get("periodSeconds", 10)) * int(ready.get("failureThreshold", 3)) if ready else 0
    if seconds > health["interval"] * health["failures"]:
        yield f"{where}: while it is down, it gets requests for {seconds} s"


def requests_outlive_their_worker(deployment: Deployment, found: Found) -> Iterator[str]:
    """Dynamo's frontend hands the requests of a worker that died to another."""
    router = found.router if deployment.options.target == "dynamo" else None
    if router is not None and router.grid is None and "--migration-limit" not in dict(router.words):
        yield f"{router.where}: without --migration-limit, the requests of a worker that dies are lost"


def labels_are_the_gpus(deployment: Deployment, found: Found) -> Iterator[str]:
    """Pods ask for nodes of the GPU that the pool was planned on, spelled as its label is."""
    for one in found.workers:
        pool = deployment.pool(one.pool)
        if one.pod is not None and pool is not None and one.label != pool.node_label:
            yield (
                f"{one.where}: its node selector asks for {shown(one.label)}, but nodes with {pool.accelerator} carry "
                f"{shown(pool.node_label)}"
            )
        if one.pod is not None and one.label is not None and LABEL.fullmatch(one.label) is None:
            yield f"{one.where}: no node can carry the label {shown(one.label)}; give its GPUs' own with --label"


def names_are_short(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """Names that the operator joins stay within what Kubernetes lets them be."""
    most = int(facts.fact("longest_name"))
    for name in found.names:
        if len(name) > most:
            yield f"the name {shown(name)} has {len(name)} characters, and {most} are allowed"


def objects_share_a_namespace(deployment: Deployment, found: Found) -> Iterator[str]:
    """Manifests are in the namespace that was asked for, where the benchmark and the router look for them."""
    for where, namespace in found.namespaces:
        if namespace != deployment.options.namespace:
            yield f"{where}: its namespace is {namespace or '(unset)'}, not {deployment.options.namespace}"


def router_knows_all(deployment: Deployment, found: Found) -> Iterator[str]:
    """The router splits requests if and only if the plan does, and knows every engine once in its role."""
    router = found.router
    if router is None:
        yield "no router is started, so no request finds an engine"
        return
    if deployment.options.target == "dynamo" and "--router-mode" not in dict(router.words):
        yield f"{router.where}: --router-mode is not stated"
    if deployment.options.target in {"dynamo", "llmd"}:  # these find their workers by themselves
        if router.splits != deployment.disaggregated and deployment.options.target == "llmd":
            yield f"{router.where}: it does not treat prompts and tokens as the plan does"
        return
    if router.splits != deployment.disaggregated:
        does = "splits" if router.splits else "does not split"
        yield f"{router.where}: it {does} prompts and tokens, unlike the plan"
    for role in Role:
        urls = router.targets.get(role.value, ())
        planned = sum(pool.replicas for pool in deployment.of_role(role))
        if len(urls) != planned or len(set(urls)) != len(urls):
            yield f"{router.where}: it knows {len(set(urls))} {role.value} engines, but {planned} are started"
        bound = {f"{host}:{port}" for one in found.workers if one.role == role.value for host, port in one.addresses}
        for url in urls:
            address = url.rpartition("://")[2].replace("${", "").replace("}", "")
            if bound and address not in bound:
                yield f"{router.where}: no {role.value} engine listens at {url}"


def router_balances(deployment: Deployment, found: Found) -> Iterator[str]:
    """A request goes to the engine with the fewest, as it did when the plan was simulated."""
    if found.router is None or not found.router.command:
        return
    options = dict(found.router.words)
    for role, urls in found.router.targets.items():
        policy = options.get(f"--{role}-policy") or options.get("--policy")
        if urls and policy != BALANCES:
            chosen = f"chosen by {policy}" if policy else "not chosen by any policy that is stated"
            yield f"router: {role} engines are {chosen}; {BALANCES} sends to the one with the fewest requests"
    limits = router_limits(prefixes=deployment.routes_by_prefix)
    for name, wanted in zip(limits[::2], limits[1::2], strict=True):
        if options.get(name) != wanted and name not in health_flags():
            yield f"router: {name} is {options.get(name, 'not stated')}, not {wanted}, beyond which requests decide"


def routers_pass_over_the_dead(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """An engine that is down gets no requests after two failed checks, five seconds apart."""
    router = found.router
    if router is None:
        return
    options = dict(router.words)
    for name, wanted in (health_flags() if router.command else {}).items():
        if options.get(name) != wanted:
            stated = options.get(name, "not stated")
            yield f"router: {name} is {stated}, not {wanted}, so a replica that is down gets requests for too long"
    if router.gateway is not None:
        listed = {address for addresses in router.gateway.backends.values() for address in addresses}
        for address in sorted(listed - router.gateway.checked):
            wanted = " ".join(check_words())
            yield f"router: {address} is not checked as `{wanted}`, so it gets requests when it is down"


def lengths_find_their_pools(deployment: Deployment, found: Found) -> Iterator[str]:
    """A router that chooses by length sends requests where the plan does."""
    if found.router is not None and found.router.gateway is not None:
        lost, surplus = misplaced(deployment, found.router.gateway.rules)(bytes_per_token(deployment))
        if lost > SURPLUS:
            yield f"router: {percentage(lost)} of the requests find no pool of the plan"
        for pool, more in surplus.items():
            if more > SURPLUS:
                yield f"router: pool {pool} gets {percentage(more)} on top of what was planned for it"
    grid = None if found.router is None else found.router.grid
    if grid is None:
        return
    for role in STAGES:
        try:
            lost = misrouted(deployment, role, grid)
        except InputError as error:
            yield str(error)
            continue
        if lost > MISROUTED:
            yield f"router: {percentage(lost)} of the requests would find another {role.value} pool than planned"
        names = grid.get(f"{role.value}_pool_dynamo_namespaces", [])
        planned = [pool.name for pool in deployment.of_role(role)]
        if [name for name, pool in zip(names, planned, strict=False) if name.endswith(f"-{pool}")] != list(names):
            yield f"router: {role.value} pools {', '.join(map(str, names))} are not the plan's {', '.join(planned)}"


def backends_are_the_pools(deployment: Deployment, found: Found) -> Iterator[str]:
    """A gateway's backend is a pool: its engines, all of them."""
    gateway = None if found.router is None else found.router.gateway
    if gateway is None:
        return
    for name in sorted({*gateway.backends, *(rule.pool for rule in gateway.rules)}):
        if deployment.pool(name) is None:
            yield f"router: the plan has no pool {shown(name)}"
    for pool in deployment.pools:
        bound = [
            f"${{{host}}}:{port}" for one in found.workers if one.pool == pool.name for host, port in one.addresses
        ]
        listed = gateway.backends.get(pool.name, ())
        if sorted(listed) != sorted(bound):
            yield f"router: the backend {pool.name} has {', '.join(listed) or 'no engine'}, not {', '.join(bound)}"


def planner_keeps_the_plan(deployment: Deployment, found: Found) -> Iterator[str]:
    """The planner may use all planned GPUs, starts no other engines, and aims at the plan's limits."""
    if found.planner is None:
        return
    config = found.planner
    if int(config.get("max_gpu_budget", 8)) < deployment.budget_gpus:
        given = config.get("max_gpu_budget", "(8 by default)")
        yield f"planner: max_gpu_budget {given} is below the plan's {deployment.budget_gpus} GPUs"
    most = max(pool.replicas for pool in deployment.pools)
    if int(config.get("max_throughput_scaling_replicas", 8)) < most:
        yield f"planner: max_throughput_scaling_replicas is below the plan's {most}"
    for name, planned in (("ttft_ms", deployment.limits.ttft), ("itl_ms", deployment.limits.tpot)):
        if not math.isclose(float(config.get(name, 0.0)), planned * 1e3, rel_tol=1e-6, abs_tol=1e-3):
            yield f"planner: {name} {config.get(name)} is not the plan's {planned * 1e3:g}"
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    tokens = deployment.of_role(Role.DECODE) or prompts
    for name, wanted in (
        ("backend", deployment.engine),
        ("mode", "disagg" if deployment.disaggregated else "agg"),
        ("pre_deployment_sweeping_mode", FROM_FILES),  # or it would not start from the profile
        ("prefill_engine_num_gpu", prompts[0].settings.gpus),
        ("decode_engine_num_gpu", tokens[0].settings.gpus),
    ):
        if config.get(name) != wanted:
            yield f"planner: {name} is {config.get(name)}, not {wanted}"


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            pools_are_complete,
            settings_are_the_plans,
            weights_are_one_model,
            flags_are_legal,
            flags_stand_once,
            gpus_are_the_engines,
            tokens_cover_requests,
            longest_request_fits,
            contexts_are_reached,
            ends_have_connectors,
            ends_agree,
            ends_can_talk,
            addresses_are_free,
            gpus_are_given_once,
            containers_fit_together,
            peers_can_find_each_other,
            blocks_have_a_road,
            pods_can_move_blocks,
            pods_end_and_start_well,
            requests_outlive_their_worker,
            labels_are_the_gpus,
            names_are_short,
            objects_share_a_namespace,
            router_knows_all,
            router_balances,
            routers_pass_over_the_dead,
            backends_are_the_pools,
            lengths_find_their_pools,
            planner_keeps_the_plan,
        )
    }
)
"""Every rule by name, in the order in which they are told."""


def faults(deployment: Deployment, found: Found) -> list[tuple[str, str]]:
    """Rules broken, as (rule, sentence)."""
    return [(name, sentence) for name, rule in RULES.items() for sentence in rule(deployment, found)]
