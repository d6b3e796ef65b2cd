"""Schema of an accelerator as it stands in a catalog file, the shipped one or the user's; units are in the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from costmodel.accelerator import Origin, PriceBasis
from costmodel.errors import name_hint, nearest_name
from costmodel.quoting import name_list, shown
from costmodel.words import join_words

from .faults import Fault, Path
from .fields import refusal_of

PRICE_SHORT = "price_usd_per_hour"
"""In an overlay: the whole price in one number."""

LIKE = "like"
"""In an overlay: the accelerator that a new one resembles."""

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
    node_label: Text
    kv_domain: Text
    mxfp4_multiples: Annotated[list[Count], Field(min_length=2, max_length=2)] = [1, 1]
    source: Text
    date: Text
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


def faults_of(error: ValidationError, path: Path, known: Iterable[str] = ()) -> list[Fault]:
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


def _fault(fault: ErrorDetails, path: Path) -> Fault:
    return Fault((*path, *fault["loc"]), _sentence(fault), fault["type"] == "extra_forbidden")


def _sentence(fault: ErrorDetails) -> str:
    kind, place = fault["type"], fault["loc"]
    if kind == "extra_forbidden":
        keys = [str(part) for part in place]
        allowed = tuple(_PARTS[keys[0]].model_fields) if len(keys) > 1 else _KEYS
        return f"is not a known key; {name_hint(keys[-1], sorted(allowed))}"
    if kind == "missing":
        return "is missing; a new accelerator needs it, or 'like:' with a similar one"
    part = _PARTS.get(str(place[-1])) if kind == "model_type" else None
    known = f" with the keys {name_list(part.model_fields)}" if part else ""
    return f"{refusal_of(fault)}{known}"
