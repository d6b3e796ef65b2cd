"""Why there is no plan: what physics forbids (the input is wrong), or which limit would have to give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import BelowFloorError
from costmodel.metric import Metric
from search_spaces.checks import impossible_faults
from search_spaces.enumeration import Enumeration
from search_spaces.faults import Fault
from search_spaces.problem import Problem, Slo

from .engine_table import prompt_latency
from .instance import Instance

FloatArray = NDArray[np.float64]


def check_shapes(problem: Problem, enumeration: Enumeration) -> None:
    """Raise InputError when no engine of the space can exist, with what each accelerator lacks."""
    if not enumeration.shapes:
        raise problem.refusal(list(impossible_faults(problem)))


@dataclass(frozen=True, slots=True)
class Floor:
    """A limit of class `k` that no engine can keep, even an idle one: its metric, the least possible [s], and why."""

    k: int
    limit: Metric
    least: float
    why: str


def check_floors(instance: Instance) -> None:
    """Raise BelowFloorError for every SLO below what the fastest idle engine can do for the share that it must hold."""
    faults = [Fault(("slo", floor.k, floor.limit), floor.why) for floor in floors(instance)]
    if faults:
        raise BelowFloorError(str(instance.problem.refusal(faults)))


def floors(instance: Instance) -> list[Floor]:
    """Every limit on latency that no engine can keep."""
    prompt, step = fastest_prompt(instance), fastest_step(instance)
    return [floor for k in range(len(instance.problem.slos)) for floor in _floors(instance, k, prompt, step)]


def _floors(instance: Instance, k: int, prompt: FloatArray, step: float) -> Iterator[Floor]:
    """Those of class `k`; prompt (flows,), step: the shortest of any engine [s]."""
    flows, slo = instance.flows, instance.problem.slos[k]
    own = flows.slo == k
    share, later = flows.share[own], flows.osl[own] - 1.0
    scope = f"that attainment {slo.attainment:g} includes"
    least = {
        Metric.TTFT: (_share_quantile(prompt[own], share, slo.attainment), " alone", f"the prompts {scope}"),
        Metric.TPOT: (step, "", "a decode step of one request"),
        Metric.ITL_P99: (step, "", "a decode step of one request"),
        Metric.E2E: (
            _share_quantile(prompt[own] + later * step, share, slo.attainment),
            " alone",
            f"the requests {scope}",
        ),
    }
    if share[later > 0.0].sum() / share.sum() <= 1.0 - slo.attainment:
        del least[Metric.TPOT], least[Metric.ITL_P99]
    for metric, (floor, alone, work) in least.items():
        if (limit := slo.limit(metric)) < floor:
            scale, unit = (1.0, "s") if metric is Metric.E2E else (1e3, "ms")
            yield Floor(
                k,
                metric,
                floor,
                f"{limit * scale:,.4g} {unit} of class {slo.name} is below the physical floor: the fastest engine"
                f"{alone} needs {floor * scale:,.4g} {unit} for {work}, {(floor - limit) * scale:,.4g} {unit} more",
            )


def fastest_step(instance: Instance) -> float:
    """Shortest decode step of any engine of the space, its KV reads apart [s].

    A batch limit bounds the requests that run from above alone, so one request may run by itself whatever the limits
    are: the table begins there.
    """
    return float(instance.tables.decode_base.min())


def fastest_prompt(instance: Instance) -> FloatArray:
    """Shortest time in which any engine of the space computes a prompt of each flow when it is idle [s], (flows,).

    With small chunks the stages of a pipeline overlap.
    """
    table, stages = instance.tables, instance.tables.pipeline[:, None]
    chunks = instance.flows.chunks_of(table.rank_chunks)
    best = prompt_latency(table.prefill_alone, chunks, stages).min(axis=(0, 1))
    if Role.COLOCATED not in instance.problem.space.roles:
        return np.asarray(best)
    deep = stages[:, :, None, None]
    turns = table.mixed_alone * (table.chunk_count / deep + 1.0 - 1.0 / deep)
    return np.asarray(np.minimum(best, turns.min(axis=(0, 1, 2))))


def _share_quantile(values: FloatArray, share: FloatArray, goal: float) -> float:
    """Smallest value that covers `goal` of the share."""
    order = np.argsort(values, kind="stable")
    cumulative_share = np.cumsum(share[order]) / share.sum()
    return float(values[order][min(int(np.searchsorted(cumulative_share, goal - 1e-12)), order.size - 1)])


def without_limits(problem: Problem) -> Problem:
    """The same problem with all the GPUs, money and power one could wish for."""
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    return replace(problem, offers=offers, constraints=problem.constraints.lifted)


def with_looser_slos(problem: Problem, factor: float, metrics: Sequence[Metric] = tuple(Metric)) -> Problem:
    """The same problem with the limits on these metrics multiplied by `factor`."""

    def looser(slo: Slo) -> Slo:
        limits = {metric: limit * (factor if metric in metrics else 1.0) for metric, limit in slo.limits.items()}
        return replace(slo, limits=limits)

    return replace(problem, slos=tuple(looser(slo) for slo in problem.slos))
