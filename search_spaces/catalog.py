"""The accelerator catalog: shipped data files, overlaid by a user's own file, looked up by any usual spelling.

An overlay is a YAML file with the key `accelerators`; below it, by name, either changes to a catalog entry or a new
accelerator: complete, or `like:` another one with what differs. What it may say of kernels and engines besides stands
in `search_spaces.overlay`.

    accelerators:
      H100: {price_usd_per_hour: 2.10}
      MyCard: {like: H100, memory_gib: 96, bandwidth_tb_s: 4.0, price_usd_per_hour: 3.00}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from costmodel.accelerator import Accelerator, Link, Origin, Price
from costmodel.errors import InputError, UnknownNameError
from costmodel.quoting import shown
from costmodel.units import GIB, GIGA, MICRO, TERA

from .catalog_entries import LIKE, PRICE_SHORT, AcceleratorEntry, LinkEntry, faults_of
from .efficiency import EfficiencyTable, Pair, Peaks, parse_efficiency
from .engines import NO_CHANGES, EngineChanges
from .faults import Fault, check_kind
from .faults import Path as FaultPath
from .overlay import EFFICIENCY, ENGINES, EfficiencyChange, changed_efficiency, efficiency_changes, engine_changes
from .quantities import Kind, QuantityError, parse
from .yaml_source import read_source

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With libyaml it is ten times as fast."""

TOP = "accelerators"
"""The key of an overlay under which accelerators stand."""

MAX_OVERLAY_BYTES = 1_000_000
"""A catalog of thousands of accelerators is smaller; a larger file is a mistake."""

RawEntry = dict[str, Any]

_BASIS_KEYS = ("basis", "term_years", "borrowed_from", "origin")
"""What is said of a catalog price that a user's own one does not take over."""


def normalized_name(name: str) -> str:
    """A name without case, separators and maker, by which spellings are compared.

    >>> normalized_name("NVIDIA A100-SXM4-80GB"), normalized_name("a100_sxm4_80gb")
    ('a100sxm480gb', 'a100sxm480gb')
    """
    plain = name.lower().translate({ord(mark): None for mark in "-_ "})
    for maker in ("nvidia", "amdinstinct", "amd"):
        plain = plain.removeprefix(maker) or plain
    return plain


@dataclass(frozen=True, slots=True)
class AcceleratorCatalog:
    """Accelerators by canonical name; `spellings` leads from any normalized spelling to the canonical name.

    engines: what the user's file says of the host times of serving engines.
    """

    accelerators: Mapping[str, Accelerator]
    spellings: Mapping[str, str]
    engines: EngineChanges = field(default_factory=lambda: NO_CHANGES)

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator of that name or alias, whatever its case and separators (h100_sxm, "H100 SXM", ...)."""
        canonical = self.spellings.get(normalized_name(name))
        if canonical is None:
            raise UnknownNameError("accelerator", name, self.accelerators)
        return self.accelerators[canonical]


def load_catalog(overlay: Path | None = None) -> AcceleratorCatalog:
    """The shipped accelerators, changed and extended by the user's `overlay` file if there is one."""
    catalog, engines = (_shipped(), NO_CHANGES) if overlay is None else _with_overlay(_shipped(), overlay)
    return AcceleratorCatalog(catalog.accelerators, catalog.spellings, engines)


def _with_overlay(catalog: _Catalog, overlay: Path) -> tuple[_Catalog, EngineChanges]:
    """The catalog after the user's file, and its engines; all that is wrong with it is raised at once."""
    source, faults = read_source(overlay, MAX_OVERLAY_BYTES)
    check_kind(source, "catalog")
    entries, more = _overlay_entries(source.value)
    engines, wrong = engine_changes(source.value[ENGINES]) if ENGINES in source.value else ({}, [])
    faults += [*more, *wrong]
    for name, change in entries.items():
        try:
            catalog = _overlaid(catalog, name, change, overlay.name)
        except _RefusedError as error:
            faults += error.faults
    if faults:
        raise InputError(source.render(faults))
    return catalog, engines


