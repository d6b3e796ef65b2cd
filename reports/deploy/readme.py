"""The page of a deployment: how it is started step by step, and why each setting is there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodel.engine import Role
from costmodel.words import join_words, percentage
from optimizer.plans.plan import Plan, Status
from reports.asked import asked
from reports.numbers import duration, percent_beside
from reports.text import clean, plural
from reports.words import slo_words
from search_spaces.targets import target_of

from . import facts
from .benchmark import FOLDER, behind, requests_of, results_folder, trace_file
from .deployment import ClassLimits, Deployment, Options, Routing
from .describe import describe, told_apart
from .dynamo import can_plan
from .flags import connector
from .formats import Raw, render
from .gateway import chosen_by, gateway_notes, pool_lines
from .hosts import hosts_of, place, router_hosts
from .kubernetes import AUTOSCALE_FILE, CACHE_FILE, SECRET, SUPPORT_FILE, vendor_fact
from .monitoring import watches

LONGEST_COMMAND: Final = 400
"""Characters of a command on the page."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: its name, its value (of each pool where pools differ), and the reason."""

    setting: str
    value: str
    why: str


def settings(plan: Plan, base: Path | None = None) -> tuple[SettingRow, ...]:
    """The settings of a plan's fleet, as the plain target of its engine is told them.

    base: folder from which files that the plan's problem names are looked up. Raises InputError as `describe` does.
    """
    version = facts.checked_version(plan.engine, None)
    return setting_rows(describe(plan, Options(plan.engine, version), base))


def setting_rows(deployment: Deployment) -> tuple[SettingRow, ...]:
    """The settings of a deployment: those that pools state, then those that are the same for all."""
    first, hit, room = deployment.pools[0], deployment.demand.prefix_share, deployment.template_room
    experts, weights = deployment.model.is_moe, first.config.weight_dtype
    copies = any(pool.settings.redundant for pool in deployment.pools)
    stated = [
        ("tensor parallel", "tensor", "GPUs that split every layer; the step times are for this split"),
        ("pipeline parallel", "pipeline", "stages of layers; the step times are for this number"),
        *[("expert parallel", "expert", "GPUs that share the experts; 1: every GPU has a slice of each expert")]
        * experts,
        *[("data parallel", "data", "attention ranks of a replica, which share the experts")] * experts,
        *[("redundant experts", "redundant", "second copies, so that every GPU has equally many experts")] * copies,
        ("max_num_seqs", "max_num_seqs", "most requests that run at once; the plan was evaluated with this limit"),
        (
            "max_num_batched_tokens",
            "max_num_batched_tokens",
            "most tokens of one step, so the size of a prompt chunk; the step times are for it",
        ),
        (
            "max_model_len",
            "max_model_len",
            f"longest prompt and answer of the workload, and {room} tokens for a chat template",
        ),
        (
            "memory fraction",
            "memory_fraction",
            "the engine's own share of GPU memory; the plan counted its running requests in this room",
        ),
        ("KV cache dtype", "kv_dtype", "bytes per token in memory, attention and hand-over"),
        ("KV block size", "block_tokens", "tokens of a block; prefill and decode replicas need the same"),
    ]
    cached = f"{percentage(hit, 1)} of the workload's prompt tokens are in a cache"
    none = "the plan assumes no shared prefix; with the cache on, a benchmark could look better than the plan"
    converted = weights if first.settings.quantization is None else f"{weights}, converted while loading"
    rows = [
        *(_row(deployment, *row) for row in stated),
        SettingRow("weights", converted, f"precision that the step times are for; loaded from {deployment.weights}"),
        *_positions(deployment),
        SettingRow("prefix caching", "on" if hit > 0.0 else "off", cached if hit > 0.0 else none),
        SettingRow("chunked prefill", "on", "long prompts are computed in chunks of max_num_batched_tokens"),
        SettingRow("order", "first come, first served", "as in the simulation"),
        SettingRow(
            "router",
            choice_words(deployment),
            "which replica of a pool gets the next prompt; the predictions on this page assume it",
        ),
    ]
    if not deployment.on_cpu:
        why = "the predicted times need them; an engine's default may leave out large batches"
        rows.append(SettingRow("CUDA graphs", "all decode batches", why))
    if deployment.mixed and first.settings.attention_backend is not None:
        why = "GPU types differ and would choose different ones, which cannot hand over KV"
        rows.append(SettingRow("attention backend", first.settings.attention_backend, why))
    return (*rows, *_hand_over(deployment))


