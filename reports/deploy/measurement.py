"""How the fleet is measured: the planned workload replayed, loads swept, and what Prometheus watches while it serves.

Every series carries the labels `deployment` and `pool`, put there by what scrapes it: PodMonitors in Kubernetes, a
configuration of Prometheus elsewhere. So the rules are the same for all, with alerts at the plan's own limits.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.lengths import whole_parts
from costmodel.metric import Metric
from costmodel.units import MILLI
from costmodel.workload import gamma_arrivals
from optimizer.fleets.build_plan import with_latencies
from optimizer.plans.plan import Plan
from search_spaces.problem import Balancing

from . import facts
from .deployment import DeployedPool, Deployment, LabelledSlo, PlannedWorkload
from .formats import Raw, manifest, objects, pod_text, render
from .gateway import class_header
from .hosts import place, router_hosts
from .kubernetes import fleet_objects

FOLDER: Final = "benchmark"
BLOCK_TOKENS: Final = 128
"""Tokens of a block that requests share or do not, in the trace."""
DRAWS: Final = 200
"""Parts of a recording of which the one is taken that comes nearest to the planned rate."""
MOST_BLOCKS: Final = 100_000
"""Block ids in a trace, so that it stays below the 1 MiB that a ConfigMap may hold."""


def benchmark_files(deployment: Deployment) -> dict[str, str]:
    """The trace of each SLO class, a script that replays them or sweeps, and Kubernetes jobs for engines in pods.

    The sweep has two prompt lengths, the mean and a quarter of it, which tell compute from what a request costs anyhow.
    """
    demand, variables = deployment.demand, (Raw('"$url"'), Raw('"$tokenizer"'))
    mean, osl = max(round(demand.mean_isl), 1), min(max(round(demand.mean_osl), 2), SWEEP_ANSWER)
    answers = ["--osl", str(osl), "--osl-stddev", str(round(SWEEP_SPREAD * osl))]
    files = {f"{FOLDER}/{name}": text for name, text in class_traces(deployment).items()}
    files[f"{FOLDER}/run.sh"] = render(
        "benchmark/run.sh",
        tool=Raw(facts.fact("benchmark", "tool")),
        url=deployment.url,
        tokenizer=deployment.weights,
        runs=[replay_words(deployment, slo, *variables) for slo in deployment.classes],
        sweep=[*aiperf_words(deployment, *variables), *answers],
        prompts=[(isl, round(SWEEP_SPREAD * isl)) for isl in sorted({max(mean // 4, 1), mean})],
        loads=sweep_loads(deployment),
        waves=SWEEP_WAVES,
    )
    if deployment.target.pods:
        jobs = []
        for slo in deployment.classes:
            words = replay_words(
                deployment, slo, deployment.url, deployment.weights, trace="/workload/", results="results"
            )
            jobs.append((f"{deployment.name}-benchmark{slo.ending}", pod_text(job_script(shlex.join(words)))))
        about = "Replays the workload inside the cluster, as README.md says; its log is the result."
        files[f"{FOLDER}/job.yaml"] = manifest(about, *fleet_objects("benchmark/job.yaml", deployment, jobs=jobs))
    return files


def trace_file(slo: LabelledSlo) -> str:
    """Name of the trace of a class."""
    return f"workload{slo.ending}.jsonl"


def results_folder(slo: LabelledSlo) -> str:
    """Where the result of a class lies, beside its trace."""
    return f"results{slo.ending}"


def class_traces(deployment: Deployment) -> dict[str, str]:
    """The trace of each class by file name: together they are the planned arrivals."""
    drawn = drawn_rows(deployment.demand)
    classes = deployment.demand.slo_class or (0,) * len(deployment.demand.share)
    lines = [(classes[bucket], json.dumps(row, separators=(",", ":")) + "\n") for bucket, row in drawn]
    return {
        trace_file(slo): "".join(line for number, line in lines if number == of_class)
        for of_class, slo in enumerate(deployment.classes)
    }


def job_script(command: str) -> str:
    """What the job's shell runs: its log is the result, and only where that fails all that was said.

    The image has no more than a shell and AIPerf.
    """
    result = f"results/{facts.fact('benchmark', 'result')}"
    return f'cd /tmp; {command} > log 2>&1 || {{ echo "$(<log)"; exit 1; }}; echo "$(<{result})"'


def aiperf_words(deployment: Deployment, url: str, tokenizer: str) -> list[str]:
    """What every command of AIPerf begins with: tokens are those that the server counts, as the plan's are."""
    words = ["aiperf", "profile", "--model", deployment.weights, "--tokenizer", tokenizer, "--url", url]
    words += ["--endpoint-type", "completions", "--streaming", "--use-server-token-count"]
    words += ["--extra-inputs", "ignore_eos:true"]
    return [*words, "--random-seed", str(deployment.demand.seed), "--ui", "none"]


GOALS: Final = {
    Metric.TTFT: "time_to_first_token",
    Metric.TPOT: "inter_token_latency",
    Metric.E2E: "request_latency",
}
"""What AIPerf calls the metrics that it can hold requests to."""


