"""workload.yaml written for the user: templates, a measured trace as a problem, and the canonical echo of a problem.

The echo is what the user wrote, every default filled in, ready for JSON.

It is itself a workload.yaml: written down and read again, it states the same problem without the files
(trace, histogram, catalog prices) that the first one leaned on. Numbers are in SI base units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from textwrap import wrap
from typing import Any

from costmodel.metric import SHOWN_ALWAYS, Metric
from costmodel.workload import Workload

from .problem import Goal, Offer, Problem, SearchSpace, Slo
from .quotes import basis_of
from .schema import WORKLOAD_SCHEMA, LengthsSection, WorkloadFile, WorkloadSection
from .traces.summary import quantiles_of


def inputs_echo(file: WorkloadFile, problem: Problem, base: Path) -> dict[str, Any]:
    """Return the echo of `problem`, which was made from `file`; base: folder from which that names other files.

    Their paths become absolute, as the echo is read elsewhere.
    """
    limits, model, prices = problem.constraints, file.model, file.prices
    ratio = problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR
    ratio_range = {"max_volume": problem.objective.max_volume} if ratio else {}
    drafts = None if model.speculation is None else model.speculation.model_dump(mode="json", exclude_none=True)
    if drafts is not None and problem.speculation is not None:
        drafts["acceptance"] = list(problem.speculation.acceptance)
    model_files = {"config": model.config, "architecture": model.architecture}
    return {
        "schema": file.schema_,
        "name": problem.name,
        "model": {
            **({"name": model.name} if model.name else {}),
            **{key: _absolute(path, base) for key, path in model_files.items() if path},
            "weight_dtype": problem.weight_dtype,
            "kv_dtype": problem.kv_dtype,
            **({} if drafts is None else {"speculation": drafts}),
        },
        "workload": _workload(file, problem.workload),
        "slo": [_slo(slo) for slo in problem.slos],
        "accelerators": [_offer(offer) for offer in problem.offers],
        **({"prices": prices if basis_of(prices) is not None else _absolute(prices, base)} if prices else {}),
        "catalog": _absolute(file.catalog, base) if file.catalog else None,
        "search": {"preset": file.search.preset, **_space(problem.space)},
        "objective": file.objective.model_dump(mode="json") | ratio_range,
        "constraints": file.constraints.model_dump(mode="json")
        | {"balancing": limits.balancing.value}
        | ({} if problem.target is None else {"routing": limits.routing.value}),
        "confidence": problem.confidence,
        "engine": problem.engine,
        "target": file.target,
        "memory_fraction": problem.memory_fraction,
        **({} if file.kv_cache_tier is None else {"kv_cache_tier": file.kv_cache_tier.model_dump()}),
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
    reuse: dict[str, Any] = {}
    if section.reuse_interval is not None:
        reuse = {"reuse_interval": section.reuse_interval.model_dump(exclude_none=True)}
    elif workload.reuse is not None:
        reuse = {"reuse_interval": {"quantiles": quantiles_of(workload.reuse.pause)}}
    return {"prefix_hit_share": workload.prefix_hit_share, **reuse}


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


def _offer(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.accelerator.name,
        "price": offer.usd_per_hour,
        **({} if offer.quote is None else {"catalog_price": offer.quote.usd_per_hour}),
        "inventory": offer.inventory,
        **({"owned": offer.owned, "owned_price": offer.owned_usd_per_hour} if offer.owned else {}),
        "billing": offer.billing.value,
        "node_size": offer.accelerator.node_size,
        "scale_up": asdict(offer.accelerator.scale_up),
        "scale_out": asdict(offer.accelerator.scale_out),
    }


def _space(space: SearchSpace) -> dict[str, Any]:
    """The ranges; precisions only where they are stated."""
    ranges = {name: list(values) if isinstance(values, tuple) else values for name, values in asdict(space).items()}
    ranges_written = {
        name: values
        for name, values in ranges.items()
        if values or name not in {"weight_dtype", "kv_dtype", "speculative_tokens"}
    }
    return ranges_written | {"roles": [role.value for role in space.roles]}


_SCALARS = ("request_rate", "burstiness", "prefix_hit_share", "reuse_interval", "max_tokens")
_COMMENTS: Mapping[str, str] = {
    "request_rate": "mean arrivals [1/s]",
    "burstiness": "coefficient of variation of the times between arrivals; 1 is Poisson",
    "prefix_hit_share": "share of input tokens found in a prefix cache",
    "reuse_interval": "time since their last use",
    "max_tokens": "longest ISL + OSL [token]",
}
_RECORDED = "its requests are simulated as they came; without it, state burstiness (1 is Poisson)"
COMMENT_WIDTH = 110


def init_text() -> str:
    """Return the commented example that `pdplan init` writes; it loads and solves as it stands."""
    return (resources.files("search_spaces") / "init_template.yaml").read_text(encoding="utf-8")


def fleet_text() -> str:
    """Return the commented fleet file that `pdplan init --fleet` writes; it serves the example of `pdplan init`."""
    return (resources.files("search_spaces") / "fleet_template.yaml").read_text(encoding="utf-8")


def workload_yaml_text(mapping: Mapping[str, Any], name: str, model: str, notes: Sequence[str] = ()) -> str:
    """Return a workload.yaml around a measured `workload:` block; the user then sets service level and accelerators.

    Args:
        mapping: the block as plain data, with a histogram of rows under lengths, or with sessions.
        name: name of the problem, and where its lengths came from unless the mapping says so.
        model: catalog name, Hugging Face id, or path to a config.json.
        notes: sentences that become comments above the demand.
    """
    scalars = [f"  {key}: {json.dumps(mapping[key])}  # {_COMMENTS[key]}" for key in _SCALARS if key in mapping]
    if "recorded" in mapping:
        source = json.dumps(mapping["recorded"], ensure_ascii=False)
        scalars.append(f"  recorded: {source}  # {_RECORDED}")
    if "sessions" in mapping:
        length_lines = ["  sessions:"]
        length_lines += [f"    {key}: {json.dumps(value)}" for key, value in mapping["sessions"].items()]
    else:
        source = _text(mapping["lengths"].get("source", name))
        length_lines = ["  lengths:", f"    source: {source}"]
        length_lines.append("    histogram:  # ISL and OSL [token], share of requests")
        for row in mapping["lengths"]["histogram"]:
            flow = ", ".join(f"{key}: {json.dumps(value)}" for key, value in row.items())
            length_lines.append(f"      - {{{flow}}}")
    model_key = "config" if model.endswith(".json") else "name"
    lines = [
        f"schema: {WORKLOAD_SCHEMA}",
        f"name: {_text(name)}",
        "",
        f"model: {{{model_key}: {_text(model)}}}",
        "",
        *(f"# {line}" for note in notes for line in wrap(f"Note: {note}", COMMENT_WIDTH)),
        "workload:",
        *scalars,
        *length_lines,
        "",
        "slo:  # set these to what your users need",
        "  ttft: 2s",
        "  tpot: 50ms",
        "  attainment: 0.9",
        "",
        'accelerators: ["A100-80", "H100", "H200"]',
    ]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """A JSON text is a YAML text too, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)
