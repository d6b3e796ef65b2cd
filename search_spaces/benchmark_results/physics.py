"""Whether measured times can be true: against Little's law, against the roofline, against the prediction.

Each check raises InputError with one sentence: where, what was found, what the limit is, what may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.limits import least_step, least_tpot, least_ttft, most_requests_per_second
from costmodel.calibration.scales import Observation, ScaleFit
from costmodel.calibration.scaling import above_physics
from costmodel.engine import EngineConfig
from costmodel.errors import InputError
from costmodel.units import MILLI
from costmodel.words import percentage

from .deployed import MeasuredRun, TimedStep, in_flight
from .prediction import Row, engines_of, model_of, step_load, used_pairs
from .records import BenchmarkRun

FULLEST, EMPTIEST = 1.25, 0.1
"""Requests in flight by Little's law over the concurrency of a closed loop: more, or fewer, and a unit is wrong [1]."""
FARTHEST = 20.0
"""Measured over predicted, or the inverse, from which it was something else that was measured [1]."""


def check_possible(rows: Sequence[Row]) -> None:
    """Refuse rows that contradict themselves or the roofline."""
    for row in rows:
        if isinstance(row, TimedStep):
            _check_step(row)
        else:
            check_littles_law(row.run)
            _check_run(row)


def check_littles_law(run: BenchmarkRun) -> None:
    """Throughput x residence must be what the generator kept in flight; a wrong unit shows here at once."""
    flight, closed = in_flight(run)
    occupancy = run.occupancy
    if occupancy is None or flight is None or not closed or run.residence is None:
        return
    share = occupancy / flight
    if share > FULLEST or share < EMPTIEST:
        raise InputError(
            f"{run.where}: {run.request_throughput:.3g} requests/s of {run.residence:.3g} s each (TTFT and TPOT) are "
            f"{occupancy:.3g} in flight by Little's law, but the concurrency is {flight:g}; check the units of the "
            "times (milliseconds, seconds)"
        )


def check_near(predicted: NDArray[np.float64], seen: Sequence[Observation], rows: Sequence[Row]) -> None:
    """Refuse data that is further from the prediction than any machine of the kind can be."""
    logs = np.abs(np.log(predicted / np.array([each.seconds for each in seen])))
    if float(np.median(logs)) <= math.log(FARTHEST):
        return
    worst = int(np.argmax(logs))
    one = seen[worst]
    raise InputError(
        f"{where_of(rows[one.row])}: {one.quantity.value} is {_shown(one.seconds)}, the prediction "
        f"{_shown(float(predicted[worst]))}, and most rows are as far off; check units, --model, --gpu and layout"
    )


def check_fit(fit: ScaleFit, rows: Sequence[Row]) -> None:
    """Refuse scales that push the kernels on which the times rest beyond the data sheet's peak or bandwidth."""
    model, config = model_of(rows[0]), engines_of(rows[0])[0]
    beyond = above_physics(config.accelerator, model, used_pairs(rows), fit.scales)
    for name, share in beyond.items():
        limit = "memory bandwidth" if name == "memory" else "peak FLOP/s"
        raise InputError(
            f"the measured times ask for {percentage(share)} of the {limit} of {config.accelerator.name}, more than "
            "there is; check --gpu, --weight-dtype and layout, and that neither speculative decoding nor a prefix "
            "cache was on"
        )


def where_of(row: Row) -> str:
    """The row's place in its file."""
    return row.step.where if isinstance(row, TimedStep) else row.run.where


def _check_run(row: MeasuredRun) -> None:
    deployment, run = row.deployment, row.run
    prefill, decode = deployment.prefill, deployment.decode or deployment.prefill
    model = deployment.model
    if row.tpot is not None:
        least = least_tpot(model, decode, _decoding(row), deployment.isl + deployment.osl / 2.0)
        _refuse_below(run.where, "TPOT", row.tpot, least, f"to read weights and KV once {_bus(decode)}")
    if row.ttft is not None:
        least = least_ttft(model, prefill, deployment.isl)
        needs = f"for the FLOP of {deployment.isl:,.0f} tokens at the peak of {_engine(prefill)}"
        _refuse_below(run.where, "TTFT", row.ttft, least, needs)
    if run.request_throughput is not None and not run.cached:
        most = deployment.row.prefill.workers * most_requests_per_second(model, prefill, deployment.isl)
        if run.request_throughput > most:
            raise InputError(
                f"{run.where}: {run.request_throughput:.3g} requests/s of {deployment.isl:,.0f} prompt tokens are more "
                f"than the {most:.3g} that the FLOP/s of {_engine(prefill)} allow; check --gpu, the layout and the "
                "number of replicas"
            )


def _check_step(row: TimedStep) -> None:
    least = least_step(row.model, row.config, step_load(row))
    _refuse_below(row.step.where, "wall time", row.step.seconds, least, f"by the roofline of {_engine(row.config)}")


def _decoding(row: MeasuredRun) -> float:
    """Requests that decode at once on one worker, by Little's law; one where the throughput is not known [1]."""
    run, deployment = row.run, row.deployment
    if run.request_throughput is None or row.tpot is None:
        return 1.0
    workers = deployment.row.decode.workers if deployment.row.decode else deployment.row.prefill.workers
    return max(run.request_throughput * run.gaps * row.tpot / workers, 1.0)


def _refuse_below(where: str, name: str, seconds: float, least: float, needs: str) -> None:
    if seconds < least:
        raise InputError(
            f"{where}: {name} {_shown(seconds)} is below {_shown(least)}, the least {needs}; check the units, --model, "
            "--gpu, --weight-dtype and the layout"
        )


def _bus(config: EngineConfig) -> str:
    return f"at the bandwidth of {_engine(config)}"


def _engine(config: EngineConfig) -> str:
    split = config.parallelism
    degrees = {"TP": split.tensor, "PP": split.pipeline, "EP": split.expert, "DP": split.data}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    return " ".join([f"{config.gpus} x {config.accelerator.name}", *words])


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds / MILLI:.3g} ms"
