"""The planning problem in canonical form: names resolved, SI units, defaults filled in; targets; recorded requests.

Deployment targets are part of it as far as they restrict plans: engines, routers and hand-overs. `reports.deploy`
writes the files of a target; what its programs cannot do belongs to the search, which would otherwise find fleets that
nothing can run. Sources: the routers' own help texts and configuration
schemas (HAProxy before colocated engines, vllm-router 0.1.17, sglang_router 0.3.2, the global router of Dynamo 1.6.1,
llm-d's endpoint picker, `trtllm-serve disaggregated` 1.3.0rc29); `kv_connector_protocols` of the ai-dynamo 1.6.1 wheel.

Recorded requests of a trace are used as they came, because a coefficient of variation knows nothing of waves, pauses
and lengths that come together: one wave and one pause have the same coefficient as independent gaps that are far
burstier within seconds and far calmer within minutes. So the simulation draws stretches of the recording, and the
formulas, which know a single number, take the dispersion of its counts over the time that a request may take.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from costmodel.accelerator import Accelerator, Price
from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role, Speculation
from costmodel.errors import InputError, UnknownNameError
from costmodel.metric import METRICS, Metric, Scope, metrics_of
from costmodel.prefix_cache import CacheTier
from costmodel.transformer import Transformer
from costmodel.workload import Workload

from .bounds import TARGET_NAMES, TARGET_SPELLINGS
from .engines import NO_CHANGES, EngineChanges
from .files import Fault, Source, shipped_table

MICROSECONDS = 1e6
LEAST_RECORDED, MOST_RECORDED = 1_000, 20_000
"""Least requests of a trace that can show waves (assumed), and most that are kept of a longer trace."""
LARGEST_RECORDED = 3 * 8 * (MOST_RECORDED + MOST_RECORDED // 10)
"""Largest packed recording [byte]: stretches have somewhat more or fewer than MOST_RECORDED requests."""
PARTS_RECORDED = 20
"""Number of equally long, equally spaced stretches that are kept of a longer trace."""
STRETCHES = 10
"""Mean length of a drawn stretch: the recording divided by this."""
LEAST_WINDOWS, LEAST_COUNT = 20, 10.0
"""Least number of windows of a dispersion, and of mean arrivals in one: in short ones any process looks Poisson."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Requests of a trace in order of arrival, each array of shape (requests,).

    source: name of the trace; of: requests that it has; too_long: those left out, of too many tokens or none; arrival
    [s], within [0, span); isl, osl [token].
    """

    source: str
    of: int
    too_long: int
    span: float
    arrival: FloatArray
    isl: IntArray
    osl: IntArray

    @property
    def rate(self) -> float:
        """Mean arrivals [1/s]."""
        return self.arrival.size / self.span

    @property
    def longest(self) -> int:
        """Most tokens of a request, ISL + OSL [token]."""
        return int((self.isl + self.osl).max())

    def dispersion(self, window: float) -> float:
        """Index of dispersion of the counts in windows of so many seconds, variance over mean [1].

        1 for Poisson arrivals; the squared coefficient of variation of the gaps for a renewal process, in windows of
        many gaps (Fendick and Whitt 1989). Too short and too long windows are replaced by the nearest fit ones.
        """
        window = min(max(window, LEAST_COUNT / self.rate), self.span / LEAST_WINDOWS)
        windows = int(self.span / window)
        counts = np.bincount((self.arrival / window).astype(np.int64), minlength=windows)[:windows]
        return float(counts.var() / counts.mean())

    def drawn(self, count: int, rate: float, seed: int = 0) -> tuple[FloatArray, IntArray]:
        """Arrival [s] and index of `count` requests in stretches of the recording, at a mean rate [1/s].

        Stretches start anywhere, go over its end to its start, and last a tenth of it on average, exponentially
        distributed (stationary bootstrap, Politis and Romano 1994): waves that last no longer are kept as they are.
        The draws do not depend on the rate.
        """
        rng = np.random.default_rng([seed, 1])
        index, times, clock, drawn = list[IntArray](), list[FloatArray](), 0.0, 0
        while drawn < count:
            start, lasts = rng.uniform(0.0, self.span), min(rng.exponential(self.span / STRETCHES), self.span)
            place = np.arange(self._before(start), self._before(start + lasts))
            index.append(place % self.arrival.size)
            times.append(clock - start + self.arrival[index[-1]] + place // self.arrival.size * self.span)
            clock, drawn = clock + lasts, drawn + place.size
        return np.concatenate(times)[:count] * (self.rate / rate), np.concatenate(index)[:count]

    def _before(self, time: float) -> int:
        """Requests that come before a time, in the first or second pass."""
        passes, rest = divmod(time, self.span)
        return int(passes) * self.arrival.size + int(np.searchsorted(self.arrival, rest))

    def echo(self) -> dict[str, Any]:
        """The same, ready for JSON and small: times to the microsecond (see `unpacked`)."""
        columns = np.stack([np.floor(self.arrival * MICROSECONDS).astype("<i8"), self.isl, self.osl])
        columns[0] = np.diff(columns[0], prepend=0)  # gaps compress better
        text = base64.b64encode(zlib.compress(columns.astype("<i8").tobytes(), 9)).decode()
        return {"source": self.source, "of": self.of, "too_long": self.too_long, "span": self.span, "packed": text}


def unpacked(source: str, of: int, too_long: int, span: float, packed: str) -> Recorded:
    """Read what `Recorded.echo` wrote: rows of gaps [us], ISL and OSL as 64-bit numbers, compressed by zlib, in base64.

    Raises InputError for anything else.
    """
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(packed, validate=True), LARGEST_RECORDED)
        gaps, isl, osl = np.frombuffer(data, dtype="<i8").reshape(3, -1)
    except (binascii.Error, zlib.error, ValueError):
        raise InputError("is damaged: it is no recording that pdplan packed") from None
    arrival = np.cumsum(gaps) / MICROSECONDS
    if not reader.eof:
        raise InputError("is damaged: its end is missing, or it is too long")
    if arrival.size < LEAST_RECORDED or gaps.min() < 0 or arrival[-1] >= span or min(isl.min(), osl.min()) < 1:
        raise InputError(f"is damaged: {LEAST_RECORDED:,} requests at least must come within its span of {span:g} s")
    return Recorded(source, of, too_long, span, arrival, isl.astype(np.int64), osl.astype(np.int64))


def whole_limit(limits: Mapping[Metric, FloatArray | float], osl: FloatArray | float) -> FloatArray:
    """The tightest limit on the whole request, for requests of these lengths [s]; infinity if there is none.

    limits: by metric [s], those of other scopes do not matter; osl (...,) [token].

    >>> whole_limit({Metric.TTFT: 1.0, Metric.E2E: 20.0}, np.array([10.0, 100.0])).tolist()
    [20.0, 20.0]
    """
    times = (limits.get(metric, np.inf) * over_tokens(metric, osl) for metric in metrics_of(Scope.WHOLE))
    return reduce(np.minimum, times)


def over_tokens(metric: Metric, osl: FloatArray | float) -> FloatArray:
    """Tokens by which a metric of whole requests divides their time, for these lengths [token]."""
    return np.asarray(osl if METRICS[metric].per_token else np.ones(np.shape(osl)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level: every metric within its limit, for `attainment` of the requests of a class.

    limits: by metric [s], of those that have one (`limits_of`); share: share of all requests in this class [1].
    """

    name: str
    limits: Mapping[Metric, float] = field(hash=False)
    attainment: float
    share: float = 1.0

    def limit(self, metric: Metric) -> float:
        """The limit of a metric [s]; infinity where there is none."""
        return self.limits.get(metric, math.inf)

    @property
    def ttft(self) -> float:
        """The limit of the time to first token [s]; infinity where there is none."""
        return self.limit(Metric.TTFT)

    @property
    def tpot(self) -> float:
        """The limit of the mean time of a later token [s]; infinity where there is none."""
        return self.limit(Metric.TPOT)


