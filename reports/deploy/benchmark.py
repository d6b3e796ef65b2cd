"""The planned workload as a trace, the commands that replay it, and those that measure at fixed concurrency."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.units import MILLI
from optimizer.plans.plan import Plan
from search_spaces.problem import Balancing

from . import facts
from .deployment import ClassLimits, Demand, Deployment
from .formats import Raw, manifest, pod_text, render
from .gateway import class_header
from .kubernetes import SECRET, metadata

FOLDER: Final = "benchmark"
SCRIPT_FILE: Final = "benchmark/run.sh"
JOB_FILE: Final = "benchmark/job.yaml"
BLOCK_TOKENS: Final = 128
"""Tokens of a block that requests share or do not, in the trace."""
DRAWS: Final = 200
"""Parts of a recording of which the one is taken that comes nearest to the planned rate."""
MOST_BLOCKS: Final = 100_000
"""Block ids in a trace, so that it stays below the 1 MiB that a ConfigMap may hold."""


def benchmark_files(deployment: Deployment, url: str, *, in_cluster: bool) -> dict[str, str]:
    """The trace of each SLO class, a script that replays them or sweeps, and Kubernetes jobs for engines in pods.

    url: where clients of the deployment send requests, as seen from where the benchmark runs.
    """
    files = {f"{FOLDER}/{name}": text for name, text in class_traces(deployment).items()}
    files[SCRIPT_FILE] = render(
        "benchmark/run.sh",
        tool=Raw(facts.fact("benchmark", "tool")),
        url=url,
        tokenizer=deployment.weights,
        runs=[replay_words(deployment, one, Raw('"$url"'), Raw('"$tokenizer"')) for one in deployment.classes],
        sweep=sweep_words(deployment, Raw('"$url"'), Raw('"$tokenizer"')),
        prompts=sweep_prompts(deployment.demand),
        loads=sweep_loads(deployment),
        waves=SWEEP_WAVES,
    )
    if in_cluster:
        jobs = [_job(deployment, one, url) for one in deployment.classes]
        files[JOB_FILE] = manifest(
            "Replays the workload inside the cluster, as README.md says; its log is the result.", *jobs
        )
    return files


def _job(deployment: Deployment, one: ClassLimits, url: str) -> dict[str, Any]:
    words = replay_words(deployment, one, url, deployment.weights)
    container = {
        "name": "aiperf",
        "image": facts.fact("benchmark", "image"),
        "command": ["/bin/bash", "-c", pod_text(job_script(shlex.join(_in_pod(words))))],
        "envFrom": [{"secretRef": {"name": SECRET, "optional": True}}],
        "volumeMounts": [{"name": "workload", "mountPath": "/workload", "readOnly": True}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "workload", "configMap": {"name": f"{deployment.name}-workload"}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(deployment, f"{deployment.name}-benchmark{one.ending}"),
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


def trace_file(one: ClassLimits) -> str:
    """Name of the trace of a class."""
    return f"workload{one.ending}.jsonl"


def results_folder(one: ClassLimits) -> str:
    """Where the result of a class lies, beside its trace."""
    return f"results{one.ending}"


def _in_pod(words: Sequence[str]) -> list[str]:
    """The same command where the trace is mounted, and the result lies where the job's script looks for it."""
    at = words.index("--input-file") + 1
    mounted = [*words[:at], f"/workload/{words[at]}", *words[at + 1 :]]
    mounted[mounted.index("--output-artifact-dir") + 1] = "results"
    return mounted


def class_traces(deployment: Deployment) -> dict[str, str]:
    """The trace of each class by file name: together they are the planned arrivals."""
    drawn = drawn_rows(deployment.demand)
    classes = deployment.demand.slo_class or (0,) * len(deployment.demand.share)
    return {
        trace_file(one): trace_text([row for bucket, row in drawn if classes[bucket] == number])
        for number, one in enumerate(deployment.classes)
    }


