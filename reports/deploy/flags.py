"""The settings of a pool as flags of vLLM and SGLang or options of TensorRT-LLM, by a table for each.

The tables stand in data/targets.yaml, and say which settings an engine counts its own way: of one data rank, of one of
the steps that are in flight, or for all ranks of a stage. A pair of functions for each engine has the rest:

- vLLM spreads experts over all ranks or none;
- SGLang's memory share leaves activations out;
- TensorRT-LLM's attention is data-parallel over all ranks of a stage or none, and its memory share is of what weights
  and activations leave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from costmodel.engine import Draft, Role
from costmodel.errors import InputError, shown
from costmodel.memory import kv_capacity_bytes
from costmodel.units import GIB, GIGA
from search_spaces.engines import SUPPORT
from search_spaces.enumeration import draft_refused
from search_spaces.models import config_of, is_model
from search_spaces.problem import target_of

from .deployment import (
    SWITCH,
    DeployedPool,
    Deployment,
    Device,
    UndeployableError,
    connectors_of,
    fact,
    legal_flag,
    version_numbers,
)

Flags = dict[str, Any]
"""Flags to write, by name in order; True for a switch."""
Counted = dict[str, Any]
"""Values of settings as an engine counts them, and what else it is told, by name; None is not stated."""
BALANCED_DTYPES: Final = ("bf16", "fp8")
"""Dtypes of experts that vLLM's load balancer can copy in every version: the others depend on the kernels chosen."""
PULL: Final = "NixlConnector"
PUSH: Final = "NixlPushConnector"
KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
BOTH: Final = "MultiConnector"
DEGREES: Final = {"data": "DP", "pipeline": "PP"}
"""Short names of the degrees of parallelism by which engines count settings."""


def plain_words(flags: Flags) -> list[str]:
    """A command line of flags and values.

    >>> plain_words({"--tp": 2, "--fast": True})
    ['--tp', '2', '--fast']
    """
    return [word for name, value in flags.items() for word in ([name] if value is True else [name, str(value)])]


def one_line(value: Mapping[str, Any]) -> str:
    """An object as one line of JSON that is the same for the same content; empty for none.

    >>> one_line({"b": 1, "a": {"c": 2.0}}), one_line({})
    ('{"a":{"c":2.0},"b":1}', '')
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, or the path of an option or of a field of what a flag takes as JSON, and what it states.

    setting: what it says of `Counted`; spelled: the engine's word for each of the plan's, where these differ; per:
    degrees of parallelism that share the setting, of which an engine is told the part of one; times: the degree by
    which an engine counts more than the plan; more: what it counts beside; value: what it always has to be where no
    setting decides; experts: whether it is for models with experts alone; since, before: first version of the engine
    that takes it, and first that does not, or need not be told; dynamo: the flag in which Dynamo takes an option of
    TensorRT-LLM, which takes the others as JSON.
    """

    name: str
    setting: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)
    per: Sequence[str] = ()
    times: str = ""
    more: int = 0
    value: Any = None
    experts: bool = False
    since: str = ""
    before: str = ""
    dynamo: str = ""

    def told(self, pool: DeployedPool, value: Any) -> Any:
        """A setting as the engine counts it; InputError where those that share it would not get equal parts."""
        settings, value = pool.settings, self.spelled[value] if self.spelled else value
        for number, name in enumerate(self.per, start=1):
            if value % getattr(settings, name):
                degrees = " x ".join(f"{DEGREES[each]} {getattr(settings, each)}" for each in self.per[:number])
                raise InputError(
                    f"pool {pool.id}: {self.setting} {getattr(settings, self.setting)} is not a multiple of {degrees}, "
                    f"and engines are told {self.name} for each"
                )
            value //= getattr(settings, name)
        value = value + self.more if self.more else value
        return value * getattr(settings, self.times) if self.times else value


def _table(deployment: Deployment) -> list[Flag]:
    """The flags of the engine that is deployed, in the order in which they are written.

    A CPU has precisions of its own, whatever was planned.
    """
    number = version_numbers(deployment.engine_version)
    own = fact("vendors", Device.CPU, "flags") if deployment.on_cpu else {}
    rows = fact("flags", deployment.engine) | {name: {"value": value} for name, value in own.items()}
    flags = (Flag(name, **row) for name, row in rows.items())
    return [
        flag
        for flag in flags
        if version_numbers(flag.since) <= number and not (flag.before and number >= version_numbers(flag.before))
    ]


