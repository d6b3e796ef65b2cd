"""workload.yaml -> `Problem`: read, checked, names resolved, defaults filled in; or all of its faults at once.

Values may be replaced from elsewhere, as `--set` does: by dotted path, before anything is checked.

And back: templates, a measured trace as a problem, and the canonical echo of a problem. The echo is what the user
wrote, every default filled in, ready for JSON. It is itself a workload.yaml: written down and read again, it states the
same problem without the files (trace, histogram, catalog prices) that the first one leaned on. Numbers are in SI base
units.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from string import Template
from textwrap import wrap
from typing import Any

from costmodel.accelerator import Accelerator, Link
from costmodel.errors import ImpossibleError, InputError, name_list, nearest_name, shortened, shown, value_of
from costmodel.metric import SHOWN_ALWAYS, Metric
from costmodel.prefix_cache import CacheTier, usd_per_gpu
from costmodel.transformer import Transformer
from costmodel.workload import Workload

from .bounds import BURSTINESS, NO_TARGET
from .buying_terms import ProcurementSection, owned_price
from .catalog import AcceleratorCatalog, load_catalog, normalized_name
from .demand import LengthsSection, WorkloadSection, read_demand
from .engines import DRAFTED, SUPPORT
from .enumeration import feasibility_faults, usual_kv_dtype
from .fields import sound_sections
from .files import Fault, FaultsError, Keys, Source, check_name, shipped_text
from .models import load_model
from .problem import (
    DEFAULT_VOLUME_RANGE,
    Constraints,
    Gateway,
    Goal,
    Objective,
    Offer,
    Pools,
    Problem,
    Recorded,
    Slo,
    any_target,
    target_of,
    undeployed,
    whole_limit,
)
from .quotes import basis_of, is_quotes_file, quotes_lost
from .schema import (
    ANY,
    WORKLOAD_SCHEMA,
    AcceleratorSection,
    Context,
    LinkSection,
    WorkloadFile,
    cross_faults,
    length_faults,
    tier_faults,
)
from .search_space import search_space
from .sources import MAX_DEPTH, parse_value, read_source
from .trace_summary import quantiles_of

_Demand = tuple[Workload, Recorded | None]

DEFAULT_ATTAINMENT = 0.9


def load_problem(
    path: Path | str, overrides: Mapping[str, Any] | None = None, *, engines_exist: bool = True
) -> Problem:
    """Return the problem that a workload.yaml states; InputError with all of its faults, each with line and column.

    path: the file; names of files inside it are relative to its folder; overrides: values by dotted path that replace
    those of the file, such as {"workload.request_rate": "20/s"}; a text is read as YAML; engines_exist: whether the
    search space must have an engine that the model fits on.
    """
    path = Path(path)
    check_name(path)
    source = overridden(read_source(path, "workload", WORKLOAD_SCHEMA), overrides or {}, path.parent)
    return stated_problem(source, path.parent, path.stem, engines_exist=engines_exist)


def overridden(source: Source, overrides: Mapping[str, Any], base: Path) -> Source:
    """A workload with values replaced, those of single accelerators once `any` among these has become names."""
    of_items = {key: value for key, value in overrides.items() if key.startswith("accelerators.")}
    if sentence := quotes_lost(source.value.get("prices"), overrides.get("prices")):
        raise source.error(sentence, ("prices",))
    source = override(source, {key: value for key, value in overrides.items() if key not in of_items})
    return override(_with_any_accelerator(source, base), of_items)


def without_recording(problem: Problem) -> Problem:
    """The same problem with random requests in place of recorded ones, as its scenarios have them.

    They are as bursty as the formulas take the recorded ones to be.
    """
    return replace(problem, recorded=None)


def problem_of(inputs: Mapping[str, Any], name: str, base: Path) -> Problem:
    """Return the problem that values state, such as the echo of a workload.yaml in a plan; raises as `load_problem`.

    inputs: what a workload.yaml holds; name: stands for the file in messages, which name the key of a fault, but no
    line; base: folder from which files named inside are looked up.
    """
    source = _with_any_accelerator(Source(name, (), json.loads(json.dumps(inputs))), base)
    return stated_problem(source, base, name)


def stated_problem(source: Source, base: Path, name: str, *, engines_exist: bool = True) -> Problem:
    """Return the problem of a source, called `name` unless it names itself; InputError with all of its faults.

    base: folder from which files named inside are looked up; engines_exist: as in `load_problem`.
    """
    catalog, catalog_faults = _catalog(source.value, base)
    sections = dict[str, Any]()
    check_accelerator = (lambda _name: None) if catalog_faults else catalog.accelerator
    context = Context(check_accelerator, lambda name: load_model(name, base), sections)
    file, all_faults = sound_sections(source, WorkloadFile, context)
    section = sections.get("model")
    model = None if section is None else load_model(section.name or section.config or section.architecture, base)
    entries = sections.get("accelerators", ()) if not catalog_faults else ()
    accelerators = [catalog.accelerator(entry.name) for entry in entries]
    all_faults += [*catalog_faults, *cross_faults(sections, model, accelerators)]
    demand, demand_faults = _workload(sections, base, model, read_trace=not all_faults)
    all_faults += demand_faults
    if all_faults or file is None or model is None or demand is None:
        raise InputError(source.render(all_faults))
    offers = tuple(_offer(file, *pair) for pair in zip(file.accelerators, accelerators, strict=True))
    problem = _problem(file, name, model, demand, offers)
    problem = replace(problem, engine_changes=catalog.engines, source=source, base=base.resolve())
    problem = replace(problem, inputs=inputs_echo(file, problem, base))
    impossible = feasibility_faults(problem)
    lacks_engines = bool(impossible) and impossible[0].path[:1] == ("accelerators",)
    if impossible and (engines_exist or not lacks_engines):
        refusal = problem.refusal(impossible)
        raise ImpossibleError(str(refusal)) if lacks_engines else refusal
    return problem


def _with_any_accelerator(source: Source, base: Path) -> Source:
    """Replace the word `any` among the accelerators by names; the file's own items keep their places."""
    entries = source.value.get("accelerators")
    entries = entries if isinstance(entries, list) else [entries]
    places = [at for at, entry in enumerate(entries) if isinstance(entry, str) and normalized_name(entry) == ANY]
    if len(places) != 1:
        return source
    catalog, _ = _catalog(source.value, base)
    names = [str(entry.get("name") if isinstance(entry, dict) else entry) for entry in entries]
    file_names = {catalog.spellings.get(normalized_name(name)) for name in names}
    basis = basis_of(source.value.get("prices"))
    priced = [
        accelerator.name
        for accelerator in catalog.accelerators.values()
        if (price := accelerator.price_on(basis)) is not None and not price.guessed and not undeployed(accelerator)
    ]
    more = [name for name in priced if name not in file_names]
    accelerators = [*entries[: places[0]], *more[:1], *entries[places[0] + 1 :], *more[1:]]
    return replace(source, value=source.value | {"accelerators": accelerators})


