"""The page of a deployment: how it is started step by step, and why each setting is there."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection
from typing import Any, Final

from costmodel.words import join_words, percentage, plural
from optimizer.plans.plan import Plan, Status
from reports.asked import asked
from reports.numbers import duration, percent_beside, significant
from reports.text import clean
from reports.words import is_simulated_row, slo_words
from search_spaces.problem import Balancing, target_of

from . import facts
from .deployment import Deployment, LabelledSlo
from .describe import told_apart
from .flags import connector
from .formats import Raw, objects, render
from .gateway import (
    HEADER,
    by_size,
    bytes_per_token,
    chosen_by,
    class_names,
    gateway_rules,
    pool_lines,
    tolerance_sentence,
)
from .hosts import hosts_of, place, router_hosts
from .kubernetes import AUTOSCALE_FILE, CACHE_FILE, SECRET, SUPPORT_FILE, router_command, vendor_fact
from .measurement import FOLDER, behind, requests_of, results_folder, trace_file, watches

LONGEST_COMMAND: Final = 400
"""Characters of a command on the page."""


def setting_rows(deployment: Deployment) -> list[tuple[str, str, str]]:
    """The settings of a deployment, each with its value (of each pool where pools differ) and the reason for it.

    First those that pools state, then those that are the same for all.
    """

    def value(name: str) -> str:
        by_pool = {pool.id: getattr(pool.settings, name) for pool in deployment.pools}
        texts = {
            pool: f"{setting:,}" if isinstance(setting, int) else str(setting) for pool, setting in by_pool.items()
        }
        first, *rest = dict.fromkeys(texts.values())
        return ", ".join(f"{pool}: {text}" for pool, text in texts.items()) if rest else first

    target, apart, first_pool = deployment.options.target, deployment.disaggregated, deployment.pools[0]
    drafting = next((pool for pool in deployment.pools if pool.settings.draft), first_pool)
    speculation = drafting.config.speculation
    scatters = deployment.behind_gateway or facts.scatters(target, apart=apart)
    router = _router_words(deployment.router, by_prefix=deployment.routes_by_prefix and not scatters)
    planned = _router_words(deployment.balancing, by_prefix=deployment.by_prefix(deployment.balancing))
    (rows,) = objects(
        "readme/settings.yaml",
        fleet=deployment,
        first=first_pool,
        value=value,
        copies=any(pool.settings.redundant for pool in deployment.pools),
        drafting=drafting,
        acceptance=", ".join(percentage(share) for share in (speculation.acceptance if speculation else ())),
        series=facts.fact("metrics").get(deployment.engine, {}),
        hit=deployment.demand.prefix_hit_share,
        percentage=percentage,
        router=router,
        planned_router=planned if any(pool.replicas > 1 for pool in deployment.prompt_pools) else router,
        connector=connector(deployment) if apart and deployment.engine == "vllm" else "NIXL",
        ucx=vendor_fact(first_pool, "ucx") if target_of(target).pods else "",
    )
    return [(setting, text, why) for setting, text, why in rows]


def _router_words(balancing: Balancing, *, by_prefix: bool) -> str:
    return ("the prompt's prefix, then " if by_prefix else "") + balancing.value


def _lines(template: str, deployment: Deployment, **values: Any) -> list[Raw]:
    """The lines of a template, each a step or a note."""
    text = render(template, fleet=deployment, support=SUPPORT_FILE, **values)
    return [Raw(line.strip()) for line in text.splitlines() if line.strip()]


def start_steps(deployment: Deployment, files: Collection[str]) -> list[Raw]:
    """How the target is started: numbered steps, each with the ways to do it below; files: those written, by path."""
    target = target_of(deployment.options.target)
    instances = () if target.pods else place(deployment)
    lines = _lines(
        "readme/steps.md",
        deployment,
        files=files,
        title=target.title,
        pods=target.pods,
        chosen_by=chosen_by(deployment) if deployment.behind_gateway else "",
        haproxy=facts.fact("gateway", "version"),
        port=facts.fact("ports", "http"),
        hosts=[host.name for host in hosts_of(instances)],
        routers=[host.name for host in router_hosts(instances)],
        router="" if deployment.behind_gateway else facts.fact("router").get(deployment.engine, ""),
        image="" if target.pods else facts.image(target.name, deployment.options.version, deployment.engine),
        watched=bool(watches(deployment)),
        charts=facts.fact("charts"),
        helm=Raw(router_command(deployment)) if target.name == "llm-d" else "",
        url=deployment.url,
        header=HEADER,
        labels=[slo.label for slo in deployment.classes] if class_names(deployment) else [],
        secret=SECRET,
        cache=CACHE_FILE,
        autoscale=AUTOSCALE_FILE,
    )
    numbers = itertools.count(1)
    return [Raw(f"   {line}" if line.startswith("- ") else f"{next(numbers)}. {line}") for line in lines]


def scattered_words(deployment: Deployment) -> str:
    """That no router keeps prompts together which the plan finds in a cache, and what comes of it.

    Empty where one does, or none has to.
    """
    many = sum(pool.replicas for pool in deployment.prompt_pools) > 1
    if deployment.demand.prefix_hit_share == 0.0 or deployment.behind_gateway or not many:
        return ""
    why = facts.scatters(deployment.options.target, apart=deployment.disaggregated)
    if not deployment.routes_by_prefix:  # a plan of sessions
        why = why or "a least-requests router is not told to keep a session where it was"
    subject = "Turns of a session" if deployment.demand.sessions else "Prompts with a common prefix"
    most = 1.0 / max(1.0 - deployment.demand.prefix_hit_share, 0.01)
    return why and (
        f"{subject} may go to different replicas: {why}. Each replica fills its own cache. A prefix that all prompts "
        "share is soon in every cache. Those of conversations are found less often, and computed again: up to "
        f"{significant(most, 2)} times the planned prompt tokens. TTFT rises, and the fleet may miss the SLO. "
        "llm-d and NVIDIA Dynamo route by prefix."
    )


def stack_words(deployment: Deployment) -> str:
    """Which versions of which programs the files are for."""
    target, version = deployment.target, deployment.options.version
    engine = target_of(deployment.engine).title
    if target.title == engine:
        return f"{engine} {version}"
    own = "" if version == deployment.engine_version else f" {version}"  # llm-d's versions are those of its engine
    return f"{target.title}{own} with {engine} {deployment.engine_version}"


def readme_page(plan: Plan, deployment: Deployment, files: Collection[str]) -> str:
    """The page of a deployment; files: those that are written, by path."""
    pods = target_of(deployment.options.target).pods
    router_plan, options = behind(plan, deployment.router), deployment.options
    pools = [
        f"{plural(pool.replicas, f'{pool.role.value} replica')} of {pool.settings.gpus} × {pool.accelerator}"
        for pool in deployment.pools
    ]
    chosen_by_size = deployment.behind_gateway and by_size(gateway_rules(deployment))
    source = STATED_SOURCE if plan.status is Status.STATED else "plan.json"
    return render(
        "readme/README.md",
        title=deployment.title,
        stack=stack_words(deployment),
        sha=deployment.plan_sha,
        pools=deployment.pools,
        routes=pool_lines(deployment) if deployment.parted else [],
        steps=start_steps(deployment, files),
        fleet=f"{join_words(pools)}: {plural(sum(pool.gpus for pool in deployment.pools), 'GPU')}",
        room=deployment.template_room,
        most_room=facts.TEMPLATE_TOKENS,
        unchecked=options.unchecked,
        newest=facts.versions_of(options.target)[-1],
        rows=setting_rows(deployment),
        source=Raw(source),
        checks=_checks(deployment, source, pods=pods, other=router_plan is not plan),
        other_router=router_plan is not plan,
        pods=pods,
        space=Raw(options.namespace),
        job=Raw(deployment.name),
        runs=[
            [Raw(f"{deployment.name}-benchmark{slo.ending}"), Raw(f"{FOLDER}/{trace_file(slo)}"), Raw(job_result(slo))]
            for slo in deployment.classes
        ],
        requests=requests_of(deployment.demand),
        rate=f"{deployment.demand.request_rate:g}",
        predicted=_quantiles(router_plan),
        by_formula=not (plan.simulated or is_simulated_row(plan)),
        several=told_apart(plan),
        goals=[  # what each class asks for, and which share of its requests the plan predicts to meet it
            f"{slo_words(limits)}; predicted: {percent_beside(row.attainment, row.attainment_goal)}"
            for limits, row in zip(asked(router_plan), router_plan.classes, strict=True)
        ],
        notes=_lines(  # what these files cannot do as the plan has it, or do only under a condition
            "readme/notes.md",
            deployment,
            scattered=scattered_words(deployment),
            tolerance=tolerance_sentence(deployment) if chosen_by_size else "",
            bytes_per_token=f"{bytes_per_token(deployment):g}",
            names=class_names(deployment),
            exchanges=any(deployment.exchange(pool) for pool in deployment.pools),
            monitoring=facts.fact("monitoring", "namespace"),
        ),
    )


def job_result(slo: LabelledSlo) -> str:
    """File into which the log of a class's job goes."""
    stem, _, suffix = str(facts.fact("benchmark", "result")).rpartition(".")
    return f"{stem}{slo.ending}.{suffix}"


