"""From benchmark records to scales with their errors, and to the catalog file that carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.accelerator import KernelEfficiency, Origin
from costmodel.calibration.scales import SPREAD, Observation, ScaleFit, Scales, fit_scales
from costmodel.calibration.scaling import Pair, scaled_figures, scaled_overhead, scaled_policy
from costmodel.errors import InputError
from costmodel.units import MICRO, MILLI
from search_spaces.catalog import MAX_OVERLAY_BYTES, normalized_name
from search_spaces.engines import load_engine_overhead, load_serving_policy
from search_spaces.overlay_writing import TOP, efficiency_dict, overlay_text, rounded
from search_spaces.yaml_source import read_source

from .deployed import Note, Setup, TimedStep, measured, observations
from .physics import check_fit, check_near, check_possible
from .prediction import Row, predictor, used_pairs
from .records import Record


@dataclass(frozen=True, slots=True)
class Calibration:
    """The outcome: rows and their times in the order of the files, the fit, what was left out.

    figures: scaled efficiencies by (kernel class, dtype); engine: whose host times were fitted.
    """

    setup: Setup
    engine: str
    rows: tuple[Row, ...]
    seen: tuple[Observation, ...]
    fit: ScaleFit
    figures: Mapping[Pair, KernelEfficiency]
    notes: tuple[Note, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """Scales that the data could not show and that stay 1."""
        return tuple(name for name in SPREAD if name not in self.fit.free)


def calibrate(records: Sequence[Record], setup: Setup, source: str) -> Calibration:
    """Fit the scales to the records; InputError where nothing can be fitted or the data contradicts physics.

    source: what the overlay says its figures rest on.
    """
    found = measured(records, setup)
    if not found.rows:
        reasons = "; ".join(dict.fromkeys(f"{note.where}: {note.reason}" for note in found.notes[:3]))
        raise InputError(f"none of the {len(records)} results can be used: {reasons}")
    engine = _one_engine(found.rows)
    check_possible(found.rows)
    seen = observations(found.rows)
    predict = predictor(found.rows, setup.catalog)
    check_near(predict(Scales()), seen, found.rows)
    check_fit(fit_scales(predictor(found.rows, setup.catalog, limited=False), seen), found.rows)
    fit = fit_scales(predict, seen)
    accelerator = setup.accelerator
    error = float(np.median(np.abs(np.expm1(fit.held))))
    figures = {
        pair: replace(one, origin=Origin.FITTED, source=f"{source}; scaled from: {_root(one.source)}", error=error)
        for pair, one in scaled_figures(accelerator, used_pairs(found.rows), fit.scales).items()
    }
    return Calibration(setup, engine, found.rows, tuple(seen), fit, figures, found.notes)


def calibrated_overlay(found: Calibration, heading: Sequence[str], source: str, base: Path | None) -> str:
    """The text of the overlay: scaled efficiencies and, where they were fitted, host times; `base` is kept in it."""
    content = {} if base is None else read_source(base, MAX_OVERLAY_BYTES)[0].value
    catalog = found.setup.catalog
    accelerator = found.setup.accelerator.name
    written = next(
        (name for name in content.get(TOP) or {} if catalog.spellings.get(normalized_name(str(name))) == accelerator),
        accelerator,
    )
    host = _host_times(found, source)
    engines = {found.engine: host} if host else None
    return overlay_text(heading, written, efficiency_dict(found.figures), engines, content)


def _host_times(found: Calibration, source: str) -> dict[str, Any]:
    scales, catalog = found.fit.scales, found.setup.catalog
    times: dict[str, Any] = {}
    if "host" in found.fit.free:
        overhead = scaled_overhead(load_engine_overhead(found.engine, catalog.engines), scales)
        times["step_overhead_us"] = rounded(overhead.step / MICRO)
        times["per_request_overhead_us"] = rounded(overhead.per_request / MICRO)
    if "arrival" in found.fit.free:
        policy = scaled_policy(load_serving_policy(found.engine, catalog.engines), scales)
        times["arrival_ms"] = rounded(policy.arrival / MILLI)
    return {**times, "origin": str(Origin.FITTED), "source": source} if times else {}


def _one_engine(rows: Sequence[Row]) -> str:
    engines = dict.fromkeys(row.engine if isinstance(row, TimedStep) else row.deployment.engine for row in rows)
    if len(engines) > 1:
        raise InputError(
            f"the results come from several engines ({', '.join(engines)}), whose host times differ; "
            "calibrate each apart, or say which it was with --engine"
        )
    return next(iter(engines))


def _root(source: str) -> str:
    """The source beneath earlier calibrations, so that repeated ones do not pile up."""
    return source.rpartition("scaled from: ")[2]