def _catalog(sections: Mapping[str, Any], base: Path) -> tuple[AcceleratorCatalog, list[Fault]]:
    """Return the catalog, overlaid with the user's file and quotes if these can be read."""
    overlay, prices, faults = sections.get("catalog"), sections.get("prices"), []
    catalog = load_catalog()
    if isinstance(overlay, str):
        try:
            catalog = load_catalog(base / overlay)
        except InputError as error:
            faults.append(Fault(("catalog",), str(error)))
    if isinstance(prices, str) and is_quotes_file(prices):
        try:
            catalog = catalog.with_quotes(base / prices)
        except FaultsError as error:
            faults += [Fault(("prices",), fault.sentence) for fault in error.faults]
        except InputError as error:
            faults.append(Fault(("prices",), str(error)))
    return catalog, faults


def _workload(
    sections: Mapping[str, Any], base: Path, model: Transformer | None, *, read_trace: bool
) -> tuple[_Demand | None, list[Fault]]:
    """Return the demand or its faults; a trace, which may be long, is read only if nothing else is wrong."""
    section = sections.get("workload")
    trace = None if section is None or section.lengths is None else section.lengths.trace
    if section is None or (not read_trace and (trace or section.recorded) is not None):
        return None, []
    try:
        workload, recording = read_demand(section, base, model.max_position if model is not None else 0)
    except FaultsError as error:
        return None, list(error.faults)
    if model is None:
        return (workload, recording), []
    faults = [*length_faults(workload, section, model), *tier_faults(workload, sections.get("kv_cache_tier"))]
    return (workload, recording), faults


