"""Measurement of a deployed fleet: its benchmark, Prometheus rules and dashboard; and the README of its files.

Every series carries the labels `deployment` and `pool`, put there by what scrapes it: PodMonitors in Kubernetes, a
configuration of Prometheus elsewhere. So the rules are the same for all, with alerts at the plan's own limits.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from costmodel.metric import Metric
from costmodel.units import MILLI
from costmodel.words import percentage, plural
from costmodel.workload import gamma_arrivals, whole_parts
from optimizer.fleets.build_plan import with_latencies
from optimizer.plans.plan import Plan, Status
from optimizer.verification.demand import nearest
from reports.fleets import fleet_words
from reports.question import is_simulated_row, slo_classes, slo_words
from reports.text import clean, percent_beside
from search_spaces.bounds import NO_TARGET
from search_spaces.problem import Balancing, target_of

from . import hosts, kubernetes
from .deployment import (
    TEMPLATE_TOKENS,
    DeployedPool,
    Deployment,
    LabelledSlo,
    PlannedWorkload,
    fact,
    target_facts,
    told_apart,
    versions_of,
)
from .flags import connector, shares_of
from .formats import Raw, manifest, manifest_of, objects, pod_text, render

FOLDER: Final = "benchmark"
BLOCK_TOKENS: Final = 128
"""Tokens of a block that requests share or do not, in the trace."""
DRAWS: Final = 200
"""Parts of a recording of which the one is taken that comes nearest to the planned rate."""
LONGEST_PAUSE: Final = 0.25
"""Of a prefix in the trace over the trace [1], so that most of it comes when the caches are full."""
MOST_BLOCKS: Final = 100_000
"""Block ids in a trace, so that it stays below the 1 MiB that a ConfigMap may hold."""


def benchmark_files(deployment: Deployment) -> dict[str, str]:
    """The trace of each SLO class, a script that replays them or sweeps, and Kubernetes jobs for engines in pods.

    The sweep has two prompt lengths, the mean and a quarter of it, which tell compute from what a request costs anyhow.
    """
    demand, variables = deployment.demand, {"url": Raw('"$url"'), "tokenizer": Raw('"$tokenizer"')}
    mean, osl = max(round(demand.mean_isl), 1), min(max(round(demand.mean_osl), 2), SWEEP_ANSWER)
    # together the traces of the classes are the planned arrivals
    classes = demand.bucket_class.tolist()
    lines = [(classes[bucket], json.dumps(row, separators=(",", ":")) + "\n") for bucket, row in drawn_rows(demand)]
    files = {
        f"{FOLDER}/workload{slo.ending}.jsonl": "".join(line for number, line in lines if number == of_class)
        for of_class, slo in enumerate(deployment.classes)
    }
    files[f"{FOLDER}/run.sh"] = render(
        "benchmark/run.sh",
        fleet=deployment,
        runs=[aiperf_line(deployment, slo, **variables) for slo in deployment.classes],
        sweep=aiperf_line(deployment, None, **variables),
        answers=(osl, round(SWEEP_SPREAD * osl)),
        prompts=[(isl, round(SWEEP_SPREAD * isl)) for isl in sorted({max(mean // 4, 1), mean})],
        loads=sweep_loads(deployment),
        waves=SWEEP_WAVES,
    )
    if deployment.target.pods:
        jobs = []
        for slo in deployment.classes:
            address = {"url": deployment.url, "tokenizer": deployment.weights}
            line = aiperf_line(deployment, slo, **address, trace="/workload/", results="results")
            jobs.append((f"{deployment.name}-benchmark{slo.ending}", pod_text(job_script(line))))
        files[f"{FOLDER}/job.yaml"] = kubernetes.fleet_file("benchmark/job.yaml", deployment, jobs=jobs)
    return files


def job_script(command: str) -> str:
    """What the job's shell runs: its log is the result, and only where that fails all that was said.

    The image has no more than a shell and AIPerf.
    """
    result = f"results/{fact('benchmark', 'result')}"
    return f'cd /tmp; {command} > log 2>&1 || {{ echo "$(<log)"; exit 1; }}; echo "$(<{result})"'


GOALS: Final = {
    Metric.TTFT: "time_to_first_token",
    Metric.TPOT: "inter_token_latency",
    Metric.E2E: "request_latency",
}
"""What AIPerf calls the metrics that it can hold requests to."""


def aiperf_line(deployment: Deployment, slo: LabelledSlo | None, **places: str) -> Raw:
    """AIPerf's command line; slo: the class whose trace it replays, if it does.

    places: url and tokenizer; trace, results: folders of the trace and of its result, if they are other ones.
    """
    limits = {} if slo is None else slo.limits
    goals = " ".join(f"{name}:{limits[metric] / MILLI:g}" for metric, name in GOALS.items() if metric in limits)
    values = {"slo": slo, "goals": goals, "named": bool(hosts.class_names(deployment)), "block": BLOCK_TOKENS}
    return Raw(render("benchmark/aiperf.sh", fleet=deployment, **values, **places))


SWEEP_WAVES: Final = 5
"""Prompts of a fixed concurrency over that concurrency: fewer are a burst rather than a steady state."""
SWEEP_LOADS: Final = 4
"""Concurrencies that are measured, from 1 to what the planned rate keeps in flight: `calibrate` fits four scales."""
SWEEP_SPREAD: Final = 0.05
"""Standard deviation of the lengths over their mean [1]: equal requests would start and end together, and wait for one
another as real requests never do."""
SWEEP_ANSWER: Final = 256
"""Longest answer of the sweep [token]: TPOT needs no longer one."""


def sweep_loads(deployment: Deployment) -> list[int]:
    """Concurrencies from 1 to what the planned rate keeps in flight within the limits, evenly spaced in their logs.

    Of replicas that share all requests together, of other fleets in one replica of the pool that generates tokens.
    """
    demand, pools = deployment.demand, deployment.token_pools
    gaps = max(demand.mean_osl - 1.0, 1.0)
    most = {Metric.TTFT: deployment.limits.ttft, Metric.TPOT: deployment.limits.tpot}
    limits = [most | dict(slo.limits) for slo in deployment.classes]
    longest = max(each.get(Metric.E2E) or each[Metric.TTFT] + gaps * each[Metric.TPOT] for each in limits)
    replicas = sum(pool.replicas for pool in pools)
    together = 1 if len(deployment.pools) > 1 else replicas
    top = min(max(demand.request_rate * longest / replicas, 1.0), pools[0].settings.max_num_seqs) * together
    return sorted({round(top ** (step / (SWEEP_LOADS - 1))) for step in range(SWEEP_LOADS)})


def drawn_rows(demand: PlannedWorkload) -> list[tuple[int, dict[str, Any]]]:
    """Requests of a Mooncake trace with their buckets: arrival [ms], lengths [token], blocks that are shared.

    They come in the histogram's exact shares, in an order and at times that the seed decides; of a recording they are
    a stretch of it.
    """
    generator = np.random.default_rng(demand.seed)
    count, classes = requests_of(demand), demand.bucket_class
    if demand.recorded is None:
        bucket = generator.permutation(np.repeat(np.arange(len(demand.share)), whole_parts(demand.share * count)))
        isl, osl = (np.maximum(np.rint(lengths[bucket]), 1).astype(int) for lengths in (demand.isl, demand.osl))
        times = gamma_arrivals(count, demand.request_rate, demand.burstiness, demand.seed)
    else:
        lasts = count / demand.request_rate
        stretches = (demand.recorded.drawn(count, demand.request_rate, demand.seed + number) for number in range(DRAWS))
        times, places = min(stretches, key=lambda stretch: abs(float(np.ptp(stretch[0])) / lasts - 1.0))
        isl, osl = demand.recorded.isl[places], demand.recorded.osl[places]
        drawn = generator.choice(classes.size, size=isl.size, p=demand.share)
        bucket = nearest((classes, demand.isl, demand.osl), (classes[drawn], isl, osl))
    arrival = times - times[0]
    columns = (bucket.tolist(), arrival.tolist(), isl.tolist(), osl.tolist())
    rows: list[tuple[int, dict[str, Any]]] = [
        (number, {"timestamp": round(time / MILLI, 3), "input_length": prompt, "output_length": answer})
        for number, time, prompt, answer in zip(*columns, strict=True)
    ]
    if demand.prefix_hit_share > 0.0:
        for (_, row), blocks in zip(rows, hash_blocks(demand, bucket, arrival, isl, generator), strict=True):
            row["hash_ids"] = blocks
    return rows


def hash_blocks(
    demand: PlannedWorkload, bucket: IntArray, arrival: FloatArray, isl: IntArray, generator: np.random.Generator
) -> list[list[int]]:
    """Blocks of each prompt: those that all prompts begin with, those of one earlier prompt, and its own.

    A prompt goes on from the one that came nearest to a pause before it, and that no other goes on from; not where that
    was before the trace began. Pauses that the planned caches outlast are LONGEST_PAUSE of the trace at most.
    """
    reuse, count = demand.reuse, isl.size
    common, history = isl * demand.prefix_hit_share, np.zeros(count)
    came = arrival
    if reuse is not None:
        common = np.full(count, reuse.shared)
        history = isl * (reuse.history / demand.isl)[bucket]
        pause = np.interp(generator.random(count), reuse.pause.share, reuse.pause.seconds)
        longest = LONGEST_PAUSE * float(arrival[-1])
        came = arrival - np.where(pause <= demand.keeps, np.minimum(pause, longest), pause)
    common_blocks = whole_blocks(common.tolist(), isl)
    is_again = (came >= 0.0) & (history > 0.0)
    prefix = np.where(is_again, whole_blocks((common + is_again * history).tolist(), isl), common_blocks)
    classes = demand.bucket_class[bucket]
    is_end, rows, unique = np.ones(count, dtype=np.bool_), list[list[int]](), int(common_blocks.max(initial=0))
    for number, shared in enumerate(common_blocks.tolist()):
        blocks = list(range(shared))
        fits = is_end & (classes == classes[number]) & (isl // BLOCK_TOKENS >= prefix[number])
        fits[number:] = False
        if prefix[number] > shared and fits.any():
            last = int(np.where(fits, np.abs(arrival - came[number]), np.inf).argmin())
            is_end[last], blocks = False, rows[last][: prefix[number]]
        own = -(-int(isl[number]) // BLOCK_TOKENS) - len(blocks)
        rows.append([*blocks, *range(unique, unique + own)])
        unique += own
    return rows


def requests_of(demand: PlannedWorkload) -> int:
    """Requests of a trace of some minutes, within bounds that a test run can bear."""
    least, most = fact("benchmark", "requests")
    if demand.prefix_hit_share > 0.0:
        most = min(most, MOST_BLOCKS / max(demand.mean_isl / BLOCK_TOKENS, 1.0))
    return int(min(max(demand.request_rate * fact("benchmark", "seconds"), least), max(most, least)))


def whole_blocks(tokens: Sequence[float], isl: IntArray) -> IntArray:
    """Blocks of so many tokens at the beginning of each prompt; the last block of a prompt is always its own.

    What one prompt rounds off the next makes up for.
    """
    blocks, owed = np.zeros(isl.size, dtype=np.int64), 0.0
    for number, (wanted, length) in enumerate(zip(tokens, isl.tolist(), strict=True)):
        owed += wanted
        most = -(-length // BLOCK_TOKENS) - 1
        blocks[number] = min(max(int(owed // BLOCK_TOKENS), 0), most)
        owed -= float(blocks[number]) * BLOCK_TOKENS
    return blocks


def behind(plan: Plan, router: Balancing) -> Plan:
    """The plan with its figures behind a router; as it is where that is its own, or was not simulated."""
    fleet = None if plan.simulation is None else plan.simulation.behind_least_requests
    if fleet is None or not fleet.latencies or router is not Balancing.LEAST_REQUESTS:
        return plan
    return with_latencies(plan, fleet.latencies)


WINDOW: Final = "5m"
"""Over what quantiles and rates are taken: a few hundred requests at the rates of most plans."""


def watches(deployment: Deployment) -> list[dict[str, Any]]:
    """Everything that is watched of a deployment; nothing where no metrics of its engine are known.

    Each has a name and a title, an expression of Prometheus and Grafana's unit; limit: the plan's line, above which
    values are bad, None where it has none; minutes: how long they may be; says: what is wrong above the line. Of
    several classes the loosest limits count, for engines do not tell classes apart.
    """
    target, facts = deployment.target, deployment.engine_facts
    watched = Metric.TTFT, Metric.TPOT, Metric.E2E
    loosest = [max(slo.limit(metric) for slo in deployment.classes) for metric in watched]
    ttft, tpot, e2e = (None if math.isinf(limit) else limit for limit in loosest)
    has_ttft = any(Metric.TTFT in slo.limits for slo in deployment.classes)
    share = min(slo.attainment for slo in deployment.classes)
    router = fact("gateway") if deployment.parted else {} if target.pods else facts["router"]
    passed_over = router.get("down", "")
    speculations = [pool.config.speculation for pool in deployment.token_pools]

    def series(pools: Sequence[DeployedPool] = ()) -> str:
        named = f', pool=~"{"|".join(pool.name for pool in pools)}"' if pools else ""
        return f'{{deployment="{deployment.name}"{named}}}'

    rows = objects(
        "monitoring/watches.yaml",
        fleet=deployment,
        front=target_facts(target.name).get("metrics", {}),
        series=series,
        quantile=lambda name, where: (
            f"histogram_quantile({share:g}, sum by (le) (rate({name}_bucket{where}[{WINDOW}])))"
        ),
        window=WINDOW,
        percentile=f"p{100.0 * share:g}",
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        prompt_limit="TTFT" if has_ttft else "e2e",
        planned_steps=max((1.0 / drafts.tokens_per_step for drafts in speculations if drafts), default=None),
        routers=int(fact("routers")) if target.pods else len(hosts.router_hosts(hosts.place(deployment))),
        passed_over=passed_over.format(series=f'deployment="{deployment.name}", pool=""'),
    )
    return [{"limit": None, "says": "", "minutes": 5, "severity": "warning"} | row for row in (rows[0] if rows else [])]


def monitoring_files(deployment: Deployment) -> dict[str, str]:
    """What watches a deployment, in Kubernetes by the objects of Prometheus's operator; nothing without metrics."""
    watched = watches(deployment)
    if not watched:
        return {}
    (chart,) = objects("monitoring/dashboard.yaml", fleet=deployment, watches=watched)
    files = {"dashboard.json": json.dumps(chart, indent=1) + "\n"}
    if deployment.target.pods:
        (rules,) = objects("monitoring/rules.yaml", fleet=deployment, watches=watched)
        name = f"{deployment.name}-pdplan"
        *monitors, listed = kubernetes.fleet_objects("monitoring/objects.yaml", deployment, name=name, rules=rules)
        about = "What Prometheus's operator scrapes, and the alerts at the limits of the plan."
        files["objects.yaml"] = manifest(about, *monitors)
        files["kustomization.yaml"] = manifest("kubectl apply -k <this folder>", listed)
    else:
        files["rules.yaml"] = manifest_of("monitoring/rules.yaml", fleet=deployment, watches=watched)
        engines = hosts.place(deployment)
        files["prometheus.yaml"] = manifest_of(
            "monitoring/prometheus.yaml",
            fleet=deployment,
            engines=engines,
            routers=hosts.router_hosts(engines),
        )
    return {f"monitoring/{file}": text for file, text in files.items()}


