"""A deployment, independent of its target, and the facts on targets: versions, images, flags."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np
import yaml

from costmodel.arrays import IntArray
from costmodel.engine import EngineConfig, EngineOverhead, Role
from costmodel.errors import InputError, shown
from costmodel.transformer import Transformer
from costmodel.workload import Workload
from optimizer.plans.plan import Plan, Route
from search_spaces.problem import Balancing, Recorded, Slo, Target, target_of

VERSION: Final = re.compile(r"\d+(\.\d+)*\w*")
TEMPLATE_TOKENS: Final = 128
"""ASSUMED: most tokens that a chat template and a BOS token add to a prompt. Engines refuse a request whose prompt and
answer exceed their limit, so one that is the workload's longest needs this room; templates add ten to some 70."""


def versions_of(target: str) -> tuple[str, ...]:
    """Versions of a target that are known, the oldest first.

    >>> versions_of("vllm")[0], versions_of("vllm")[-1]
    ('0.20.0', '0.33.0')
    """
    return tuple(target_facts(target).get("versions") or fact("engines", target_of(target).engines[0], "versions"))


def checked_version(target: str, version: str | None, *, unchecked: bool = False) -> str:
    """The version to write for: the newest known if none is asked for, and never another one than asked for.

    unchecked: whether one that is newer than all that are known will do; its flags are taken to be those of the newest.
    """
    versions = versions_of(target)
    if version is None or version in versions:
        return version or versions[-1]
    newer = VERSION.fullmatch(version) is not None and version_numbers(version) > version_numbers(versions[-1])
    if newer and unchecked:
        return version
    way = f"; --unchecked writes the flags of {versions[-1]}" if newer else ""
    raise InputError(f"{target_of(target).title} {shown(version)} is not known; known: {', '.join(versions)}{way}")


def engine_version(target: str, version: str, engine: str) -> str | None:
    """Version of the serving engine that a version of a target runs; None if it runs another engine.

    >>> engine_version("vllm", "0.22.0", "vllm"), engine_version("dynamo", "1.6.1", "vllm")
    ('0.22.0', '0.31.0')
    """
    pins: dict[str, str] = target_facts(target).get("engines", {})
    return pins.get(engine, version) if engine in target_of(target).engines else None


def version_numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare.

    >>> version_numbers("0.9.1") < version_numbers("0.31.0")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version)))


def fact(*path: str) -> Any:
    """An entry of targets.yaml.

    >>> fact("engines", "vllm", "router", "package")
    'vllm-router==0.1.17'
    """
    entry: Any = _facts()
    for name in path:
        entry = entry[name]
    return entry


def target_facts(name: str) -> dict[str, Any]:
    """What targets.yaml says of a target beside its engines; nothing of an engine's own."""
    return dict(fact("targets").get(target_of(name).name, {}))


@cache
def _facts() -> Any:
    return yaml.safe_load((resources.files("reports.deploy") / "data" / "targets.yaml").read_text(encoding="utf-8"))


class UndeployableError(InputError):
    """A target cannot run a plan, but could run another of the same problem; again: the flags to plan it with."""

    def __init__(self, reason: str, again: str) -> None:
        super().__init__(f"{reason}; plan again with pdplan optimize FILE {again}")


class NamelessWeightsError(InputError):
    """A target runs a plan once --model names the checkpoint; mend: what the user has to do for that."""

    mend = "name a checkpoint with --model"


class NamelessDraftError(NamelessWeightsError):
    """A target runs a plan once the workload names the weights that draft tokens."""

    mend = "state model.speculation.draft_model in the workload and plan again"


class GatewayRouting(StrEnum):
    """How requests find their pools in the plan."""

    ONE_WAY = "one_way"
    """There is one pool, or one pool of each role."""
    BY_LOAD = "by_load"
    """Prefill or decode pools share every kind of request alike: one router sends to the replica with the fewest."""
    BY_LENGTH = "by_length"
    """Pools take requests of different lengths or classes, or colocated ones their own shares of the same."""
    BOTH_KINDS = "both_kinds"
    """Some requests are handed over between pools, others are not."""


