"""How wrong a plan's times may be: tables whose steps are as slow, or as quick, as measurements say they can be.

Prompts alone take the interval of an engine step's time; steps that decode take that of the measured TPOT, which also
has the scheduler and the host in it. Both are read as lognormal around the prediction, so that a 90 % interval
[low, high] puts the quantile p at high^(z_p / z_95) above the median and at low^(z_p / z_05) below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from costmodel.accelerator import Accelerator
from costmodel.host import EngineOverhead
from costmodel.serving.interval import Regime, interval_factors
from costmodel.transformer import Transformer
from optimizer.loads.instance import Instance, make_instance
from optimizer.plans.plan import ErrorBars, Range, StepError
from search_spaces.problem import Problem
from search_spaces.serving_error import error_table, step_interval

from .evaluate import Evaluation, evaluate
from .fleet import Fleet

FloatArray = NDArray[np.float64]

ENDS = (0.05, 0.95)
"""Quantiles at the ends of a 90 % interval."""


@dataclass(frozen=True, slots=True)
class StepIntervals:
    """Factors on predicted step times that hold the measured ones nine times in ten, (low, high), of one accelerator.

    prefill: prompts alone; decode: steps that generate tokens.
    """

    prefill: tuple[float, float]
    decode: tuple[float, float]


def step_intervals(model: Transformer, accelerator: Accelerator) -> StepIntervals:
    """The catalog's 90 % intervals for a model on an accelerator; wider where its kernels were never measured."""
    serving = Regime("all", "all", "all", measured=accelerator.measured)
    return StepIntervals(step_interval(model, accelerator), interval_factors(error_table(), "tpot", serving))


def factor_at(interval: tuple[float, float], probability: float) -> float:
    """Factor on a prediction below which the measured value lies with `probability` [1].

    >>> [round(factor_at((0.8, 1.5), p), 3) for p in (0.05, 0.5, 0.9, 0.95)]
    [0.8, 1.0, 1.372, 1.5]
    """
    normal = NormalDist()
    low, high = interval
    score = normal.inv_cdf(probability) / normal.inv_cdf(ENDS[1])
    return float(high**score if score >= 0.0 else low**-score)


def slow_end(confidence: float) -> float:
    """Quantile at the upper end of the interval of probability `confidence`; 0 gives the median.

    >>> slow_end(0.9), slow_end(0.0)
    (0.95, 0.5)
    """
    return (1.0 + confidence) / 2.0


def at_quantile(instance: Instance, probability: float) -> Instance:
    """The same instance with every step as slow as it is at most with `probability`; 0.5 leaves it as it is."""
    if probability == 0.5:
        return instance
    tables, problem = instance.tables, instance.problem
    intervals = [step_intervals(problem.model, offer.accelerator) for offer in problem.offers]
    prefill = np.array([factor_at(interval.prefill, probability) for interval in intervals])[tables.offer]
    decode = np.array([factor_at(interval.decode, probability) for interval in intervals])[tables.offer]
    return replace(instance, tables=tables.with_step_factors(prefill, decode))


def planned_instance(problem: Problem, overhead: EngineOverhead) -> Instance:
    """The instance that is planned on: with step times at the confidence that the problem asks for."""
    return at_quantile(make_instance(problem, overhead), slow_end(problem.confidence))


def step_errors(instance: Instance) -> list[StepError]:
    """The intervals of every accelerator on offer, as the plan file states them."""
    rows = []
    for offer in instance.problem.offers:
        found = step_intervals(instance.problem.model, offer.accelerator)
        rows.append(
            StepError(
                accelerator=offer.accelerator.name,
                measured=offer.accelerator.measured,
                prefill=Range(low=found.prefill[0], high=found.prefill[1]),
                decode=Range(low=found.decode[0], high=found.decode[1]),
            )
        )
    return rows


def class_error_bars(instance: Instance, fleet: Fleet, volume: float) -> list[ErrorBars]:
    """Each class with all steps at the quick and at the slow end of their 90 % interval; the routing is unchanged.

    instance: with expected times.
    """
    quick, slow = (evaluate(at_quantile(instance, end), fleet, volume) for end in ENDS)
    return [_bars(quick, slow, k) for k in range(len(instance.problem.slos))]


def _bars(quick: Evaluation, slow: Evaluation, k: int) -> ErrorBars:
    def p90(values: Sequence[FloatArray]) -> Range:
        low, high = (float(value[k][1]) for value in values)
        return Range(low=low, high=max(low, high) if slow.stable else None)

    shares = sorted(float(one.attainment[k]) for one in (quick, slow))
    return ErrorBars(
        ttft_p90_s=p90([quick.ttft, slow.ttft]),
        tpot_p90_s=p90([quick.tpot, slow.tpot]),
        attainment=Range(low=shares[0], high=shares[1]),
    )
