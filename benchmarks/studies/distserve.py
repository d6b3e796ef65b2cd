"""DistServe's cases D1-D5: goodput per GPU of disaggregation over colocation, with whole prompts and in chunks.

    python -m benchmarks.studies.distserve [DATA]

First as they ran it: their placements, their SLOs, 300 requests to a run, and the step times that DistServe's authors
fitted to vLLM's and to their own kernels (DATA/simulation/simdistserve; left out without DATA). Then with the step
times of our cost model, steady state, and the best placement of each kind, at their SLOs and at half of them.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.reference.lone_steps import CoefficientSteps
from benchmarks.reference.policies import VLLM_V0, VLLM_V1
from benchmarks.reference.simdistserve import steps_of
from costmodel.engine import Policy, Role
from costmodel.metric import Metric, limits_of
from costmodel.simulator.fleet import Router, SimulatedFleet, SimulatedPool
from search_spaces.models import load_model

from .common import Lengths, SloLimits, a100, engine_pool, gamma_lengths, goodput, short_goodput, table

WINDOW = 2048
"""Longest prompt and output together that OPT takes [token]."""
SHORT, STEADY = 2_400, 3_000
"""Requests of eight runs of 300, and of one run in steady state."""
FRACTION, WHOLE_BUDGET, PREFILL_BUDGET, SEQS = 0.95, 16_384, 8_192, 1024
"""Their engines' share of memory, tokens in a prefill step of vLLM and of DistServe, and requests at once."""
CHUNKS = (512, 2048)
SCALED: Final = {"OPT-175B": ("facebook/opt-66b", 96 * 12288**2 / (64 * 9216**2), 96 * 12288 / (64 * 9216))}
"""Model that was not fitted: from which one its times are scaled, and how much larger its weights (layers x width^2)
and its KV (layers x width) are."""

Split = tuple[int, int]
"""Tensor and pipeline degree."""
SMALL: Final[tuple[Split, ...]] = ((1, 1), (2, 1), (4, 1))
MIDDLE: Final[tuple[Split, ...]] = ((2, 1), (4, 1), (2, 2), (8, 1))
LARGE: Final[tuple[Split, ...]] = ((8, 1), (3, 3), (4, 2), (4, 3))


@dataclass(frozen=True, slots=True)
class Case:
    """One published case.

    prefill, decode: placement; tensor: degree of vLLM; gains: goodput per GPU over vLLM and over DeepSpeed-MII as
    printed; rates: of vLLM and DistServe [1/s per GPU]; budget: GPUs within which the best placements are sought, from
    `options` for either role.
    """

    name: str
    model: str
    workload: str
    slo: SloLimits
    prefill: Split
    decode: Split
    tensor: int
    gains: tuple[float, float | None]
    rates: tuple[float, float]
    budget: int
    options: tuple[Split, ...]


CASES: Final = (
    Case(
        "D1",
        "OPT-13B",
        "ShareGPT",
        limits_of(ttft=0.25, tpot=0.1),
        (2, 1),
        (1, 1),
        1,
        (4.60, 7.36),
        (0.50, 2.30),
        8,
        SMALL,
    ),
    Case(
        "D2",
        "OPT-66B",
        "ShareGPT",
        limits_of(ttft=2.5, tpot=0.15),
        (4, 1),
        (2, 2),
        4,
        (2.75, 1.57),
        (0.347, 0.955),
        16,
        MIDDLE,
    ),
    Case(
        "D3",
        "OPT-175B",
        "ShareGPT",
        limits_of(ttft=4.0, tpot=0.2),
        (3, 3),
        (4, 3),
        8,
        (1.99, None),
        (0.101, 0.201),
        32,
        LARGE,
    ),
    Case(
        "D4",
        "OPT-66B",
        "HumanEval",
        limits_of(ttft=0.125, tpot=0.2),
        (4, 1),
        (2, 2),
        4,
        (5.72, 1.59),
        (0.20, 1.14),
        16,
        MIDDLE,
    ),
    Case(
        "D5",
        "OPT-66B",
        "LongBench",
        limits_of(ttft=15.0, tpot=0.15),
        (4, 1),
        (2, 2),
        4,
        (4.24, 1.77),
        (0.125, 0.53),
        16,
        MIDDLE,
    ),
)


@dataclass(frozen=True, slots=True)
class Served:
    """What a placement serves: its name and its goodput per GPU [1/s]."""

    placement: str
    per_gpu: float


