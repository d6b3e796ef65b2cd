"""Why there is no plan: what physics forbids (the input is wrong), or which limit would have to give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from search_spaces.enumeration import Enumeration
from search_spaces.problem import Constraints, Problem

from .instance import Instance

FloatArray = NDArray[np.float64]


def check_shapes(problem: Problem, enumeration: Enumeration) -> None:
    """Raise InputError when no engine of the space can exist, with the commonest reason per accelerator."""
    if enumeration.shapes:
        return
    memory = {key: count for key, count in enumeration.dropped.items() if "fit in memory" in key}
    reasons = sorted(memory or enumeration.dropped, key=lambda key: -enumeration.dropped[key])[:3]
    weights = problem.model.weight_bytes(problem.weight_dtype)
    raise InputError(
        f"model {problem.model.name} in {problem.weight_dtype} ({weights / 2**30:,.0f} GiB of weights) runs on none of "
        f"the accelerators within the search space: {'; '.join(reasons)}; allow more GPUs per engine "
        "(search.tensor_parallel, search.pipeline_parallel, search.max_gpus_per_engine), a smaller weight_dtype, "
        "or an accelerator with more memory"
    )


def check_floors(instance: Instance) -> None:
    """Raise InputError when an SLO lies below what the fastest idle engine can do for the share that it must hold."""
    flows, tables = instance.flows, instance.tables
    fastest = tables.prefill_time.min(axis=0)
    step = float(tables.decode_base.min())
    for k, slo in enumerate(instance.problem.slos):
        mine = flows.slo == k
        floor = _share_quantile(fastest[mine], flows.share[mine], slo.attainment)
        if slo.ttft < floor:
            raise InputError(
                f"slo {slo.name}: ttft {slo.ttft * 1e3:,.0f} ms is below the physical floor: the fastest engine alone "
                f"needs {floor * 1e3:,.0f} ms for the prompts that attainment {slo.attainment:g} includes, "
                f"{(floor - slo.ttft) * 1e3:,.0f} ms more"
            )
        generating = mine & (flows.osl > 1.0)
        if slo.tpot < step and float(flows.share[generating].sum() / flows.share[mine].sum()) > 1.0 - slo.attainment:
            raise InputError(
                f"slo {slo.name}: tpot {slo.tpot * 1e3:,.2f} ms is below the physical floor: the fastest engine needs "
                f"{step * 1e3:,.2f} ms for one decode step, {(step - slo.tpot) * 1e3:,.2f} ms more"
            )
        whole = _share_quantile((fastest + (flows.osl - 1.0) * step)[mine], flows.share[mine], slo.attainment)
        if slo.e2e is not None and slo.e2e < whole:
            raise InputError(
                f"slo {slo.name}: e2e {slo.e2e:,.2f} s is below the physical floor: the fastest engine alone needs "
                f"{whole:,.2f} s for the requests that attainment {slo.attainment:g} includes, "
                f"{whole - slo.e2e:,.2f} s more"
            )


def _share_quantile(values: FloatArray, share: FloatArray, goal: float) -> float:
    """Smallest value that covers `goal` of the share."""
    order = np.argsort(values, kind="stable")
    covered = np.cumsum(share[order]) / share.sum()
    return float(values[order][min(int(np.searchsorted(covered, goal - 1e-12)), order.size - 1)])


def without_limits(problem: Problem) -> Problem:
    """The same problem with all the GPUs, money and power one could wish for."""
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    limits = Constraints(spare_replicas=problem.constraints.spare_replicas)
    return replace(problem, offers=offers, constraints=limits)


def with_looser_slos(problem: Problem, factor: float) -> Problem:
    """The same problem with every latency limit multiplied by `factor`."""
    slos = tuple(
        replace(slo, ttft=slo.ttft * factor, tpot=slo.tpot * factor, e2e=None if slo.e2e is None else slo.e2e * factor)
        for slo in problem.slos
    )
    return replace(problem, slos=slos)


def with_fewer_misses(problem: Problem, factor: float) -> Problem:
    """The same problem with the misses that each class permits multiplied by `factor`."""
    slos = tuple(replace(slo, attainment=1.0 - (1.0 - slo.attainment) * factor) for slo in problem.slos)
    return replace(problem, slos=slos)