def _problem(file: WorkloadFile, stem: str, model: Transformer, demand: _Demand, offers: tuple[Offer, ...]) -> Problem:
    """The problem of a sound file; stem: its name, unless it has one."""
    workload, recording = demand
    shares = [1.0 if item.share is None else item.share for item in file.slo]
    goals = [item.attainment or item.percentile or DEFAULT_ATTAINMENT for item in file.slo]
    slos = tuple(
        Slo(item.name, item.limits, goal, share / math.fsum(shares))  # to sum to 1 exactly
        for item, goal, share in zip(file.slo, goals, shares, strict=True)
    )
    target = None if file.target == NO_TARGET else target_of(file.target) if file.target else any_target(file.engine)
    limits = file.constraints.model_dump(exclude={"headroom"})
    constraints = Constraints(spare_replicas=file.constraints.headroom.replicas, **limits)
    space = search_space(file.search, model)
    engine = file.engine if target is None or "engine" in file.model_fields_set else target.engines[0]
    weight_dtype, speculation = file.model.weight_dtype or model.native_weight_dtype, file.model.speculation
    if speculation is not None and file.search.speculative_tokens is None:
        space = replace(space, speculative_tokens=DRAFTED)
    if target is not None:
        space = target.space(space, constraints, len(slos))
        constraints = target.limits(constraints, len(slos), prefixes=workload.prefix_hit_share > 0.0)
    if workload.sessions is not None and constraints.pools is Pools.SHARED:
        constraints = replace(constraints, gateway=Gateway(1, 1))  # prompts grow: a split by length would part sessions
    objective, least = Objective(file.objective.goal), file.objective.min_volume
    if least is not None:  # only where it is the ratio that counts
        objective = Objective(objective.goal, least, file.objective.max_volume or DEFAULT_VOLUME_RANGE * least)
    cache_tier, tier = None, file.kv_cache_tier
    if tier is not None and tier.capacity_per_gpu > 0.0:
        cache_tier = CacheTier(tier.capacity_per_gpu, tier.bandwidth, tier.latency, tier.shared)
    if recording is not None and file.workload.burstiness is None:
        workload = replace(workload, burstiness=bunching(recording, workload, slos))
    return Problem(
        name=file.name or stem,
        model=model.with_states(SUPPORT[engine].state_bits),
        weight_dtype=weight_dtype,
        kv_dtype=file.model.kv_dtype or usual_kv_dtype(engine, model, weight_dtype),
        workload=workload,
        slos=slos,
        offers=offers,
        space=space,
        objective=objective,
        constraints=constraints,
        confidence=file.confidence,
        engine=engine,
        target=None if file.target == NO_TARGET else file.target,
        memory_fraction=file.memory_fraction,
        kv_cache_tier=cache_tier,
        seed=file.seed,
        speculation=None if speculation is None else speculation.template,
        recorded=recording,
    )