def shares_of(deployment: Deployment, setting: str) -> dict[str, int]:
    """What the engines of each pool are told of a setting that their ranks or stages share; empty if all are told all.

    The replica's own value stands in the plan, and the part of one rank in the files.
    """
    per_rank = next((flag for flag in _table(deployment) if flag.setting == setting and flag.per), None)
    whole = {pool.id: getattr(pool.settings, setting) for pool in deployment.pools}
    parts = {pool.id: per_rank.told(pool, whole[pool.id]) for pool in deployment.pools} if per_rank else whole
    return parts if parts != whole else {}


def _stated(deployment: Deployment, pool: DeployedPool, engine_values: Counted) -> dict[str, Any]:
    """What an engine is told by name, in the table's order; fields of one object are together."""
    values: dict[str, Any] = {}
    for flag in _table(deployment):
        value = engine_values[flag.setting] if flag.setting else flag.value
        is_told = value is not None and (deployment.model.is_moe or not flag.experts)
        engine_value = flag.told(pool, value) if is_told else None
        if engine_value is not None:
            section, _, name = flag.name.rpartition(".")
            (values.setdefault(section, {}) if section else values)[name] = engine_value
    return values


def _common(deployment: Deployment, pool: DeployedPool) -> Counted:
    """What all engines are told alike."""
    settings, has_tail = pool.settings, any(group.tail for group in deployment.model.layers)
    return {
        **asdict(settings),
        "weights": deployment.weights,
        "balanced": bool(settings.redundant) or None,
        "redundant": settings.redundant or None,
        "config_overrides": settings.config_overrides or None,
        "exchange": deployment.exchange(pool),
        "host_cache": settings.host_cache or None,
        "state_bits": settings.state_bits or None,
        "prompt_tail": (has_tail and not pool.config.whole_prompts) or None,
        **_drafting(deployment, pool),
    }


def _drafting(deployment: Deployment, pool: DeployedPool) -> Counted:
    """What engines are told of drafted tokens, which are a chain; InputError for an engine that cannot draft them."""
    settings, engine = pool.settings, deployment.engine
    if settings.draft is None:
        names = ("draft", "draft_model", "speculative_tokens", "branches", "ngram", "ngram_branches")
        return dict.fromkeys(names)
    first, title = SUPPORT[engine].staged_drafts_since, target_of(engine).title
    reason = draft_refused(engine, Draft(settings.draft), pool.config.parallelism)
    if first and settings.pipeline > 1 and version_numbers(deployment.engine_version) < version_numbers(first):
        reason = f"{title} before {first} does not draft tokens with PP {settings.pipeline}"
    if reason is not None:
        raise InputError(f"pool {pool.id}: {reason}; plan again with other degrees of parallelism")
    looks_up = settings.draft == Draft.NGRAM
    return {
        "branches": 1,
        "ngram": fact("ngram_tokens") if looks_up else None,
        "ngram_branches": 1 if looks_up else None,
    }


def _flags(deployment: Deployment, pool: DeployedPool, engine_values: Counted) -> Flags:
    """A switch that is off has a name of its own, and objects are JSON; InputError for what this version refuses."""
    stated = _stated(deployment, pool, engine_values)
    texts = {name: one_line(value) if isinstance(value, dict) else value for name, value in stated.items()}
    flags = {  # vLLM 0.33 lists --disable-prefix-caching in its help, and takes --no-enable-prefix-caching as all do
        name.replace("--", "--no-", 1) if value is False else name: value is False or value
        for name, value in texts.items()
    }
    for name, value in flags.items():
        kind = legal_flag(deployment.engine, deployment.engine_version, name)
        if kind is None or (kind == SWITCH) != (value is True) or (isinstance(kind, list) and str(value) not in kind):
            program = f"{target_of(deployment.engine).title} {deployment.engine_version}"
            raise InputError(f"pool {pool.id}: {program} does not take {name} {shown(str(value))}")
    return flags