STATED_SOURCE: Final = "<the fleet.yaml, or the plan.json with --alternative N>"
"""What a fleet comes from that is not the one that its plan recommends: its plan does not record which."""


def _checks(deployment: Deployment, source: str, *, pods: bool, other: bool) -> list[Raw]:
    """The commands that compare what was measured with the plan, one for each class.

    source: what states the fleet; other: a router that is not the plan's.
    """
    result = str(facts.fact("benchmark", "result"))
    checks = []
    for slo in deployment.classes:
        file = job_result(slo) if pods else f"{FOLDER}/{results_folder(slo)}/{result}"
        flags = f" --slo-class {shlex.quote(slo.name)}" if slo.ending else ""
        flags += f" --balancing {deployment.router}" if other else ""
        checks.append(Raw(clean(f"pdplan validate --against {file} --plan {source}{flags}", LONGEST_COMMAND)))
    return checks


def _quantiles(plan: Plan) -> list[tuple[str, str, str]]:
    """Predicted quantiles, of each class where there are several."""
    latencies: list[tuple[str, Any, Any]] = [("", plan.ttft_s, plan.tpot_s)]
    if told_apart(plan):
        latencies = [(f"{slo.name} ", slo.ttft_s, slo.tpot_s) for slo in plan.classes]

    def shown(metric: Any, name: str) -> str:
        return "-" if metric is None else duration(getattr(metric, name))

    return [
        (f"{slo_class}{name}", shown(ttft, name), shown(tpot, name))
        for slo_class, ttft, tpot in latencies
        for name in ("p50", "p90", "p99")
    ]
