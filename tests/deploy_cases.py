"""Plans for the tests of deployment files: built from a few numbers, and random ones."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hypothesis import assume
from hypothesis import strategies as st

from costmodel.engine import Parallelism
from costmodel.metric import Metric
from optimizer.plans.plan import MetricResult, Plan, parse_plan
from optimizer.plans.records import Quantiles
from reports.deploy.deployment import Deployment, Device, Options, checked_version
from reports.deploy.describe import describe
from reports.deploy.files import deployment_files
from search_spaces.enumeration import degree_refusals, memory_refused
from search_spaces.models import load_model
from search_spaces.problem import TARGETS, length_routers

ENGINES = {target.name: target.engines[0] for target in TARGETS}
"""The engine that each target is tried with."""
TEMPLATE = json.loads((Path(__file__).parent / "plans" / "disaggregated.json").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Case:
    """One pool in short."""

    role: str
    gpu: str = "H100"
    replicas: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    seqs: int = 64
    tokens: int = 2048
    length: int = 8192
    memory: float = 0.9
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What all pools share."""

    model: str = "Llama-3.1-8B"
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    engine: str = "vllm"
    prefix: float = 0.0
    title: str = "case"
    draft: str = ""
    drafted: int = 0
    draft_model: str | None = None
    tier: str = ""
    shared: bool = False


PAIR = (
    Case("prefill", "H100", replicas=2, tp=2, seqs=8, tokens=8192),
    Case("decode", "H200", replicas=1, tp=2, seqs=128, tokens=512),
)
"""Two GPU types, and a hand-over between them."""


def plan_of(pools: tuple[Case, ...] = PAIR, ask: Ask | None = None) -> Plan:
    """A plan with these pools, which share every kind of request alike."""
    ask = ask or Ask()
    text: dict[str, Any] = json.loads(json.dumps(TEMPLATE))
    ids = [case.name or f"{case.role}-{number}" for number, case in enumerate(pools, start=1)]
    text |= {"name": ask.title, "model": ask.model, "engine": ask.engine, "transfers": []}
    text["pools"] = [_pool(case, name, ask) for case, name in zip(pools, ids, strict=True)]
    text["gpus"] = {}
    for pool in text["pools"]:
        text["gpus"][pool["accelerator"]] = text["gpus"].get(pool["accelerator"], 0) + pool["gpus"]
    text["provenance"]["inputs"] = _inputs(pools, ask)
    text["workload"] |= {
        "prefix_hit_share": ask.prefix,
        "isl": [512.0, 2048.0],
        "osl": [64.0, 256.0],
        "share": [0.5, 0.5],
    }
    prefill = [name for case, name in zip(pools, ids, strict=True) if case.role != "decode"]
    decode = [name for case, name in zip(pools, ids, strict=True) if case.role != "prefill"]
    text["routing"] = [
        {
            "slo_class": "default",
            "isl": isl,
            "osl": osl,
            "share": 0.5,
            "prefill": {name: 1.0 / len(prefill) for name in prefill},
            "decode": {name: 1.0 / len(decode) for name in decode},
            "attainment": 1.0,
        }
        for isl, osl in ((512.0, 64.0), (2048.0, 256.0))
    ]
    return parse_plan(json.dumps(text).encode())


DEGREES = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "expert_parallel": "ep", "data_parallel": "dp"}
"""Keys of a search space, as small as the engines of a plan allow, and fields of a case."""


def _pool(case: Case, name: str, ask: Ask) -> dict[str, Any]:
    return {
        **TEMPLATE["pools"][0],
        "id": name,
        "role": case.role,
        "accelerator": case.gpu,
        "replicas": case.replicas,
        "spare_replicas": 0,
        **{degree: getattr(case, short) for degree, short in DEGREES.items()},
        "gpus": case.replicas * case.tp * case.pp * case.dp,
        "weight_dtype": ask.weight_dtype,
        "kv_dtype": ask.kv_dtype,
        "max_num_seqs": case.seqs,
        "max_num_batched_tokens": case.tokens,
        "max_model_len": case.length,
        "memory_fraction": case.memory,
        "speculative_tokens": ask.drafted,
    }


