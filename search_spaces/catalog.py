"""The accelerator catalog: shipped data files, overlaid by a user's own file, looked up by any usual spelling.

An overlay is a YAML file with the key `accelerators`; below it, by name, either changes to a catalog entry or a new
accelerator: complete, or `like:` another one with what differs. It may also change kernel efficiencies and the host
times of engines, which `pdplan calibrate` writes.

    accelerators:
      H100: {price_usd_per_hour: 2.10}
      MyCard: {like: H100, memory_gib: 96, bandwidth_tb_s: 4.0, price_usd_per_hour: 3.00}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field, ValidationError, create_model

from costmodel.accelerator import KERNEL_CLASSES, Accelerator, Link, Origin, Price
from costmodel.errors import InputError, UnknownNameError, nearest_name, shown
from costmodel.units import GIB, GIGA, MICRO, TERA
from costmodel.words import join_words

from . import bounds
from .efficiency import (
    NO_KERNEL_CHANGE,
    WIDER,
    EfficiencyChange,
    EfficiencyTable,
    KernelChange,
    figures_dict,
    parse_efficiency,
)
from .engines import NO_CHANGES, EngineChanges, engine_name
from .fields import FileSection, Reader, Text, choice, count, faults_of, number, quantity, sections_of
from .files import Fault, FaultsError, shipped_table, shipped_text
from .quantities import Kind, in_base_units
from .quotes import Quote, basis_of, borrowed, prices_of, read_quotes, shipped_prices
from .serving_error import error_table
from .sources import parse_source, read_source

PACKAGE, ACCELERATORS = "costmodel.catalog", "accelerators.yaml"
"""Where the accelerators of the distribution are."""
TOP, ENGINES = "accelerators", "engines"
"""The keys of an overlay."""
LIKE = "like"
"""Key of an overlay: the accelerator that a new one resembles."""
CARD_KEYS = frozenset({"memory_gib", "bandwidth_tb_s", "tflops"})
"""Keys that make an accelerator `like` another a card of its own, whose nodes have another label."""
PRICE_SHORT = "price_usd_per_hour"
"""Key of an overlay: the price as one number."""
EFFICIENCY = "efficiency"
"""Key of an overlay: kernel class -> dtype -> figures."""
MAX_OVERLAY_BYTES = 1_000_000
"""A catalog of thousands of accelerators is smaller; a larger file is a mistake."""

_Peak = Annotated[float, number(bounds.PEAK_FLOPS.in_units(TERA, "TFLOP/s"))]
_Gpus = Annotated[int, count(bounds.NODE_SIZE)]
_Multiple = Annotated[int, count(bounds.WHOLE)]


class LinkEntry(FileSection):
    """A link as one GPU sees it."""

    gb_s: Annotated[float, number(bounds.BANDWIDTH.in_units(GIGA, "GB/s"))]
    """Bandwidth in one direction [GB/s]."""
    latency_us: Annotated[float, number(bounds.LATENCY.in_units(MICRO, "us"))]
    """Time of an empty message [us]."""

    @property
    def link(self) -> Link:
        """The same in SI units."""
        return Link(bandwidth=self.gb_s * GIGA, latency=self.latency_us * MICRO)


class FabricEntry(LinkEntry):
    """A link inside a node."""

    gpus: _Gpus
    """GPUs that it joins."""


class PeakEntry(FileSection):
    """Dense peak of the matrix units by compute dtype [TFLOP/s]; a dtype that the units lack is left out."""

    bf16: _Peak
    fp8: _Peak | None = None
    int8: _Peak | None = None
    fp4: _Peak | None = None


class AcceleratorEntry(FileSection):
    """One accelerator as it stands in the file; units are in the keys."""

    vendor: Text
    generation: str = ""
    aliases: tuple[Text, ...] = ()
    memory_gib: Annotated[float, number(bounds.MEMORY.in_units(GIB, "GiB"))]
    bandwidth_tb_s: Annotated[float, number(bounds.BANDWIDTH.in_units(TERA, "TB/s"))]
    tflops: PeakEntry
    scale_up: FabricEntry
    scale_out: LinkEntry
    node_size: _Gpus
    tdp_w: Annotated[float, number(bounds.BOARD_POWER)]
    node_label: str = ""
    arm: bool = False
    kv_domain: Text
    mxfp4_multiples: tuple[_Multiple, _Multiple] = (1, 1)
    source: Text
    date: Text
    assumed: str = ""


def _changes(entry: type[FileSection], **more: Any) -> type[FileSection]:
    """A model like an entry, with every key optional, in its sections too, and with additional keys."""
    keys: dict[str, Any] = {}
    for name, info in entry.model_fields.items():
        kind: Any = info.annotation
        is_section = isinstance(kind, type) and issubclass(kind, FileSection)
        annotation = _changes(kind) if is_section else Annotated[kind, *info.metadata] if info.metadata else kind
        keys[name] = (annotation | None, None)
    return create_model(f"{entry.__name__}Changes", __base__=FileSection, **keys, **more)


_EfficiencyChanges = dict[
    Annotated[str, choice(*KERNEL_CLASSES)], dict[Annotated[str, choice(*WIDER)], EfficiencyChange]
]
if TYPE_CHECKING:
    EntryChanges = Any
else:
    EntryChanges = _changes(
        AcceleratorEntry,
        **{
            LIKE: (Text | None, None),
            PRICE_SHORT: (Annotated[float, quantity(Kind.PRICE, bounds.PRICE)] | None, None),
            EFFICIENCY: (_EfficiencyChanges | None, None),
        },
    )


class EngineChange(FileSection):
    """Host times of an engine in a user's catalog file; what is left out stays as it is shipped."""

    step_overhead_us: Annotated[float, number(bounds.NOT_NEGATIVE)] | None = None
    """Host time of a step [us]."""
    per_request_overhead_us: Annotated[float, number(bounds.NOT_NEGATIVE)] | None = None
    """Host time of each running request in a step [us]."""
    arrival_ms: Annotated[float, number(bounds.NOT_NEGATIVE)] | None = None
    """Time from the arrival of a lone request to the start of its prompt [ms]."""
    handover_ms: Annotated[float, number(bounds.NOT_NEGATIVE)] | None = None
    """Time that the hand-over from prefill to decode adds besides the transfer of the KV cache [ms]."""
    origin: Annotated[Origin, choice(*Origin)] = Origin.ASSUMED
    source: Text = "the user's catalog file"


