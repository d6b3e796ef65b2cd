"""An instance of the search: the problem, its flows and the engine table; the settings to search, and the time for it.

The table is computed once and passed on. A setting of an engine is a role, shape, batch limit and token budget.

The tables of an instance can be made as slow, or as quick, as measurements say that steps can be. Prompts
alone take the interval of an engine step's time; steps that decode take that of the measured TPOT, which also has the
scheduler and the host in it. Both are read as lognormal around the prediction, so that a 90 % interval [low, high] puts
the quantile p at high^(z_p / z_95) above the median and at low^(z_p / z_05) below it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.engine import EngineConfig, Role, ServingPolicy
from search_spaces.engines import load_serving_policy
from search_spaces.enumeration import Enumeration, engine_config, enumerate_shapes
from search_spaces.problem import Problem
from search_spaces.serving_error import error_table, interval_factors, step_interval, stratum_of

from .engine_table import EngineTable, build_table
from .flows import Flows, make_flows

ROLES = (Role.PREFILL, Role.DECODE, Role.COLOCATED)
PREFILL, DECODE, COLOCATED = range(3)
"""Places of the roles in ROLES."""

Late = Callable[[], bool]
"""Whether the time that a user gave is up: loops that could take long ask, and end with what they have."""

ENDS = (0.05, 0.95)
"""Quantiles at the ends of a 90 % interval."""

LEAST_TIME = 0.05
"""Time that a search gets at least, however late it begins [s]."""


Progress = Callable[[str, float], None]
"""Told that a stage begins, and the share of the work that is done [1]."""


def never() -> bool:
    """Where nobody waits, there is always time."""
    return False


def silent(label: str, fraction: float = 0.0) -> None:
    """Progress that nobody follows, as of a search within a stage."""


@dataclass(slots=True)
class Brake:
    """What ends a search: the time that a user gave, the only clock by which it may, or whoever has no more time.

    until: reading of `time.perf_counter` when the time is up [s]; infinite, nothing depends on the clock. whole: the
    brake of which this is a part; passed: whether any search was told that the time was up. armed: there is a plan
    worth having, so that the brake ends the search once it is pulled.
    """

    until: float = math.inf
    whole: Brake | None = None
    passed: bool = False
    armed: bool = False
    pulled: bool = False

    def stopped(self) -> bool:
        """Whether to come to an end."""
        return self.late() or (self.armed and self.pulled)

    def late(self) -> bool:
        """Whether the time is up; whoever asks may stop because of it, so the answer has to say so."""
        if time.perf_counter() < self.until:
            return False
        self.passed = True
        if self.whole is not None:
            self.whole.passed = True
        return True

    def part(self, share: float) -> Brake:
        """The brake of the first part of what is to be done, which may take that share of the time left."""
        now = time.perf_counter()
        return Brake(now + share * (self.until - now), self)

    def left(self) -> float:
        """Time that is left for one search, a little even when it is late [s]; infinite without an end."""
        return max(self.until - time.perf_counter(), LEAST_TIME)


@dataclass(frozen=True)
class Instance:
    """A problem with all that a search computes from it once.

    policy: of its engine, with the user's host times; quantile: of the step times in the tables [1], 0.5: as expected.
    """

    problem: Problem
    flows: Flows
    enumeration: Enumeration
    tables: EngineTable
    policy: ServingPolicy
    quantile: float = 0.5

    @cached_property
    def on_slow_gpus(self) -> Instance:
        """The same at the slow end of the error bars, or as it is where it is slower already."""
        return at_quantile(self, max(self.quantile, ENDS[1]))


def make_instance(problem: Problem) -> Instance:
    """Enumerate the feasible engine shapes and evaluate the cost model for each of them and every flow."""
    flows, enumeration = make_flows(problem), enumerate_shapes(problem)
    policy = load_serving_policy(problem.engine, problem.engine_changes)
    return Instance(problem, flows, enumeration, build_table(problem, flows, enumeration.shapes, policy), policy)


def at_volume(instance: Instance, volume: float) -> Instance:
    """The same instance with every rate multiplied by `volume`."""
    return replace(instance, flows=replace(instance.flows, rate=instance.flows.rate * volume))


@dataclass(frozen=True, slots=True)
class StepIntervals:
    """Factors on predicted step times that hold the measured ones nine times in ten, (low, high), of one accelerator.

    prefill: prompts alone; decode: steps that generate tokens.
    """

    prefill: tuple[float, float]
    decode: tuple[float, float]


def step_intervals(problem: Problem, config: EngineConfig) -> StepIntervals:
    """The catalog's 90 % intervals for an engine, of the nearest stratum that was measured."""
    stratum = stratum_of(problem.model, config, problem.engine)
    prefill = step_interval(problem.model, config.accelerator)
    return StepIntervals(prefill, interval_factors(error_table(), "tpot", stratum))


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
    """The same instance with every step as slow as it is at most with `probability`; 0.5: as expected."""
    if probability == instance.quantile:
        return instance
    intervals = [step_intervals(instance.problem, config) for config in shape_configs(instance)]
    prefill, decode = (
        np.array([factor_at(ends, probability) / factor_at(ends, instance.quantile) for ends in column])
        for column in ([row.prefill for row in intervals], [row.decode for row in intervals])
    )
    return replace(instance, tables=instance.tables.with_step_factors(prefill, decode), quantile=probability)