def bunching(recording: Recorded, workload: Workload, slos: Sequence[Slo]) -> float:
    """The burstiness by which the formulas see recorded requests [1]: of their counts while one of them may be served.

    Requests that come while another one is in the system meet it. The root of the dispersion is the coefficient of
    variation of gaps that would bunch as much if each were drawn by itself.
    """
    osl = workload.mean_osl
    lasts = sum(slo.share * min(slo.ttft + osl * slo.tpot, float(whole_limit(slo.limits, osl))) for slo in slos)
    window = lasts * workload.request_rate / recording.rate
    return min(math.sqrt(recording.dispersion(window)), BURSTINESS.high)


def _offer(file: WorkloadFile, entry: AcceleratorSection, accelerator: Accelerator) -> Offer:
    """The offer of an accelerator; owned GPUs cost only power and hosting."""
    node_size = entry.node_size or accelerator.node_size
    one_node = accelerator.scale_up_size == accelerator.node_size
    here = replace(
        accelerator,
        node_size=node_size,
        scale_up=_link(entry.scale_up, accelerator.scale_up),
        scale_up_size=node_size if one_node else accelerator.scale_up_size,
        scale_out=_link(entry.scale_out, accelerator.scale_out),
    )
    quote = accelerator.price_on(basis_of(file.prices)) or accelerator.price
    is_open = set(_NUMBERS.findall(accelerator.name)) - set(_NUMBERS.findall(entry.name))
    alias = entry.name if is_open else ""
    tier = file.kv_cache_tier
    tier_price = 0.0 if tier is None else usd_per_gpu(tier.capacity_per_gpu, tier.price_per_gib)
    offer = Offer(
        here, quote.usd_per_hour, entry.inventory, entry.billing, quote=quote, alias=alias, tier_usd_per_hour=tier_price
    )
    if entry.price is not None and (entry.price != entry.catalog_price or entry.price != quote.usd_per_hour):
        offer = replace(offer, usd_per_hour=entry.price, quote=None)
    if not entry.owned:
        return offer
    upkeep = owned_price(here, file.procurement or ProcurementSection())
    return replace(
        offer, owned=entry.owned, owned_usd_per_hour=upkeep if entry.owned_price is None else entry.owned_price
    )


def _link(section: LinkSection | None, link: Link) -> Link:
    return link if section is None else replace(link, **section.model_dump(exclude_none=True))


_NUMBERS = re.compile(r"\d+")
"""Numbers distinguish GPUs of one family by name: A100-40 and A100-80."""
SHORT_FOR = {"model": "name", "search": "preset", "objective": "goal"}
"""Sections of which a word is short for a mapping, with the key that the word is the value of, as in `schema`."""
SHOWN_OVERRIDE = 60
"""Most characters of an override that a message repeats."""


def override(source: Source, overrides: Mapping[str, Any]) -> Source:
    """Return the source with values replaced: dotted path -> value; a text is read as YAML, as on a command line.

    Items of lists are told by their number, from 0, or by their name: accelerators.H100.price.
    """
    if not overrides:
        return source
    value = deepcopy(source.value)
    overridden = dict(source.overridden)
    for key, value_given in overrides.items():
        keys = key.split(".")
        if len(keys) > MAX_DEPTH:
            raise InputError(f"override {shown(key)}: is nested deeper than {MAX_DEPTH} levels")
        if "" in keys:
            raise InputError(f"override {shown(key)}: a key is missing beside a dot; write for example slo.ttft")
        with value_of(f"override {shown(key)}"):
            new_value = parse_value(value_given) if isinstance(value_given, str) else deepcopy(value_given)
        path = set_value(value, keys, new_value, f"override {shown(key)}")
        words = key  # or as it was written, where a line of text wrote it
        if not isinstance(value_given, Mapping | list | tuple):
            is_plain = isinstance(value_given, str) and value_given.isprintable()
            words = f"{key}={value_given if is_plain else shown(value_given)}"
        overridden[path] = words if len(words) <= SHOWN_OVERRIDE else f"{words[: SHOWN_OVERRIDE - 3]}..."
    return replace(source, value=value, overridden=overridden)