def lengths_of(workload: str, requests: int, data: Path | None) -> Lengths:
    """Lengths with the published means; their spread is assumed, but for ShareGPT's, which Azure's trace stands in for.

    LongBench: prompts cut so that prompt and answer have 2,040 tokens.
    """
    if workload == "ShareGPT":
        return _chat(requests, data)
    if workload == "HumanEval":
        return gamma_lengths(requests, 171.3, 0.5, 1024, seed=6), gamma_lengths(requests, 98.2, 0.8, 1024, seed=7)
    osl = gamma_lengths(requests, 92.0, 1.2, 1000, seed=7)
    return np.minimum(gamma_lengths(requests, 4_700.0, 0.8, 100_000, seed=6), 2040 - osl), osl


def _chat(requests: int, data: Path | None) -> Lengths:
    """Requests of Azure's conversation trace that fit into the window: mean 754 / 232 tokens (ShareGPT: 755 / 200)."""
    if data is None:
        osl = gamma_lengths(requests, 205.0, 0.8, 1024, seed=7)
        return np.minimum(gamma_lengths(requests, 790.0, 0.65, WINDOW, seed=6), WINDOW - osl), osl
    with (data / "traces" / "AzureLLMInferenceTrace_conv_2023.csv").open(encoding="utf-8") as file:
        pairs = np.array([(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)])
    fitting = pairs[(pairs.sum(axis=1) <= WINDOW) & (pairs.min(axis=1) >= 1)]
    drawn = fitting[np.random.default_rng(8).integers(0, len(fitting), requests)]
    return drawn[:, 0], drawn[:, 1]


@cache
def engine(
    model: str, role: Role, policy: Policy, split: Split, budget: int, steps: CoefficientSteps | None = None
) -> SimulatedPool:
    """One engine; hand-overs go over NVLink, as their placements see to."""
    link = a100().scale_up.bandwidth
    return engine_pool(
        load_model(model),
        role,
        policy,
        tensor=split[0],
        pipeline=split[1],
        seqs=min(SEQS, budget),
        budget=budget,
        longest=WINDOW,
        memory_fraction=FRACTION,
        link=0.0 if role is Role.COLOCATED else link,
        router=Router.LEAST_LOADED if role is Role.DECODE else Router.LENGTH_AWARE,
        steps=steps,
    )


def colocated(
    model: str, split: Split, chunk: int | None, replicas: int = 1, steps: CoefficientSteps | None = None
) -> SimulatedFleet:
    """vLLM of 2023 (whole prompts, which go first), or with a chunk the scheduler that lets both share a step."""
    policy, budget = (VLLM_V0, WHOLE_BUDGET) if chunk is None else (VLLM_V1, chunk)
    return (replace(engine(model, Role.COLOCATED, policy, split, budget, steps), replicas=replicas),)


def disaggregated(
    model: str,
    splits: tuple[Split, Split],
    replicas: tuple[int, int] = (1, 1),
    steps: tuple[CoefficientSteps | None, CoefficientSteps | None] = (None, None),
) -> SimulatedFleet:
    """Prefill engines that compute whole prompts, and decode engines."""
    first = engine(model, Role.PREFILL, VLLM_V0, splits[0], PREFILL_BUDGET, steps[0])
    second = engine(model, Role.DECODE, VLLM_V0, splits[1], SEQS, steps[1])
    return (replace(first, replicas=replicas[0]), replace(second, replicas=replicas[1]))


def fitted_steps(data: Path, system: str, model: str, tensor: int) -> CoefficientSteps:
    """Step times that DistServe's authors fitted to their own system ("distserve") or to vLLM."""
    tables: dict[str, Any] = json.loads((data / "simulation" / "simdistserve" / "coefficients.json").read_text("utf-8"))
    name, weights, cache_size = SCALED.get(model, (f"facebook/{model.lower()}", 1.0, 1.0))
    found = steps_of(tables[system][name][str(tensor)])

    def decode(abc: tuple[float, float, float]) -> tuple[float, float, float]:
        return abc[0] * weights, abc[1] * cache_size, abc[2] * weights

    prefill = (found.prefill_abc[0] * weights, found.prefill_abc[1] * weights, found.prefill_abc[2] * cache_size)
    return replace(found, prefill_abc=prefill, small=decode(found.small), large=decode(found.large))


def as_published(case: Case, data: Path | None) -> dict[str, tuple[SimulatedFleet, int]]:
    """Their three systems and their GPUs: vLLM, a colocated engine with chunks (for MII) and DistServe.

    With DATA each has the step times that were fitted; MII's were not, so it gets those of DistServe's kernels.
    """

    def steps(system: str, tensor: int) -> CoefficientSteps | None:
        return fitted_steps(data, system, case.model, tensor) if data else None

    alone, splits = (case.tensor, 1), (case.prefill, case.decode)
    both = (steps("distserve", case.prefill[0]), steps("distserve", case.decode[0]))
    return {
        "whole": (colocated(case.model, alone, None, steps=steps("vllm", case.tensor)), case.tensor),
        "chunked": (colocated(case.model, alone, CHUNKS[0], steps=steps("distserve", case.tensor)), case.tensor),
        "split": (disaggregated(case.model, splits, steps=both), _gpus(case.prefill) + _gpus(case.decode)),
    }


