"""The canonical echo of a problem: what the user wrote, every default filled in, ready for JSON.

It is itself a workload.yaml: written down and read again, it states the same problem without the files
(trace, histogram, catalog prices) that the first one leaned on. Numbers are in SI base units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodel.metric import SHOWN_ALWAYS, Metric
from costmodel.workload import Workload

from .problem import Goal, Objective, Offer, Problem, SearchSpace, Slo
from .quotes import basis_of
from .schema import LengthsSection, WorkloadFile, WorkloadSection
from .traces.summary import quantiles_of


def _prices(prices: str, base: Path) -> str:
    return prices if basis_of(prices) is not None else _absolute(prices, base)


def inputs_echo(file: WorkloadFile, problem: Problem, base: Path) -> dict[str, Any]:
    """Return the echo of `problem`, which was made from `file`; base: folder from which that names other files.

    Their paths become absolute, as the echo is read elsewhere.
    """
    limits, model = problem.constraints, file.model
    named = {"config": model.config, "architecture": model.architecture}
    return {
        "schema": file.schema_,
        "name": problem.name,
        "model": {
            **({"name": model.name} if model.name else {}),
            **{key: _absolute(path, base) for key, path in named.items() if path},
            "weight_dtype": problem.weight_dtype,
            "kv_dtype": problem.kv_dtype,
        },
        "workload": _workload(file, problem.workload),
        "slo": [_slo(slo) for slo in problem.slos],
        "accelerators": [_offer(offer, problem.offers) for offer in problem.offers if not offer.owned],
        **({} if file.prices is None else {"prices": _prices(file.prices, base)}),
        "catalog": _absolute(file.catalog, base) if file.catalog else None,
        "search": {"preset": file.search.preset, **_space(problem.space)},
        "objective": _objective(problem.objective),
        "constraints": {
            "budget": limits.budget,
            "power": limits.power,
            "max_gpus": limits.max_gpus,
            "max_pools": limits.max_pools,
            "headroom": {"replicas": limits.spare_replicas},
            "routing": (file.constraints.routing if problem.target is None else limits.routing).value,
            "balancing": limits.balancing.value,
            "pools": limits.pools.value,
        },
        "confidence": problem.confidence,
        "engine": problem.engine,
        "target": file.target,
        "memory_fraction": problem.memory_fraction,
        "seed": problem.seed,
        **({"procurement": file.procurement.model_dump(exclude_none=True)} if file.procurement is not None else {}),
    }


def _absolute(path: str, base: Path) -> str:
    return str((base / path).resolve())


def whole_echo(problem: Problem) -> dict[str, Any]:
    """Return the echo of a problem with the requests that were recorded, which scenarios of it do without."""
    if problem.recorded is None:
        return dict(problem.inputs)
    return {**problem.inputs, "workload": problem.inputs["workload"] | {"recorded": problem.recorded.echo()}}


def _workload(file: WorkloadFile, workload: Workload) -> dict[str, Any]:
    diurnal = file.workload.diurnal
    columns = (column.tolist() for column in (workload.isl, workload.osl, workload.share))
    rows = [{"isl": isl, "osl": osl, "share": share} for isl, osl, share in zip(*columns, strict=True)]
    lengths = {"histogram": rows, "source": _lengths_source(file.workload.lengths)}
    return {
        "request_rate": workload.request_rate if diurnal is None else None,
        "diurnal": None if diurnal is None else diurnal.model_dump(),
        "burstiness": workload.burstiness,
        **_prefixes(file.workload, workload),
        "max_tokens": workload.max_tokens,
        **({} if workload.sessions is not None else {"lengths": lengths}),
    }


def _prefixes(section: WorkloadSection, workload: Workload) -> dict[str, Any]:
    """What prompts have in common; the rate of sessions is stated as that of requests."""
    if section.sessions is not None:
        return {"sessions": section.sessions.model_dump(exclude_none=True, exclude={"rate"})}
    stated: dict[str, Any] = {}
    if section.reuse_interval is not None:
        stated = {"reuse_interval": section.reuse_interval.model_dump(exclude_none=True)}
    elif workload.reuse is not None:
        stated = {"reuse_interval": {"quantiles": quantiles_of(workload.reuse.pause)}}
    return {"prefix_hit_share": workload.prefix_hit_share, **stated}


def _lengths_source(lengths: LengthsSection | None) -> str:
    """Where the lengths came from: in the user's words, or the name of the file."""
    if lengths is None:
        return "sessions"
    if lengths.source is not None:
        return lengths.source
    if lengths.trace is not None:
        return f"trace {lengths.trace.path}"
    if lengths.isl is not None:
        return "named distributions"
    return f"histogram {lengths.histogram}" if isinstance(lengths.histogram, str) else "inline histogram"


def _slo(slo: Slo) -> dict[str, Any]:
    limits = {
        str(metric): f"{slo.limits[metric]!r}s" if metric in slo.limits else None
        for metric in Metric
        if metric in SHOWN_ALWAYS or metric in slo.limits
    }
    return {"name": slo.name, "share": slo.share, **limits, "attainment": slo.attainment}


def _offer(offer: Offer, offers: Sequence[Offer]) -> dict[str, Any]:
    owned = [own for own in offers if own.owned and own.gpu == offer.gpu]
    return {
        "name": offer.accelerator.name,
        "price": offer.usd_per_hour,
        **({} if offer.quote is None else {"catalog_price": offer.quote.usd_per_hour}),
        "inventory": offer.inventory,
        **{key: value for own in owned for key, value in (("owned", own.inventory), ("owned_price", own.usd_per_hour))},
        "billing": offer.billing.value,
        "node_size": offer.accelerator.node_size,
        "scale_up": asdict(offer.accelerator.scale_up),
        "scale_out": asdict(offer.accelerator.scale_out),
    }


def _space(space: SearchSpace) -> dict[str, Any]:
    """The ranges; precisions only where they are stated."""
    ranges = {name: list(values) if isinstance(values, tuple) else values for name, values in asdict(space).items()}
    stated = {name: values for name, values in ranges.items() if values or name not in {"weight_dtype", "kv_dtype"}}
    return stated | {"roles": [role.value for role in space.roles]}


def _objective(objective: Objective) -> dict[str, Any]:
    ratio = objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR
    return {
        "goal": objective.goal.value,
        "min_volume": objective.min_volume if ratio else None,
        "max_volume": objective.max_volume if ratio else None,
    }
