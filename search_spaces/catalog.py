"""The accelerator catalog: shipped data files, overlaid by a user's own file, looked up by any usual spelling.

An overlay is a YAML file with the key `accelerators`; below it, by name, either changes to a catalog entry or a new
accelerator: complete, or `like:` another one with what differs. It may also change kernel efficiencies and the host
times of engines, which `pdplan calibrate` writes.

    accelerators:
      H100: {price_usd_per_hour: 2.10}
      MyCard: {like: H100, memory_gib: 96, bandwidth_tb_s: 4.0, price_usd_per_hour: 3.00}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from costmodel.accelerator import Accelerator, KernelEfficiency, Link, Origin, Price, PriceBasis
from costmodel.errors import InputError, UnknownNameError, name_hint, nearest_name
from costmodel.quoting import name_list, shown
from costmodel.roofline import KERNEL_CLASSES
from costmodel.units import GIB, GIGA, MICRO, TERA
from costmodel.words import join_words
from search_spaces import bounds
from search_spaces.efficiency import WIDER, EfficiencyTable, Pair, Peaks, parse_efficiency
from search_spaces.engines import NO_CHANGES, EngineChange, EngineChanges, engine_name
from search_spaces.faults import Fault, check_kind
from search_spaces.faults import Path as FaultPath
from search_spaces.fields import refusal_of, share
from search_spaces.quantities import Kind, QuantityError, parse
from search_spaces.quotes import Quote, basis_of, borrowed, prices_of, read_quotes, shipped_prices
from search_spaces.yaml_source import read_source

PRICE_SHORT = "price_usd_per_hour"
"""In an overlay: the whole price in one number."""

LIKE = "like"
"""In an overlay: the accelerator that a new one resembles."""

PEAKS = "tflops"
"""Key of the peaks of an entry."""

PRICE_LIKE = "price_like"
"""In the shipped file: the accelerator whose price serves for want of any quote."""

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class LinkEntry(_Entry):
    """A link as one GPU sees it: bandwidth in one direction [GB/s], latency [us]."""

    gb_s: Positive
    latency_us: Annotated[float, Field(ge=0)]


class FabricEntry(LinkEntry):
    """A link inside a node and the number of GPUs that it joins."""

    gpus: Count


class PeakEntry(_Entry):
    """Dense peak of the matrix units by compute dtype [TFLOP/s]; a dtype that the units lack is left out."""

    bf16: Positive
    fp8: Positive | None = None
    int8: Positive | None = None
    fp4: Positive | None = None


class PriceEntry(_Entry):
    """Price of one GPU [$/h]: median over providers, cheapest and dearest provider, number of quotes.

    basis, term_years, borrowed_from: as `costmodel.accelerator.Price` has them.
    """

    usd_per_hour: Positive
    low: Positive
    high: Positive
    quotes: Count
    origin: Annotated[Origin, Field(strict=False)]
    source: Text
    date: Text
    basis: Annotated[PriceBasis, Field(strict=False)] = PriceBasis.ON_DEMAND
    term_years: Count | None = None
    borrowed_from: Text | None = None

    @model_validator(mode="after")
    def _ordered(self) -> PriceEntry:
        if not self.low <= self.usd_per_hour <= self.high:
            raise ValueError("must have low <= usd_per_hour <= high")
        return self


class AcceleratorEntry(_Entry):
    """One accelerator as it stands in the file; units are in the keys."""

    vendor: Text
    generation: str = ""
    aliases: list[str] = []
    memory_gib: Positive
    bandwidth_tb_s: Positive
    tflops: PeakEntry
    scale_up: FabricEntry
    scale_out: LinkEntry
    node_size: Count
    tdp_w: Positive
    node_label: str = ""
    kv_domain: Text
    mxfp4_multiples: Annotated[list[Count], Field(min_length=2, max_length=2)] = [1, 1]
    source: Text
    date: Text
    assumed: str = ""
    price: PriceEntry
    other_prices: tuple[PriceEntry, ...] = Field(default=(), strict=False)
    """Of this accelerator on other bases than `price`."""


_PARTS: Mapping[str, type[_Entry]] = {
    "tflops": PeakEntry,
    "scale_up": FabricEntry,
    "scale_out": LinkEntry,
    "price": PriceEntry,
}
_KEYS = (*AcceleratorEntry.model_fields, PRICE_SHORT, LIKE)


def faults_of(error: ValidationError, path: FaultPath, known: Iterable[str] = ()) -> list[Fault]:
    """What pydantic found wrong with the entry at `path`, in sentences; unknown keys hide what they leave missing.

    known: accelerators, of which a new one without its figures may be meant.
    """
    faults = error.errors(include_url=False)
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    lacks = [str(fault["loc"][0]) for fault in faults if fault["type"] == "missing" and len(fault["loc"]) == 1]
    if len(lacks) > 1 and not unknown:
        close = nearest_name(str(path[-1]), known)
        sentence = f"is new and lacks {join_words(lacks)}; state them, or 'like:' with a similar one"
        one = Fault(path, f"{sentence}{f', or did you mean {shown(close)}?' if close else ''}", on_key=True)
        return [one, *(_fault(fault, path) for fault in faults if fault["type"] != "missing")]
    return [_fault(fault, path) for fault in unknown or faults]


def _fault(fault: ErrorDetails, path: FaultPath) -> Fault:
    return Fault((*path, *fault["loc"]), _sentence(fault), fault["type"] == "extra_forbidden")


def _sentence(fault: ErrorDetails) -> str:
    kind, place = fault["type"], fault["loc"]
    if kind == "extra_forbidden":
        keys = [str(key) for key in place]
        allowed = tuple(_PARTS[keys[0]].model_fields) if len(keys) > 1 else _KEYS
        return f"is not a known key; {name_hint(keys[-1], sorted(allowed))}"
    if kind == "missing":
        return "is missing; a new accelerator needs it, or 'like:' with a similar one"
    section = _PARTS.get(str(place[-1])) if kind == "model_type" else None
    known = f" with the keys {name_list(section.model_fields)}" if section else ""
    return f"{refusal_of(fault)}{known}"


EFFICIENCY = "efficiency"
"""Key of an accelerator's entry in an overlay: kernel class -> dtype -> figures."""