class OverlayFile(FileSection):
    """A user's catalog file."""

    accelerators: dict[str, EntryChanges] = Field(default_factory=dict)
    """By name, changes to an entry of the catalog, or a new one."""
    engines: dict[Annotated[str, Reader(lambda word: engine_name(str(word)), {"type": "string"})], EngineChange] = (
        Field(default_factory=dict)
    )
    """Host times by engine."""


RawEntry = dict[str, Any]


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

    entries, efficiency: what the accelerators are made of, for overlays: entries as they stand in the files, and known
    efficiencies; engines: what the user's file says of the host times of serving engines; generations: those of which
    something was measured.
    """

    accelerators: Mapping[str, Accelerator]
    spellings: Mapping[str, str]
    entries: Mapping[str, RawEntry]
    efficiency: EfficiencyTable
    engines: EngineChanges = field(default_factory=lambda: NO_CHANGES)
    generations: frozenset[str] = frozenset()

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator with this name or alias, in any case and with any separators (h100_sxm, "H100 SXM", ...)."""
        canonical = self.spellings.get(normalized_name(name))
        if canonical is None:
            near = nearest_name(normalized_name(name), self.spellings)
            close = None if near is None else self.spellings[near]
            raise UnknownNameError("accelerator", name, self.accelerators, close=close)
        return self.accelerators[canonical]

    def with_quotes(self, path: Path) -> AcceleratorCatalog:
        """The catalog in which the accelerators that a user's file of quotes names have the prices that these make."""
        accelerators = dict(self.accelerators)
        for name, alike in self.own_quotes(path).items():
            price, *alternatives = prices_of(alike)
            accelerators[name] = replace(accelerators[name], price=price, other_prices=tuple(alternatives))
        return replace(self, accelerators=accelerators)

    def own_quotes(self, path: Path) -> Mapping[str, tuple[Quote, ...]]:
        """The quotes of a user's file by the catalog's names; FaultsError with all that is wrong with it."""
        return read_quotes(path, lambda name: self.accelerator(name).name)

    def with_entry(
        self,
        name: str,
        raw: RawEntry,
        prices: Sequence[Price],
        relative: str | None = None,
        change: KernelChange = NO_KERNEL_CHANGE,
    ) -> AcceleratorCatalog:
        """The catalog with one more, or one changed, accelerator; prices: the usual one first."""
        try:
            entry = AcceleratorEntry.model_validate(raw)
        except ValidationError as error:
            raise FaultsError(*faults_of(error)) from error
        efficiency = self.efficiency
        if relative:  # whose figures serve
            efficiency = replace(efficiency, relatives={**efficiency.relatives, name: relative})
        entries = {**self.entries, name: raw}
        peaks = {accelerator: entry.get("tflops", {}) for accelerator, entry in entries.items()}
        efficiency = efficiency.changed(name, change, peaks)
        own_peaks = entry.tflops.model_dump(exclude_none=True)
        accelerator = Accelerator(
            name=name,
            **in_base_units(entry.model_dump(exclude={"aliases", "tflops", "scale_up", "scale_out"})),
            peak_flops={dtype: tflops * TERA for dtype, tflops in own_peaks.items()},
            scale_up=entry.scale_up.link,
            scale_up_size=entry.scale_up.gpus,
            scale_out=entry.scale_out.link,
            price=prices[0],
            other_prices=tuple(prices[1:]),
            efficiency=efficiency.complete(name, peaks),
            in_engine=efficiency.in_engine(name),
            generation_measured=entry.generation in self.generations,
        )
        spellings = dict(self.spellings)
        for spelling in (name, *entry.aliases):
            owner = spellings.setdefault(normalized_name(spelling), name)
            if owner != name:
                raise FaultsError(Fault((), f"{shown(spelling)} is already a name of {shown(owner)}; choose another"))
        if entry.node_label:  # one too, unless another accelerator has it
            spellings.setdefault(normalized_name(entry.node_label), name)
        accelerators = {**self.accelerators, name: accelerator}
        return replace(self, accelerators=accelerators, spellings=spellings, entries=entries, efficiency=efficiency)


