"""How wrong a prediction may be: factors by quantity and stratum that hold the measured value nine times in ten.

The catalog has them, and the errors that they come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from costmodel.accelerator import Accelerator
from costmodel.engine import EngineConfig
from costmodel.transformer import Transformer

from .files import shipped_table

ASSUMED_WIDENING = 1.5
"""An accelerator without measured kernels: the interval's width in logarithms times this, again where nothing of its
generation was measured either, and again where the acceptance of drafted tokens is the catalog's; assumed."""

ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft": ("mode", "engine", "structure", "generation", "dtype", "model"),
    "tpot": ("structure", "generation", "dtype", "engine", "model"),
}
"""What decides the error of a quantity, in this order: TTFT is a matter of the scheduler first, TPOT of the kernels."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """What a prediction was made for, as far as its error depends on it; empty where it is not known.

    mode: colocated or disaggregated; engine: the serving engine; structure: dense or moe; generation: of the
    accelerator; dtype: of the weights; model: its name; measured: the accelerator has fitted kernels of its own;
    seen: it, or another accelerator of its generation, was measured at all; accepted: it is known how many drafted
    tokens are accepted, if any are drafted.
    """

    mode: str = ""
    engine: str = ""
    structure: str = ""
    generation: str = ""
    dtype: str = ""
    model: str = ""
    measured: bool = True
    seen: bool = True
    accepted: bool = True

    @property
    def widening(self) -> float:
        """Factor on the interval's width in logarithms for what was never measured [1].

        >>> Stratum().widening, Stratum(measured=False).widening, Stratum(measured=False, seen=False).widening
        (1.0, 1.5, 2.25)
        """
        return ASSUMED_WIDENING ** ((not self.measured) + (not self.seen) + (not self.accepted))

    def keys(self, quantity: str) -> tuple[str, ...]:
        """Names under which factors of a quantity may be filed, the narrowest first, down to all.

        >>> Stratum("colocated", "vllm", "dense", "hopper").keys("ttft")[:2]
        ('colocated/vllm/dense/hopper', 'colocated/vllm/dense')
        """
        pieces = [str(getattr(self, name)) for name in ORDER[quantity]]
        filled = pieces.index("") if "" in pieces else len(pieces)
        return (*("/".join(pieces[:count]) for count in range(filled, 0, -1)), "all")


@dataclass(frozen=True, slots=True)
class Factors:
    """Measured lies between low x and high x the prediction with 90 % probability; rows: residuals behind it."""

    low: float
    high: float
    rows: int


def interval_of(half_width: float) -> tuple[float, float]:
    """(low, high) factors of an interval that is even in logarithms: exp(-+half_width) [1].

    >>> low, high = interval_of(0.1)
    >>> round(low * high, 12)
    1.0
    """
    return math.exp(-half_width), math.exp(half_width)


ErrorTable = Mapping[str, Mapping[str, Factors]]
"""Quantity (ttft, tpot) -> key of a stratum -> factors."""


def interval_factors(table: ErrorTable, quantity: str, stratum: Stratum) -> tuple[float, float]:
    """(low, high) factors on a prediction that hold the measured value with 90 % probability [1].

    The nearest stratum that the table has decides; where kernels were never measured the interval is widened, in
    logarithms (`Stratum.widening`).

    >>> table = {"ttft": {"all": Factors(0.5, 2.0, 100)}}
    >>> interval_factors(table, "ttft", Stratum("colocated", "vllm"))
    (0.5, 2.0)
    >>> interval_factors(table, "ttft", Stratum("colocated", "vllm", measured=False))[1] > 2.8
    True
    """
    known = table[quantity]
    nearest = next(known[key] for key in stratum.keys(quantity) if key in known)
    return nearest.low**stratum.widening, nearest.high**stratum.widening


@cache
def shipped_errors() -> Mapping[str, Any]:
    """The catalog's file of prediction errors: interval factors, and errors on rows that no fit has seen."""
    errors: Mapping[str, Any] = shipped_table("costmodel.catalog", "serving_error.yaml")
    return errors


@cache
def error_table() -> ErrorTable:
    """Interval factors by quantity and stratum.

    >>> error_table()["ttft"]["all"].low < 1 < error_table()["ttft"]["all"].high
    True
    """
    return TypeAdapter(dict[str, dict[str, Factors]]).validate_python(shipped_errors()["quantities"])


@cache
def step_widths() -> Mapping[str, Mapping[str, float]]:
    """Half-width of the 90 % interval of a step's time, in logarithms, by kind of model and origin of the kernels.

    >>> step_widths()["dense"]["fitted"] < step_widths()["dense"]["assumed"]
    True
    """
    widths: Mapping[str, Mapping[str, float]] = shipped_table("costmodel.catalog", "step_error.yaml")
    return widths


def stratum_of(model: Transformer, config: EngineConfig, engine: str, mode: str = "") -> Stratum:
    """Where a prediction of a model on an engine stands; mode: colocated or disaggregated."""
    return Stratum(
        mode=mode,
        engine=engine,
        structure="moe" if model.is_moe else "dense",
        generation=config.accelerator.generation,
        dtype=config.weight_dtype,
        model=model.name,
        measured=config.accelerator.measured,
        seen=is_seen(config.accelerator),
    )


def is_seen(accelerator: Accelerator) -> bool:
    """Whether an accelerator, or another one of its generation, was measured at all."""
    return accelerator.measured or accelerator.generation_measured


def step_interval(model: Transformer, accelerator: Accelerator) -> tuple[float, float]:
    """Factors (low, high) on a predicted step time that hold the measured one nine times in ten [1]."""
    kind = "mla" if model.is_latent else "moe" if model.is_moe else "dense"
    width = step_widths()[kind]["fitted" if accelerator.measured else "assumed"]
    return interval_of(width if is_seen(accelerator) else width * ASSUMED_WIDENING)