LONGEST_COMMAND: Final = 400
"""Characters of a command on the page."""


def setting_rows(deployment: Deployment) -> list[tuple[str, str, str]]:
    """The settings of a deployment, each with its value (of each pool where pools differ) and the reason for it.

    First those that pools state, then those that are the same for all.
    """

    def value(name: str) -> str:
        return by_pools({pool.id: getattr(pool.settings, name) for pool in deployment.pools})

    def shares(name: str) -> str:
        parts = shares_of(deployment, name)
        return f"; the files state the part of one rank or stage: {by_pools(parts)}" if parts else ""

    def by_pools(by_pool: Mapping[str, Any]) -> str:
        texts = {
            pool: f"{setting:,}" if isinstance(setting, int) else str(setting) for pool, setting in by_pool.items()
        }
        first, *rest = dict.fromkeys(texts.values())
        return ", ".join(f"{pool}: {text}" for pool, text in texts.items()) if rest else first

    drafting = next((pool for pool in deployment.pools if pool.settings.draft), deployment.pools[0])
    speculation = drafting.config.speculation
    routers = (
        (deployment.router, deployment.routes_by_prefix and not (deployment.behind_gateway or deployment.scatters)),
        (deployment.balancing, deployment.by_prefix(deployment.balancing)),
    )
    router, planned = ("the prompt's prefix, then " * by_prefix + balancing.value for balancing, by_prefix in routers)
    (rows,) = objects(
        "readme/settings.yaml",
        fleet=deployment,
        value=value,
        shares=shares,
        drafting=drafting,
        acceptance=", ".join(percentage(share) for share in (speculation.acceptance if speculation else ())),
        percentage=percentage,
        router=router,
        planned_router=planned if any(pool.replicas > 1 for pool in deployment.prompt_pools) else router,
        connector=connector(deployment) if deployment.disaggregated else "",
    )
    return [(setting, text, why) for setting, text, why in rows]


