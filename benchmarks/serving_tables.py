"""Measured deployments with their kernel times tabulated, so that a trial of a policy costs no step evaluation."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_layouts import as_run  # noqa: E402
from serving_suspects import suspicions  # noqa: E402

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.engine import NO_OVERHEAD, ServingPolicy  # noqa: E402
from costmodel.queues.steady_state import (  # noqa: E402
    ClosedLoad,
    EngineTimes,
    PromptSteps,
    Steady,
    WorkerPools,
    closed_loop,
    decode_step,
    launching_time,
    prompt_of,
    prompt_steps,
)
from costmodel.step import busiest_rank  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_serving_policy  # noqa: E402
from search_spaces.measured_engines import Batch, MeasuredDeployment, batches_of, deployments_of, workers_of  # noqa: E402
from search_spaces.measurements import SCRIPTS, read_measurements, read_scripts, with_settings  # noqa: E402

Array = NDArray[np.float64]

GENERATIONS = {"H200": "H100", "GB200": "B200", "MI300X": "MI355X", "MI325X": "MI355X", "MI350X": "MI355X"}
"""GPUs with the units and kernels of another one, which share its factor."""
FILES = ("closed_loop.csv", "r1_2026.csv")
"""Measured serving results of the data folder."""
PREFILL_WORKER = "prefill_worker"
"""How much longer than their kernels steps of workers that only prefill take."""
GRID = np.array([0.0, 0.03, 0.07, 0.13, 0.22, 0.34, 0.5, 0.7, 0.85, 1.0])
"""Running requests over the most, where the decode step is tabulated."""


@dataclass(frozen=True)
class Table:
    """A batch with its kernel times, so that a trial costs no step evaluation; columns of shape (rows, 1).

    steps: of shape (rows, grid); alone, together, group, lanes, pipeline: of `PromptSteps`; kernels: of a step with
    prompts [1].
    """

    batch: Batch
    file: str
    family: str
    alone: Array
    together: Array
    group: Array
    kernels: Array
    lanes: Array
    pipeline: Array
    ranks: Array
    top: Array
    steps: Array
    ttft: Array
    tpot: Array

    def times(self, policy: ServingPolicy, first_token: Array, slower: Array) -> EngineTimes:
        """Times with the policy's overheads on top of the kernels.

        first_token (`prompt_of`), slower (`EngineArrays`): of each row [1].
        """
        step, each = policy.overhead.step, policy.overhead.per_request
        alone, together = self.alone * slower + step + each, self.together * slower + step + each * self.group
        steps = PromptSteps(alone, together, self.group, self.lanes, self.pipeline)
        prompt = prompt_of(steps, first_token, policy.launch * self.kernels)
        return EngineTimes(prompt, lambda running: self.decode(running, step, each))

    def decode(self, running: Array, step: float, each: float) -> Array:
        """The decode step, linear between the points of the grid."""
        place = np.clip(running / self.top, 0.0, 1.0)
        left = np.clip(np.searchsorted(GRID, place, side="right") - 1, 0, GRID.size - 2)
        low = np.take_along_axis(self.steps, left, axis=1)
        high = np.take_along_axis(self.steps, left + 1, axis=1)
        part = (place - GRID[left]) / (GRID[left + 1] - GRID[left])
        batch = np.maximum(running / self.pipeline, 1.0)
        time: Array = low + (high - low) * part + step + each * busiest_rank(batch, self.ranks)
        return time

    def predict(self, policy: ServingPolicy, factors: Mapping[str, float]) -> Steady:
        """The steady state under a policy, with the factor of first tokens by GPU (`generation`)."""
        own = replace(policy, token_budget=self.batch.token_budget)
        first_token, slower = np.array([in_engine(each, factors) for each in self.batch.deployments]).T[..., None]
        times = self.times(own, first_token, slower)
        return closed_loop(times, own, self.batch.load, self.batch.pools)

    def only(self, keep: Array) -> Table:
        """The rows where `keep` is true."""
        batch = self.batch
        members = tuple(each for each, kept in zip(batch.deployments, keep, strict=True) if kept)
        load, pools = columns_of([batch.load], keep), columns_of([batch.pools], keep)
        part = replace(batch, deployments=members, load=load, pools=pools)
        return replace(self, batch=part, **{name: getattr(self, name)[keep] for name in COLUMNS})


COLUMNS = tuple(item.name for item in fields(Table) if item.name not in ("batch", "file", "family"))
Columns = TypeVar("Columns", ClosedLoad, WorkerPools)


def columns_of(parts: Sequence[Columns], keep: Array | slice = slice(None)) -> Columns:
    """The kept rows of several loads or pools as one."""
    names = [item.name for item in fields(parts[0]) if isinstance(getattr(parts[0], item.name), np.ndarray)]
    return replace(parts[0], **{name: np.vstack([getattr(part, name) for part in parts])[keep] for name in names})


def merged(tables: Sequence[Table]) -> list[Table]:
    """Tables of one engine, mode and token budget as one, whatever the model: a trial has fewer steps to take."""
    groups: dict[tuple[str, bool, int], list[Table]] = defaultdict(list)
    for table in tables:
        groups[table.batch.engine, table.batch.pools.apart, table.batch.token_budget].append(table)
    return [_joined(members) for members in groups.values()]


def _joined(tables: Sequence[Table]) -> Table:
    batches = [table.batch for table in tables]
    members = tuple(each for batch in batches for each in batch.deployments)
    load, pools = columns_of([batch.load for batch in batches]), columns_of([batch.pools for batch in batches])
    batch = replace(batches[0], deployments=members, load=load, pools=pools)
    return replace(
        tables[0], batch=batch, **{name: np.concatenate([getattr(t, name) for t in tables]) for name in COLUMNS}
    )


def in_engine(deployment: MeasuredDeployment, factors: Mapping[str, float]) -> tuple[float, float]:
    """How much later than its prompt's steps a first token comes, and how much longer than kernels those take [1]."""
    if not deployment.model.is_moe:
        return 1.0, 1.0
    step = deployment.prefill.accelerator.in_engine.expert_step
    if deployment.decode is None:
        return factors[generation(deployment)], step
    return 1.0, step * factors[PREFILL_WORKER]