class Billing(StrEnum):
    """What is paid for: single GPUs, or whole nodes even when partly used."""

    GPU = "gpu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Offer:
    """An accelerator on offer: price of one GPU [$/h], and how many can be rented (None: any number).

    owned: GPUs that are paid for already, in addition to `inventory`; owned_usd_per_hour: the running cost of one,
    power and hosting. A fleet uses these first.
    quote: the catalog price that `usd_per_hour` is; None if the user stated the price.
    alias: the name as the user wrote it, if it is ambiguous, such as A100 for A100-80; else empty.
    tier_usd_per_hour: cost of the KV cache tier beside each GPU, owned or not.
    """

    accelerator: Accelerator
    usd_per_hour: float
    inventory: int | None = None
    billing: Billing = Billing.GPU
    owned: int = 0
    owned_usd_per_hour: float = 0.0
    quote: Price | None = None
    alias: str = ""
    tier_usd_per_hour: float = 0.0

    @property
    def stock(self) -> float:
        """GPUs available, owned and rented; infinite if any number is."""
        return math.inf if self.inventory is None else self.owned + self.inventory

    @property
    def least_usd_per_hour(self) -> float:
        """Price of the cheapest GPU with its share of the KV cache tier: an owned one if there are any [$/h]."""
        owned, rented = self.in_use
        return min(owned, rented) if self.owned else rented

    @property
    def in_use(self) -> tuple[float, float]:
        """Prices of an owned and of a rented GPU, each with its share of the KV cache tier [$/h]."""
        return self.owned_usd_per_hour + self.tier_usd_per_hour, self.usd_per_hour + self.tier_usd_per_hour


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Ranges from which engine configs are made; each field lists the values allowed, in ascending order.

    weight_dtype, kv_dtype: precisions that may be used; empty: that of the problem's model alone. speculative_tokens:
    drafted for each request and step; empty: none.
    """

    roles: tuple[Role, ...]
    tensor_parallel: tuple[int, ...]
    pipeline_parallel: tuple[int, ...]
    expert_parallel: tuple[int, ...]
    data_parallel: tuple[int, ...]
    max_num_seqs: tuple[int, ...]
    max_num_batched_tokens: tuple[int, ...]
    max_gpus_per_engine: int = 16
    weight_dtype: tuple[str, ...] = ()
    kv_dtype: tuple[str, ...] = ()
    speculative_tokens: tuple[int, ...] = ()

    @property
    def degrees(self) -> tuple[tuple[int, ...], ...]:
        """Degrees of parallelism: tensor, pipeline, expert, data."""
        return self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.data_parallel

    @property
    def precisions(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
        """Precisions of the weights and of the KV cache, and drafted tokens."""
        return self.weight_dtype, self.kv_dtype, self.speculative_tokens


class Goal(StrEnum):
    """What is optimised."""

    MIN_COST = "min_cost"
    MAX_GOODPUT = "max_goodput"
    MAX_GOODPUT_PER_DOLLAR = "max_goodput_per_dollar"


DEFAULT_VOLUME_RANGE = 4.0
"""Largest volume over the least, if only the least is stated."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The goal and, for the ratio, the range of the demand that may be served.

    min_volume, max_volume: least and most multiple of the stated request rate to serve [1]; the bare ratio
    is ill-posed (it is best at a fraction of the demand), so a floor is always in force.
    """

    goal: Goal = Goal.MIN_COST
    min_volume: float = 1.0
    max_volume: float = 1.0


class Routing(StrEnum):
    """How requests are spread over pools: any share of a length to any pool, or each length to a single pool.

    A gateway that only knows thresholds of the prompt length sends each length to one pool of a stage, so that each
    pool gets a range of neighboring lengths.
    """

    FRACTIONAL = "fractional"
    THRESHOLD = "threshold"


class Balancing(StrEnum):
    """The engine of a pool that gets a request: the one with the fewest prompt tokens to compute, or fewest requests.

    Only prompt tokens count: among decode engines it is the one with the fewest requests either way.
    """

    LEAST_TOKENS = "least-tokens"
    LEAST_REQUESTS = "least-requests"


class Pools(StrEnum):
    """Whether a pool may serve several SLO classes, or every class has pools of its own."""

    SHARED = "shared"
    PER_CLASS = "per_class"


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """A limit on the pools of a fleet: the sum over roles of pools x weight is at most `most`."""

    name: str
    most: int
    weight: Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Gateway:
    """The most pools that a router can tell apart: `colocated` ones, or `apart` prefill and decode ones each.

    No router sends some requests to colocated engines and others to prefill engines. A router that knows a single pool
    per role in one kind of fleet is fully described by linear limits (`limits`); others are not (`allows`).
    """

    colocated: int
    apart: int

    def allows(self, roles: Collection[Role]) -> bool:
        """Whether a fleet may have pools of these roles, one for each."""
        counts = Counter(roles)
        if counts[Role.COLOCATED] and counts[Role.PREFILL]:
            return False
        return counts[Role.COLOCATED] <= self.colocated and max(counts[Role.PREFILL], counts[Role.DECODE]) <= self.apart

    @property
    def limits(self) -> tuple[PoolLimit, ...]:
        """The same as linear limits on pools, as prefill pools exclude colocated ones; empty if impossible."""
        if min(self.colocated, self.apart) > 1:
            return ()
        kinds = {Role.COLOCATED: self.apart, Role.PREFILL: self.colocated}
        return (
            PoolLimit("gateway", self.colocated * self.apart, kinds),
            PoolLimit("gateway decode", self.apart, {Role.DECODE: 1}),
        )


@dataclass(frozen=True, slots=True)
class Constraints:
    """Limits on the whole fleet; None means no limit.

    budget [$/h]; power [W] of the boards (TDP); spare_replicas: k of N+k, kept idle in every pool;
    routing, balancing: what the gateway can do; pools: whether SLO classes share them; gateway: the pools that the
    deployment target's router can choose among; counting: the same of the routers that count prompt tokens.
    """

    budget: float | None = None
    power: float | None = None
    max_gpus: int | None = None
    max_pools: int | None = None
    spare_replicas: int = 0
    routing: Routing = Routing.FRACTIONAL
    balancing: Balancing = Balancing.LEAST_TOKENS
    pools: Pools = Pools.SHARED
    gateway: Gateway | None = None
    counting: Gateway | None = None

    def balancing_of(self, roles: Collection[Role]) -> Balancing:
        """How a router balances a fleet with pools of these roles: by requests, if no router can count tokens.

        >>> Constraints(counting=Gateway(colocated=1, apart=1)).balancing_of([Role.COLOCATED, Role.COLOCATED]).value
        'least-requests'
        """
        counts_tokens = self.counting is None or self.counting.allows(roles)
        return self.balancing if counts_tokens else Balancing.LEAST_REQUESTS

    @property
    def lifted(self) -> Constraints:
        """The constraints without limits on budget, power, GPUs and pools."""
        return replace(self, budget=None, power=None, max_gpus=None, max_pools=None, gateway=None)

    @property
    def pool_limits(self) -> tuple[PoolLimit, ...]:
        """Every limit on the number of pools."""
        total = () if self.max_pools is None else (PoolLimit("max_pools", self.max_pools, dict.fromkeys(Role, 1)),)
        return (*total, *(() if self.gateway is None else self.gateway.limits))

    def fits(self, roles: Iterable[Role]) -> bool:
        """Whether a fleet may have pools of these roles, one for each.

        >>> Constraints(gateway=Gateway(colocated=1, apart=1)).fits([Role.COLOCATED, Role.COLOCATED])
        False
        """
        pools = list(roles)
        within = all(sum(limit.weight.get(role, 0) for role in pools) <= limit.most for limit in self.pool_limits)
        return within and (self.gateway is None or self.gateway.allows(pools))


@dataclass(frozen=True, slots=True)
class Problem:
    """A planning problem: everything that `optimizer` needs.

    `inputs` is the JSON-ready echo of the workload file, for the plan file.
    `recorded` holds the requests of a trace if these are simulated instead of random ones.
    `source` is the file that it was read from, if any: later stages name its lines when they refuse a value.
    `base` is the folder of the files that a scenario names.

    `weight_dtype` and `kv_dtype` are those of the model section; the search space may allow others.
    `speculation` says how tokens are drafted, if the search space drafts any.
    `confidence`: plan for the slow end of the step-time interval of this probability; 0: for expected times.
    `engine` names the serving engine ("vllm", "sglang", "trtllm") whose scheduler and overheads are modeled;
    `target` names the deployment target that must run the plan, None: any;
    `engine_changes` are host times from the user's catalog file.
    """

    name: str
    model: Transformer
    weight_dtype: str
    kv_dtype: str
    workload: Workload
    slos: tuple[Slo, ...]
    offers: tuple[Offer, ...]
    space: SearchSpace
    objective: Objective = field(default_factory=Objective)
    constraints: Constraints = field(default_factory=Constraints)
    confidence: float = 0.0
    engine: str = "vllm"
    target: str | None = None
    engine_changes: EngineChanges = field(default_factory=lambda: NO_CHANGES)
    memory_fraction: float = 0.9
    kv_cache_tier: CacheTier | None = None
    seed: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    speculation: Speculation | None = None
    recorded: Recorded | None = field(default=None, compare=False, repr=False)
    source: Source | None = field(default=None, compare=False, repr=False)
    base: Path = field(default=Path(), compare=False, repr=False)

    def behind(self, balancing: Balancing) -> Problem:
        """The problem of a fleet whose router balances so, whatever its pools."""
        return replace(self, constraints=replace(self.constraints, balancing=balancing, counting=None))

    @property
    def full_space(self) -> SearchSpace:
        """The search space with the defaults of the model section filled in."""
        space = self.space
        return replace(
            space,
            weight_dtype=space.weight_dtype or (self.weight_dtype,),
            kv_dtype=space.kv_dtype or (self.kv_dtype,),
            speculative_tokens=space.speculative_tokens or (0,),
        )

    def refusal(self, faults: Sequence[Fault]) -> InputError:
        """All faults as one error: with lines if the problem was read from a file, else with keys."""
        if self.source is not None:
            return InputError(self.source.render(faults))
        return InputError("; ".join(fault.told() for fault in faults))


MANY: Final = 8
"""Most pools of a role, if the router can tell them apart: more are not worth the effort (assumed)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment target.

    engines: serving engines that it runs, its own before all; parts: roles whose pools its router tells apart by prompt
    length; by_class: whether it also does so by SLO class; counts: how its router chooses an engine within a pool;
    stage_by_stage: engines that hand over from a pipeline of several stages there; spans: whether it starts engines of
    several nodes; vendors: whose GPUs its files ask for; pods: whether it is in Kubernetes; cpu: whether it has a build
    for CPUs; workers: whether engines run inside workers of its own. Those take flags of their own, tell its frontend
    which prefixes they hold, and leave their requests to another worker when they die; scales: whether its files let
    pools have fewer replicas in quiet hours; routers: the targets whose routers it may use, empty for its own alone.
    """

    name: str
    title: str
    engines: tuple[str, ...]
    parts: frozenset[Role] = frozenset()
    by_class: bool = False
    counts: Balancing = Balancing.LEAST_REQUESTS
    stage_by_stage: tuple[str, ...] = ()
    spans: bool = True
    vendors: frozenset[str] = frozenset({"nvidia"})
    pods: bool = False
    cpu: bool = False
    workers: bool = False
    scales: bool = False
    routers: tuple[Target, ...] = ()

    @property
    def gateway(self) -> Gateway:
        """The pools that its router can choose among."""
        return Gateway(MANY if Role.COLOCATED in self.parts else 1, MANY if Role.PREFILL in self.parts else 1)

    def balancing(self, plan_balancing: Balancing, *, prefixes: bool) -> Balancing:
        """How its router balances: as planned, if it can; prefixes: whether the plan relies on prefix hits.

        A router that knows the prefixes of its workers counts prompt blocks, if there are prefixes.
        """
        counts_blocks = self.workers and prefixes
        return plan_balancing if counts_blocks or self.counts is Balancing.LEAST_TOKENS else self.counts

    def limits(self, constraints: Constraints, classes: int, *, prefixes: bool) -> Constraints:
        """The constraints of a fleet for this target and this many SLO classes: its router overrides the stated."""
        apart = constraints.pools is Pools.PER_CLASS and classes > 1
        tokens = Balancing.LEAST_TOKENS
        routers = self.routers or (self,)
        counting = [router.gateway for router in routers if router.balancing(tokens, prefixes=prefixes) is tokens]
        return replace(
            constraints,
            gateway=None if apart else self.gateway,  # which is told the class; `space` leaves out prefill engines
            balancing=constraints.balancing if counting else Balancing.LEAST_REQUESTS,
            counting=max(counting, key=lambda gateway: gateway.colocated + gateway.apart, default=None),
        )

    def space(self, full_space: SearchSpace, constraints: Constraints, classes: int) -> SearchSpace:
        """The search space without roles that the target cannot run: no router knows classes for prefill pools."""
        apart = constraints.pools is Pools.PER_CLASS and classes > 1 and Role.COLOCATED in full_space.roles
        return replace(full_space, roles=(Role.COLOCATED,)) if apart else full_space


TARGETS: Final = TypeAdapter(tuple[Target, ...]).validate_python(shipped_table("search_spaces", "targets.yaml"))
"""Every target, in the order of `TARGET_NAMES`."""


def undeployed(accelerator: Accelerator) -> str:
    """Says that no target deploys an accelerator; empty if one does."""
    vendors = frozenset[str]().union(*(target.vendors for target in TARGETS))
    if accelerator.vendor in vendors:
        return ""
    targets = " and ".join(sorted(vendor.upper() for vendor in vendors))
    return f"No target deploys {accelerator.name}: the files of all targets ask for devices of {targets}."


def target_of(name: str) -> Target:
    """The target of a name; an unknown one offers the nearest.

    >>> target_of("llm-d").gateway
    Gateway(colocated=1, apart=1)
    """
    own_name = TARGET_SPELLINGS.get(name, name)
    target = next((candidate for candidate in TARGETS if candidate.name == own_name), None)
    if target is None:
        raise UnknownNameError("target", name, TARGET_NAMES)
    return target


def any_target(engine: str) -> Target:
    """The abilities of all targets of an engine together, as one target.

    stage_by_stage: the engine, if it hands over from pipelines where a router tells several pools of a role apart.

    >>> any_target("vllm").gateway
    Gateway(colocated=8, apart=8)
    """
    able = [target for target in TARGETS if engine in target.engines]
    routers = [target for target in able if Role.PREFILL in target.parts]
    return Target(
        "any",
        "any target",
        (engine,),
        frozenset[Role]().union(*(target.parts for target in able)),
        by_class=any(target.by_class for target in able),
        routers=tuple(able),
        stage_by_stage=(engine,) if any(engine in target.stage_by_stage for target in routers) else (),
    )


def length_routers(roles: Collection[str]) -> tuple[str, ...]:
    """Targets with a router that chooses among pools of one role by prompt length; roles: of the plan's pools.

    >>> length_routers({"colocated"}), length_routers({"prefill", "decode"})
    (('vllm', 'sglang', 'trtllm'), ('dynamo',))
    """
    return tuple(target.name for target in TARGETS if {role.value for role in target.parts} >= set(roles))