def _lines(template: str, deployment: Deployment, **values: Any) -> list[Raw]:
    """The lines of a template, each a step or a note."""
    text = render(template, fleet=deployment, **values)
    return [Raw(line.strip()) for line in text.splitlines() if line.strip()]


def start_steps(deployment: Deployment, files: Collection[str]) -> list[Raw]:
    """How the target is started: numbered steps, each with the ways to do it below; files: those written, by path."""
    instances = () if deployment.target.pods else hosts.place(deployment)
    lines = _lines(
        "readme/steps.md",
        deployment,
        files=files,
        chosen_by=hosts.chosen_by(deployment) if deployment.behind_gateway else "",
        hosts=[host.name for host in hosts.hosts_of(instances)],
        routers=[host.name for host in hosts.router_hosts(instances)],
        helm=Raw(kubernetes.router_command(deployment)) if kubernetes.PICKER_FILE in files else "",
        labels=[slo.label for slo in deployment.classes] if hosts.class_names(deployment) else [],
    )
    numbers = itertools.count(1)
    return [Raw(f"   {line}" if line.startswith("- ") else f"{next(numbers)}. {line}") for line in lines]


NOT_TOLD: Final = "a least-requests router is not told to keep a session where it was"


def scattered_words(plan: Plan, deployment: Deployment) -> str:
    """That no router keeps prompts together which the plan finds in a cache, and what comes of it.

    Empty where one does, or none has to, or where the predictions are of what such a router finds.
    """
    many = sum(pool.replicas for pool in deployment.prompt_pools) > 1
    is_own = behind(plan, deployment.router) is not plan or deployment.balancing is Balancing.LEAST_REQUESTS
    if deployment.demand.reuse is not None and is_own:
        return ""
    if deployment.demand.prefix_hit_share == 0.0 or deployment.behind_gateway or not many:
        return ""
    why = deployment.scatters
    if not deployment.routes_by_prefix:  # the workload says when prefixes are used again
        why = why or NOT_TOLD
    subject = "Turns of a session" if deployment.demand.sessions else "Prompts with a common prefix"
    return why and _recomputed_words(subject, why, deployment.demand.prefix_hit_share)