class Device(StrEnum):
    """What the engines compute on."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One engine as it was evaluated, all data ranks together; what `EngineConfig` has, in the engines' terms.

    quantization: method that the engine applies to 16-bit weights while loading, None: weights are used as stored;
    block_tokens: tokens of a KV block; attention_backend: None where the engine's own choice is the same everywhere;
    config_overrides: what is laid over the checkpoint's config.json, as one line of JSON, empty where nothing is;
    redundant: second copies of experts in each layer, so that all ranks hold as many; draft: method that drafts tokens,
    None where nothing does; draft_model: its weights where they are not the model's own; speculative_tokens: drafted
    for each request and step [token]; host_cache: KV of prompts that the host keeps for each GPU [GB];
    state_bits: of an element of linear attention's state, 0 where the model has none [bit].
    """

    tensor: int
    pipeline: int
    expert: int
    data: int
    quantization: str | None
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_fraction: float
    block_tokens: int
    prefix_caching: bool
    attention_backend: str | None
    config_overrides: str = ""
    redundant: int = 0
    draft: str | None = None
    draft_model: str | None = None
    speculative_tokens: int = 0
    host_cache: int = 0
    state_bits: int = 0

    @property
    def verified(self) -> int:
        """Tokens of a decoding request in a step, drafted ones among them [token]."""
        return 1 + self.speculative_tokens

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Scaling:
    """When a pool that shrinks in quiet hours needs another replica, as `pdplan autoscale` finds by formula.

    n replicas, spare ones included, serve n x rate - offset requests [1/s]. in_flight: requests that a replica runs or
    has waiting at the highest rate of one replica fewer than the planned rate needs.
    """

    rate: float
    offset: float
    in_flight: float