def job_script(command: str) -> str:
    """What the job's shell runs: its log is the result, and only where that fails all that was said.

    The image has no more than a shell and AIPerf.
    """
    result = f"results/{facts.fact('benchmark', 'result')}"
    return f'cd /tmp; {command} > log 2>&1 || {{ echo "$(<log)"; exit 1; }}; echo "$(<{result})"'


def goodput_words(one: ClassLimits) -> str:
    """The limits of a class as AIPerf has them [ms]."""
    limits = {"time_to_first_token": one.ttft, "inter_token_latency": one.tpot, "request_latency": one.whole}
    return " ".join(f"{name}:{limit / MILLI:g}" for name, limit in limits.items() if limit is not None)


def aiperf_words(deployment: Deployment, url: str, tokenizer: str) -> list[str]:
    """What every command of AIPerf begins with: tokens are those that the server counts, as the plan's are."""
    words = ["aiperf", "profile", "--model", deployment.weights, "--tokenizer", tokenizer, "--url", url]
    words += [
        "--endpoint-type",
        "completions",
        "--streaming",
        "--use-server-token-count",
        "--extra-inputs",
        "ignore_eos:true",
    ]
    return [*words, "--random-seed", str(deployment.demand.seed), "--ui", "none"]


def replay_words(deployment: Deployment, one: ClassLimits, url: str, tokenizer: str) -> list[str]:
    """AIPerf's command line: a class's trace at its own times, answers of the planned lengths, its limits as goals."""
    return [
        *aiperf_words(deployment, url, tokenizer),
        *("--input-file", trace_file(one), "--custom-dataset-type", "mooncake_trace"),
        *("--isl-block-size", str(BLOCK_TOKENS), "--fixed-schedule", "--goodput", goodput_words(one)),
        *class_header(deployment, one.label),
        *("--output-artifact-dir", results_folder(one)),
    ]


SWEEP_WAVES: Final = 5
"""Prompts of a fixed concurrency over that concurrency: fewer are a burst rather than a steady state."""
SWEEP_LOADS: Final = 4
"""Concurrencies that are measured, from 1 to what the planned rate keeps in flight: `calibrate` fits four scales."""
SWEEP_ANSWER: Final = 256
"""Longest answer of the sweep [token]: TPOT needs no longer one."""


def sweep_words(deployment: Deployment, url: str, tokenizer: str) -> list[str]:
    """AIPerf's command line at a fixed concurrency, without that, its prompts and its folder."""
    osl = min(max(round(deployment.demand.mean_osl), 2), SWEEP_ANSWER)
    return [*aiperf_words(deployment, url, tokenizer), "--osl", str(osl)]


