"""The settings of a pool as flags of vLLM and SGLang or options of TensorRT-LLM: a table for each, read both ways.

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
from functools import cache
from typing import Any, Final

from costmodel.engine import Draft, Role
from costmodel.errors import InputError, shown
from costmodel.memory import kv_capacity_bytes
from costmodel.units import GIB, GIGA
from reports.deploy.deployment import fact, off_switch, transfer_facts, version_numbers
from search_spaces.engines import SUPPORT
from search_spaces.enumeration import draft_refused
from search_spaces.models import config_of, is_model
from search_spaces.problem import target_of
from search_spaces.sources import JsonText, json_kind

from .deployment import DeployedPool, Deployment, Device, UndeployableError, WorkerSettings

Words = tuple[tuple[str, str | None], ...]
"""Flags of a command line that was read, each with its value; None for a switch."""
Flags = dict[str, Any]
"""Flags to write, by name in order; True for a switch."""
Counted = dict[str, Any]
"""Values of settings as an engine counts them, and what else it is told, by name; None is not stated."""
BALANCED_DTYPES: Final = ("bf16", "fp8")
"""Dtypes of experts that vLLM's load balancer can copy in every version: the others depend on the kernels chosen."""
TRANSFER: Final = "--kv-transfer-config"
PULL: Final = "NixlConnector"
PUSH: Final = "NixlPushConnector"
KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
BOTH: Final = "MultiConnector"
MODE: Final = "--disaggregation-mode"
DEGREES: Final = {"data": "DP", "pipeline": "PP"}
"""Short names of the degrees of parallelism by which engines count settings."""


def words_of(where: str, text: list[str]) -> Words:
    """Pair up flags and values of a command line.

    >>> words_of("x", ["--tp", "2", "--fast"])
    (('--tp', '2'), ('--fast', None))
    """
    words: list[tuple[str, str | None]] = []
    for word in text:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            words.append((name, value) if equals else (word, None))
        elif words and words[-1][1] is None:
            words[-1] = (words[-1][0], word)
        else:
            raise InputError(f"{where}: {shown(word)} stands where a flag is expected")
    return tuple(words)


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


def json_object(where: str, text: str) -> dict[str, Any]:
    """Read a JSON object, such as the value of --kv-transfer-config."""
    value: dict[str, Any] | object = JsonText(where, text).value()
    if not isinstance(value, dict):
        raise InputError(f"{where}: is {json_kind(value)}, an object is wanted")
    return value


@dataclass(frozen=True, slots=True)
class FlagReader:
    """Values of one worker's flags, with errors that name the place."""

    where: str
    values: Mapping[str, Any]

    def text(self, name: str) -> str:
        """The value of a flag that must be there."""
        value = self.values.get(name)
        if value is None:
            raise InputError(f"{self.where}: {name} is missing, so the engine would choose it itself")
        return str(value)

    def truth(self, name: str) -> bool:
        """An option that is true or false."""
        return self.text(name) == "True"

    def whole(self, name: str) -> int:
        """A whole number above 0."""
        return int(self.number(name, int))

    def number(self, name: str, kind: type[int] | type[float] = float) -> float:
        """A number above 0."""
        text = self.text(name)
        try:
            value = kind(text)
        except ValueError as error:
            raise InputError(f"{self.where}: {name} {shown(text)} is not a number") from error
        if value <= 0:
            raise InputError(f"{self.where}: {name} {text} is not above 0")
        return value

    def must(self, name: str, value: Any) -> None:
        """A setting that the prediction stands on: it must be stated, and with this value; a switch with any."""
        self.text(name)
        file_value = self.values[name]
        if file_value not in [value, str(value)] and not (value is True and name.startswith("-")):
            raise InputError(f"{self.where}: {name} is {file_value}, not {value}")

    def overrides(self, name: str) -> str:
        """What is laid over the checkpoint's config.json, as one line of JSON."""
        return one_line(json_object(f"{self.where}: {name}", self.text(name)))

    def switch(self, name: str) -> bool:
        """A setting that is stated by one of two switches."""
        off = off_switch(name)
        if name in self.values or off in self.values:
            return name in self.values
        raise InputError(f"{self.where}: neither {name} nor {off} is stated")

    def has(self, name: str) -> bool:
        """Whether the flag is there."""
        return name in self.values

    def ranks(self, name: str) -> int:
        """Data ranks of attention; without SGLang's switch the flag asks for as many whole engines."""
        return self.whole(name) if "--enable-dp-attention" in self.values else 1

    def copies(self, name: str) -> int:
        """Second copies of experts that flags ask for; none without the load balancer."""
        return self.whole(name) if "--enable-eplb" in self.values else 0


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, or the path of an option or of a field of what a flag takes as JSON, and what it states.

    setting: what it says of `Counted`; read: how a `FlagReader` reads it, None where it follows from other settings;
    absent: the setting where the flag is not there, `...` where it has to be; spelled: the engine's word for each of
    the plan's, where these differ; per: degrees of parallelism that share the setting, of which an engine is told the
    part of one; times: the degree by which an engine counts more than the plan; more: what it counts beside; value:
    what it always has to be where no setting decides; experts: whether it is for models with experts alone; since,
    before: first version of the engine that takes it, and first that does not, or need not be told; dynamo: the flag in
    which Dynamo takes an option of TensorRT-LLM, which takes the others as JSON.
    """

    name: str
    setting: str = ""
    read: Callable[[FlagReader, str], Any] | None = None
    absent: Any = ...
    spelled: Mapping[str, str] = field(default_factory=dict)
    per: Sequence[str] = ()
    times: str = ""
    more: int = 0
    value: Any = None
    experts: bool = False
    since: str = ""
    before: str = ""
    dynamo: str = ""

    def stated(self, reader: FlagReader) -> Any:
        """The setting that a file states, in the plan's word for it."""
        if self.read is None or (self.absent is not ... and self.name not in reader.values):
            return self.absent
        value = self.read(reader, self.name)
        for word, spelling in self.spelled.items():
            if value == spelling:
                return word
        if self.spelled:
            words = ", ".join(self.spelled.values())
            raise InputError(f"{reader.where}: {self.name} {shown(value)} is none of {words}")
        return value - self.more if self.more else value

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

    def planned(self, where: str, engine_values: Counted) -> Any:
        """The setting of what an engine is told; the inverse of `told`."""
        value = engine_values[self.setting] * math.prod(engine_values[name] for name in self.per)
        if self.times and value % engine_values[self.times]:
            degree = f"{DEGREES[self.times]} {engine_values[self.times]}"
            raise InputError(f"{where}: {self.name} {value} is not a multiple of {degree}")
        return value // engine_values[self.times] if self.times else value