@dataclass(frozen=True, slots=True)
class DeployedPool:
    """Equal engines in one role.

    id: the plan's name of the pool; name: the same where it can name a file and a Kubernetes object; vendor: of what
    its engines run on; node_label: value of the GPU product label; replicas: spare ones included; prompt_rate: tokens
    per second that one idle engine prefills in full chunks [token/s], 0 for decode; least: replicas that the
    quietest hour of the plan's day needs, all of them where the plan has no day; scaling: None where it needs them all.
    """

    id: str
    name: str
    vendor: str
    node_label: str
    replicas: int
    settings: WorkerSettings
    prompt_rate: float
    least: int
    scaling: Scaling | None
    config: EngineConfig = field(compare=False, repr=False)

    @property
    def role(self) -> Role:
        """What its engines do."""
        return self.config.role

    @property
    def accelerator(self) -> str:
        """Name of the planned GPU."""
        return self.config.accelerator.name

    @property
    def nodes(self) -> int:
        """Servers that one engine spans."""
        return -(-self.settings.gpus // self.config.accelerator.node_size)

    @property
    def nvlink(self) -> bool:
        """Whether one engine spans nodes that NVLink joins."""
        accelerator = self.config.accelerator
        return self.nodes > 1 and accelerator.scale_up_size > accelerator.node_size

    @property
    def spans_network(self) -> bool:
        """Whether ranks of one engine exchange over a network: it spans nodes that NVLink does not join."""
        return self.nodes > 1 and not self.nvlink

    @property
    def arm(self) -> bool:
        """Whether the CPUs beside its GPUs are Arm's, as in NVIDIA's superchips."""
        return self.config.accelerator.arm

    @property
    def node_gpus(self) -> int:
        """GPUs of one engine on each of its servers."""
        return -(-self.settings.gpus // self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas together."""
        return self.replicas * self.settings.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkload(Workload):
    """The workload at the planned volume; its prefix hit share is that of the planned caches.

    Prefixes are used again so long after the request with them came, not after it ended. keeps: how long the planned
    caches keep one that is not used [s]. slo_class: number of the class that each bucket is of; empty where there is
    one class. recorded: requests of a trace, which the benchmark's are. quietest: share of the rate that comes in the
    quietest hour of the day [1], 1 where the plan has no day.
    """

    seed: int
    keeps: float = math.inf
    slo_class: tuple[int, ...] = ()
    recorded: Recorded | None = None
    quietest: float = 1.0

    @property
    def bucket_class(self) -> IntArray:
        """Number of the class of each bucket, (buckets,)."""
        return np.array(self.slo_class or (0,) * len(self.share), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LabelledSlo(Slo):
    """What one SLO class, or all together, ask for; label: of its files and requests, empty where there is but one."""

    label: str = ""

    @property
    def ending(self) -> str:
        """Of the files and the job that are about this class."""
        return self.label and f"-{self.label}"


@dataclass(frozen=True, slots=True)
class Options:
    """What the plan does not say and the user may.

    target, version: what to write for; model: name or path of the weights, None: the plan's; images: instead of the
    target's own, by engine; namespace: of Kubernetes; rdma: resource name of the RDMA device; labels: product label by
    accelerator; claim: PersistentVolumeClaim in which pods keep the weights that
    they fetch; bytes_per_token: size of a request's body per token of its prompt [byte], for a router that chooses by
    size, None: that of English text; unchecked: whether the version may be newer than all that are known; device: CPU
    where each planned GPU is a core of a CPU, for tests of a deployment where no GPU is.
    """

    target: str
    version: str
    model: str | None = None
    image: str | None = None
    namespace: str = "default"
    rdma: str = "rdma/ib"
    labels: Mapping[str, str] = field(default_factory=dict)
    claim: str | None = None
    bytes_per_token: float | None = None
    unchecked: bool = False
    device: Device = Device.GPU


def default_options(target: str) -> Options:
    """The newest version of a target that is known, and every other choice left to its default."""
    return Options(target, checked_version(target, None))


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that files are written from.

    name: the plan's, where it can name objects; title: as the user wrote it; weights: name or path that the engines
    load; engine, engine_version: what serves; balancing: how requests were spread over the engines of a pool when the
    plan was simulated; capacity: highest request rate within the SLOs, infinite where the plan does not say [1/s];
    limits: the tightest of all classes; own_context: longest request that engines take by the config.json of the
    weights alone [token].
    """

    name: str
    title: str
    plan_sha: str
    weights: str
    engine: str
    engine_version: str
    options: Options
    pools: tuple[DeployedPool, ...]
    routing: GatewayRouting
    balancing: Balancing
    routes: tuple[Route, ...]
    demand: PlannedWorkload
    capacity: float
    limits: LabelledSlo
    classes: tuple[LabelledSlo, ...]
    own_context: int
    model: Transformer = field(compare=False, repr=False)
    overhead: EngineOverhead = field(compare=False, repr=False)

    @property
    def target(self) -> Target:
        """What the files are for."""
        return target_of(self.options.target)

    @property
    def engine_facts(self) -> Mapping[str, Any]:
        """What targets.yaml says of the engine."""
        return dict(fact("engines", self.engine))

    @property
    def has_router(self) -> bool:
        """Whether the engine comes with a router of its own, also for colocated engines, and finds hosts by address."""
        return "package" in self.engine_facts["router"]

    def of_role(self, role: Role) -> tuple[DeployedPool, ...]:
        """The pools of one role."""
        return tuple(pool for pool in self.pools if pool.role is role)

    @property
    def prompt_pools(self) -> tuple[DeployedPool, ...]:
        """The pools that compute prompts."""
        return self.of_role(Role.PREFILL) or self.of_role(Role.COLOCATED)

    @property
    def token_pools(self) -> tuple[DeployedPool, ...]:
        """The pools that send tokens to clients."""
        return self.of_role(Role.DECODE) or self.of_role(Role.COLOCATED)

    @property
    def disaggregated(self) -> bool:
        """Whether KV caches are handed over between pools."""
        return bool(self.of_role(Role.PREFILL))

    @property
    def routes_by_prefix(self) -> bool:
        """Whether the router sends prompts where their prefix is, as the plan was evaluated.

        Where the workload says when prefixes are used again, plans know what a least-requests router finds of them.
        """
        return self.by_prefix(self.router)

    def by_prefix(self, balancing: Balancing) -> bool:
        """Whether a router that balances so sends prompts where their prefix is."""
        as_evaluated = self.demand.reuse is None or balancing is Balancing.LEAST_TOKENS
        return self.demand.prefix_hit_share > 0.0 and as_evaluated

    @property
    def scatters(self) -> str:
        """Why the router keeps no prefixes together, between prefill and decode pools or else; empty if it does."""
        reasons: dict[str, str] = {} if self.target.pods else self.engine_facts["router"].get("scatters", {})
        return reasons.get("apart" if self.disaggregated else "together", "")

    @property
    def router(self) -> Balancing:
        """How the target's router spreads them: as planned, where it can."""
        return self.target.balancing(self.balancing, prefixes=self.demand.prefix_hit_share > 0.0)

    @property
    def balances_otherwise(self) -> bool:
        """Whether prompts have replicas to choose from, and the router chooses in another way than planned."""
        return self.router is not self.balancing and any(pool.replicas > 1 for pool in self.prompt_pools)

    @property
    def drain_seconds(self) -> int:
        """How long the requests that an engine runs may go on when it shall end [s].

        Twice what the longest answer takes at the limits of the plan, in whole tens of seconds, and an hour at most.
        """
        longest = self.limits.ttft + float(self.demand.osl.max()) * self.limits.tpot
        return int(min(-(-2.0 * longest // 10) * 10, 3600))

    @property
    def notice_seconds(self) -> int:
        """How long routers take to see that a pod goes [s]; elsewhere engines are told to end without notice."""
        return int(fact("health", "interval") * fact("health", "failures")) * self.target.pods

    @property
    def grace_seconds(self) -> int:
        """How long an engine may take to end [s]: until routers see it, its requests are done, and GPUs are free."""
        return self.notice_seconds + self.drain_seconds + int(fact("exit_seconds"))

    @property
    def template_room(self) -> int:
        """Tokens by which a chat template may lengthen any prompt of the workload [token]."""
        return min(pool.settings.max_model_len - pool.config.max_model_len for pool in self.pools)

    @property
    def parted(self) -> bool:
        """Whether colocated pools take requests of different lengths or classes, or shares of their own."""
        return self.routing is GatewayRouting.BY_LENGTH and not self.disaggregated

    @property
    def behind_gateway(self) -> bool:
        """Whether HAProxy stands before colocated engines: it tells pools apart, and trtllm-serve has no router."""
        routed = self.target.pods or self.disaggregated or self.has_router
        return self.parted or (not routed and sum(pool.replicas for pool in self.pools) > 1)

    @property
    def on_cpu(self) -> bool:
        """Whether cores of a CPU stand in for the planned GPUs."""
        return self.options.device is Device.CPU

    def image(self, component: str, vendor: str = "nvidia") -> str:
        """Container image of an engine or another part of the target, for the GPUs of a vendor."""
        images = {self.engine: self.engine_facts["images"]} | target_facts(self.target.name).get("images", {})
        return str(images[component][vendor]).format(version=self.options.version)

    def engine_image(self, vendor: str = "nvidia") -> str:
        """Container image of the engines on GPUs of a vendor: the user's own, or that of the target's version."""
        return self.options.image or self.image(self.engine, vendor)

    def needs_rdma(self, pool: DeployedPool) -> bool:
        """Whether much leaves the nodes of a pool: KV caches that are handed over, or what ranks exchange."""
        return self.disaggregated or pool.spans_network

    @property
    def leaves_nodes(self) -> bool:
        """Whether much leaves the nodes of some pool."""
        return any(self.needs_rdma(pool) for pool in self.pools)

    @property
    def url(self) -> str:
        """Where clients of the same namespace, or of the router's host, send requests."""
        address = target_facts(self.target.name).get("url", "http://127.0.0.1:{port}")
        port = fact("ports", "http")
        return str(address.format(name=self.name, space=self.options.namespace, port=port))

    def exchange(self, pool: DeployedPool) -> str | None:
        """What carries tokens to their experts, None for the engine's default: every token to every data rank.

        Within NVLink that costs little. Between servers a token may go to the ranks of its experts alone, as the step
        times have it; the kernels that do so are for one role each, are known to take the precisions of
        `exchange_dtypes`, and those for decode take so many tokens of a rank in a step.
        """
        crosses = pool.spans_network and pool.settings.data > 1 and pool.vendor == "nvidia"
        fits = self.dispatched(pool) <= fact("dispatch", "most")
        if not crosses or pool.settings.expert == 1 or not fits:
            return None
        by_role: dict[str, str] = self.engine_facts.get("exchange", {})
        return by_role.get(pool.role.value) if pool.config.weight_dtype in fact("exchange_dtypes") else None

    def dispatched(self, pool: DeployedPool) -> int:
        """Tokens of a data rank that a decode step may send to experts [token]."""
        exchange = self.engine_facts.get("exchange", {})
        if pool.role is not Role.DECODE or not exchange:
            return 0
        tokens, ranks = (math.prod(getattr(pool.settings, name) for name in exchange[key]) for key in ("sends", "per"))
        return -(-int(tokens) // int(ranks))

    def engine_env(self, pool: DeployedPool) -> list[tuple[str, str]]:
        """How KV blocks, tokens and ranks travel, how long idle connections stay, what the vendor's kernels are told.

        DeepEP has room for so many tokens only as it is told, and stops the engine at the first step that has more.
        """
        ucx = fact("vendors", pool.vendor, "ucx") if self.target.pods else fact("ucx", "hosts")
        env = {"UCX_TLS": ucx} if self.disaggregated else {}
        nvlink = fact("nvlink_env") if pool.nvlink else {}
        tokens, limits = self.dispatched(pool) if self.exchange(pool) else 0, fact("dispatch")
        facts, exchange = self.engine_facts, self.engine_facts.get("exchange", {})
        room = {exchange["env"]: str(tokens)} if tokens > exchange.get("room", math.inf) else {}
        if 2 * (tokens + 1) > limits["queue"]:
            room[limits["queue_env"]] = str(2 * (tokens + 1))
        kept = {} if self.target.workers else facts.get("keep_alive", {})  # Dynamo's frontend asks by no HTTP
        return list((env | room | nvlink | kept | facts.get("env", {}).get(pool.vendor, {})).items())

    @property
    def disaggregated_set(self) -> bool:
        """Whether one object of llm-d keeps all replicas, so that an update changes both ends of a hand-over together.

        Where engines span nodes, so that LeaderWorkerSet is there anyhow. Fewer replicas in quiet hours want an object
        for each pool: roles of one that something else scales have one replica until it does.
        """
        groups = self.target.pods and not self.target.workers and any(pool.nodes > 1 for pool in self.pools)
        return groups and self.disaggregated and all(pool.least == pool.replicas for pool in self.pools)

    @property
    def local_weights(self) -> bool:
        """Whether the weights are a folder of the hosts, and nothing is fetched."""
        return self.weights.startswith("/")

    def label(self, slo_class: str) -> str:
        """What files and requests of a class are called by; empty where nothing tells classes apart."""
        return next((slo.label for slo in self.classes if slo.name == slo_class), "")


def told_apart(plan: Plan) -> bool:
    """Whether there are several classes, and the routes tell the requests of each."""
    names = {slo.name for slo in plan.classes}
    return len(names) > 1 and {route.slo_class for route in plan.routing if route.share > 0.0} == names