class _RefusedError(Exception):
    """One entry of an overlay is wrong."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__()
        self.faults = faults


@dataclass(frozen=True, slots=True)
class _KernelChange:
    """What a user's file says of an accelerator's kernels."""

    figures: Mapping[Pair, EfficiencyChange]
    file: str


@dataclass(frozen=True, slots=True)
class _Catalog:
    """A catalog with what is needed to overlay it: the entries as they stand in the files, and the efficiencies."""

    raw: Mapping[str, RawEntry]
    efficiency: EfficiencyTable
    accelerators: Mapping[str, Accelerator]
    spellings: Mapping[str, str]

    def with_entry(
        self, name: str, raw: RawEntry, relative: str | None = None, change: _KernelChange | None = None
    ) -> _Catalog:
        """The catalog with one more, or one changed, accelerator."""
        entry = AcceleratorEntry.model_validate(raw)
        efficiency = self.efficiency.with_relative(name, relative) if relative else self.efficiency
        peaks = {each: known["tflops"] for each, known in {**self.raw, name: raw}.items()}
        if change is not None:
            efficiency = changed_efficiency(efficiency, name, change.figures, change.file, peaks)
        accelerator = _accelerator(name, entry, efficiency, peaks)
        spellings = _with_spellings(self.spellings, name, entry)
        return _Catalog({**self.raw, name: raw}, efficiency, {**self.accelerators, name: accelerator}, spellings)


@cache
def _shipped() -> _Catalog:
    """The data files of the distribution, read once."""
    efficiency = parse_efficiency(_read_data("efficiency.yaml"), _read_data("in_engine.yaml"))
    entries: Mapping[str, RawEntry] = _read_data("accelerators.yaml")["accelerators"]
    catalog = _Catalog(entries, efficiency, {}, {})  # all entries at once, as one may borrow from another
    for name, raw in entries.items():
        catalog = catalog.with_entry(name, raw)
    return catalog


def _overlaid(catalog: _Catalog, written: str, change: RawEntry, file: str) -> _Catalog:
    """The catalog after one entry of an overlay, which names a known accelerator or a new one."""
    path = (TOP, written)
    known = catalog.spellings.get(normalized_name(written))
    relative = _relative(catalog, change[LIKE], (*path, LIKE)) if LIKE in change else None
    if known and relative:
        sentence = (
            f"{shown(written)} is {shown(known)} of the catalog, so 'like' cannot define it; give only what differs"
        )
        raise _RefusedError([Fault((*path, LIKE), sentence)])
    change, kernels = _split(change, file, path)
    base = catalog.raw.get(known or relative or "", {})
    if relative:
        base = {key: value for key, value in base.items() if key != "aliases"}
    merged = _merged(base, _with_price(change, file, path), file, relative)
    try:
        return catalog.with_entry(known or written, merged, relative, kernels)
    except ValidationError as error:
        raise _RefusedError(faults_of(error, path, catalog.accelerators)) from error
    except _TakenError as error:
        raise _RefusedError([Fault(path, str(error))]) from error


def _split(change: RawEntry, file: str, path: FaultPath) -> tuple[RawEntry, _KernelChange | None]:
    """The user's entry without what it says of kernels, and that."""
    if EFFICIENCY not in change:
        return change, None
    figures, faults = efficiency_changes(change[EFFICIENCY], (*path, EFFICIENCY))
    if faults:
        raise _RefusedError(faults)
    return {key: value for key, value in change.items() if key != EFFICIENCY}, _KernelChange(figures, file)


def _relative(catalog: _Catalog, written: object, path: FaultPath) -> str:
    known = catalog.spellings.get(normalized_name(written)) if isinstance(written, str) else None
    if known is None:
        error = UnknownNameError("accelerator", str(written), catalog.accelerators)
        raise _RefusedError(
            [Fault(path, str(error) if isinstance(written, str) else f"{shown(written)} is not a name")]
        )
    return known