def load_catalog(overlay: Path | None = None, prices: str | None = None) -> AcceleratorCatalog:
    """The shipped accelerators, changed and extended by the user's `overlay` file if there is one.

    prices: a basis, which changes nothing here, or the user's file of quotes.
    """
    catalog = _shipped_catalog()
    if overlay is not None:
        source = read_source(overlay, "catalog", max_bytes=MAX_OVERLAY_BYTES)
        source = replace(source, faults=[*source.faults, *_name_faults(source.value, catalog)])
        file, faults = sections_of(source, OverlayFile), list[Fault]()
        for name, change in file.accelerators.items():
            try:
                catalog = _overlaid(catalog, name, change, overlay.name)
            except FaultsError as error:
                faults += [replace(fault, path=(TOP, name, *fault.path)) for fault in error.faults]
        source.check(faults)
        catalog = replace(
            catalog, engines={name: change.model_dump(exclude_none=True) for name, change in file.engines.items()}
        )
    return catalog if prices is None or basis_of(prices) is not None else catalog.with_quotes(Path(prices))


def _name_faults(content: Mapping[str, Any], catalog: AcceleratorCatalog) -> Iterator[Fault]:
    """Faults of names in a user's file: invalid, duplicate, or `like` an unknown accelerator."""
    entries = content.get(TOP)
    if not isinstance(entries, Mapping):
        return
    first: dict[str, str] = {}
    for name in entries:
        first_spelling = first.setdefault(normalized_name(name), name)
        if not normalized_name(name):
            yield Fault((TOP, name), "must have a name with letters or digits", on_key=True)
        elif first_spelling != name:
            yield Fault((TOP, name), f"stands here already as {shown(first_spelling)}; keep one of them", on_key=True)
    spellings = {*catalog.spellings, *first}
    for name, entry in entries.items():
        like = entry.get(LIKE) if isinstance(entry, Mapping) else None
        if isinstance(like, str) and normalized_name(like) not in spellings:
            unknown = UnknownNameError("accelerator", like, catalog.accelerators)
            yield Fault((TOP, name, LIKE), str(unknown))


@cache
def _shipped_catalog() -> AcceleratorCatalog:
    """The data files of the distribution, read once.

    >>> {"hopper", "cdna4"} <= _shipped_catalog().generations, "rubin" in _shipped_catalog().generations
    (True, False)
    """
    efficiency = parse_efficiency(*(shipped_table(PACKAGE, file) for file in ("efficiency.yaml", "in_engine.yaml")))
    entries, prices = dict(shipped_table(PACKAGE, ACCELERATORS)[TOP]), shipped_prices()
    models = {name: entry.pop("price_like", None) for name, entry in entries.items()}
    catalog = AcceleratorCatalog({}, {}, entries, efficiency)  # all entries at once, as one may borrow from another
    for name, model in models.items():
        own = prices[name] if model is None else (borrowed(prices[model][0], model),)
        try:
            catalog = catalog.with_entry(name, entries[name], own)
        except FaultsError as error:
            source = parse_source(shipped_text(PACKAGE, ACCELERATORS), f"{PACKAGE.replace('.', '/')}/{ACCELERATORS}")
            faults = [replace(fault, path=(TOP, name, *fault.path)) for fault in error.faults]
            raise InputError(source.render(faults)) from None
    kernels = {item.generation for item in catalog.accelerators.values() if item.measured}
    engines = {word for strata in error_table().values() for key in strata for word in key.split("/")}
    generations = frozenset(kernels | engines) - {""}  # of which kernels, or a whole engine, were measured
    accelerators = {
        name: replace(item, generation_measured=item.generation in generations)
        for name, item in catalog.accelerators.items()
    }
    return replace(catalog, accelerators=accelerators, generations=generations)


