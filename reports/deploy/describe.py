"""From a plan to a `Deployment`: every engine with the settings that were evaluated."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.engine import Draft, EngineConfig, Role
from costmodel.engine_arrays import engine_arrays
from costmodel.errors import InputError, UnknownNameError, name_list, shown
from costmodel.estimate import prompt_seconds
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from costmodel.metric import limits_of
from costmodel.prefix_cache import Reuse
from costmodel.units import GIGA
from costmodel.workload import Workload
from optimizer.fleets.build_plan import fleet_of_plan, planned_volume, problem_of_plan
from optimizer.fleets.evaluate import evaluate, holds_at, replicas_at
from optimizer.fleets.fleet import Fleet, largest_load
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan, Pool, Status
from reports.question import arrivals, engine_title, slo_classes
from reports.text import is_number
from search_spaces.engines import ENGINES, load_serving_policy
from search_spaces.enumeration import Shape, block_tokens, engine_config
from search_spaces.hf_config import ContextScaling, check_limits, context_scaling, rope_parameters
from search_spaces.models import CONFIG_FILE, known_names, load_model, read_config, served_checkpoint
from search_spaces.problem import TARGETS, Problem, target_of, whole_limit

from .deployment import (
    TEMPLATE_TOKENS,
    DeployedPool,
    Deployment,
    Device,
    GatewayRouting,
    LabelledSlo,
    NamelessDraftError,
    NamelessWeightsError,
    Options,
    PlannedWorkload,
    Scaling,
    UndeployableError,
    WorkerSettings,
    engine_version,
    fact,
    told_apart,
)
from .flags import one_line, takes_overrides

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+")
_TAKEN: Final = frozenset(("frontend", "planner", "router", "localrouter", "globalrouter", "benchmark"))
"""Names that other parts of a deployment have."""
LONGEST: Final = 20
"""Characters of the name of a deployment, a pool or a class."""
NAME: Final = re.compile(rf"[a-z]([-a-z0-9]{{0,{LONGEST - 2}}}[a-z0-9])?")
"""What may name a deployment, or the files of a class."""
ALIKE: Final = 0.05
"""Largest difference [1] between the shares that a pool takes of two buckets for pools to count as sharing alike."""


def describe(plan: Plan, options: Options, base: Path | None = None) -> Deployment:
    """What is deployed for a plan; InputError for a plan without a fleet, or one that the target cannot run.

    base: folder from which files that the plan's problem names are looked up.
    """
    if not plan.pools:
        raise InputError(
            f"the plan {shown(plan.name)} has no fleet (its status is {plan.status}), so nothing can be deployed"
        )
    version = engine_version(options.target, options.version, plan.engine)
    if version is None:
        engine = target_of(options.target).engines[0]
        reason = f"the plan was evaluated for {engine_title(plan.engine)}, which target {options.target} does not run"
        raise UndeployableError(reason, f"--target {options.target} --set engine={engine}")
    _check_options(plan, options)
    problem = problem_of_plan(plan, base)
    if problem.kv_cache_tier is not None and problem.kv_cache_tier.shared:
        raise UndeployableError(
            "the replicas of the plan share a KV cache tier, which takes a service of its own (a Mooncake store, an "
            "LMCache server) that these files do not start",
            "--set kv_cache_tier.shared=false",
        )
    ids = [pool.id for pool in plan.pools]
    names = dict(zip(ids, usable_names(ids, "pool"), strict=True))
    demand, least = demand_of(plan, problem=problem), [pool.replicas for pool in plan.pools]
    scaling: list[Scaling | None] = [None] * len(plan.pools)
    if target_of(options.target).scales and demand.quietest < 1.0:  # by formula, and spares
        instance, fleet = fleet_of_plan(plan, base)
        spares = [pool.spare_replicas for pool in plan.pools]
        fewest = replicas_at(instance, fleet, demand.quietest).tolist()
        enough = [pool.replicas for pool in fleet.pools]  # at the planned rate: a plan has no more than that
        if plan.status is Status.STATED:
            enough = replicas_at(instance, fleet, 1.0).tolist()
        least = [count + spare for count, spare in zip(fewest, spares, strict=True)]
        scaling = [_scaling(instance, fleet, k, fewest[k], enough[k], spare=spares[k]) for k in range(len(spares))]
    deployment = Deployment(
        name=object_name(plan.name),
        title=plan.name,
        plan_sha=plan.provenance.inputs_sha256,
        weights=weights_name(plan, problem, options),
        engine=plan.engine,
        engine_version=version,
        options=options,
        pools=tuple(
            _pool(plan, problem, pool, options, name=names[pool.id], least=fewest, scaling=rule)
            for pool, fewest, rule in zip(plan.pools, least, scaling, strict=True)
        ),
        routing=routing_of(plan),
        balancing=problem.constraints.balancing_of([Role(pool.role) for pool in plan.pools]),
        routes=tuple(plan.routing),
        demand=demand,
        capacity=plan.goodput_rps if is_number(plan.goodput_rps) and plan.goodput_rps > 0.0 else math.inf,
        limits=tightest(plan),
        classes=classes_of(plan),
        own_context=problem.model.max_position,
        model=problem.model,
        overhead=load_serving_policy(problem.engine, problem.engine_changes).overhead,
    )
    return with_context(deployment, plan, base)


def _check_options(plan: Plan, options: Options) -> None:
    """Refuse what would be no name where it goes, or would go nowhere."""
    for flag, text, shape in (
        ("--namespace", options.namespace, _LABEL),
        ("--rdma", options.rdma, _RESOURCE),
        ("--claim", options.claim, _LABEL),
    ):
        if text is not None and shape.fullmatch(text) is None:
            raise InputError(f"{flag} {shown(text)} is not of the form {shape.pattern}")
    if options.image is not None:
        _printable(options.image, "--image")
    least, most = fact("gateway", "limits")
    if options.bytes_per_token is not None and not least <= options.bytes_per_token <= most:
        raise InputError(f"--bytes-per-token {options.bytes_per_token:g} is not between {least:g} and {most:g}")
    if options.device is Device.CPU:
        _check_cpu(plan, options)
    used = {pool.accelerator for pool in plan.pools}
    for name, label in options.labels.items():
        if name not in used:
            raise InputError(
                f"--label {shown(name)}: no pool of the plan has this accelerator; they have {name_list(sorted(used))}"
            )
        _printable(label, f"--label {name}")


def _check_cpu(plan: Plan, options: Options) -> None:
    """Refuse what vLLM's build for CPUs, which computes in 32 bit, does not run."""
    if not target_of(options.target).cpu:
        able = " or ".join(target.name for target in TARGETS if target.cpu)
        raise InputError(f"--device cpu is for --target {able}, not for {options.target}")
    for pool in plan.pools:
        for label, dtype in (("weights", pool.weight_dtype), ("KV cache", pool.kv_dtype)):
            if dtype != "bf16":
                raise InputError(f"--device cpu: pool {pool.id} has {label} in {dtype}; plan with 16 bit for both")


