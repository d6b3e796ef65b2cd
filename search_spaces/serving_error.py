"""The catalog's error bars: factors on predictions by quantity and stratum, and the errors that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from costmodel.accelerator import Accelerator
from costmodel.engine import EngineConfig
from costmodel.prediction_error import ASSUMED_WIDENING, ErrorTable, Factors, Stratum, interval_of
from costmodel.transformer import Transformer

from .catalog import load_catalog


class _Shipped(BaseModel):
    """An entry of a file of the catalog."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Errors(_Shipped):
    """Errors of predictions whose parameters never saw the model: medians and bias in percent."""

    rows: int
    ttft_median_abs_pct: float
    ttft_bias_pct: float
    tpot_median_abs_pct: float
    tpot_bias_pct: float


class HeldOut(_Errors):
    """Those of a group of rows, with the share that the 90 % intervals cover."""

    group: str
    ttft_interval90_coverage: float
    tpot_interval90_coverage: float


class HeldOutOn(_Errors):
    """Those on one accelerator: of one engine and one model; empty: of all."""

    accelerator: str
    mode: str
    engine: str = ""
    model: str = ""


class _Factors(_Shipped):
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]
    rows: Annotated[int, Field(ge=1)]


class ServingError(_Shipped):
    """The whole of serving_error.yaml."""

    source: str
    date: str
    held_out: tuple[HeldOut, ...]
    held_out_on: tuple[HeldOutOn, ...] = ()
    kendall_tau: float
    quantities: dict[str, dict[str, _Factors]]


def error_table() -> ErrorTable:
    """Interval factors by quantity and stratum.

    >>> error_table()["ttft"]["all"].low < 1 < error_table()["ttft"]["all"].high
    True
    """
    return {
        quantity: {key: Factors(row.low, row.high, row.rows) for key, row in strata.items()}
        for quantity, strata in load_serving_error().quantities.items()
    }


@cache
def step_widths() -> Mapping[str, Mapping[str, float]]:
    """Half-width of the 90 % interval of a step's time, in logarithms, by kind of model and origin of the kernels.

    >>> step_widths()["dense"]["fitted"] < step_widths()["dense"]["assumed"]
    True
    """
    text = (resources.files("costmodel.catalog") / "step_error.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, dict[str, float]]).validate_python(yaml.safe_load(text))


def model_kind(model: Transformer) -> str:
    """The kind of model by which step errors differ: mla, moe or dense."""
    if model.is_latent:
        return "mla"
    return "moe" if model.is_moe else "dense"


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


@cache
def measured_generations() -> frozenset[str]:
    """Generations of accelerators of which kernels, or a whole engine, were measured.

    >>> {"hopper", "cdna4"} <= measured_generations(), "rubin" in measured_generations()
    (True, False)
    """
    kernels = {accelerator.generation for accelerator in load_catalog().accelerators.values() if accelerator.measured}
    keys = {key for strata in error_table().values() for key in strata}
    return frozenset(kernels | {word for key in keys for word in key.split("/")}) - {""}


def is_seen(accelerator: Accelerator) -> bool:
    """Whether an accelerator, or another one of its generation, was measured at all."""
    return accelerator.measured or accelerator.generation in measured_generations()


def step_interval(model: Transformer, accelerator: Accelerator) -> tuple[float, float]:
    """Factors (low, high) on a predicted step time that hold the measured one nine times in ten [1]."""
    width = step_widths()[model_kind(model)]["fitted" if accelerator.measured else "assumed"]
    return interval_of(width if is_seen(accelerator) else width * ASSUMED_WIDENING)


@cache
def load_serving_error() -> ServingError:
    """The catalog's file of prediction errors."""
    text = (resources.files("costmodel.catalog") / "serving_error.yaml").read_text(encoding="utf-8")
    return ServingError.model_validate(yaml.safe_load(text))