def _recomputed_words(subject: str, why: str, hit_share: float) -> str:
    """What comes of prompts that a router does not keep together; hit_share: of the input tokens, as planned [1]."""
    most = 1.0 / max(1.0 - hit_share, 0.01)
    return (
        f"{subject} may go to different replicas: {why}. Each replica fills its own cache. A prefix that all prompts "
        "share is soon in every cache. Those of conversations are found less often, and computed again: up to "
        f"{percentage(most - 1.0)} more prompt tokens than planned. TTFT rises, and the fleet may miss the SLO. "
        "llm-d and NVIDIA Dynamo route by prefix."
    )


def planned_scatter_words(plan: Plan, target: str) -> str:
    """What `scattered_words` says of a target, for a plan by formula that was made for no target, without its files.

    Only where the workload says when prefixes are used again; empty too where one router is not told of all replicas.
    """
    inputs, pools = plan.provenance.inputs, [pool for pool in plan.pools if pool.role != Role.DECODE.value]
    load, limits, facts = inputs.get("workload") or {}, inputs.get("constraints") or {}, target_of(target)
    is_planned = inputs.get("target") in {None, NO_TARGET} and limits.get("balancing") == Balancing.LEAST_TOKENS
    keeps = facts.balancing(Balancing.LEAST_TOKENS, prefixes=True) is Balancing.LEAST_TOKENS
    if keeps or not is_planned or not {"sessions", "reuse_interval"} & {*load}:
        return ""
    if plan.prefix_cache is None or plan.simulation is not None or len(pools) != 1 or pools[0].replicas == 1:
        return ""
    roles = "together" if pools[0].role == Role.COLOCATED.value else "apart"
    why = fact("engines", plan.engine, "router").get("scatters", {}).get(roles, NOT_TOLD)
    subject = "Turns of a session" if "sessions" in load else "Prompts with a common prefix"
    return _recomputed_words(subject, why, plan.prefix_cache.sustained)