def generation(deployment: MeasuredDeployment) -> str:
    """The GPU whose factor holds for a deployment's: the first of the catalog's that have the same kernels."""
    name = deployment.prefill.accelerator.name
    return GENERATIONS.get(name, name)


def plausible(tables: list[Table], factors: Mapping[str, float]) -> list[Table]:
    """The tables without the rows that contradict physics or their own description."""
    found = []
    for table in tables:
        doubts = suspicions(table.batch, table.predict(load_serving_policy(table.batch.engine), factors))
        keep = np.array([not doubt for doubt in doubts])
        if keep.any():
            found.append(table.only(keep))
    return found


def make_table(batch: Batch, file: str) -> Table:
    """Kernel times of a batch, by one call of the step model for each point of the grid."""
    load = batch.load
    policy = replace(load_serving_policy(batch.engine), token_budget=batch.token_budget)
    prefill, decode = workers_of(batch, NO_OVERHEAD)
    prefill = replace(prefill, slower=np.ones_like(prefill.slower))
    prompt = prompt_steps(batch.model, prefill, policy, load)
    top = load.concurrency / batch.pools.decode_workers
    steps = [decode_step(batch.model, decode, np.maximum(top * share, 1e-3), load) for share in GRID]
    rows = [each.row for each in batch.deployments]
    return Table(
        batch=batch,
        file=file,
        family=f"{batch.model.num_layers} layers of {batch.model.hidden}",
        alone=prompt.alone,
        together=prompt.together,
        group=prompt.group,
        kernels=np.full_like(top, launching_time(batch.model, replace(policy, launch=1.0))),
        lanes=prompt.lanes,
        pipeline=prompt.pipeline,
        ranks=decode.data,
        top=top,
        steps=np.hstack(steps),
        ttft=np.array([[row.scored[0]] for row in rows]),
        tpot=np.array([[row.scored[1]] for row in rows]),
    )


def load_tables(*, corrected: bool = False) -> list[Table]:
    """Every batch of the data folder, as labelled or with the layouts that recipes state (`serving_layouts`)."""
    return [table for file in FILES for table in tables_of(file, corrected=corrected)]


def tables_of(file: str, *, corrected: bool = False) -> list[Table]:
    """Every batch of one file, with the flags of its scripts (`search_spaces.measurements`)."""
    folder = data_folder()
    _, rows = read_measurements(folder / "serving" / file)
    rows = with_settings(rows, read_scripts(folder / "serving" / SCRIPTS))
    found, refused = deployments_of(map(as_run, rows) if corrected else rows, load_catalog(), folder / "models")
    if not corrected:
        for reason, count in Counter(one.reason for one in refused).items():
            print(f"{file}: {count} rows are not predicted: {reason}")
    plain = [each for each in found if each.prefill.speculation is None]  # the tables have no drafted tokens
    return [make_table(batch, file) for batch in batches_of(plain)]