def _overlaid(catalog: AcceleratorCatalog, spelling: str, entry: Any, file: str) -> AcceleratorCatalog:
    """The catalog after one entry of an overlay, which names a known accelerator or a new one.

    Raises FaultsError with what is wrong with it, at paths below the entry.
    """
    name = catalog.spellings.get(normalized_name(spelling))
    relative = None if entry.like is None else catalog.spellings.get(normalized_name(entry.like))
    if entry.like is not None and relative is None:
        raise FaultsError(Fault((LIKE,), f"{shown(entry.like)} must stand above"))
    if name and relative:
        sentence = f"{shown(spelling)} is {shown(name)} of the catalog, so 'like' cannot define it"
        raise FaultsError(Fault((LIKE,), f"{sentence}; give only what differs"))
    change = entry.model_dump(exclude_unset=True, exclude={EFFICIENCY, LIKE})
    usd, prices = change.pop(PRICE_SHORT, None), tuple[Price, ...]()
    model = catalog.accelerators.get(name or relative or "")
    if usd is not None:
        prices = (Price(usd, usd, usd, 1, Origin.STATED, f"given in {file}", change.get("date", "undated")),)
    elif model is not None and relative:
        source = f"as {relative}: {model.price.source}"
        prices = (replace(model.price, origin=Origin.ASSUMED, borrowed_from=relative, source=source),)
    elif model is not None:
        prices = (model.price, *model.other_prices)
    base = catalog.entries.get(name or relative or "", {})
    if relative:
        own_names = {"aliases", "node_label"} if change.keys() & CARD_KEYS else {"aliases"}
        base = {key: value for key, value in base.items() if key not in own_names}
    figures = {(kind, dtype): row for kind, rows in (entry.efficiency or {}).items() for dtype, row in rows.items()}
    full_entry = _merged_entry(base, change, file, relative)
    needed = [key for key, field in AcceleratorEntry.model_fields.items() if field.is_required()]
    lacks = [key for key in needed if key not in full_entry] + [PRICE_SHORT] * (not prices)
    if lacks:
        close = nearest_name(spelling, catalog.accelerators)
        sentence = f"is new and lacks {join_words(lacks)}; state what it lacks, or 'like:' with a similar one"
        hint = f", or did you mean {shown(close)}?" if close else ""
        raise FaultsError(Fault((), f"{sentence}{hint}", on_key=True))
    return catalog.with_entry(name or spelling, full_entry, prices, relative, (figures, file))


def _merged_entry(base: RawEntry, change: RawEntry, file: str, relative: str | None) -> RawEntry:
    """`base` with the user's `change` laid over it, key by key within a part, and with its sources kept honest.

    An accelerator `like` another with peaks of its own has those alone: its units are not the other's.
    """
    entry = dict(base)
    for key, value in change.items():
        old = entry.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            has_own_peaks = (
                relative and key == "tflops" and any(old.get(dtype) != peak for dtype, peak in value.items())
            )
            entry[key] = dict(value) if has_own_peaks else {**old, **value}
        else:
            entry[key] = (*old, *value) if key == "aliases" and old else value
    differs = ", ".join(sorted(set(change) - {"aliases"}))
    if "source" not in change and (differs or relative or not base):
        origin = f"; else as {relative or 'shipped'}: {base['source']}" if base else ""
        entry["source"] = f"{differs or 'nothing'} from {file}{origin}"
    entry.setdefault("date", "undated")
    return entry


def entry_dict(accelerator: Accelerator) -> dict[str, Any]:
    """The accelerator as JSON-ready values in SI units, units in the keys; efficiencies for the dtypes that it has."""
    efficiency: dict[str, dict[str, Any]] = {}
    for (kernel_class, dtype), figures in accelerator.efficiency.items():
        if dtype in accelerator.peak_flops:
            efficiency.setdefault(kernel_class, {})[dtype] = figures_dict(figures)
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
    change = {TOP: {accelerator: {EFFICIENCY: efficiency}}, **({ENGINES: engines} if engines else {})}
    content = _laid_over(base or {}, change, depth=5)
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True)
    return "".join(f"# {line}\n" for line in heading) + body


def _laid_over(base: Mapping[str, Any], change: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """A mapping with changes laid over it; depth: levels whose mappings are merged, not replaced."""
    merged = {
        key: _laid_over(base.get(key) or {}, value, depth - 1) if depth > 1 and isinstance(value, Mapping) else value
        for key, value in change.items()
    }
    return {**base, **merged}