ENGINES = "engines"
"""Key of an overlay beside `accelerators`: engine -> host times."""

Share = Annotated[float, share(bounds.EFFICIENCY)]
NotNegative = Annotated[float, Field(ge=0)]
Changes = Mapping[Pair, "EfficiencyChange"]
Change = TypeVar("Change", bound=BaseModel)


class EfficiencyChange(BaseModel):
    """Figures of one kernel class in one dtype, as in efficiency.yaml; what is left out stays as it was."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    compute: Share | None = None
    memory: Share | None = None
    launch_us: NotNegative | None = None
    compute_half: NotNegative | None = None
    depth_half: NotNegative | None = None
    fill_half: NotNegative | None = None
    cast: NotNegative | None = None
    spill: NotNegative | None = None
    shared: NotNegative | None = None
    eager_us: NotNegative | None = None
    floor_us: NotNegative | None = None
    single_us: NotNegative | None = None
    origin: Origin = Origin.ASSUMED
    source: Annotated[str, Field(min_length=1)] | None = None
    error: Annotated[float, share(bounds.RELATIVE_ERROR)] | None = None

    def over(self, known: KernelEfficiency, file: str) -> KernelEfficiency:
        """`known` with these figures laid over it; times in SI units."""
        given = self.model_dump(exclude_none=True, exclude={"origin", "source", "error"})
        figures = {
            key.removesuffix("_us"): value * (MICRO if key.endswith("_us") else 1.0) for key, value in given.items()
        }
        source = self.source or f"{', '.join(given) or 'nothing'} from {file}; else {known.source}"
        error = math.nan if self.error is None else self.error
        return replace(known, **figures, origin=self.origin, source=source, error=error)


def efficiency_changes(value: object, path: FaultPath) -> tuple[dict[Pair, EfficiencyChange], list[Fault]]:
    """The changes below `path` by (kernel class, dtype), and what is wrong with them."""
    changes: dict[Pair, EfficiencyChange] = {}
    faults: list[Fault] = []
    for kernel_class, by_dtype in _named(value, path, KERNEL_CLASSES, "kernel class", faults):
        for dtype, figures in _named(by_dtype, (*path, kernel_class), tuple(WIDER), "dtype", faults):
            place = (*path, kernel_class, dtype)
            change = _validated(EfficiencyChange, figures, place, faults)
            if change is not None:
                changes[kernel_class, dtype] = change
    return changes, faults


def engine_changes(value: object) -> tuple[dict[str, EngineChange], list[Fault]]:
    """The changes of an overlay's `engines` by the catalog's names, and what is wrong with them."""
    changes: dict[str, EngineChange] = {}
    faults: list[Fault] = []
    if not isinstance(value, Mapping):
        return {}, [Fault((ENGINES,), f"must be engines by name, but is {shown(value)}")]
    for written, figures in value.items():
        try:
            name = engine_name(str(written))
        except UnknownNameError as error:
            faults.append(Fault((ENGINES, written), str(error), on_key=True))
            continue
        change = _validated(EngineChange, figures, (ENGINES, written), faults)
        if change is not None:
            changes[name] = change
    return changes, faults


def changed_efficiency(table: EfficiencyTable, name: str, changes: Changes, file: str, peaks: Peaks) -> EfficiencyTable:
    """The table in which accelerator `name` has all figures of its own, the changed ones among them.

    Its relatives take over the changed figures too, as they would have taken the old ones.
    """
    if not changes:
        return table
    complete = table.complete(name, peaks)
    changed = {pair: change.over(complete[pair], file) for pair, change in changes.items()}
    return replace(table, known={**table.known, name: {**complete, **changed}})


def _named(
    value: object, path: FaultPath, names: tuple[str, ...], kind: str, faults: list[Fault]
) -> list[tuple[str, Any]]:
    """The items of a mapping whose keys are known names; faults are added to `faults`."""
    if not isinstance(value, Mapping):
        faults.append(Fault(path, f"must be figures by {kind}, but is {shown(value)}"))
        return []
    faults += [
        Fault((*path, str(key)), f"is not a {kind}; {name_hint(str(key), names)}", on_key=True)
        for key in value
        if key not in names
    ]
    return [(key, item) for key, item in value.items() if key in names]


def _validated(kind: type[Change], value: object, path: FaultPath, faults: list[Fault]) -> Change | None:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            place = (*path, *fault["loc"])
            if fault["type"] == "extra_forbidden":
                hint = name_hint(str(fault["loc"][-1]), tuple(kind.model_fields))
                faults.append(Fault(place, f"is not a known key; {hint}", on_key=True))
            else:
                faults.append(Fault(place, refusal_of(fault)))
        return None


__all__ = [
    "EFFICIENCY",
    "ENGINES",
    "EfficiencyChange",
    "EngineChange",
    "EngineChanges",
    "changed_efficiency",
    "efficiency_changes",
    "engine_changes",
]

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
            near = nearest_name(normalized_name(name), self.spellings)
            close = None if near is None else self.spellings[near]
            raise UnknownNameError("accelerator", name, self.accelerators, close=close)
        return self.accelerators[canonical]

    def with_quotes(self, path: Path) -> AcceleratorCatalog:
        """The catalog in which the accelerators that a user's file of quotes names have the prices that these make."""
        changed = dict(self.accelerators)
        for name, alike in self.own_quotes(path).items():
            price, *others = prices_of(alike)
            changed[name] = replace(changed[name], price=price, other_prices=tuple(others))
        return replace(self, accelerators=changed)

    def own_quotes(self, path: Path) -> Mapping[str, tuple[Quote, ...]]:
        """The quotes of a user's file by the catalog's names; FaultsError with all that is wrong with it."""
        return read_quotes(path, lambda name: self.accelerator(name).name)