def _inputs(pools: tuple[Case, ...], ask: Ask) -> dict[str, Any]:
    model: dict[str, Any] = {"name": ask.model, "weight_dtype": ask.weight_dtype, "kv_dtype": ask.kv_dtype}
    if ask.draft:
        weights = {"draft_model": ask.draft_model} if ask.draft_model else {}
        model["speculation"] = {"method": ask.draft, "acceptance": [0.8, 0.6], **weights}
    tier = {"capacity_per_gpu": ask.tier, "bandwidth": "50GB/s", "shared": ask.shared}
    return {
        "schema": "pdplan.workload/1",
        "name": "case",
        "model": model,
        "workload": {
            "request_rate": 4.0,
            "prefix_hit_share": ask.prefix,
            **({"reuse_interval": "5min"} if ask.tier else {}),
            "max_tokens": max(case.length for case in pools),
            "lengths": {
                "histogram": [{"isl": 512.0, "osl": 64.0, "share": 0.5}, {"isl": 2048.0, "osl": 256.0, "share": 0.5}]
            },
        },
        "slo": {"name": "default", "ttft": "2s", "tpot": "50ms", "attainment": 0.9},
        "accelerators": sorted({case.gpu for case in pools}),
        "engine": ask.engine,
        "search": {name: sorted({1, *(getattr(case, short) for case in pools)}) for name, short in DEGREES.items()},
        **({"kv_cache_tier": tier} if ask.tier else {}),
    }


def options(target: str, version: str | None = None, **more: Any) -> Options:
    return Options(target, checked_version(target, version), **more)


def deployment_of(plan: Plan, target: str, version: str | None = None, **more: Any) -> Deployment:
    return describe(plan, options(target, version, **more))


MODELS = (("Llama-3.1-8B", "bf16"), ("Llama-3.1-70B", "fp8"), ("Qwen3-30B-A3B", "bf16"), ("DeepSeek-V3", "fp8"))


@st.composite
def plans(draw: st.DrawFn, engine: str, target: str) -> Plan:
    """Random plans that the search could have found: engines that fit, pairs that can talk, mixed GPU types."""
    model, weights = draw(st.sampled_from(MODELS))
    if engine == "trtllm":
        weights = load_model(model).native_weight_dtype
    kv = draw(st.sampled_from(["bf16", "fp8"]))
    ask = Ask(
        model, weights, kv, engine, draw(st.sampled_from([0.0, 0.35])), draw(st.sampled_from(["case", "two words"]))
    )
    length = draw(st.sampled_from([4096, 8192, 32768]))
    roles = draw(st.sampled_from([("prefill", "decode"), ("colocated",)]))
    most = 2 if target in length_routers(roles) or "prefill" in roles else 1  # pools of one role
    counts = {role: draw(st.integers(1, most)) for role in roles}
    pools = tuple(draw(_pools(ask, role, length)) for role in roles for _ in range(counts[role]))
    if all(case.pp == 1 for case in pools) and draw(st.booleans()):
        ask = replace(ask, draft="mtp", drafted=draw(st.integers(1, 3)))
    assume(_can_run(pools, ask))
    return plan_of(pools, ask)


@st.composite
def _pools(draw: st.DrawFn, ask: Ask, role: str, length: int) -> Case:
    moe = load_model(ask.model).is_moe
    big = ask.model in {"DeepSeek-V3", "Llama-3.1-70B"}
    spread = moe and draw(st.booleans())
    data = draw(st.sampled_from([8, 16] if ask.model == "DeepSeek-V3" else [2, 4, 8])) if spread else 1
    tp = 1 if spread else draw(st.sampled_from([8] if ask.model == "DeepSeek-V3" else [2, 4, 8] if big else [1, 2, 4]))
    pp = draw(st.sampled_from([1, 1, 2])) if role != "decode" and not spread and not moe else 1
    seqs = data * pp * draw(st.sampled_from([1, 2, 8, 24, 64]))
    gpus = ["H200", "B200"] if ask.model == "DeepSeek-V3" else ["H100", "H200", "B200", "A100-80"]
    return Case(
        role=role,
        gpu=draw(st.sampled_from(gpus)),
        replicas=draw(st.integers(1, 3)),
        tp=tp,
        pp=pp,
        ep=data if spread else 1,
        dp=data,
        seqs=seqs,
        tokens=data * draw(st.sampled_from([512, 2048, 8192])),
        length=length,
        memory=draw(st.sampled_from([0.85, 0.9, 0.92, 0.95])),
    )


def _can_run(pools: tuple[Case, ...], ask: Ask) -> bool:
    model = load_model(ask.model)
    latent_mixed = model.is_latent and ask.kv_dtype == "fp8" and len({case.gpu for case in pools}) > 1
    if latent_mixed or (ask.engine == "trtllm" and any(case.tp * case.pp * case.dp > 8 for case in pools)):
        return False
    if any(case.tokens < (1 + ask.drafted) * case.seqs for case in pools):
        return False
    ends = {role: [case for case in pools if case.role == role] for role in ("prefill", "decode")}
    return not any(
        any(degree_refusals(model, *(Parallelism(case.tp, case.pp, case.ep, case.dp) for case in pair)))
        for pair in product(ends["prefill"], ends["decode"])
    )


def fits(deployment: Deployment) -> bool:
    """Whether every engine has room for its longest request."""
    return all(memory_refused(deployment.model, pool.config) is None for pool in deployment.pools)