def vllm_flags(deployment: Deployment, pool: DeployedPool) -> Flags:
    """All flags of one engine that shaped its prediction, in the order of the settings table."""
    settings, dtype = pool.settings, pool.config.weight_dtype
    if settings.redundant and dtype not in BALANCED_DTYPES:
        raise InputError(
            f"pool {pool.id}: EP {settings.expert} needs redundant experts ({settings.redundant}), which vLLM is sure "
            f"to load in {' and '.join(BALANCED_DTYPES)} only, not in {dtype}; choose an EP that divides the experts, "
            "or engine: sglang"
        )
    transfer, has_graphs = None, pool.role is not Role.PREFILL and not deployment.on_cpu
    host_bytes = GIGA * settings.host_cache * settings.tensor * settings.pipeline
    if pool.role is not Role.COLOCATED:  # the connector, and which end of it the pool is
        ends = {"kv_connector": connector(deployment), "kv_role": KV_ROLES[pool.role]}
        buffer = {"kv_buffer_device": "cpu" if deployment.on_cpu else "cuda"}
        connectors = ends | buffer | {"kv_connector_extra_config": {"backends": ["UCX"]}}
        if host_bytes:
            connectors = _beside_host_cache(deployment, connectors, host_bytes)
        transfer = json.dumps(connectors, separators=(",", ":"))
    kinds = {(group.attention.kept, group.attention.state_bytes > 0.0) for group in deployment.model.layers}
    name = deployment.model.name
    in_chunks = len(kinds) > 1 and is_model(name) and "attention_chunk_size" in config_of(name)
    engine_values = _common(deployment, pool) | {
        "expert": settings.expert > 1,
        "graphs": graph_tokens(settings.max_num_seqs // settings.data, settings.verified) if has_graphs else None,
        "offloading": "native" if host_bytes and transfer is None else None,
        "host_gib": round(host_bytes / GIB, 2) if host_bytes and transfer is None else None,
        "transfer": transfer,
        # layers of several kinds need a window or a state alone, as the plan has their memory
        "whole_caches": False if transfer and len(kinds) > 1 and not in_chunks else None,
        "drain": None if deployment.target.workers else deployment.drain_seconds,  # workers do so themselves
    }
    return _flags(deployment, pool, engine_values)


def _beside_host_cache(deployment: Deployment, hand_over: Counted, size: float) -> Counted:
    """A hand-over, and a KV cache of `size` in host memory [byte], whose own flags would replace the hand-over."""
    target, version = deployment.target, deployment.options.version
    if BOTH not in fact("targets", target.name).get("connectors", (BOTH,)):
        raise UndeployableError(
            f"a KV cache tier beside a hand-over needs vLLM's {BOTH}, which {target.title} {version} does not take",
            "--target llm-d",
        )
    tier = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": round(size)},
    }
    extra = {"connectors": [hand_over, tier]}
    return {"kv_connector": BOTH, "kv_role": hand_over["kv_role"], "kv_connector_extra_config": extra}