@cache
def table(engine: str, version: str) -> tuple[Flag, ...]:
    """The flags of a version of an engine, in the order in which they are written."""
    rows: dict[str, dict[str, Any]] = fact("flags", engine)
    flags = (
        Flag(**row | {"name": name, "read": getattr(FlagReader, row["read"]) if "read" in row else None})
        for name, row in rows.items()
    )
    number = version_numbers(version)
    return tuple(
        flag
        for flag in flags
        if version_numbers(flag.since) <= number and not (flag.before and number >= version_numbers(flag.before))
    )


def _table(deployment: Deployment) -> tuple[Flag, ...]:
    """The flags of the engine that is deployed; a CPU has precisions and KV blocks of its own, whatever was planned."""
    flags = table(deployment.engine, deployment.engine_version)
    own = fact("vendors", Device.CPU, "flags") if deployment.on_cpu else {}
    return tuple(Flag(flag.name, value=own[flag.name]) if flag.name in own else flag for flag in flags)


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


def _read_flags(deployment: Deployment, reader: FlagReader) -> Counted:
    """What an engine is told, read back; InputError where a flag is missing, or two that state one setting differ."""
    engine_values: Counted = {}
    flags, values, where = _table(deployment), dict(reader.values), reader.where
    for section in sorted({flag.name.rpartition(".")[0] for flag in flags} & set(values)):
        fields = values[section]
        if isinstance(fields, str):
            fields = json_object(f"{where}: {section}", fields)
        values |= {f"{section}.{name}": value for name, value in (fields or {}).items()}
    reader = FlagReader(where, values)
    for flag in flags:
        if not flag.setting:
            reader.must(flag.name, flag.value)
        elif flag.read is not None and (deployment.model.is_moe or not flag.experts):
            value = flag.stated(reader)
            if engine_values.setdefault(flag.setting, value) != value:
                raise InputError(f"{reader.where}: {flag.name} is {value}, not {engine_values[flag.setting]}")
    if "attention_dp" in engine_values:  # which TensorRT-LLM has over all ranks of a stage or none
        engine_values["data"] = engine_values["tensor"] if engine_values.pop("attention_dp") else 1
    counted = {flag.setting: flag.planned(where, engine_values) for flag in flags if flag.per or flag.times}
    return engine_values | counted