def placements(case: Case, kind: str) -> Iterator[tuple[str, int, SimulatedFleet]]:
    """Name, GPUs and fleet of every placement of a kind ("whole", "chunked", "split") that fills the budget."""
    if kind != "split":
        for split, chunk in product(case.options, (None,) if kind == "whole" else CHUNKS):
            count, chunked = case.budget // _gpus(split), f" chunk {chunk}" if chunk else ""
            yield f"{count} x {_name(split)}{chunked}", count * _gpus(split), colocated(case.model, split, chunk, count)
        return
    for prefill, decode in product(case.options, case.options):
        for first in range(1, (case.budget - _gpus(decode)) // _gpus(prefill) + 1):
            second = (case.budget - first * _gpus(prefill)) // _gpus(decode)
            fleet = disaggregated(case.model, (prefill, decode), (first, second))
            gpus = first * _gpus(prefill) + second * _gpus(decode)
            yield f"{first} P {_name(prefill)} + {second} D {_name(decode)}", gpus, fleet


def best(case: Case, kind: str, lengths: Lengths, slo: SloLimits) -> Served:
    """Placement of a kind with the highest goodput per GPU."""
    found = [Served(name, goodput(fleet, lengths, slo, 0.03) / gpus) for name, gpus, fleet in placements(case, kind)]
    return max(found, key=lambda one: one.per_gpu)


def _gpus(split: Split) -> int:
    return split[0] * split[1]


def _name(split: Split) -> str:
    return f"tp{split[0]}" if split[1] == 1 else f"tp{split[0]}pp{split[1]}"


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"


def published_row(case: Case, data: Path) -> tuple[object, ...]:
    """Theirs and ours, as they ran it."""
    lengths = lengths_of(case.workload, SHORT, data)
    rate = {
        kind: short_goodput(fleet, lengths, case.slo) / gpus for kind, (fleet, gpus) in as_published(case, data).items()
    }
    return (
        case.name,
        f"{case.model} {case.workload}",
        f"{case.slo[Metric.TTFT]:g} / {case.slo[Metric.TPOT]:g} s",
        f"{case.rates[0]:.3g} / {rate['whole']:.3g}",
        f"{case.rates[1]:.3g} / {rate['split']:.3g}",
        f"{case.gains[0]:.2f} / {_ratio(rate['split'], rate['whole'])}",
        f"{case.gains[1] or '-'} / {_ratio(rate['split'], rate['chunked'])}",
    )


def modelled_row(case: Case, data: Path | None, scale: float) -> tuple[object, ...]:
    """Our cost model's engines: their placement, then the best ones."""
    lengths, slo = lengths_of(case.workload, STEADY, data), {key: limit * scale for key, limit in case.slo.items()}
    theirs = {
        kind: goodput(fleet, lengths, slo) / gpus
        for kind, (fleet, gpus) in as_published(case, None).items()
        if kind != "chunked"
    }
    whole, chunked, split = (best(case, kind, lengths, slo) for kind in ("whole", "chunked", "split"))
    return (
        case.name,
        f"{slo[Metric.TTFT]:g} / {slo[Metric.TPOT]:g} s",
        _ratio(theirs["split"], theirs["whole"]),
        f"{whole.per_gpu:.3g} ({whole.placement})",
        f"{chunked.per_gpu:.3g} ({chunked.placement})",
        f"{split.per_gpu:.3g} ({split.placement})",
        _ratio(split.per_gpu, whole.per_gpu),
        _ratio(split.per_gpu, chunked.per_gpu),
    )


def main() -> None:
    """Print both tables."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if data:
        print("as they ran it; theirs / ours, goodput in req/s per GPU")
        head = ("case", "load", "TTFT / TPOT", "vLLM", "DistServe", "gain over vLLM", "gain over chunked (MII)")
        print(table(head, [published_row(case, data) for case in CASES]), flush=True)
    print("our cost model, steady state, goodput in req/s per GPU")
    kinds = ("best whole", "best chunked", "best split")
    rows = [modelled_row(case, data, scale) for scale in (1.0, 0.5) for case in CASES]
    print(table(("case", "TTFT / TPOT", "gain, their placement", *kinds, "gain", "over chunked"), rows))


if __name__ == "__main__":
    main()