def object_name(title: str) -> str:
    """Name of a deployment's objects, from that of its plan; a long one loses what stands before its last word.

    >>> object_name("chat"), object_name("Chat fleet 2"), object_name("a-name-of-20-letters fleet 2"), object_name("10")
    ('chat', 'chat-fleet-2', 'a-name-of-20-lette-2', 'pdplan')
    """
    words = re.findall(r"[a-z0-9]+", title.lower())
    name, ending = "-".join(words), "-".join(["", *words[1:][-1:]])
    if len(name) > LONGEST:
        name = name[: LONGEST - len(ending)].rstrip("-") + ending
    return name if NAME.fullmatch(name) else "pdplan"


def usable_names(ids: Sequence[str], stem: str) -> list[str]:
    """Names for files and Kubernetes objects, one for each id: the id itself where it can be one, else a numbered stem.

    >>> usable_names(["prefill-1", "../x", "p 2"], "pool")
    ['prefill-1', 'pool-2', 'pool-3']
    """
    used_names = {name for name in ids if NAME.fullmatch(name) and name not in _TAKEN}
    names = []
    for number, name in enumerate(ids, start=1):
        free = (f"{stem}-{count}" for count in itertools.count(number, len(ids)) if f"{stem}-{count}" not in used_names)
        names.append(name if name in used_names else next(free))
        used_names.add(names[-1])
    return names


