"""From benchmark records to scales with their errors, and to the catalog file that carries them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.accelerator import KernelEfficiency, Origin
from costmodel.calibration.scales import HUBER, SPREAD, Observation, ScaleFit, Scales, fit_scales, strain_of
from costmodel.calibration.scaling import Pair, scaled_figures, scaled_overhead, scaled_policy
from costmodel.errors import InputError
from costmodel.transformer import DTYPE_BYTES
from costmodel.units import MICRO, MILLI
from costmodel.words import join_words, percentage
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

    figures: scaled efficiencies by (kernel class, dtype); engine: whose host times were fitted; hint: flags with which
    the catalog comes nearer to the data, where the fit does not explain it.
    """

    setup: Setup
    engine: str
    rows: tuple[Row, ...]
    seen: tuple[Observation, ...]
    fit: ScaleFit
    figures: Mapping[Pair, KernelEfficiency]
    notes: tuple[Note, ...]
    hint: str

    @property
    def refusal(self) -> str:
        """Why the fit must not be used without a second look, and what to try; empty where it explains the data."""
        fit = self.fit
        if fit.explains:
            return ""
        found = [f"the median error is {percentage(float(np.median(np.abs(np.expm1(fit.after)))))} after the fit"]
        found += [f"the scale of {name} is {getattr(fit.scales, name):.3g}" for name in fit.far]
        flags = self.hint or "check --weight-dtype, --gpu and the layout"
        return f"no machine of this type explains these results: {join_words(found)}; {flags}"

    @property
    def kept(self) -> tuple[str, ...]:
        """Scales that the data could not show and that stay 1."""
        return tuple(name for name in SPREAD if name not in self.fit.free)


def calibrate(records: Sequence[Record], setup: Setup, source: str) -> Calibration:
    """Fit the scales to the records; InputError where nothing can be fitted or the data contradicts physics.

    source: what the overlay says its figures rest on. A fit that does not explain the data says so (`refusal`).
    """
    found = measured(records, setup)
    if not found.rows:
        reasons = "; ".join(dict.fromkeys(f"{note.where}: {note.reason}" for note in found.notes[:3]))
        raise InputError(f"none of the {len(records)} results can be used: {reasons}")
    engine = _one_engine(found.rows)
    seen = observations(found.rows)
    predict = predictor(found.rows, setup.catalog)
    try:
        check_possible(found.rows)
        check_near(predict(Scales()), seen, found.rows)
        check_fit(fit_scales(predictor(found.rows, setup.catalog, limited=False), seen), found.rows)
    except InputError as fault:
        nearer = nearer_flags(records, setup, len(seen))
        raise InputError(f"{fault}; {nearer}" if nearer else str(fault)) from fault
    fit = fit_scales(predict, seen)
    hint = "" if fit.explains else nearer_flags(records, setup, len(seen))
    notes = found.notes + (precision_note(records, setup, len(seen)) if fit.explains else ())
    accelerator = setup.accelerator
    error = float(np.median(np.abs(np.expm1(fit.held))))
    figures = {
        pair: replace(one, origin=Origin.FITTED, source=f"{source}; scaled from: {_root(one.source)}", error=error)
        for pair, one in scaled_figures(accelerator, used_pairs(found.rows), fit.scales).items()
    }
    return Calibration(setup, engine, found.rows, tuple(seen), fit, figures, notes, hint)


def nearer_flags(records: Sequence[Record], setup: Setup, times: int) -> str:
    """Flags with which the catalog predicts all of the `times` better than with those of the setup; empty if none do.

    Of the precisions, the GPUs and half or twice the tensor ranks the best of each, the two best of these.
    """
    others = (one for one in setup.catalog.accelerators.values() if one.name != setup.accelerator.name)
    gpus = {f"--gpu {one.name}": replace(setup, accelerator=one) for one in others}
    ranks = {setup.layout.tensor * 2, setup.layout.tensor // 2} - {0}
    layouts = {f"--tp {one}": replace(setup, layout=replace(setup.layout, tensor=one)) for one in sorted(ranks)}
    own = _catalog_error(records, setup, times)
    best = [_nearest(records, kind, times) for kind in (_precisions(setup), gpus, layouts)]
    words = [f"with {flag} {percentage(error)}" for error, flag in sorted(best)[:2] if error < own]
    return f"median error of the catalog {join_words(words)}" if words else ""


def precision_note(records: Sequence[Record], setup: Setup, times: int) -> tuple[Note, ...]:
    """That another precision halves the catalog's error, where one does: a fit may hide that it is the wrong one."""
    own = _catalog_error(records, setup, times)
    error, flag = _nearest(records, _precisions(setup), times)
    if 2.0 * error >= own or not math.isfinite(own):
        return ()
    told = f"with {flag} the catalog's median error is {percentage(error)} before any fit, here {percentage(own)}"
    return (Note("precision", told),)


def _precisions(setup: Setup) -> dict[str, Setup]:
    return {
        f"--weight-dtype {one}": replace(setup, weight_dtype=one) for one in DTYPE_BYTES if one != setup.weight_dtype
    }


def _nearest(records: Sequence[Record], kind: Mapping[str, Setup], times: int) -> tuple[float, str]:
    """The least error of the catalog among several setups, and its flag."""
    return min((_catalog_error(records, other, times), flag) for flag, other in kind.items())


def _catalog_error(records: Sequence[Record], setup: Setup, times: int) -> float:
    """Median error of the catalog as it is [1]; infinite where it is no better than an outlier, or cannot be."""
    found = measured(records, setup)
    seen = observations(found.rows)
    if len(seen) < times:
        return math.inf
    try:
        check_possible(found.rows)
    except InputError:
        return math.inf
    ratio = predictor(found.rows, setup.catalog)(Scales()) / np.array([each.seconds for each in seen])
    return float(np.median(np.abs(ratio - 1.0))) if strain_of(np.log(ratio), seen) <= HUBER else math.inf


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