def replay_words(
    deployment: Deployment, slo: LabelledSlo, url: str, tokenizer: str, *, trace: str = "", results: str = ""
) -> list[str]:
    """AIPerf's command line: a class's trace at its own times, answers of the planned lengths, its limits as goals.

    trace: folder of the trace, if it is another; results: that of the result.
    """
    goals = " ".join(f"{name}:{slo.limits[metric] / MILLI:g}" for metric, name in GOALS.items() if metric in slo.limits)
    return [
        *aiperf_words(deployment, url, tokenizer),
        *("--input-file", f"{trace}{trace_file(slo)}", "--custom-dataset-type", "mooncake_trace"),
        *("--isl-block-size", str(BLOCK_TOKENS), "--fixed-schedule", *(("--goodput", goals) if goals else ())),
        *class_header(deployment, slo.label),
        *("--output-artifact-dir", results or results_folder(slo)),
    ]


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

    They come in the histogram's exact shares, in an order and at times that the seed decides.
    """
    generator = np.random.default_rng(demand.seed)
    count = requests_of(demand)
    bucket = generator.permutation(np.repeat(np.arange(len(demand.share)), whole_parts(demand.share * count)))
    isl, osl = (np.maximum(np.rint(lengths[bucket]), 1).astype(int) for lengths in (demand.isl, demand.osl))
    times = gamma_arrivals(count, demand.request_rate, demand.burstiness, demand.seed)
    if demand.recorded is not None:
        lasts = count / demand.request_rate
        drawn = (demand.recorded.drawn(count, demand.request_rate, demand.seed + number)[0] for number in range(DRAWS))
        times = min(drawn, key=lambda part: abs(float(np.ptp(part)) / lasts - 1.0))
    arrival = times - times[0]
    shared = shared_blocks(isl, demand.prefix_hit_share)
    rows: list[tuple[int, dict[str, Any]]] = []
    unique = int(shared.max(initial=0))
    columns = (bucket.tolist(), arrival.tolist(), isl.tolist(), osl.tolist(), shared.tolist())
    for number, time, prompt, answer, blocks in zip(*columns, strict=True):
        row: dict[str, Any] = {"timestamp": round(time / MILLI, 3), "input_length": prompt, "output_length": answer}
        if demand.prefix_hit_share > 0.0:
            own = -(-prompt // BLOCK_TOKENS) - blocks
            row["hash_ids"] = [*range(blocks), *range(unique, unique + own)]
            unique += own
        rows.append((number, row))
    return rows


def requests_of(demand: PlannedWorkload) -> int:
    """Requests of a trace of some minutes, within bounds that a test run can bear."""
    least, most = facts.fact("benchmark", "requests")
    if demand.prefix_hit_share > 0.0:
        most = min(most, MOST_BLOCKS / max(demand.mean_isl / BLOCK_TOKENS, 1.0))
    return int(min(max(demand.request_rate * facts.fact("benchmark", "seconds"), least), max(most, least)))


def shared_blocks(isl: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Leading blocks of each prompt that all prompts share, so that tokens found in the cache are `share` of all.

    What one prompt rounds off the next makes up for; the last block of a prompt is always its own.
    """
    blocks, owed = np.zeros(isl.size, dtype=np.int64), 0.0
    for number, length in enumerate(isl.tolist()):
        owed += share * length
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
    target, metrics = deployment.target, facts.fact("metrics")
    loosest = [max(slo.limit(metric) for slo in deployment.classes) for metric in (Metric.TTFT, Metric.TPOT)]
    ttft, tpot = (None if math.isinf(limit) else limit for limit in loosest)
    share = min(slo.attainment for slo in deployment.classes)
    passed_over = facts.fact("router_metrics").get("haproxy" if deployment.parted else target.name, "")

    speculations = [pool.config.speculation for pool in deployment.token_pools]

    def series(pools: Sequence[DeployedPool] = ()) -> str:
        named = f', pool=~"{"|".join(pool.name for pool in pools)}"' if pools else ""
        return f'{{deployment="{deployment.name}"{named}}}'

    rows = objects(
        "monitoring/watches.yaml",
        fleet=deployment,
        engine=metrics.get(deployment.engine, {}),
        front=metrics[target.name] if target.workers else {},
        series=series,
        quantile=lambda name, where: (
            f"histogram_quantile({share:g}, sum by (le) (rate({name}_bucket{where}[{WINDOW}])))"
        ),
        window=WINDOW,
        percentile=f"p{100.0 * share:g}",
        ttft=ttft,
        tpot=tpot,
        planned_steps=max((1.0 / drafts.tokens_per_step for drafts in speculations if drafts), default=None),
        routers=int(facts.fact("routers")) if target.pods else len(router_hosts(place(deployment))),
        passed_over=passed_over.format(series=f'deployment="{deployment.name}", pool=""'),
    )
    return [{"limit": None, "says": "", "minutes": 5} | row for row in (rows[0] if rows else [])]


def monitoring_files(deployment: Deployment) -> dict[str, str]:
    """What watches a deployment, in Kubernetes by the objects of Prometheus's operator; nothing without metrics."""
    watched = watches(deployment)
    if not watched:
        return {}
    (chart,) = objects("monitoring/dashboard.yaml", fleet=deployment, watches=watched)
    (rules,) = objects("monitoring/rules.yaml", fleet=deployment, watches=watched)
    files = {"dashboard.json": json.dumps(chart, indent=1) + "\n"}
    if deployment.target.pods:
        name = f"{deployment.name}-pdplan"
        *monitors, listed = fleet_objects("monitoring/objects.yaml", deployment, name=name, rules=rules)
        about = "What Prometheus's operator scrapes, and the alerts at the limits of the plan."
        files["objects.yaml"] = manifest(about, *monitors)
        files["kustomization.yaml"] = manifest("kubectl apply -k <this folder>", listed)
    else:
        about = "Recording rules, and alerts at the limits of the plan: rule_files of Prometheus."
        files["rules.yaml"] = manifest(about, rules)
        engines = place(deployment)
        scraped = objects(
            "monitoring/prometheus.yaml",
            fleet=deployment,
            fact=facts.fact,
            engines=engines,
            routers=router_hosts(engines),
        )
        about = "Whom Prometheus asks: let the names of hosts resolve to yours, by DNS or /etc/hosts."
        files["prometheus.yaml"] = manifest(about, *scraped)
    return {f"monitoring/{file}": text for file, text in files.items()}