def as_planned(instance: Instance) -> Instance:
    """The instance that is planned on: with step times at the confidence that its problem asks for."""
    return at_quantile(instance, slow_end(instance.problem.confidence))


def planned_instance(problem: Problem) -> Instance:
    """The instance of a problem as it is planned on."""
    return as_planned(make_instance(problem))


def shape_configs(instance: Instance) -> list[EngineConfig]:
    """An engine of every shape, whatever its limits."""
    return [engine_config(instance.problem, shape, Role.COLOCATED, 1, 1) for shape in instance.tables.shapes]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Engines, every array (settings,): role, a place in ROLES; shape, batch limit and token budget as in the table."""

    role: IntArray
    shape: IntArray
    seqs: IntArray
    chunk: IntArray

    @property
    def size(self) -> int:
        """Number of settings."""
        return int(self.role.size)

    def take(self, index: IntArray | BoolArray) -> EngineSettings:
        """The settings at `index`, in that order."""
        return EngineSettings(*(getattr(self, field.name)[index] for field in fields(self)))


def make_settings(instance: Instance, *, every_limit: bool = False) -> EngineSettings:
    """Every setting that the limits can hold one engine of, in roles that are allowed, with someone to talk to.

    A prefill engine has the largest token budget that there is memory for, as larger steps are more efficient and no
    decode waits for them; in a pipeline any, as stages work side by side on several steps only. A decode engine has the
    largest batch limit, as by formula a smaller one only makes requests wait; `every_limit`: all of them.
    """
    table, roomy = instance.tables, instance.tables.roomy
    at_limits = roomy & np.isin(np.arange(table.seqs.size), table.limits)[:, None]
    prompts = np.zeros_like(roomy)
    prompts[:, :1] = roomy[:, :1] & ((table.pipeline > 1.0)[:, None, None] | _last(roomy[:, :1], axis=2))
    tokens = np.zeros_like(roomy)
    tokens[:, :, :1] = at_limits[:, :, :1] if every_limit else _last(at_limits[:, :, :1], axis=1)
    sends, takes = (np.asarray(table.talks.any(axis=axis))[:, None, None] for axis in (1, 0))
    rows = [np.zeros((4, 0), dtype=np.int64)]
    for role, possible in enumerate((prompts & sends, tokens & takes, at_limits)):
        if ROLES[role] in instance.problem.space.roles:
            shape, chunk, back = np.nonzero(possible.swapaxes(1, 2)[:, :, ::-1])
            rows.append(np.stack([np.full_like(shape, role), shape, table.seqs.size - 1 - back, chunk]))
    settings = EngineSettings(*np.concatenate(rows, axis=1))
    return settings.take(_possible(instance, settings))


def _last(possible: BoolArray, axis: int) -> BoolArray:
    """Of what is possible the last along an axis."""
    later = np.flip(np.cumsum(np.flip(possible, axis), axis), axis)
    return np.asarray(possible & (later == 1))


def _possible(instance: Instance, settings: EngineSettings) -> BoolArray:
    """Whether the limits hold one engine that decodes within some TPOT limit, with a token for each request in a step.

    A batch limit whose full batch is too slow is kept: few requests never fill it, and smaller limits make them wait.
    """
    problem, table, shape = instance.problem, instance.tables, settings.shape
    gpus, price, ceiling = table.gpus[shape], table.usd_per_hour[shape], problem.constraints
    fits = gpus <= np.array([offer.stock for offer in problem.offers])[table.offer[shape]]
    if ceiling.max_gpus is not None:
        fits &= gpus <= ceiling.max_gpus
    if ceiling.budget is not None:
        fits &= price <= ceiling.budget * (1.0 + 1e-9)
    longest, is_colocated = instance.flows.tpot.max(), settings.role == COLOCATED
    fits &= (settings.role == PREFILL) | (table.decode_base.min(axis=1)[shape] < longest)
    tokens = table.verified[shape] * table.seqs[settings.seqs]
    return np.asarray(fits & ~(is_colocated & (tokens > table.chunks[settings.chunk])))