def load_catalog(overlay: Path | None = None, prices: str | None = None) -> AcceleratorCatalog:
    """The shipped accelerators, changed and extended by the user's `overlay` file if there is one.

    prices: a basis, which changes nothing here, or the user's file of quotes.
    """
    catalog, engines = (_shipped(), NO_CHANGES) if overlay is None else _with_overlay(_shipped(), overlay)
    found = AcceleratorCatalog(catalog.accelerators, catalog.spellings, engines)
    return found if prices is None or basis_of(prices) is not None else found.with_quotes(Path(prices))


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
    entries = _priced(_read_data("accelerators.yaml")["accelerators"])
    catalog = _Catalog(entries, efficiency, {}, {})  # all entries at once, as one may borrow from another
    for name, raw in entries.items():
        catalog = catalog.with_entry(name, raw)
    return catalog


def _priced(entries: Mapping[str, RawEntry]) -> dict[str, RawEntry]:
    """The shipped entries with the prices that quotes make: their own, or that of the accelerator that stands in."""
    prices = shipped_prices()
    priced: dict[str, RawEntry] = {}
    for name, entry in entries.items():
        rest = {key: value for key, value in entry.items() if key != PRICE_LIKE}
        model = entry.get(PRICE_LIKE)
        own = prices[name] if model is None else (borrowed(prices[model][0], model),)
        priced[name] = rest | {"price": asdict(own[0]), "other_prices": [asdict(price) for price in own[1:]]}
    return priced