def sweep_prompts(demand: Demand) -> list[int]:
    """Two prompt lengths [token]: the mean and a quarter of it, which tell compute from what a request costs anyhow."""
    mean = max(round(demand.mean_isl), 1)
    return sorted({max(mean // 4, 1), mean})


def sweep_loads(deployment: Deployment) -> list[int]:
    """Concurrencies from 1 to what the planned rate keeps in flight within the limits, evenly spaced in their logs.

    Of replicas that share all requests together, of other fleets in one replica of the pool that generates tokens.
    """
    demand = deployment.demand
    gaps = max(demand.mean_osl - 1.0, 1.0)
    longest = max(
        (
            one.whole if one.whole is not None else (one.ttft or 0.0) + gaps * (one.tpot or 0.0)
            for one in deployment.classes
        ),
        default=0.0,
    )
    pools = deployment.of_role(Role.DECODE) or deployment.of_role(Role.COLOCATED)
    replicas, seats = sum(pool.replicas for pool in pools), pools[0].settings.max_num_seqs
    together = 1 if len(deployment.pools) > 1 else replicas
    top = min(max(demand.rate * longest / replicas, 1.0), seats) * together
    return sorted({round(top ** (step / (SWEEP_LOADS - 1))) for step in range(SWEEP_LOADS)})


def trace_text(rows: Iterable[dict[str, Any]]) -> str:
    """Requests as a Mooncake trace: one a line, arrivals [ms], lengths [token], blocks that are shared."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def trace_rows(demand: Demand) -> list[dict[str, Any]]:
    """The requests of all classes, in the order of their arrival."""
    return [row for _, row in drawn_rows(demand)]


def drawn_rows(demand: Demand) -> list[tuple[int, dict[str, Any]]]:
    """Requests with their buckets, in the histogram's exact shares, in an order and at times that the seed decides."""
    generator = np.random.default_rng(demand.seed)
    count = requests_of(demand)
    bucket = generator.permutation(np.repeat(np.arange(len(demand.share)), bucket_counts(demand.share, count)))
    isl = np.maximum(np.rint(np.asarray(demand.isl)[bucket]), 1).astype(int)
    osl = np.maximum(np.rint(np.asarray(demand.osl)[bucket]), 1).astype(int)
    arrival = _arrivals(generator, demand, count)
    shared = shared_blocks(isl, demand.prefix_share)
    rows: list[tuple[int, dict[str, Any]]] = []
    unique = int(shared.max(initial=0))
    for number in range(count):
        row: dict[str, Any] = {
            "timestamp": round(float(arrival[number]) / MILLI, 3),
            "input_length": int(isl[number]),
            "output_length": int(osl[number]),
        }
        if demand.prefix_share > 0.0:
            own = -(-int(isl[number]) // BLOCK_TOKENS) - int(shared[number])
            row["hash_ids"] = [*range(int(shared[number])), *range(unique, unique + own)]
            unique += own
        rows.append((int(bucket[number]), row))
    return rows


def requests_of(demand: Demand) -> int:
    """Requests of a trace of some minutes, within bounds that a test run can bear."""
    least, most = facts.fact("benchmark", "requests")
    if demand.prefix_share > 0.0:
        blocks = sum(isl * share for isl, share in zip(demand.isl, demand.share, strict=True)) / BLOCK_TOKENS
        most = min(most, MOST_BLOCKS / max(blocks / sum(demand.share), 1.0))
    return int(min(max(demand.rate * facts.fact("benchmark", "seconds"), least), max(most, least)))


def bucket_counts(shares: tuple[float, ...], count: int) -> NDArray[np.int64]:
    """How many of `count` requests each bucket gets: the largest remainders are rounded up.

    >>> bucket_counts((0.5, 0.3, 0.2), 5).tolist()
    [3, 1, 1]
    """
    exact = np.asarray(shares, dtype=np.float64) / sum(shares) * count
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: count - int(counts.sum())]] += 1
    return counts


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


def _arrivals(generator: np.random.Generator, demand: Demand, count: int) -> NDArray[np.float64]:
    """Times of the requests [s], the first at 0: those of a recording, or with gaps from a Gamma distribution."""
    if demand.recorded is not None:
        lasts = count / demand.rate
        drawn = (demand.recorded.drawn(count, demand.rate, demand.seed + number)[0] for number in range(DRAWS))
        times = min(drawn, key=lambda one: abs(float(np.ptp(one)) / lasts - 1.0))
        return np.asarray(times - times[0])
    variation = max(demand.burstiness, 1e-3) ** 2
    gaps = generator.gamma(1.0 / variation, variation / demand.rate, size=count - 1)
    return np.concatenate([[0.0], np.cumsum(gaps)])


def behind(plan: Plan, router: Balancing) -> Plan:
    """The plan with its figures behind a router; as it is where that is its own, or was not simulated.

    Latencies of several classes together are known behind its own only.
    """
    found = None if plan.simulation is None else plan.simulation.fewest_requests
    if found is None or not found.latencies or router is not Balancing.FEWEST_REQUESTS:
        return plan
    classes = [
        one.model_copy(update={"attainment": row.attainment, "ttft_s": row.ttft_s, "tpot_s": row.tpot_s})
        for one, row in zip(plan.classes, found.latencies, strict=True)
    ]
    whole = {"ttft_s": classes[0].ttft_s, "tpot_s": classes[0].tpot_s} if len(classes) == 1 else {}
    return plan.model_copy(update={"classes": classes, **whole})