def fleet_words(deployment: Deployment) -> str:
    """The fleet in one line: replicas of each pool, and their GPUs."""
    pools = [
        f"{plural(pool.replicas, f'{pool.role.value} replica')} of {pool.settings.gpus} × {pool.accelerator}"
        for pool in deployment.pools
    ]
    return f"{join_words(pools)}: {plural(sum(pool.gpus for pool in deployment.pools), 'GPU')}"


def unchecked_words(options: Options) -> str:
    """Say that nobody checked a version's flags; empty for one that is known."""
    title, newest = target_of(options.target).title, facts.versions_of(options.target)[-1]
    if not options.unchecked:
        return ""
    return (
        f"**Not checked:** {title} {options.version} is newer than what pdplan knows. These files have the flags of "
        f"{title} {newest}. Start one replica of each pool first, and read its log for flags that it refuses."
    )


def accepted_words(deployment: Deployment) -> str:
    """Say how far the limit on a request goes beyond what was evaluated, and why no further."""
    room = deployment.template_room
    ends = ", because the KV memory or the model's context ends there" if room < facts.TEMPLATE_TOKENS else ""
    same = "Every replica has the settings that the plan was evaluated with"
    if not room:
        return f"{same}. A chat template may add nothing to the longest prompts{ends}."
    return f"{same}; max_model_len alone is raised: a chat template may add {room} tokens to a prompt{ends}."


def choice_words(deployment: Deployment) -> str:
    """How the router chooses a replica: the one that has a prompt's prefix goes before, where it knows prefixes."""
    counted = deployment.router.value.replace("_", " ")
    apart = deployment.disaggregated
    knows = deployment.routes_by_prefix and not deployment.behind_gateway
    knows = knows and not facts.scatters(deployment.options.target, apart=apart)
    return f"the prompt's prefix, then {counted}" if knows else counted


def _positions(deployment: Deployment) -> list[SettingRow]:
    stated = deployment.pools[0].settings.config_overrides
    if not stated:
        return []
    also = "; static scaling also changes short prompts, and may change their answers" if "factor" in stated else ""
    why = f"requests exceed {deployment.own_context:,} tokens, where engines may stop by the weights' own config.json"
    return [SettingRow("overrides of config.json", stated, f"{why}{also}")]


def _hand_over(deployment: Deployment) -> list[SettingRow]:
    if not deployment.disaggregated:
        return []
    name = connector(deployment) if deployment.engine == "vllm" else "NIXL"
    ends = [f"{pool.id} sends" if pool.role is Role.PREFILL else f"{pool.id} receives" for pool in deployment.pools]
    ucx, roads = facts.fact("ucx", "hosts"), "all transports between processes and hosts, with NVLink and RDMA"
    if deployment.options.target in {"dynamo", "llmd"}:
        ucx = vendor_fact(deployment.pools[0], "ucx")
        roads = "RDMA between pods, NVLink within one; over TCP, KV caches would take minutes"
    side = SettingRow(
        "side channel", "host, and a port per replica", "where the other end is found; the default is localhost"
    )
    return [
        *[side] * (deployment.options.target in {"vllm", "llmd"}),
        SettingRow("KV connector", name, f"moves KV caches between replicas: {', '.join(ends)}"),
        SettingRow("environment", f"UCX_TLS={ucx}", roads),
    ]


def _row(deployment: Deployment, setting: str, name: str, why: str) -> SettingRow:
    """A setting with its value, once where all pools have it, else by pool."""
    values = {pool.id: getattr(pool.settings, name) for pool in deployment.pools}
    first, *others = dict.fromkeys(values.values())
    each = ", ".join(f"{pool}: {_shown(value)}" for pool, value in values.items())
    return SettingRow(setting, each if others else _shown(first), why)


