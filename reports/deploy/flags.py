"""The settings of a pool as flags of vLLM and SGLang or options of TensorRT-LLM, by a table for each.

The tables stand in data/targets.yaml, and say which settings an engine counts its own way: of one data rank, of one of
the steps that are in flight, or for all ranks of a stage. `_setting_values` has all that any table asks for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from costmodel.engine import Draft, Role
from costmodel.errors import InputError
from costmodel.memory import kv_capacity_bytes
from costmodel.units import GIB, GIGA
from search_spaces.engines import SUPPORT
from search_spaces.enumeration import draft_refused
from search_spaces.models import config_of, is_model
from search_spaces.problem import target_of

from .deployment import (
    DeployedPool,
    Deployment,
    Device,
    UndeployableError,
    fact,
    target_facts,
    version_numbers,
)

Flags = dict[str, Any]
"""Flags to write, by name in order; True for a switch."""
Counted = dict[str, Any]
"""Values of settings, and what else engines are told, by name; one that is nothing is not stated, unless it is False.

A function is called only for an engine that is told of it.
"""
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
    that takes it, and first that does not, or need not be told.
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

    def told(self, pool: DeployedPool, value: Any) -> Any:
        """A setting as the engine counts it; InputError where those that share it would not get equal parts."""
        settings, value = pool.settings, self.spelled[value] if self.spelled else value
        for number, name in enumerate(self.per, start=1):
            if value % getattr(settings, name):
                degrees = " x ".join(f"{DEGREES[each]} {getattr(settings, each)}" for each in self.per[:number])
                raise InputError(
                    f"pool {pool.id}: {self.setting} {getattr(settings, self.setting)} is not a multiple of {degrees}, "
                    f"and {self.name} must be the same for each"
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
    rows = deployment.engine_facts["flags"] | {name: {"value": value} for name, value in own.items()}
    flags = (Flag(name, **row) for name, row in rows.items())
    return [
        flag
        for flag in flags
        if version_numbers(flag.since) <= number and not (flag.before and number >= version_numbers(flag.before))
    ]


def takes_overrides(engine: str) -> bool:
    """Whether an engine can be told what shall be laid over the checkpoint's config.json."""
    return any(row.get("setting") == "config_overrides" for row in fact("engines", engine, "flags").values())


def shares_of(deployment: Deployment, setting: str) -> dict[str, int]:
    """What the engines of each pool are told of a setting that their ranks or stages share; empty if all are told all.

    The replica's own value stands in the plan, and the part of one rank in the files.
    """
    per_rank = next((flag for flag in _table(deployment) if flag.setting == setting and flag.per), None)
    whole = {pool.id: getattr(pool.settings, setting) for pool in deployment.pools}
    parts = {pool.id: per_rank.told(pool, whole[pool.id]) for pool in deployment.pools} if per_rank else whole
    return parts if parts != whole else {}