def readme_page(plan: Plan, deployment: Deployment, files: Collection[str]) -> str:
    """The page of a deployment; files: those that are written, by path."""
    router_plan, options = behind(plan, deployment.router), deployment.options
    stack = f"{target_of(deployment.engine).title} {deployment.engine_version}"
    if deployment.options.target != deployment.engine:  # llm-d's versions are those of its engine
        own = "" if options.version == deployment.engine_version else f" {options.version}"
        stack = f"{deployment.target.title}{own} with {stack}"
    source = STATED_SOURCE if plan.status is Status.STATED else "plan.json"
    job = f"{deployment.name}-benchmark"
    return render(
        "readme/README.md",
        fleet=deployment,
        stack=stack,
        routes=hosts.pool_lines(deployment) if deployment.parted else [],
        steps=start_steps(deployment, files),
        words=f"{fleet_words(plan)}: {plural(sum(pool.gpus for pool in deployment.pools), 'GPU')}",
        most_room=TEMPLATE_TOKENS,
        newest=versions_of(options.target)[-1],
        rows=setting_rows(deployment),
        source=Raw(source),
        checks=_checks(deployment, source, other=router_plan is not plan),
        calibrate=calibrate_line(plan.model, deployment),
        other_router=router_plan is not plan,
        runs=[
            list(map(Raw, (f"{job}{slo.ending}", f"{FOLDER}/workload{slo.ending}.jsonl", job_result(slo))))
            for slo in deployment.classes
        ],
        requests=requests_of(deployment.demand),
        rate=f"{deployment.demand.request_rate:g}",
        by_formula=not (plan.simulated or is_simulated_row(plan)),
        several=told_apart(plan),
        goals=[  # what each class asks for, and which share of its requests the plan predicts to meet it
            f"{slo_words(limits)}; predicted: {percent_beside(row.attainment, row.attainment_goal)}"
            for limits, row in zip(slo_classes(router_plan), router_plan.classes, strict=True)
        ],
        notes=_lines(  # what these files cannot do as the plan has it, or do only under a condition
            "readme/notes.md",
            deployment,
            scattered=scattered_words(plan, deployment),
            files=files,
            by_size=deployment.behind_gateway and hosts.by_size(hosts.gateway_rules(deployment)),
            bytes_per_token=f"{hosts.bytes_per_token(deployment):g}",
            names=hosts.class_names(deployment),
            exchanges=any(deployment.exchange(pool) for pool in deployment.pools),
        ),
    )