def sglang_flags(deployment: Deployment, pool: DeployedPool) -> Flags:
    """All flags of one engine that shaped its prediction, in the order of the settings table."""
    settings, hands_over = pool.settings, pool.role is not Role.COLOCATED
    room = kv_capacity_bytes(deployment.model, pool.config)
    if 0.0 < settings.host_cache * GIGA <= room:
        raise UndeployableError(
            f"pool {pool.id}: SGLang wants more KV in host memory than on the GPU, which has {room / GIGA:.0f} GB; the "
            f"plan has {settings.host_cache} GB for each",
            f"--set kv_cache_tier.capacity_per_gpu={math.ceil(1.1 * room / GIGA)}GB",
        )
    # most requests of one decode step of a data rank, whatever they verify: CUDA graphs reach so far, as the step times
    # have it. SGLang's default follows the GPU's memory alone; larger batches run without graphs and say nothing of it
    batch = -(-settings.max_num_seqs // (settings.data * settings.pipeline))
    engine_values = _common(deployment, pool) | {
        "attention_dp": settings.data > 1 or None,
        # the ranks are kept even, as the simulator has them; by default a prefill engine deals prompts at random
        "ranks_balance": "total_tokens" if settings.data > 1 else None,
        "hierarchical": bool(settings.host_cache) or None,
        "graphs": None if pool.role is Role.PREFILL else batch,
        "role": pool.role.value if hands_over else None,
        "transfer": "nixl" if hands_over else None,
    }
    return _flags(deployment, pool, engine_values)


def trtllm_options(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """All options of one engine that shaped its prediction, as they stand in its YAML file."""
    settings = pool.settings
    if settings.data > 1 and settings.tensor > 1:
        raise InputError(
            f"pool {pool.id}: TensorRT-LLM runs attention data-parallel over all ranks or none, not TP "
            f"{settings.tensor} x DP {settings.data}; plan again with engine: vllm or sglang in the workload"
        )
    if settings.redundant:
        raise InputError(
            f"pool {pool.id}: EP {settings.expert} needs redundant experts ({settings.redundant}), which the files for "
            "TensorRT-LLM cannot ask for; plan again with an EP that divides the experts, or engine: vllm or sglang"
        )
    prefill, seqs = pool.role is Role.PREFILL, settings.max_num_seqs // (settings.data * settings.pipeline)
    transfer = {"backend": "NIXL", "max_tokens_in_buffer": settings.max_model_len}
    engine_values = _common(deployment, pool) | {
        "attention_dp": settings.data > 1,
        # a context server hands over before a next step could overlap, and so does the look-up of n-grams
        "no_overlap": prefill or settings.draft == Draft.NGRAM or None,
        "graphs": None if prefill else {"enable_padding": True, "max_batch_size": seqs},
        "transfer": None if pool.role is Role.COLOCATED else transfer,
        "host_bytes": settings.host_cache * int(GIGA) or None,
    }
    return _stated(deployment, pool, engine_values)


OVERRIDES: Final = "--override-engine-args"
TWICE: Final = {"--kv-block-size": "tokens_per_block", "--free-gpu-memory-fraction": "free_gpu_memory_fraction"}
"""What dynamo.trtllm wants to know of the KV cache beside the JSON."""


def dynamo_trtllm_flags(deployment: Deployment, pool: DeployedPool) -> Flags:
    """The options of TensorRT-LLM as dynamo.trtllm takes them: flags where it has some, and JSON for the rest."""
    options = trtllm_options(deployment, pool)
    cache = options["kv_cache_config"]
    del options["scheduler_config"]  # dynamo.trtllm states the same, as an object that no JSON can be laid over
    flags: Flags = {"--model": deployment.weights, "--served-model-name": deployment.weights}
    flags |= {row.dynamo: options.pop(row.name) for row in _table(deployment) if row.dynamo and row.name in options}
    flags |= {flag: cache[name] for flag, name in TWICE.items()}
    if options.pop("enable_attention_dp"):
        flags["--enable-attention-dp"] = True
    return flags | {OVERRIDES: json.dumps(options, separators=(",", ":"))}


def engine_flags(deployment: Deployment, pool: DeployedPool) -> Flags:
    """All flags, or options of TensorRT-LLM, that shaped an engine's prediction; InputError where it lacks one."""
    trtllm = dynamo_trtllm_flags if deployment.target.workers else trtllm_options
    return {"vllm": vllm_flags, "sglang": sglang_flags, "trtllm": trtllm}[deployment.engine](deployment, pool)


def graph_tokens(seqs: int, verified: int = 1) -> int:
    """Largest step that replays a CUDA graph, as step times have it of every decode batch [token].

    That is vLLM's own default for up to 512 tokens (its `_set_cudagraph_sizes`); steps beyond run without graphs.
    Large sizes are captured every 16 tokens, and rounded up to whole requests, but not beyond the largest. verified:
    tokens of each request [token].

    >>> graph_tokens(24), graph_tokens(300), graph_tokens(1000), graph_tokens(512, 4), graph_tokens(100, 3)
    (48, 512, 1008, 2048, 512)
    """
    tokens, multiple = seqs * verified, math.lcm(16, verified)
    return max(min(2 * tokens, 512), -(-tokens // multiple) * multiple)


def span_words(pool: DeployedPool, head: str, port: Callable[[str], int]) -> list[str]:
    """What an engine of several nodes is told on each: how many they are, or how many data ranks each has.

    head: address of the first; port: its ports by what they are for.
    """
    if pool.settings.data == 1:
        return ["--nnodes", str(pool.nodes), "--master-addr", head, "--master-port", str(port("master"))]
    words = ["--data-parallel-size-local", str(node_ranks(pool)), "--data-parallel-address", head]
    return [*words, "--data-parallel-rpc-port", str(port("data_parallel"))]


def place_words(pool: DeployedPool, rank: int) -> list[str]:
    """Which of its engine's nodes one is; only the first takes requests."""
    if pool.settings.data == 1:
        return ["--node-rank", str(rank)] + ["--headless"] * bool(rank)
    return ["--data-parallel-start-rank", str(rank * node_ranks(pool)), "--headless"] * bool(rank)


def node_ranks(pool: DeployedPool) -> int:
    """Data ranks of an engine on each of its nodes."""
    return pool.node_gpus // (pool.settings.tensor * pool.settings.pipeline)


def connector(deployment: Deployment) -> str:
    """Decode pulls KV blocks, unless a prefill pool is a pipeline, whose stages push them."""
    if all(pool.settings.pipeline == 1 for pool in deployment.of_role(Role.PREFILL)):
        return PULL
    if PUSH not in connectors_of(deployment.engine_version):
        raise InputError(
            f"PP above 1 of a prefill pool needs the {PUSH}, which vLLM {deployment.engine_version} lacks; "
            "choose a later version, or plan with pipeline_parallel: [1]"
        )
    if PUSH not in fact("targets", deployment.target.name).get("connectors", [PUSH]):
        title, version = deployment.target.title, deployment.options.version
        raise UndeployableError(
            f"PP above 1 of a prefill pool needs the {PUSH}, which {title} {version} does not hand over with",
            f"--target {deployment.options.target}",
        )
    return PUSH
