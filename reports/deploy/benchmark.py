"""The planned workload as a trace, and the commands that replay it against the deployment: was the promise kept?"""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.units import MILLI

from . import facts
from .description import Demand, Deployment
from .rendering import Raw, pod_text, render

TRACE_FILE: Final = "benchmark/workload.jsonl"
SCRIPT_FILE: Final = "benchmark/run.sh"
JOB_FILE: Final = "benchmark/job.yaml"
BLOCK_TOKENS: Final = 128
"""Tokens of a block that requests share or do not, in the trace."""
MOST_BLOCKS: Final = 100_000
"""Block ids in a trace, so that it stays below the 1 MiB that a ConfigMap may hold."""


def benchmark_files(deployment: Deployment, url: str, *, in_cluster: bool) -> dict[str, str]:
    """The trace and what replays it: a script, and a Kubernetes job where the engines are pods.

    url: where clients of the deployment send requests, as seen from where the benchmark runs.
    """
    words = aiperf_words(deployment, url)
    files = {
        TRACE_FILE: trace_text(deployment.demand),
        SCRIPT_FILE: render("benchmark/run.sh", words=words, tool=Raw(facts.fact("benchmark", "tool"))),
    }
    if in_cluster:
        words[words.index("workload.jsonl")] = "/workload/workload.jsonl"
        files[JOB_FILE] = render(
            "benchmark/job.yaml",
            name=f"{deployment.name}-benchmark",
            namespace=deployment.options.namespace,
            configmap=f"{deployment.name}-workload",
            script=pod_text(job_script(shlex.join(words))),
        )
    return files


def job_script(command: str) -> str:
    """What the job's shell runs: nothing but the result goes to its log, for its disk ends with it."""
    quiet = f"{{ pip install -q {facts.fact('benchmark', 'tool')} && {command}; }} > log 2>&1"
    return f"cd /tmp; {quiet} || {{ cat log; exit 1; }}; cat results/{facts.fact('benchmark', 'result')}"


def aiperf_words(deployment: Deployment, url: str) -> list[str]:
    """AIPerf's command line: the trace at its own times, answers of the planned lengths, the plan's limits as goals."""
    limits = deployment.limits
    return [
        "aiperf",
        "profile",
        "--model",
        deployment.weights,
        "--tokenizer",
        deployment.weights,
        "--url",
        url,
        "--endpoint-type",
        "completions",
        "--streaming",
        "--input-file",
        "workload.jsonl",
        "--custom-dataset-type",
        "mooncake_trace",
        "--isl-block-size",
        str(BLOCK_TOKENS),
        "--fixed-schedule",
        "--goodput",
        f"time_to_first_token:{limits.ttft / MILLI:g} inter_token_latency:{limits.tpot / MILLI:g}",
        "--extra-inputs",
        "ignore_eos:true",
        "--random-seed",
        str(deployment.demand.seed),
        "--ui",
        "none",
        "--output-artifact-dir",
        "results",
    ]


def trace_text(demand: Demand) -> str:
    """The workload as a Mooncake trace: one request a line, arrivals [ms], lengths [token], blocks that are shared."""
    rows = trace_rows(demand)
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def trace_rows(demand: Demand) -> list[dict[str, Any]]:
    """Requests drawn from the histogram in its exact shares, in an order and at times that the plan's seed decides."""
    generator = np.random.default_rng(demand.seed)
    count = requests_of(demand)
    bucket = generator.permutation(np.repeat(np.arange(len(demand.share)), bucket_counts(demand.share, count)))
    isl = np.maximum(np.rint(np.asarray(demand.isl)[bucket]), 1).astype(int)
    osl = np.maximum(np.rint(np.asarray(demand.osl)[bucket]), 1).astype(int)
    arrival = np.concatenate([[0.0], np.cumsum(_gaps(generator, demand, count - 1))])
    shared = shared_blocks(isl, demand.prefix_share)
    rows, unique = [], int(shared.max(initial=0))
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
        rows.append(row)
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


def _gaps(generator: np.random.Generator, demand: Demand, count: int) -> NDArray[np.float64]:
    """Times between arrivals [s]: Gamma of the planned mean and coefficient of variation."""
    variation = max(demand.burstiness, 1e-3) ** 2
    gaps: NDArray[np.float64] = generator.gamma(1.0 / variation, variation / demand.rate, size=count)
    return gaps