def _common(deployment: Deployment, pool: DeployedPool) -> Counted:
    """What all engines are told alike."""
    settings = pool.settings
    return {
        **asdict(settings),
        "weights": deployment.weights,
        "balanced": bool(settings.redundant) or None,
        "redundant": settings.redundant or None,
        "config_overrides": settings.config_overrides or None,
        "exchange": deployment.exchange(pool),
        "host_cache": settings.host_cache or None,
        "state_bits": settings.state_bits or None,
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
    """A switch that is off has a name of its own, and objects are JSON."""
    stated = _stated(deployment, pool, engine_values)
    texts = {name: one_line(value) if isinstance(value, dict) else value for name, value in stated.items()}
    return {off_switch(name) if value is False else name: value is False or value for name, value in texts.items()}


def read_settings(deployment: Deployment, where: str, values: Mapping[str, Any]) -> WorkerSettings:
    """The settings that flags, or options of TensorRT-LLM, state; InputError for one that is missing."""
    engine = deployment.engine
    if engine == "trtllm":
        options = _options_of_dynamo(deployment, where, values) if deployment.target.workers else values
        if unknown := sorted(set(options) - {flag.name.partition(".")[0] for flag in _table(deployment)}):
            raise InputError(
                f"{where}: {unknown[0]} is no option of TensorRT-LLM {deployment.engine_version} that is known"
            )
        engine_values = _read_flags(deployment, FlagReader(where, options))
        engine_values["host_cache"] = engine_values.pop("host_bytes") // int(GIGA)
        absent: Counted = {"expert": 1, "quantization": None, "attention_backend": None}
        return WorkerSettings(**absent | engine_values)
    reader = FlagReader(where, {name: True if value is None else value for name, value in values.items()})
    reader.must("--served-model-name", reader.text("--model" if engine == "vllm" else "--model-path"))
    engine_values = _read_flags(deployment, reader)
    if engine == "sglang":
        return WorkerSettings(**engine_values)
    for flag in table("vllm", deployment.engine_version):  # what a CPU has of its own is as planned
        if flag.read is not None and flag.setting not in engine_values:
            engine_values[flag.setting] = getattr(deployment.pools[0].settings, flag.setting)
    engine_values["expert"] = engine_values["tensor"] * engine_values["data"] if engine_values["expert"] is True else 1
    host_bytes = engine_values.pop("host_gib", 0.0) * GIB
    for tier in _connectors(reader.where, reader.values)[1:]:
        host_bytes += (tier.get("kv_connector_extra_config") or {}).get("cpu_bytes_to_use") or 0
    engine_values["host_cache"] = round(host_bytes / GIGA / engine_values["tensor"] / engine_values["pipeline"])
    return WorkerSettings(**engine_values)


def read_transfer(deployment: Deployment, where: str, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What is said of the hand-over, None where there is none."""
    if deployment.engine == "vllm":
        return next(iter(_connectors(where, values)), None)
    if deployment.engine == "sglang":
        return {"kv_connector": values.get("--disaggregation-transfer-backend")} if MODE in values else None
    transceiver: Mapping[str, Any] | None = values.get("cache_transceiver_config")
    return transceiver


def _connectors(where: str, values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What vLLM is told of its connectors: of the hand-over first, then of the KV cache in host memory."""
    if not values.get(TRANSFER):
        return ()
    transfer = json_object(f"{where}: {TRANSFER}", str(values[TRANSFER]))
    pieces: Sequence[Mapping[str, Any]] = (transfer.get("kv_connector_extra_config") or {}).get("connectors") or ()
    return pieces if transfer.get("kv_connector") == BOTH else (transfer,)


def read_role(deployment: Deployment, where: str, values: Mapping[str, Any]) -> str:
    """The role that flags or options state.

    TensorRT-LLM's generation server has CUDA graphs of decode steps, a context server has none; without a transceiver
    an engine does both.
    """
    transfer = read_transfer(deployment, where, values)
    if MODE in values or transfer is None or deployment.target.workers:
        return str(values.get(MODE) or Role.COLOCATED.value)
    if deployment.engine == "trtllm":
        return Role.DECODE.value if values.get("cuda_graph_config") else Role.PREFILL.value
    return next((role.value for role, name in KV_ROLES.items() if transfer.get("kv_role") == name), "both")


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


def _options_of_dynamo(deployment: Deployment, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that dynamo.trtllm puts together from its flags and the JSON."""
    options = json_object(f"{where}: {OVERRIDES}", values.get(OVERRIDES) or "{}")
    for row in _table(deployment):
        if row.dynamo and row.name in options:
            raise InputError(f"{where}: {row.name} is stated by {row.dynamo} and again in {OVERRIDES}")
        if row.dynamo in values:
            options[row.name] = values[row.dynamo]
    cache = options.get("kv_cache_config") or {}
    for flag, name in TWICE.items():
        if values.get(flag) != str(cache.get(name)):
            raise InputError(f"{where}: {flag} {values.get(flag)} is not {name} of kv_cache_config")
    return options | {
        "enable_attention_dp": "--enable-attention-dp" in values,
        "scheduler_config": fact("flags", "trtllm", "scheduler_config")["value"],
    }


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
    if PUSH not in transfer_facts(deployment.engine_version)["connectors"]:
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