def weights_name(plan: Plan, problem: Problem, options: Options) -> str:
    """Name or path of the weights that engines load: the user's, or the checkpoint that the plan's model means."""
    native = problem.model.native_weight_dtype
    if options.model is not None:
        return _findable(options.model, "--model")
    for dtype in sorted({pool.weight_dtype for pool in plan.pools} - {native}):
        if native != "bf16" or dtype not in fact("engines", plan.engine).get("converts", ()):
            raise NamelessWeightsError(
                f"the plan assumes {dtype} weights, but {plan.model} is published in {native} and "
                f"{engine_title(plan.engine)} does not convert it while loading; name a "
                f"checkpoint in {dtype} with --model"
            )
    model_input = plan.provenance.inputs.get("model") or {}
    config, architecture = model_input.get("config"), model_input.get("architecture")
    name = str(model_input.get("name") or problem.model.name)
    described = f"the plan's model is described by {architecture or config}; name its checkpoint"
    if architecture:
        raise NamelessWeightsError(f"{described} with --model")
    if config and not Path(config).is_absolute():
        raise NamelessWeightsError(f"{described} or its whole path with --model")
    checkpoint = name if "/" in name else served_checkpoint(name)
    if config:
        checkpoint = str(Path(config).parent) if Path(config).suffix == ".json" else str(config)
    if checkpoint is None:
        raise NamelessWeightsError(f"no published checkpoint of {name} is known; name one, or its folder, with --model")
    return _findable(checkpoint, "the model's name")


def _findable(text: str, label: str) -> str:
    """An id of Hugging Face, or a folder that is the same wherever a program runs."""
    if text.startswith((".", "~")):
        raise InputError(
            f"{label} {shown(text)} is relative to a folder that servers do not have; name the whole path, or an id"
        )
    if text.startswith("/") and (":" in text or ".." in text.split("/") or not text.strip("/")):
        raise InputError(f"{label} {shown(text)} is the root, has a colon or steps up; pods mount no such folder")
    return _printable(text, label)


def _printable(text: str, label: str) -> str:
    if not text.strip() or not text.isprintable():
        raise InputError(f"{label} {shown(text)} is empty or has characters that cannot be printed")
    if text.startswith("-"):
        raise InputError(f"{label} {shown(text)} begins with a dash, so that programs would take it for a flag")
    return text


def routing_of(plan: Plan) -> GatewayRouting:
    """How requests find their pools."""
    roles = [pool.role for pool in plan.pools]
    if "colocated" in roles and len(set(roles)) > 1:
        return GatewayRouting.BOTH_KINDS
    if all(roles.count(role) == 1 for role in set(roles)):
        return GatewayRouting.ONE_WAY
    routes = [route for route in plan.routing if route.share > 0]
    shares = [
        [fractions.get(pool.id, 0.0) for fractions in stage]
        for pool in plan.pools
        for stage in ([route.prefill for route in routes], [route.decode for route in routes])
    ]
    alike = all(max(pool_shares) - min(pool_shares) <= ALIKE for pool_shares in shares if pool_shares)
    return GatewayRouting.BY_LOAD if alike and "colocated" not in roles else GatewayRouting.BY_LENGTH


def _scaling(instance: Instance, fleet: Fleet, index: int, low: int, enough: int, *, spare: int) -> Scaling | None:
    """When a pool needs another replica, through two points: the most that `low` serve, and one fewer than `enough`.

    Small pools serve less per replica. With r(n) the highest rate that n replicas serve within the SLO, those of the
    other pools unchanged, and s spares: rate = (r(high) - r(low)) / (high - low), offset = (low + s) rate - r(low).
    """
    high = max(enough - 1, low)
    if low == fleet.pools[index].replicas:
        return None

    def volume_of(replicas: int) -> tuple[Fleet, float]:
        counts = [replicas if k == index else pool.replicas for k, pool in enumerate(fleet.pools)]
        smaller = fleet.resized(counts)
        return smaller, largest_load(lambda volume: holds_at(instance, smaller, volume), most=replicas / high)

    smaller, volume = volume_of(high)
    state = evaluate(instance, smaller, volume).states[index]
    most = float(state.rate.sum())
    fewest = min(volume_of(low)[1] / volume, low / high) * most
    rate = (most - fewest) / (high - low) if high > low else most / high
    prompts = (
        0.0 if state.wait is None else most * state.wait.chance * state.wait.mean + float(state.rate @ state.latency)
    )
    return Scaling(rate, max((low + spare) * rate - fewest, 0.0), state.running + prompts / high)