def set_value(value: Any, keys: Sequence[str], new_value: Any, where: str) -> Keys:
    """Set the item at `keys` within a value, and return its path; where: the origin of the change, for messages.

    A word that is short for a mapping (`search: standard`, or `- H100` in a list) is expanded if a key in it is set.
    """
    path: list[str | int] = []
    above: Any = {"": value}
    step: Any = ""
    for key in keys:
        here = above[step]
        short = "name" if isinstance(step, int) else SHORT_FOR.get(step) if len(path) == 1 else None
        if here is None or (short and isinstance(here, str)):
            here = above[step] = {} if here is None else {short: here}
        if not isinstance(here, list | dict):
            raise InputError(f"{where}: {shown(here)} stands above {shown(key)}; override the whole of it")
        above, step = here, place_in(here, key, where) if isinstance(here, list) else key
        above[step] = above[step] if isinstance(here, list) else here.get(key)
        path.append(step)
    above[step] = new_value
    return tuple(path)


def place_in(items: list[Any], key: str, key_path: str) -> int:
    """Index of a list item that is given by its name or number."""
    if re.fullmatch("[0-9]{1,9}", key) and int(key) < len(items):
        return int(key)
    labels = ((at, item.get("name") if isinstance(item, dict) else item) for at, item in enumerate(items))
    names = {at: name for at, name in labels if isinstance(name, str)}
    places = [at for at, name in names.items() if normalized_name(name) == normalized_name(key)]
    if places:
        return places[0]
    if re.fullmatch("[0-9]+", key) or not names:
        raise InputError(
            f"{shortened(key_path)}: {shortened(key)} is not one of the {len(items)} items (0 is the first)"
        )
    words = list(names.values())
    near = nearest_name(key, words)
    hint = f"; did you mean {shown(near)}?" if near else ""
    raise InputError(f"{shortened(key_path)}: {shown(key)} is not one of {name_list(words)}{hint}")


def inputs_echo(file: WorkloadFile, problem: Problem, base: Path) -> dict[str, Any]:
    """Return the echo of `problem`, which was made from `file`; base: folder from which that names other files.

    Their paths become absolute, as the echo is read elsewhere.
    """
    echo: dict[str, Any] = file.model_dump(mode="json", by_alias=True, exclude={"scenarios", "procurement"})
    model, limits = file.model.model_dump(mode="json", exclude_none=True), problem.constraints
    drafts = model.pop("speculation", None)
    if drafts is not None and problem.speculation is not None:
        drafts["acceptance"] = list(problem.speculation.acceptance)
    if problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        echo["objective"]["max_volume"] = problem.objective.max_volume
    echo["constraints"]["balancing"] = limits.balancing.value
    files = [(model, "config"), (model, "architecture"), (echo, "catalog")]
    for section, key in [*files, *([] if basis_of(file.prices) is not None else [(echo, "prices")])]:
        if section.get(key):
            section[key] = str((base / section[key]).resolve())
    ranges = asdict(problem.space)
    precisions = ("weight_dtype", "kv_dtype", "speculative_tokens")  # only where they are stated
    echo |= {
        "name": problem.name,
        "model": model
        | {"weight_dtype": problem.weight_dtype, "kv_dtype": problem.kv_dtype}
        | ({} if drafts is None else {"speculation": drafts}),
        "workload": _workload_echo(file.workload, problem.workload),
        "slo": [
            {"name": slo.name, "share": slo.share}
            | {
                str(metric): f"{slo.limits[metric]!r}s" if metric in slo.limits else None
                for metric in Metric
                if metric in SHOWN_ALWAYS or metric in slo.limits
            }
            | {"attainment": slo.attainment}
            for slo in problem.slos
        ],
        "accelerators": [_offer_echo(offer) for offer in problem.offers],
        "search": {"preset": file.search.preset}
        | {
            name: list(values) if isinstance(values, tuple) else values
            for name, values in ranges.items()
            if values or name not in precisions
        }
        | {"roles": [role.value for role in problem.space.roles]},
        "engine": problem.engine,
    }
    if file.procurement is not None:
        echo["procurement"] = file.procurement.model_dump(exclude_none=True)
    return {key: value for key, value in echo.items() if value is not None or key not in {"prices", "kv_cache_tier"}}