def calibrate_line(model: str, deployment: Deployment) -> Raw:
    """The command that fits the predictions to the sweep: of all replicas together, of several pools of one replica."""
    pool = deployment.token_pools[0]
    config, split = pool.config, pool.config.parallelism
    layout = {"tp": split.tensor, "pp": split.pipeline, "ep": split.expert, "dp": split.data}
    layout["replicas"] = pool.replicas if len(deployment.pools) == 1 else 1
    flags = {
        "model": model,
        "gpu": pool.accelerator,
        **{name: degree for name, degree in layout.items() if degree > 1},
        "engine": deployment.engine,
        "weight-dtype": config.weight_dtype,
        "kv-dtype": config.kv_dtype,
        "memory-fraction": f"{config.memory_fraction:g}",
        "max-num-seqs": config.max_num_seqs,
    }
    words = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in flags.items())
    results = f"{FOLDER}/sweep/*/{fact('benchmark', 'result')}"
    return Raw(clean(f"pdplan calibrate {results} {words} -o measured.yaml", LONGEST_COMMAND))


def job_result(slo: LabelledSlo) -> str:
    """File into which the log of a class's job goes."""
    stem, _, suffix = str(fact("benchmark", "result")).rpartition(".")
    return f"{stem}{slo.ending}.{suffix}"


STATED_SOURCE: Final = "<the fleet.yaml, or the plan.json with --alternative N>"
"""What a fleet comes from that is not the one that its plan recommends: its plan does not record which."""


def _checks(deployment: Deployment, source: str, *, other: bool) -> list[Raw]:
    """The commands that compare what was measured with the plan, one for each class.

    source: what states the fleet; other: a router that is not the plan's.
    """
    result = str(fact("benchmark", "result"))
    checks = []
    for slo in deployment.classes:
        file = job_result(slo) if deployment.target.pods else f"{FOLDER}/results{slo.ending}/{result}"
        flags = f" --slo-class {shlex.quote(slo.name)}" if slo.ending else ""
        flags += f" --balancing {deployment.router}" if other else ""
        checks.append(Raw(clean(f"pdplan validate --against {file} --plan {source}{flags}", LONGEST_COMMAND)))
    return checks