def _merged(base: RawEntry, change: RawEntry, file: str, relative: str | None) -> RawEntry:
    """`base` with the user's `change` laid over it, key by key within a part, and with its sources kept honest."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = {**old, **value}
        elif key == "aliases" and isinstance(old, list) and isinstance(value, list):
            merged[key] = [*old, *value]
        elif key != LIKE:
            merged[key] = value
    differs = ", ".join(sorted(set(change) - {LIKE, "price", "aliases"}))
    if "source" not in change and (differs or relative or not base):
        origin = f"; else as {relative or 'shipped'}: {base['source']}" if base else ""
        merged["source"] = f"{differs or 'nothing'} from {file}{origin}"
    merged.setdefault("date", "undated")
    if base and isinstance(change.get("price", {}), Mapping):
        merged |= _merged_price(base["price"], change.get("price", {}), file, relative)
        if "other_prices" not in change and (relative or merged["price"]["origin"] == Origin.STATED):
            merged.pop("other_prices", None)
    return merged


def _merged_price(base: RawEntry, given: Mapping[str, Any], file: str, relative: str | None) -> RawEntry:
    """The price of an entry: the user's own where one is given, else that of `base`, which another one borrows."""
    merged = {**base, **given}
    if "usd_per_hour" in given:
        taken = {key: value for key, value in base.items() if key not in _BASIS_KEYS}
        merged = {**taken, "origin": str(Origin.STATED), **given}
    elif relative:
        merged |= {"origin": str(Origin.ASSUMED), "borrowed_from": relative}
    if "source" not in given and (relative or given):
        keys = f"{', '.join(sorted(given))} from {file}; else " if given else ""
        merged["source"] = f"{keys}as {relative or 'shipped'}: {base['source']}"
    return {"price": merged}


def _with_price(change: RawEntry, file: str, path: FaultPath) -> RawEntry:
    """`change` with the short form of a price written out: one quote, that of the user."""
    if PRICE_SHORT not in change:
        return change
    place = (*path, PRICE_SHORT)
    if "price" in change:
        raise _RefusedError([Fault(place, "stands beside 'price'; keep one of them", on_key=True)])
    try:
        price = parse(change[PRICE_SHORT], Kind.PRICE)
    except QuantityError as error:
        raise _RefusedError([Fault(place, str(error))]) from error
    if price <= 0:
        raise _RefusedError([Fault(place, f"{shown(change[PRICE_SHORT])} must be above 0")])
    written = {"usd_per_hour": price, "low": price, "high": price, "quotes": 1, "origin": str(Origin.STATED)}
    rest = {key: value for key, value in change.items() if key != PRICE_SHORT}
    return {**rest, "price": {**written, "source": f"given in {file}", "date": str(change.get("date", "undated"))}}


class _TakenError(Exception):
    """A spelling belongs to another accelerator."""


def _with_spellings(spellings: Mapping[str, str], name: str, entry: AcceleratorEntry) -> dict[str, str]:
    """All spellings with those of `entry` added; the Kubernetes label is one, unless another accelerator has it."""
    added = dict(spellings)
    for spelling in (name, *entry.aliases):
        owner = added.setdefault(normalized_name(spelling), name)
        if owner != name:
            raise _TakenError(f"{shown(spelling)} is already a name of {shown(owner)}; choose another")
    added.setdefault(normalized_name(entry.node_label), name)
    return added


def _accelerator(name: str, entry: AcceleratorEntry, efficiency: EfficiencyTable, peaks: Peaks) -> Accelerator:
    """The entry in SI units."""
    own = entry.tflops.model_dump(exclude_none=True)
    return Accelerator(
        name=name,
        vendor=entry.vendor,
        memory=entry.memory_gib * GIB,
        bandwidth=entry.bandwidth_tb_s * TERA,
        peak_flops={dtype: tflops * TERA for dtype, tflops in own.items()},
        scale_up=_link(entry.scale_up),
        scale_up_size=entry.scale_up.gpus,
        scale_out=_link(entry.scale_out),
        node_size=entry.node_size,
        tdp=entry.tdp_w,
        node_label=entry.node_label,
        kv_domain=entry.kv_domain,
        price=Price(**entry.price.model_dump()),
        other_prices=tuple(Price(**price.model_dump()) for price in entry.other_prices),
        efficiency=efficiency.complete(name, peaks),
        source=entry.source,
        date=entry.date,
        mxfp4_multiples=(entry.mxfp4_multiples[0], entry.mxfp4_multiples[1]),
        in_engine=efficiency.in_engine(name),
    )