def whole_echo(problem: Problem) -> dict[str, Any]:
    """Return the echo of a problem with the requests that were recorded, which scenarios of it do without."""
    if problem.recorded is None:
        return dict(problem.inputs)
    return {**problem.inputs, "workload": problem.inputs["workload"] | {"recorded": problem.recorded.echo()}}


def _workload_echo(section: WorkloadSection, workload: Workload) -> dict[str, Any]:
    """The section of a workload; the rate of sessions is stated as that of requests."""
    diurnal, reuse = section.diurnal, workload.reuse
    columns = (column.tolist() for column in (workload.isl, workload.osl, workload.share))
    rows = [{"isl": isl, "osl": osl, "share": share} for isl, osl, share in zip(*columns, strict=True)]
    scalars = {
        "request_rate": workload.request_rate if diurnal is None else None,
        "diurnal": None if diurnal is None else diurnal.model_dump(),
        "burstiness": workload.burstiness,
        "max_tokens": workload.max_tokens,
    }
    if section.sessions is not None:
        return scalars | {"sessions": section.sessions.model_dump(exclude_none=True, exclude={"rate"})}
    scalars["prefix_hit_share"] = workload.prefix_hit_share
    if section.reuse_interval is not None:
        scalars["reuse_interval"] = section.reuse_interval.model_dump(exclude_none=True)
    elif reuse is not None:
        scalars["reuse_interval"] = {"quantiles": quantiles_of(reuse.pause)}
    lengths = section.lengths or LengthsSection()
    source = f"histogram {lengths.histogram}" if isinstance(lengths.histogram, str) else "inline histogram"
    if lengths.trace is not None:
        source = f"trace {lengths.trace.path}"
    elif lengths.isl is not None:
        source = "named distributions"
    return scalars | {"lengths": {"histogram": rows, "source": lengths.source or source}}


def _offer_echo(offer: Offer) -> dict[str, Any]:
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


_COMMENTS: Mapping[str, str] = {
    "request_rate": "mean arrivals [1/s]",
    "burstiness": "coefficient of variation of the times between arrivals; 1 is Poisson",
    "prefix_hit_share": "share of input tokens found in a prefix cache",
    "reuse_interval": "time since their last use",
    "max_tokens": "longest ISL + OSL [token]",
}
_RECORDED = "its requests are simulated as they came; without it, state burstiness (1 is Poisson)"
COMMENT_WIDTH = 110


def workload_yaml_text(mapping: Mapping[str, Any], name: str, model: str, notes: Sequence[str] = ()) -> str:
    """Return a workload.yaml around a measured `workload:` block; the user then sets service level and accelerators.

    mapping: the block as plain data, with a histogram of rows under lengths, or with sessions; name: of the problem,
    and where its lengths came from unless the mapping says so; model: catalog name, Hugging Face id, or path to a
    config.json; notes: sentences that become comments above the demand.
    """
    scalars = [f"  {key}: {json.dumps(mapping[key])}  # {words}" for key, words in _COMMENTS.items() if key in mapping]
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
    comments = [f"# {line}" for note in notes for line in wrap(f"Note: {note}", COMMENT_WIDTH)]
    section = f"{{{'config' if model.endswith('.json') else 'name'}: {_text(model)}}}"
    demand = "\n".join([*comments, "workload:", *scalars, *length_lines])
    return Template(shipped_text("search_spaces", "workload_template.yaml")).substitute(
        name=_text(name), model=section, demand=demand
    )


def _text(text: str) -> str:
    """Quote a text; every JSON string is also a YAML string."""
    return json.dumps(text, ensure_ascii=False)