def with_routes(plan: Plan, *changes: dict[str, Any]) -> Plan:
    """The plan whose routes have these changes each."""
    routes = [route.model_copy(update=change) for route, change in zip(plan.routing, changes, strict=True)]
    return plan.model_copy(update={"routing": routes})


def served_by(part: dict[str, float], **more: Any) -> dict[str, Any]:
    """A change of a route: both stages of its requests are served by these pools."""
    return {"prefill": part, "decode": part, **more}


def lengths_plan() -> Plan:
    """Short prompts go to one prefill pool, long ones to another, and all into one decode pool."""
    pools = (Case("prefill", seqs=8), Case("prefill", "H200", seqs=8), Case("decode", "H200", seqs=128))
    return with_routes(plan_of(pools), {"prefill": {"prefill-1": 1.0}}, {"prefill": {"prefill-2": 1.0}})


def parted_plan(engine: str = "vllm", prefix: float = 0.0) -> Plan:
    """Colocated pools by length: short prompts on two L40S, long ones on an H100 but for a tenth."""
    pools = (Case("colocated", "L40S", replicas=2), Case("colocated", tokens=8192))
    short, long = {"colocated-1": 1.0}, {"colocated-1": 0.1, "colocated-2": 0.9}
    return with_routes(plan_of(pools, Ask(engine=engine, prefix=prefix)), served_by(short), served_by(long))


def classes_plan() -> Plan:
    """Every SLO class has a colocated pool of its own, and both have prompts of the same lengths."""
    plan = plan_of((Case("colocated", tokens=8192), Case("colocated", "L40S")))
    names = {"interactive": "colocated-1", "Day & night": "colocated-2"}
    changes = [served_by({pool: 1.0}, slo_class=name, share=0.25) for name, pool in names.items() for _ in plan.routing]
    classes = [plan.classes[0].model_copy(update={"name": name}) for name in names]
    return with_routes(plan.model_copy(update={"routing": plan.routing * 2, "classes": classes}), *changes)


def two_classes() -> Plan:
    """Short requests are interactive, long ones batch, with a limit on the whole request alone."""
    plan = plan_of(PAIR)
    first = plan.classes[0].model_copy(update={"name": "interactive", "share": 0.5})
    whole = MetricResult(limit_s=60.0, quantiles_s=Quantiles(20.0, 40.0, 45.0, 55.0))
    limits = {"ttft_limit_s": math.nan, "tpot_limit_s": math.nan, "metrics": {Metric.E2E: whole}}
    classes = [first, first.model_copy(update={"name": "Day & night", **limits})]
    return with_routes(plan.model_copy(update={"classes": classes}), *({"slo_class": one.name} for one in classes))


DENSE, SPARSE = Ask("Llama-3.1-405B", "fp8"), Ask("DeepSeek-V3", "fp8")
STAGES = (Case("colocated", "H200", replicas=2, tp=8, pp=2, seqs=64, tokens=8192),)
RANKS = (
    Case("prefill", "H200", dp=16, ep=16, seqs=64, tokens=32768),
    Case("decode", "H200", replicas=2, dp=24, ep=24, seqs=1536, tokens=6144),
)
"""Data ranks over two nodes, and over three."""
NVLINK = (Case("colocated", "GB200", dp=8, ep=8, seqs=512, tokens=4096),)
"""Data ranks over two servers of one NVLink domain, with Arm CPUs."""
AMD = (Case("prefill", "MI300X", replicas=2, tp=2, seqs=8, tokens=8192), Case("decode", "MI355X", tp=8))
ALIKE = (Case("colocated", replicas=3, tokens=8192),)
"""Engines that do both stages."""
OWN: dict[str, Any] = {"namespace": "serving", "labels": {"H100": "MY-H100"}, "image": "my/image:1"}
"""Options of one's own."""


def with_inputs(plan: Plan, **sections: Any) -> Plan:
    """The plan of a workload file with these sections."""
    inputs = plan.provenance.inputs | sections
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"inputs": inputs})})


def by_day(plan: Plan) -> Plan:
    """The plan of a day whose quietest hour has a tenth of the planned rate."""
    rate = plan.workload.request_rate_rps
    hours = {"requests_per_second_by_hour": [0.1 * rate] * 6 + [rate] * 18, "percentile": 100}
    demand = {key: value for key, value in plan.provenance.inputs["workload"].items() if key != "request_rate"}
    return with_inputs(plan, workload=demand | {"diurnal": hours})


