"""What is deployed, in words of no particular target: pools with the settings that were evaluated, pairs, routing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from costmodel.engine import EngineConfig, Role
from costmodel.errors import InputError
from costmodel.host import EngineOverhead
from costmodel.transformer import Transformer
from search_spaces.problem import Balancing, Target, target_of
from search_spaces.recorded import Recorded

from . import facts


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a target cannot run a plan; brief: where other targets and what they refuse stand beside it."""

    full: str
    brief: str


class UndeployableError(InputError):
    """A target cannot run a plan, but could run another of the same problem.

    reasons: in brief, without the way to that one; again: the flags to plan it with.
    """

    def __init__(self, reason: str, again: str, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(f"{reason}; plan again with pdplan optimize {again}")
        self.reasons = tuple(item.brief for item in reasons) or (reason,)
        self.again = again


class GatewayRouting(StrEnum):
    """How requests find their pools in the plan."""

    ONE_WAY = "one_way"
    """There is one pool, or one pool of each role."""
    BY_LOAD = "by_load"
    """Pools share every kind of request alike: a router that sends to whoever has least to do keeps the plan."""
    BY_LENGTH = "by_length"
    """Pools take requests of different lengths or classes."""
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
    for each request and step [token]; host_cache: KV of prompts that the host keeps for each GPU [GB].
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

    @property
    def verified(self) -> int:
        """Tokens of a decoding request in a step, drafted ones among them [token]."""
        return 1 + self.speculative_tokens

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class DeployedPool:
    """Equal engines in one role.

    id: the plan's name of the pool; name: the same where it can name a file and a Kubernetes object; vendor: of what
    its engines run on; node_label: value of the GPU product label; replicas: spare ones included; prompt_rate: tokens
    per second that one idle engine prefills in full chunks [token/s], 0 for decode; running: requests that a replica
    runs at once on average at the planned rate, of prompts alone the share of busy time; least: replicas that the
    quietest hour of the plan's day needs, all of them where the plan has no day.
    """

    id: str
    name: str
    vendor: str
    node_label: str
    replicas: int
    settings: WorkerSettings
    prompt_rate: float
    running: float
    least: int
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
    def node_size(self) -> int:
        """GPUs of a whole server."""
        return self.config.accelerator.node_size

    @property
    def nodes(self) -> int:
        """Servers that one engine spans."""
        return -(-self.settings.gpus // self.node_size)

    @property
    def nvlink(self) -> bool:
        """Whether one engine spans nodes that NVLink joins."""
        return self.nodes > 1 and self.config.accelerator.scale_up_size > self.node_size

    @property
    def spans_network(self) -> bool:
        """Whether ranks of one engine exchange over a network: it spans nodes that NVLink does not join."""
        return self.nodes > 1 and not self.nvlink

    @property
    def arm(self) -> bool:
        """Whether the CPUs beside its GPUs are Arm's, as in NVIDIA's superchips."""
        return re.match(facts.fact("arm_labels"), self.config.accelerator.node_label) is not None

    @property
    def node_gpus(self) -> int:
        """GPUs of one engine on each of its servers."""
        return -(-self.settings.gpus // self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas together."""
        return self.replicas * self.settings.gpus


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """The planned workload: arrivals [1/s], their coefficient of variation, prefix share [1], lengths [token].

    slo_class: number of the class that each bucket is of; empty where there is one class. recorded: requests of a
    trace, whose times the benchmark's are. sessions: whether requests are turns of sessions. quietest: share of the
    rate that comes in the quietest hour of the day [1], 1 where the plan has no day.
    """

    rate: float
    burstiness: float
    prefix_share: float
    isl: tuple[float, ...]
    osl: tuple[float, ...]
    share: tuple[float, ...]
    seed: int
    slo_class: tuple[int, ...] = ()
    recorded: Recorded | None = None
    sessions: bool = False
    quietest: float = 1.0

    @property
    def mean_isl(self) -> float:
        """Mean prompt length [token]."""
        return self._mean(self.isl)

    @property
    def mean_osl(self) -> float:
        """Mean answer length [token]."""
        return self._mean(self.osl)

    def _mean(self, lengths: Sequence[float]) -> float:
        return sum(length * share for length, share in zip(lengths, self.share, strict=True)) / sum(self.share)


@dataclass(frozen=True, slots=True)
class LengthRoute:
    """Requests of one prompt length [token]: their share of all [1], and the part of them that each pool takes [1].

    slo_class: the label of their class; empty where nothing tells classes apart.
    """

    isl: float
    share: float
    prefill: Mapping[str, float]
    decode: Mapping[str, float]
    slo_class: str = ""


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """The tightest latency limits of all classes [s]."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """What one SLO class asks for: first token, later tokens, whole request [s], None where it does not say.

    attainment: share of its requests that shall meet it [1]; name: the plan's; ending: of the files and the job that
    are about this class; empty where there is one class.
    """

    name: str
    ending: str
    ttft: float | None
    tpot: float | None
    whole: float | None
    attainment: float

    @property
    def label(self) -> str:
        """What requests of the class are called by; empty where there is one class."""
        return self.ending.removeprefix("-")


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
    return Options(target, facts.checked_version(target, None))


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that files are written from.

    name: the plan's, where it can name objects; title: as the user wrote it; weights: name or path that the engines
    load; engine, engine_version: what serves; balancing: how requests were spread over the engines of a pool when the
    plan was simulated; mixed: whether the pools' GPUs differ; capacity: highest request rate within the SLOs, infinite
    where the plan does not say [1/s]; own_context: longest request that engines take by the
    config.json of the weights alone [token].
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
    lanes: tuple[LengthRoute, ...]
    demand: PlannedWorkload
    capacity: float
    limits: LatencyLimits
    classes: tuple[ClassLimits, ...]
    own_context: int
    model: Transformer = field(compare=False, repr=False)
    overhead: EngineOverhead = field(compare=False, repr=False)

    @property
    def target(self) -> Target:
        """What the files are for."""
        return target_of(self.options.target)

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

        Plans of sessions say what a router finds that only counts requests; others count on their prefixes in any case.
        """
        as_evaluated = not self.demand.sessions or self.router is Balancing.FEWEST_TOKENS
        return self.demand.prefix_share > 0.0 and as_evaluated

    @property
    def router(self) -> Balancing:
        """How the target's router spreads them: as planned, where it can."""
        return self.target.balancing(self.balancing, prefixes=self.demand.prefix_share > 0.0)

    @property
    def drain_seconds(self) -> int:
        """How long the requests that an engine runs may go on when it shall end [s].

        Twice what the longest answer takes at the limits of the plan, in whole tens of seconds, and an hour at most.
        """
        longest = self.limits.ttft + max(self.demand.osl) * self.limits.tpot
        return int(min(-(-2.0 * longest // 10) * 10, 3600))

    @property
    def notice_seconds(self) -> int:
        """How long routers take to see that a pod goes [s]; elsewhere engines are told to end without notice."""
        return int(facts.fact("health", "interval") * facts.fact("health", "failures")) * self.target.pods

    @property
    def grace_seconds(self) -> int:
        """How long an engine may take to end [s]: until routers see it, its requests are done, and GPUs are free."""
        return self.notice_seconds + self.drain_seconds + int(facts.fact("exit_seconds"))

    @property
    def template_room(self) -> int:
        """Tokens by which a chat template may lengthen any prompt of the workload [token]."""
        return min(pool.settings.max_model_len - pool.config.max_model_len for pool in self.pools)

    @property
    def parted(self) -> bool:
        """Whether colocated pools take requests of different lengths or classes."""
        return self.routing is GatewayRouting.BY_LENGTH and not self.disaggregated

    @property
    def behind_gateway(self) -> bool:
        """Whether HAProxy stands before colocated engines: it tells pools apart, and trtllm-serve has no router."""
        routed = self.target.pods or self.disaggregated or self.engine in facts.fact("router")
        return self.parted or (not routed and sum(pool.replicas for pool in self.pools) > 1)

    @property
    def on_cpu(self) -> bool:
        """Whether cores of a CPU stand in for the planned GPUs."""
        return self.options.device is Device.CPU

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
        address = facts.fact("targets", self.target.name).get("url", "http://127.0.0.1:{port}")
        port = facts.fact("ports", "http")
        return str(address.format(name=self.name, space=self.options.namespace, port=port))

    @property
    def arm(self) -> bool:
        """Whether some pods run beside Arm CPUs."""
        return any(pool.arm for pool in self.pools)

    def engine_env(self, pool: DeployedPool) -> list[tuple[str, str]]:
        """How KV blocks and the ranks of an engine of several nodes travel, and what the vendor's kernels are told."""
        ucx = facts.fact("vendors", pool.vendor, "ucx") if self.target.pods else facts.fact("ucx", "hosts")
        env = {"UCX_TLS": ucx} if self.disaggregated else {}
        nvlink = facts.fact("nvlink_env") if pool.nvlink else {}
        return list((env | nvlink | facts.fact("vendors", pool.vendor, "env", self.engine)).items())

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

    @property
    def mixed(self) -> bool:
        """Whether pools run on different GPUs."""
        return len({pool.accelerator for pool in self.pools}) > 1

    def pool(self, name: str) -> DeployedPool | None:
        """The pool of this file name, if there is one."""
        return next((pool for pool in self.pools if pool.name == name), None)