def _overlaid(catalog: _Catalog, written: str, change: RawEntry, file: str) -> _Catalog:
    """The catalog after one entry of an overlay, which names a known accelerator or a new one."""
    path = (TOP, written)
    entry_name = catalog.spellings.get(normalized_name(written))
    relative = _relative(catalog, change[LIKE], (*path, LIKE)) if LIKE in change else None
    if entry_name and relative:
        entry = shown(entry_name)
        sentence = f"{shown(written)} is {entry} of the catalog, so 'like' cannot define it; give only what differs"
        raise _RefusedError([Fault((*path, LIKE), sentence)])
    change, kernels = _split(change, file, path)
    base = catalog.raw.get(entry_name or relative or "", {})
    if relative:
        base = {key: value for key, value in base.items() if key != "aliases"}
    merged = _merged(base, _with_price(change, file, path), file, relative)
    try:
        return catalog.with_entry(entry_name or written, merged, relative, kernels)
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
    entry_name = catalog.spellings.get(normalized_name(written)) if isinstance(written, str) else None
    if entry_name is None:
        error = UnknownNameError("accelerator", str(written), catalog.accelerators)
        raise _RefusedError(
            [Fault(path, str(error) if isinstance(written, str) else f"{shown(written)} is not a name")]
        )
    return entry_name


def _merged(base: RawEntry, change: RawEntry, file: str, relative: str | None) -> RawEntry:
    """`base` with the user's `change` laid over it, key by key within a part, and with its sources kept honest.

    An accelerator `like` another with peaks of its own has those alone: its units are not the other's.
    """
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            others = relative and key == PEAKS and any(old.get(dtype) != peak for dtype, peak in value.items())
            merged[key] = dict(value) if others else {**old, **value}
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
    if entry.node_label:
        added.setdefault(normalized_name(entry.node_label), name)
    return added


def _accelerator(name: str, entry: AcceleratorEntry, efficiency: EfficiencyTable, peaks: Peaks) -> Accelerator:
    """The entry in SI units."""
    own = entry.tflops.model_dump(exclude_none=True)
    return Accelerator(
        name=name,
        vendor=entry.vendor,
        generation=entry.generation,
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
        assumed=entry.assumed,
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
        "in_engine": asdict(accelerator.in_engine),
        "source": accelerator.source,
        "date": accelerator.date,
        "assumed": accelerator.assumed,
        "measured": accelerator.measured,
    }


def price_dict(price: Price) -> dict[str, Any]:
    """A price as JSON-ready values; what only reserved and borrowed prices have is left out of others."""
    return {key: value for key, value in asdict(price).items() if value is not None}


def _link_dict(link: Link) -> dict[str, float]:
    return {"bandwidth_bytes_per_s": link.bandwidth, "latency_s": link.latency}


def efficiency_dict(figures: Mapping[Pair, KernelEfficiency]) -> dict[str, dict[str, dict[str, Any]]]:
    """Kernel class -> dtype -> figures, all of them, in the units of the file; a missing error is left out."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for (kernel_class, dtype), efficiency in sorted(figures.items()):
        table.setdefault(kernel_class, {})[dtype] = _entry(efficiency)
    return table


def overlay_text(
    heading: Sequence[str],
    accelerator: str,
    efficiency: Mapping[str, Any],
    engines: Mapping[str, Mapping[str, Any]] | None = None,
    base: Mapping[str, Any] | None = None,
) -> str:
    """The text of an overlay.

    heading: lines of comment; accelerator: its name, as `base` writes it where it does; efficiency: as of
    `efficiency_dict`; engines: host times by engine; base: content of the overlay that this one replaces.
    """
    content: dict[str, Any] = {TOP: dict((base or {}).get(TOP) or {})}
    entry = dict(content[TOP].get(accelerator) or {})
    base_figures = entry.get(EFFICIENCY) or {}
    entry[EFFICIENCY] = {
        **base_figures,
        **{kind: {**base_figures.get(kind, {}), **rows} for kind, rows in efficiency.items()},
    }
    content[TOP][accelerator] = entry
    hosts = dict((base or {}).get(ENGINES) or {})
    for name, figures in (engines or {}).items():
        hosts[name] = {**(hosts.get(name) or {}), **figures}
    if hosts:
        content[ENGINES] = hosts
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True)
    return "".join(f"# {line}\n" for line in heading) + body


def rounded(value: float) -> float:
    """Four significant digits: more than any fit knows.

    >>> rounded(0.123456), rounded(1234567.0)
    (0.1235, 1235000.0)
    """
    return float(f"{value:.4g}")


def _entry(efficiency: KernelEfficiency) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key in EfficiencyChange.model_fields:
        if key in {"origin", "source", "error"}:
            continue
        value = getattr(efficiency, key.removesuffix("_us")) / (MICRO if key.endswith("_us") else 1.0)
        if value or key in {"compute", "memory", "launch_us"}:
            row[key] = rounded(value)
    row |= {"origin": str(efficiency.origin), "source": efficiency.source}
    if not math.isnan(efficiency.error):
        row["error"] = rounded(efficiency.error)
    return row