BULKY = r"(?!benchmark/workload|planner-|monitoring/dashboard)"
ROUTED = r"README.md|router|hosts.env|benchmark/run.sh|compose/"
EXAMPLES: dict[str, tuple[Plan, Options, str]] = {
    **{
        target: (plan_of(PAIR, Ask(engine=engine, prefix=0.25)), options(target), BULKY)
        for target, engine in ENGINES.items()
    },
    "vllm-by-length": (parted_plan(), options("vllm"), ROUTED),
    "vllm-by-class": (classes_plan(), options("vllm"), ROUTED),
    "sglang-by-length": (parted_plan("sglang", prefix=0.25), options("sglang"), ROUTED),
    "trtllm-alike": (plan_of(ALIKE, Ask(engine="trtllm")), options("trtllm"), r"router"),
    "dynamo-by-length": (lengths_plan(), options("dynamo"), r"control|router|pools/"),
    "llm-d-stages": (plan_of(STAGES, DENSE), options("llm-d"), r"pools/"),
    "llm-d-ranks": (plan_of(RANKS, SPARSE), options("llm-d", claim="models"), r"pools/|model-cache"),
    "llm-d-nvlink": (plan_of(NVLINK, SPARSE), options("llm-d", claim="models"), r"pools/|router"),
    "vllm-nvlink": (plan_of(NVLINK, SPARSE), options("vllm"), r"README|workers/.*node1|compose/gb200-1"),
    "vllm-stages": (plan_of(STAGES, DENSE), options("vllm"), r"workers/|compose/"),
    "dynamo-stages": (plan_of(STAGES, DENSE), options("dynamo"), r"dgd.yaml"),
    "vllm-amd": (plan_of(AMD, Ask("Llama-3.1-70B")), options("vllm"), r"workers/|compose/"),
    "sglang-amd": (plan_of(AMD, Ask("Llama-3.1-70B", engine="sglang")), options("sglang"), r"workers/|compose/"),
    "llm-d-amd": (plan_of(AMD, Ask("Llama-3.1-70B")), options("llm-d"), r"pools/"),
    "vllm-folder": (plan_of(), options("vllm", model="/models/mine"), r"README|workers/|compose/"),
    "dynamo-folder": (plan_of(), options("dynamo", model="/models/mine", rdma="rdma/shared", **OWN), r"dgd.yaml"),
    "llm-d-folder": (plan_of(), options("llm-d", model="/models/mine"), r"pools/decode"),
    "llm-d-own": (
        by_day(plan_of(ALIKE)),
        options("llm-d", claim="models", **OWN),
        r"README|pools/|auto|kustom|support|model",
    ),
    "vllm-cpu": (plan_of(), options("vllm", device=Device.CPU), r"README|workers/(prefill-1-1|decode)|compose/|slurm"),
    "vllm-classes": (two_classes(), options("vllm"), r"README|benchmark/run"),
    "dynamo-classes": (two_classes(), options("dynamo"), r"benchmark/job"),
}
"""By name: plan, options, and which of the files the golden text shows."""


@cache
def example(name: str) -> tuple[Deployment, dict[str, str]]:
    """A deployment of the examples, and its files."""
    plan, asked, _ = EXAMPLES[name]
    return describe(plan, asked), deployment_files(plan, asked)


Started = tuple[str, int, dict[str, Any], Any]
"""The pool of an engine, how many equal ones there are, its flags or options by name, and its pod, if it has one."""


def started(files: dict[str, str]) -> Iterator[Started]:
    """Every engine that files start, as they say it."""
    for path, text in files.items():
        if match := re.fullmatch(r"workers/((.*)-\d+)(\.node0)?\.sh", path):
            options = yaml.safe_load(files.get(f"workers/{match[1]}.yaml", "{}"))
            named = {f"--{name}": value for name, value in options.items()}
            yield match[2], 1, options | named | flags_of(shlex.split(text.splitlines()[-1])), None
        elif re.fullmatch(r"dgd\.yaml|pools/.*\.yaml", path):
            for document in yaml.safe_load_all(text):
                yield from _pods(document, 1)


def _pods(value: Any, replicas: int) -> Iterator[Started]:
    """The pods of pools; of those of an engine that spans nodes only the first."""
    if isinstance(value, dict):
        replicas = value.get("replicas", replicas)
        labels = (value.get("metadata") or {}).get("labels") or {}
        if "pdplan.dev/pool" in labels and "containers" in value["spec"]:
            words = [str(word).replace("$$(", "$(") for word in value["spec"]["containers"][0]["args"]]
            yield labels["pdplan.dev/pool"], replicas, flags_of(words), value
        value = [inner for key, inner in value.items() if key != "workerTemplate" or "leaderTemplate" not in value]
    for inner in value if isinstance(value, list) else ():
        yield from _pods(inner, replicas)


def flags_of(words: list[str]) -> dict[str, Any]:
    """The flags of a command line, with the value of each, True of a switch; "": the last word before them."""
    flags, name = dict[str, Any](), ""
    for word in words:
        name = word if word.startswith("--") else name
        flags[name] = True if word == name else word
    return flags