def _link(entry: LinkEntry) -> Link:
    return Link(bandwidth=entry.gb_s * GIGA, latency=entry.latency_us * MICRO)


def _read_data(file: str) -> Any:
    text = resources.files("costmodel.catalog").joinpath(file).read_text("utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 (a safe loader; the file is ours)


def _overlay_entries(content: Mapping[str, Any]) -> tuple[dict[str, RawEntry], list[Fault]]:
    """The user's entries that are mappings, and what is wrong with the rest of the file."""
    faults = [
        Fault((key,), f"is not a known key; known: {TOP!r}, {ENGINES!r}", on_key=True)
        for key in content
        if key not in {TOP, ENGINES}
    ]
    if TOP not in content and ENGINES in content:
        return {}, faults
    entries = content.get(TOP)
    if not isinstance(entries, Mapping):
        return {}, [*faults, Fault((TOP,), f"must be accelerators by name, but is {shown(entries)}")]
    first: dict[str, str] = {}
    for name, change in entries.items():
        if not normalized_name(name):
            faults.append(Fault((TOP, name), "must have a name with letters or digits", on_key=True))
        elif first.setdefault(normalized_name(name), name) != name:
            same = first[normalized_name(name)]
            faults.append(Fault((TOP, name), f"stands here already as {shown(same)}; keep one of them", on_key=True))
        if not isinstance(change, Mapping):
            faults.append(Fault((TOP, name), f"must be fields such as {PRICE_SHORT!r}, but is {shown(change)}"))
    return {name: dict(change) for name, change in entries.items() if isinstance(change, Mapping)}, faults


_SHAPE_KEYS = {
    "compute_half": "compute_half",
    "depth_half": "depth_half",
    "fill_half": "fill_half",
    "cast_bytes": "cast",
    "spill_bytes": "spill",
    "eager_s": "eager",
    "floor_s": "floor",
    "single_s": "single",
    "shared": "shared",
}
"""Keys of what shapes an efficiency curve, units in them; written where they are not zero."""


def entry_dict(accelerator: Accelerator) -> dict[str, Any]:
    """The accelerator as JSON-ready values in SI units, units in the keys; efficiencies for the dtypes that it has."""
    efficiency: dict[str, dict[str, Any]] = {}
    for (kernel_class, dtype), figures in accelerator.efficiency.items():
        if dtype in accelerator.peak_flops:
            efficiency.setdefault(kernel_class, {})[dtype] = {
                "compute": figures.compute,
                "memory": figures.memory,
                "launch_s": figures.launch,
                "origin": str(figures.origin),
                "source": figures.source,
                "error": None if math.isnan(figures.error) else figures.error,
            } | {name: getattr(figures, field) for name, field in _SHAPE_KEYS.items() if getattr(figures, field)}
    return {
        "name": accelerator.name,
        "vendor": accelerator.vendor,
        "memory_bytes": accelerator.memory,
        "bandwidth_bytes_per_s": accelerator.bandwidth,
        "peak_flops_per_s": dict(accelerator.peak_flops),
        "ridge_point_flop_per_byte": {dtype: accelerator.ridge_point(dtype) for dtype in accelerator.peak_flops},
        "scale_up": {**_link_dict(accelerator.scale_up), "gpus": accelerator.scale_up_size},
        "scale_out": _link_dict(accelerator.scale_out),
        "node_size": accelerator.node_size,
        "tdp_w": accelerator.tdp,
        "node_label": accelerator.node_label,
        "kv_domain": accelerator.kv_domain,
        "mxfp4_multiples": list(accelerator.mxfp4_multiples),
        "price": price_dict(accelerator.price),
        "efficiency": efficiency,
        "in_engine": {"prompts": accelerator.in_engine.prompts, "traffic": accelerator.in_engine.traffic},
        "source": accelerator.source,
        "date": accelerator.date,
    }


def price_dict(price: Price) -> dict[str, Any]:
    """A price as JSON-ready values; what only reserved and borrowed prices have is left out of others."""
    return {key: value for key, value in asdict(price).items() if value is not None}


def _link_dict(link: Link) -> dict[str, float]:
    return {"bandwidth_bytes_per_s": link.bandwidth, "latency_s": link.latency}