def _pool(
    plan: Plan, problem: Problem, pool: Pool, options: Options, *, name: str, least: int, scaling: Scaling | None
) -> DeployedPool:
    names = [offer.accelerator.name for offer in problem.offers]
    if pool.accelerator not in names:
        raise InputError(f"pool {pool.id}: {pool.accelerator} is not among the accelerators of the plan's own problem")
    offer = names.index(pool.accelerator)
    shape = Shape(offer, pool.parallelism, pool.weight_dtype, pool.kv_dtype, pool.speculative_tokens)
    config = engine_config(problem, shape, Role(pool.role), pool.max_num_seqs, pool.max_num_batched_tokens)
    config = replace(config, max_model_len=pool.max_model_len, memory_fraction=pool.memory_fraction)
    vendor = Device.CPU if options.device is Device.CPU else config.accelerator.vendor
    rate = 0.0  # at which an engine prefills in full chunks, on all of its ranks [token/s]
    if config.role is not Role.DECODE:
        overhead = load_serving_policy(problem.engine, problem.engine_changes).overhead
        engines = engine_arrays(problem.model, [config], overhead)
        chunk = float(min(config.max_num_batched_tokens // config.parallelism.data, config.max_model_len))
        rate = chunk / prompt_seconds(problem.model, config, engines, chunk)
    return DeployedPool(
        id=pool.id,
        name=name,
        vendor=vendor,
        node_label=options.labels.get(pool.accelerator, config.accelerator.node_label),
        replicas=pool.replicas,
        settings=_settings(plan, problem, config, options, vendor),
        prompt_rate=rate,
        least=least,
        scaling=scaling,
        config=config,
    )


def _settings(plan: Plan, problem: Problem, config: EngineConfig, options: Options, vendor: str) -> WorkerSettings:
    model, split, on_cpu = problem.model, config.parallelism, vendor == Device.CPU
    block = fact("vendors", vendor, "block_tokens") if on_cpu else block_tokens(plan.engine, model)
    tier, has_tier = problem.kv_cache_tier, config.role is not Role.DECODE and not on_cpu
    # a checkpoint that the user names and the catalog does not know is taken to be stored in the planned dtype
    stored_dtype = model.native_weight_dtype
    if options.model is not None:
        stored_dtype = (
            load_model(options.model).native_weight_dtype if _is_known(options.model) else config.weight_dtype
        )
    converts = stored_dtype == "bf16" and config.weight_dtype in fact("engines", plan.engine).get("converts", ())
    # requests that engines accept: the workload's longest, with room for a template, in whole KV blocks, and no more
    # than the model was made for, or than the KV memory holds of one request
    longest, free = config.max_model_len, kv_capacity_bytes(model, config)
    wanted_length = min(-(-(longest + TEMPLATE_TOKENS) // block) * block, model.max_position)
    lengths = range(wanted_length, longest, -block)
    fitting = (length for length in lengths if kv_bytes_peak_per_gpu(model, config, float(length)) <= free)
    return WorkerSettings(
        **asdict(split),
        quantization=config.weight_dtype if converts else None,
        kv_dtype=config.kv_dtype,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=next(fitting, longest),
        memory_fraction=config.memory_fraction,
        block_tokens=block,
        prefix_caching=plan.workload.prefix_hit_share > 0.0,
        attention_backend=_attention_backend(plan, problem, vendor, config.kv_dtype),
        redundant=model.redundant_experts(split.expert),
        state_bits=model.state_bits,
        host_cache=max(int(tier.capacity / GIGA), 1) if tier is not None and has_tier else 0,
        **_drafts(plan, config, options),
    )


def _drafts(plan: Plan, config: EngineConfig, options: Options) -> dict[str, Any]:
    """The settings of an engine that drafts tokens; none of one that does not."""
    speculation = config.speculation
    if speculation is None:
        return {}
    weights = plan.provenance.inputs["model"]["speculation"].get("draft_model")
    if speculation.draft is Draft.EAGLE3:
        if weights is None:
            raise NamelessDraftError(
                "the plan drafts tokens by eagle3, but nothing says with which weights; state "
                "model.speculation.draft_model in the workload, a Hugging Face id or a folder, and plan again"
            )
        inside = options.model is not None and weights.startswith(f"{options.model}/")
        if _findable(weights, "draft_model").startswith("/") and not inside:
            raise InputError(
                f"draft_model {shown(weights)} is not below the folder of --model, which is all that pods and "
                "containers mount; put it there, or name a Hugging Face id"
            )
    return {
        "draft": speculation.draft.value,
        "draft_model": weights,
        "speculative_tokens": speculation.tokens,
    }


def _is_known(checkpoint: str) -> bool:
    return checkpoint.lower() in {name.lower() for name in known_names()}


def _attention_backend(plan: Plan, problem: Problem, vendor: str, kv_dtype: str) -> str | None:
    """One kernel for all where GPUs that hand over are of several generations, for which engines choose different ones.

    None: the engine chooses.
    """
    kernels = fact("engines", plan.engine).get("attention", {}).get(vendor)
    model, hands_over = problem.model, any(pool.role == "prefill" for pool in plan.pools)
    gpus = sorted({pool.accelerator for pool in plan.pools})
    used = [offer.accelerator for offer in problem.offers if offer.accelerator.name in gpus]
    if not hands_over or len({gpu.generation or gpu.name for gpu in used}) == 1 or kernels is None:
        return None
    if model.is_latent and kv_dtype not in kernels["latent_kv"]:
        raise InputError(
            f"no attention kernel of {engine_title(plan.engine)} runs latent attention with {kv_dtype} KV on all of "
            f"{', '.join(gpus)}; plan with kv_dtype: bf16, or with one accelerator"
        )
    return str(kernels["latent" if model.is_latent else "plain"])


def tightest(plan: Plan) -> LabelledSlo:
    """The tightest limits of all classes.

    Where a class limits whole requests, its first token may take all of that, and so may the later tokens of a request
    of mean length together.
    """
    osl = plan.workload.mean_osl
    wholes = [(slo, float(whole_limit(slo.limits, osl))) for slo in slo_classes(plan)]
    ttft = min(min(slo.ttft, whole) for slo, whole in wholes)
    tpot = min(min(slo.tpot, whole / max(osl - 1.0, 1.0)) for slo, whole in wholes)
    return LabelledSlo("", limits_of(ttft=ttft, tpot=tpot), min(slo.attainment for slo, _ in wholes))


def classes_of(plan: Plan) -> tuple[LabelledSlo, ...]:
    """Every class, and what its files are called by; all together where no route tells them apart."""
    slos = slo_classes(plan)
    if len(slos) > 1 and not told_apart(plan):
        return (tightest(plan),)
    labels = usable_names([slo.name for slo in slos], "class") if told_apart(plan) else [""]
    return tuple(
        LabelledSlo(slo.name, slo.limits, slo.attainment, slo.share, label)
        for slo, label in zip(slos, labels, strict=True)
    )


def demand_of(plan: Plan, slo_class: str | None = None, problem: Problem | None = None) -> PlannedWorkload:
    """The workload at the planned volume; slo_class: only its requests; problem: for what the plan does not repeat."""
    load, rate = plan.workload, plan.workload.request_rate_rps * planned_volume(plan)
    names = [slo.name for slo in plan.classes]
    if slo_class is not None and slo_class not in names:
        raise UnknownNameError("--slo-class", slo_class, names)
    isl, osl, share, numbers = load.isl, load.osl, load.share, []
    if told_apart(plan):
        routes = [route for route in plan.routing if slo_class in {None, route.slo_class}]
        isl, osl, share = ([getattr(route, name) for route in routes] for name in ("isl", "osl", "share"))
        numbers = [names.index(route.slo_class) for route in routes]
        rate *= 1.0 if slo_class is None else sum(share)
    weights, cache = np.array(share), plan.prefix_cache
    return PlannedWorkload(
        np.array(isl),
        np.array(osl),
        weights / weights.sum(),
        request_rate=rate,
        burstiness=load.burstiness,
        prefix_hit_share=load.prefix_hit_share if cache is None else cache.sustained,
        reuse=None if problem is None else _reuse_of(plan, problem.workload, list(zip(isl, osl, strict=True))),
        seed=plan.provenance.seed,
        keeps=math.inf if cache is None else cache.keeps_s,
        slo_class=tuple(numbers),
        recorded=None if problem is None else problem.recorded,
        sessions=None if problem is None else problem.workload.sessions,
        quietest=min(min(arrivals(plan), default=math.inf) / load.request_rate_rps, 1.0),
    )


def _reuse_of(plan: Plan, load: Workload, lengths: Sequence[tuple[float, float]]) -> Reuse | None:
    """The reuse of prefixes by requests of these lengths; from one to the next is the pause and a median request."""
    if load.reuse is None:
        return None
    history = dict(zip(zip(load.isl, load.osl, strict=True), load.reuse.history, strict=True))
    seconds = [item.ttft_s.p50 + load.mean_osl * item.tpot_s.p50 for item in plan.classes]
    pause = load.reuse.pause.later(sum(seconds) / len(seconds))
    return replace(load.reuse, history=np.array([history[each] for each in lengths]), pause=pause)


def with_context(deployment: Deployment, plan: Plan, base: Path | None = None) -> Deployment:
    """The deployment with every engine told how far positions reach, where requests need that.

    base: folder from which files that the plan's problem names are looked up. Raises InputError where an engine cannot
    go so far.
    """
    described = (plan.provenance.inputs.get("model") or {}).get("config")
    if not described:  # a model of the catalog
        return deployment
    path = (base or Path()) / Path(str(described)).expanduser()
    path = path / CONFIG_FILE if path.is_dir() else path
    config = read_config(path, str(path))
    scaling = context_scaling(config, path.name)
    if scaling is None:
        return deployment
    own_file = deployment.options.model is None and path.name == CONFIG_FILE
    own = _own_context(scaling, deployment, config, own_file=own_file)
    longest = max(pool.settings.max_model_len for pool in deployment.pools)
    deployment = replace(deployment, own_context=own)
    if longest <= own:
        return deployment
    able = [name for name in ENGINES if takes_overrides(name)]
    if plan.engine not in able:
        raise InputError(
            f"requests of {longest} tokens need the rotary scaling of the model's config.json, which "
            f"{engine_title(plan.engine)} cannot be relied on to apply beyond {own} tokens; plan with engine: "
            f"{' or '.join(able)}"
        )
    check_limits(config, path.name, longest)
    rope = {} if own_file else rope_parameters(config, path.name)
    overrides: dict[str, Any] = {"rope_parameters": rope} if rope else {}
    if not scaling.multiplies:
        overrides["max_position_embeddings"] = scaling.length
    text = one_line({scaling.section: overrides} if overrides and scaling.section else overrides)
    pools = (replace(pool, settings=replace(pool.settings, config_overrides=text)) for pool in deployment.pools)
    return replace(deployment, pools=tuple(pools))


def _own_context(scaling: ContextScaling, deployment: Deployment, config: Mapping[str, Any], *, own_file: bool) -> int:
    """Longest request that engines surely take by the config.json of the weights that they load [token].

    own_file: whether they load the described file. Else a checkpoint that nobody knows is taken to lack the scaling.
    An engine that cannot be told another config (TensorRT-LLM) needs no telling where the file states the extended
    length, if it knows how to scale the model.
    """
    checkpoint, overrides = deployment.options.model, takes_overrides(deployment.engine)
    if checkpoint is not None and _is_known(checkpoint):
        return load_model(checkpoint).max_position
    if own_file and overrides:
        return scaling.length if scaling.multiplies else scaling.stated
    family = config.get(scaling.section or "", config).get("model_type")
    able = not overrides and family not in deployment.engine_facts.get("passes_over_yarn", ())
    return scaling.stated if able or scaling.length > scaling.stated else scaling.trained