def _engine_values(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """What an engine is told by name, in the table's order; fields of one object are together."""
    settings = _setting_values(deployment, pool)
    values: dict[str, Any] = {}
    for flag in _table(deployment):
        value = settings[flag.setting] if flag.setting else flag.value
        value = value() if callable(value) else value
        is_told = (value or value is False) and (deployment.model.is_moe or not flag.experts)
        engine_value = flag.told(pool, value) if is_told else None
        if engine_value is not None:
            section, _, name = flag.name.rpartition(".")
            (values.setdefault(section, {}) if section else values)[name] = engine_value
    return values


def _setting_values(deployment: Deployment, pool: DeployedPool) -> Counted:
    """What engines may be told of a pool; each is told what its table has."""
    settings, layers, name = pool.settings, deployment.model.layers, deployment.model.name
    hands_over, has_graphs = pool.role is not Role.COLOCATED, pool.role is not Role.PREFILL
    # most requests of one decode step of a data rank, whatever they verify: CUDA graphs reach so far, as the step times
    # have it. SGLang's default follows the GPU's memory alone; larger batches run without graphs and say nothing of it
    requests = -(-settings.max_num_seqs // (settings.data * settings.pipeline))
    tokens = graph_tokens(settings.max_num_seqs // settings.data, settings.verified)
    host_bytes = GIGA * settings.host_cache * settings.tensor * settings.pipeline
    has_own_tier = host_bytes and not hands_over
    kinds = {(group.attention.kept, group.attention.state_bytes > 0.0) for group in layers}
    in_chunks = len(kinds) > 1 and is_model(name) and "attention_chunk_size" in config_of(name)
    return {
        **asdict(settings),
        "weights": deployment.weights,
        "balanced": bool(settings.redundant) or None,
        "spreads_experts": settings.expert > 1,
        "exchange": deployment.exchange(pool),
        "host_bytes": settings.host_cache * int(GIGA),
        "host_gib": round(host_bytes / GIB, 2) if has_own_tier else None,
        "offloading": "native" if has_own_tier else None,
        "hierarchical": bool(settings.host_cache) or None,
        "prompt_tail": (any(group.tail for group in layers) and not pool.config.whole_prompts) or None,
        "attention_dp": settings.data > 1,
        # ranks are kept even, as the simulator has them; by default a prefill engine of SGLang deals prompts at random
        "ranks_balance": "total_tokens" if settings.data > 1 else None,
        "has_graphs": has_graphs or None,
        "graph_requests": requests if has_graphs else None,
        "graph_tokens": tokens if has_graphs and not deployment.on_cpu else None,
        # a context server hands over before a next step could overlap, and so does the look-up of n-grams
        "no_overlap": pool.role is Role.PREFILL or settings.draft == Draft.NGRAM or None,
        "role": pool.role.value if hands_over else None,
        "hands_over": hands_over or None,
        "longest_handover": settings.max_model_len if hands_over else None,
        "connectors": partial(_connectors, deployment, pool, host_bytes),
        # layers of several kinds need a window or a state alone, as the plan has their memory
        "whole_caches": False if hands_over and len(kinds) > 1 and not in_chunks else None,
        "drain": None if deployment.target.workers else deployment.drain_seconds,  # workers do so themselves
        **_drafting(deployment, pool),
    }


def _drafting(deployment: Deployment, pool: DeployedPool) -> Counted:
    """What engines are told of drafted tokens, which are a chain; InputError for an engine that cannot draft them."""
    settings, engine = pool.settings, deployment.engine
    if settings.draft is None:
        return dict.fromkeys(("branches", "ngram", "ngram_branches"))
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


def _check_pool(deployment: Deployment, pool: DeployedPool) -> None:
    """InputError for what an engine cannot be told of a pool."""
    settings, dtype, support = pool.settings, pool.config.weight_dtype, SUPPORT[deployment.engine]
    facts, title = deployment.engine_facts, target_of(deployment.engine).title
    dtypes = facts.get("balances", [dtype]) if support.expert_copies else []
    room = kv_capacity_bytes(deployment.model, pool.config) if facts.get("host_cache_beyond_gpu") else 0.0

    def engines_with(ability: str) -> str:
        able = [name for name, other in SUPPORT.items() if getattr(other, ability) and name != deployment.engine]
        return f"engine: {' or '.join(able)}"

    if settings.data > 1 and settings.tensor > 1 and not support.data_parallel_parts:
        raise InputError(
            f"pool {pool.id}: {title} runs attention data-parallel over all ranks or none, not TP {settings.tensor} x "
            f"DP {settings.data}; plan again with {engines_with('data_parallel_parts')} in the workload"
        )
    if settings.redundant and dtype not in dtypes:
        reason = f"{title} is sure to load in {' and '.join(dtypes)} only, not in {dtype}"
        raise InputError(
            f"pool {pool.id}: EP {settings.expert} needs redundant experts ({settings.redundant}), which "
            f"{reason if dtypes else f'the files for {title} cannot ask for'}; plan again with an EP that divides the "
            f"experts, or {engines_with('expert_copies')}"
        )
    if 0.0 < settings.host_cache * GIGA <= room:
        raise UndeployableError(
            f"pool {pool.id}: {title} wants more KV in host memory than on the GPU, which has {room / GIGA:.0f} GB; "
            f"the plan has {settings.host_cache} GB for each",
            f"--set kv_cache_tier.capacity_per_gpu={math.ceil(1.1 * room / GIGA)}GB",
        )


def _connectors(deployment: Deployment, pool: DeployedPool, host_bytes: float) -> str:
    """Which connector hands KV caches over, and which end of it the pool is, as JSON; empty where none does.

    host_bytes: KV cache in host memory [byte], whose own flags would replace the hand-over.
    """
    if pool.role is Role.COLOCATED:
        return ""
    target, version, role = deployment.target, deployment.options.version, KV_ROLES[pool.role]
    connectors: Counted = {"kv_connector": connector(deployment), "kv_role": role}
    connectors |= {"kv_buffer_device": "cpu" if deployment.on_cpu else "cuda"}
    connectors |= {"kv_connector_extra_config": {"backends": ["UCX"]}}
    if host_bytes and BOTH not in target_facts(target.name).get("connectors", (BOTH,)):
        raise UndeployableError(
            f"a KV cache tier beside a hand-over needs vLLM's {BOTH}, which {target.title} {version} does not take",
            "--target llm-d",
        )
    if host_bytes:
        size = {"cpu_bytes_to_use": round(host_bytes)}
        tier = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": size}
        both = {"connectors": [connectors, tier]}
        connectors = {"kv_connector": BOTH, "kv_role": role, "kv_connector_extra_config": both}
    return json.dumps(connectors, separators=(",", ":"))


def engine_flags(deployment: Deployment, pool: DeployedPool) -> Flags:
    """All flags, or options of an engine that has no flags, that shaped its prediction, in the order of their table.

    A switch that is off has a name of its own, and objects are JSON. InputError for what an engine cannot be told.
    """
    _check_pool(deployment, pool)
    values = _engine_values(deployment, pool)
    if all(name.startswith("--") for name in values):
        texts = {name: one_line(value) if isinstance(value, dict) else value for name, value in values.items()}
        return {  # vLLM 0.33 lists --disable-prefix-caching, and takes --no-enable-prefix-caching as all do
            name.replace("--", "--no-", 1) if value is False else name: value is False or value
            for name, value in texts.items()
        }
    return _worker_flags(deployment, values) if deployment.target.workers else values


def _worker_flags(deployment: Deployment, options: dict[str, Any]) -> Flags:
    """The options of TensorRT-LLM as dynamo.trtllm takes them: flags where it has some, and JSON for the rest."""
    del options["scheduler_config"]  # dynamo.trtllm states the same, as an object that no JSON can be laid over
    flags: Flags = {"--model": deployment.weights, "--served-model-name": deployment.weights}
    for flag, name in deployment.engine_facts["worker_flags"].items():
        section, _, option = name.rpartition(".")
        flags[flag] = options[section][option] if section else options.pop(option, None)
    flags["--override-engine-args"] = json.dumps(options, separators=(",", ":"))
    return {flag: value for flag, value in flags.items() if value}


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


def node_flags(
    deployment: Deployment, pool: DeployedPool, port: Callable[[str], int], *, head: str, rank: object, first: object
) -> Flags:
    """What an engine of several nodes is told on each: how many they are, where the first is, which one it is.

    port: its ports by what they are for; head: address of the first; rank: number of the node; first: data rank that
    comes first on it.
    """
    if pool.nodes == 1:
        return {}
    facts = deployment.engine_facts
    texts = facts.get("rank_nodes" if pool.settings.data > 1 else "nodes", facts["nodes"])
    values = {"nodes": pool.nodes, "ranks": node_ranks(pool), "head": head, "rank": rank, "first": first}
    values |= {use: port(use) for use in fact("ports")}
    flags = texts["all"] | texts["later"] if rank else texts["all"]
    return {name: text if text is True else text.format(**values) for name, text in flags.items()}


def node_ranks(pool: DeployedPool) -> int:
    """Data ranks of an engine on each of its nodes."""
    return pool.node_gpus // (pool.settings.tensor * pool.settings.pipeline)


def connector(deployment: Deployment) -> str:
    """Decode pulls KV blocks, unless a prefill pool is a pipeline, whose stages push them.

    An engine whose flags name no connectors has one of NIXL for both.
    """
    push_since = deployment.engine_facts.get("push_since")
    if push_since is None:
        return "NIXL"
    if all(pool.settings.pipeline == 1 for pool in deployment.of_role(Role.PREFILL)):
        return PULL
    if version_numbers(deployment.engine_version) < version_numbers(push_since):
        title = target_of(deployment.engine).title
        raise InputError(
            f"PP above 1 of a prefill pool needs the {PUSH}, which {title} {deployment.engine_version} lacks; "
            "choose a later version, or plan with pipeline_parallel: [1]"
        )
    if PUSH not in target_facts(deployment.target.name).get("connectors", [PUSH]):
        title, version = deployment.target.title, deployment.options.version
        raise UndeployableError(
            f"PP above 1 of a prefill pool needs the {PUSH}, which {title} {version} does not hand over with",
            f"--target {deployment.options.target}",
        )
    return PUSH