def _shown(value: float | int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def start_steps(deployment: Deployment, *, pods: bool) -> list[str]:
    """How the target is started, a sentence or more for each step; pods: in Kubernetes."""
    options, instances = deployment.options, () if pods else place(deployment)
    hosts = hosts_of(instances)
    text = render(
        "readme/steps.md",
        target=options.target,
        title=target_of(options.target).title,
        version=options.version,
        name=deployment.name,
        space=options.namespace,
        pods=pods,
        cpu=deployment.on_cpu,
        fetched=not deployment.weights.startswith("/"),
        disaggregated=deployment.disaggregated,
        spans=any(pool.nodes > 1 for pool in deployment.pools),
        leaves_nodes=deployment.leaves_nodes,
        by_length=deployment.routing is Routing.BY_LENGTH,
        behind_gateway=deployment.behind_gateway,
        chosen_by=chosen_by(deployment) if deployment.behind_gateway else "",
        haproxy=facts.fact("gateway", "version"),
        port=facts.fact("ports", "http"),
        many=len(hosts) > 1,
        first=hosts[0].name if hosts else "",
        routers=[host.name for host in router_hosts(instances)],
        claim=options.claim or "",
        can_plan=can_plan(deployment),
        scales=any(pool.least < pool.replicas for pool in deployment.pools),
        watched=bool(watches(deployment)),
        secret=SECRET,
        cache=CACHE_FILE,
        support=SUPPORT_FILE,
        autoscale=AUTOSCALE_FILE,
    )
    return [line.strip() for line in text.splitlines() if line.strip()]


def benchmark_steps(deployment: Deployment) -> list[str]:
    """How the benchmark runs in the cluster, and where its result comes out."""
    space, name = deployment.options.namespace, deployment.name
    traces = " ".join(f"--from-file={FOLDER}/{trace_file(one)}" for one in deployment.classes)
    waits = [
        f"kubectl wait -n {space} --for=condition=complete --timeout=1h job/{name}-benchmark{one.ending}"
        for one in deployment.classes
    ]
    logs = [
        f"kubectl logs -n {space} job/{name}-benchmark{one.ending} > {job_result(one)}" for one in deployment.classes
    ]
    return [
        f"kubectl create configmap {name}-workload -n {space} {traces}",
        f"kubectl apply -n {space} -f benchmark/job.yaml",
        *waits,
        *logs,
    ]


def job_result(one: ClassLimits) -> str:
    """File into which the log of a class's job goes."""
    stem, _, suffix = str(facts.fact("benchmark", "result")).rpartition(".")
    return f"{stem}{one.ending}.{suffix}"


def readme_page(plan: Plan, deployment: Deployment, *, pods: bool) -> str:
    """The page of a deployment; pods: in Kubernetes."""
    predicted, stated = behind(plan, deployment.router), plan.status is Status.STATED
    return render(
        "readme/README.md",
        title=deployment.title,
        target=target_of(deployment.options.target).title,
        version=deployment.options.version,
        sha=deployment.plan_sha,
        file=Raw("<the fleet.yaml, or the plan.json with --alternative N>" if stated else "<the plan.json>"),
        pools=[
            {
                "id": pool.id,
                "role": pool.role.value,
                "replicas": pool.replicas,
                "gpus": pool.settings.gpus,
                "accelerator": pool.accelerator,
                "nodes": pool.nodes,
            }
            for pool in deployment.pools
        ],
        routes=pool_lines(deployment) if deployment.parted else [],
        steps=[Raw(step) for step in start_steps(deployment, pods=pods)],
        fleet=fleet_words(deployment),
        accepted=accepted_words(deployment),
        unchecked=Raw(unchecked_words(deployment.options)),
        rows=setting_rows(deployment),
        checks=[Raw(line) for line in _checks(deployment, pods=pods, other=predicted is not plan)],
        job=[Raw(step) for step in benchmark_steps(deployment)] if pods else [],
        requests=requests_of(deployment.demand),
        rate=f"{deployment.demand.rate:g}",
        predicted=_quantiles(predicted),
        several=told_apart(plan),
        goals=_goals(predicted),
        notes=page_notes(deployment),
    )


def _checks(deployment: Deployment, *, pods: bool, other: bool) -> list[str]:
    """The commands that compare what was measured with the plan, one for each class; other: router than the plan's."""
    result = str(facts.fact("benchmark", "result"))
    checks = []
    for one in deployment.classes:
        file = job_result(one) if pods else f"{FOLDER}/{results_folder(one)}/{result}"
        chosen = f" --slo-class {shlex.quote(one.name)}" if one.ending else ""
        chosen += f" --balancing {deployment.router}" if other else ""
        checks.append(clean(f"pdplan validate --against {file} --plan plan.json{chosen}", LONGEST_COMMAND))
    return checks


def _goals(plan: Plan) -> list[str]:
    """What each class asks for, and which share of its requests the plan predicts to meet it."""
    return [
        f"{slo_words(limits)}; predicted: {percent_beside(row.attainment, row.attainment_goal)}"
        for limits, row in zip(asked(plan), plan.classes, strict=True)
    ]


def _quantiles(plan: Plan) -> list[tuple[str, str, str]]:
    """Predicted quantiles, of each class where there are several."""
    latencies: list[tuple[str, object, object]] = [("", plan.ttft_s, plan.tpot_s)]
    if told_apart(plan):
        latencies = [(f"{one.name} ", one.ttft_s, one.tpot_s) for one in plan.classes]
    return [
        (f"{of}{name}", _quantile(ttft, name), _quantile(tpot, name))
        for of, ttft, tpot in latencies
        for name in ("p50", "p90", "p99")
    ]


def _quantile(found: object, name: str) -> str:
    return "-" if found is None else duration(getattr(found, name))


def page_notes(deployment: Deployment) -> list[str]:
    """What these files cannot do as the plan has it, or do only under a condition."""
    notes = []
    if deployment.on_cpu:
        notes.append("A core of a CPU stands in for each planned GPU and computes in 32 bit: this is for tests alone.")
    if deployment.routing is Routing.BY_LOAD:
        notes.append(
            "The router splits requests over the pools of one role by their load, not in the plan's exact shares."
        )
    if deployment.behind_gateway:
        notes += gateway_notes(deployment)
    elif deployment.routing is Routing.BY_LENGTH:
        notes.append("The router tells prompts apart by length alone; a few may go to another pool than planned.")
    notes += [scattered_words(deployment)] * bool(scattered_words(deployment))
    if deployment.options.target == "sglang" and sum(pool.replicas for pool in deployment.of_role(Role.PREFILL)) > 1:
        notes.append(
            "SGLang's router counts a request at its prefill replica even after its prompt is computed. Prompts may "
            "wait longer than behind a router that counts only the requests in prefill."
        )
    if deployment.options.target == "dynamo" and not deployment.routes_by_prefix:
        notes.append(
            "There are two frontends, and each counts its own requests only; one alone balances a little better."
        )
    if deployment.options.target in {"dynamo", "llmd"}:
        notes.append(
            f"The NetworkPolicy in {SUPPORT_FILE} needs a network plug-in that enforces it, as Calico and Cilium do "
            f"and flannel does not. It lets in the namespaces {deployment.options.namespace} and "
            f"{facts.fact('monitoring', 'namespace')}, the latter by its label kubernetes.io/metadata.name."
        )
    if deployment.demand.sessions:
        notes.append(
            "The benchmark replays single requests that share as many prefix tokens as planned, not sessions with "
            "their pauses. AIPerf can replay conversations of your own (--custom-dataset-type multi_turn)."
        )
    if deployment.mixed and deployment.pools[0].settings.attention_backend is not None:
        notes.append("Step times were predicted for the attention backend that each GPU type would choose by itself.")
    return notes


def scattered_words(deployment: Deployment) -> str:
    """That no router keeps prompts together which the plan finds in a cache; empty where one does, or none has to."""
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    if deployment.demand.prefix_share == 0.0 or deployment.behind_gateway or sum(pool.replicas for pool in prompts) < 2:
        return ""
    why = facts.scatters(deployment.options.target, apart=deployment.disaggregated)
    if not deployment.routes_by_prefix:  # a plan of sessions
        why = why or "the router counts requests, and is not told to keep a session where it was"
    which = "Turns of a session" if deployment.demand.sessions else "Prompts with a common prefix"
    return why and (
        f"{which} may go to different replicas: {why}. Each replica fills its own cache. A prefix that all prompts "
        "share is soon in every cache. Those of conversations are found less often."
    )
