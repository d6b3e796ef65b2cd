"""Measured deployments with their kernel times tabulated, so that a trial of a policy costs no step evaluation."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_layouts import as_run  # noqa: E402

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.host import NO_OVERHEAD  # noqa: E402
from costmodel.serving.closed_loop import settle  # noqa: E402
from costmodel.serving.disaggregated import settle_pools  # noqa: E402
from costmodel.serving.load import (  # noqa: E402
    Prompt,
    Steady,
    Times,
    decode_time,
    prompt_time,
    prompts_in_a_step,
    uneven_lanes,
)
from costmodel.serving.policy import ServingPolicy  # noqa: E402
from costmodel.step import busiest_rank  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_serving_policy  # noqa: E402
from search_spaces.measured_batches import Batch, batches_of, deployments_of  # noqa: E402
from search_spaces.measured_settings import SCRIPTS, read_scripts, with_settings  # noqa: E402
from search_spaces.measured_suspects import suspicions  # noqa: E402
from search_spaces.measurements import read_measurements  # noqa: E402

Array = NDArray[np.float64]

FILES = ("closed_loop.csv", "r1_2026.csv")
"""Measured serving results of the data folder."""
GRID = np.array([0.0, 0.03, 0.07, 0.13, 0.22, 0.34, 0.5, 0.7, 0.85, 1.0])
"""Running requests over the most, where the decode step is tabulated."""


@dataclass(frozen=True)
class Table:
    """A batch with its kernel times, so that a trial costs no step evaluation; columns of shape (rows, 1)."""

    batch: Batch
    file: str
    family: str
    alone: Array
    shared: Array
    group: Array
    lanes: Array
    pipeline: Array
    ranks: Array
    top: Array
    steps: Array
    ttft: Array
    tpot: Array

    def times(self, policy: ServingPolicy) -> Times:
        """Times with the policy's overheads on top of the kernels."""
        step, each = policy.overhead.step, policy.overhead.per_request
        uneven = uneven_lanes(policy.lane_balance, self.lanes)
        together = self.group * self.lanes
        shared = (self.shared + (step + each * self.group) / (together * self.pipeline)) * uneven
        alone = np.maximum(self.alone + step + each, policy.launch * self.batch.model.num_layers)
        return Times(Prompt(alone, shared), lambda running: self.decode(running, step, each))

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

    def predict(self, policy: ServingPolicy) -> Steady:
        """The steady state under a policy."""
        if self.batch.split:
            return settle_pools(self.times(policy), self.batch.policy_of(policy), self.batch.load, self.batch.pools)
        return settle(self.times(policy), self.batch.policy_of(policy), self.batch.load, self.batch.pools.fits)

    def only(self, keep: Array) -> Table:
        """The rows where `keep` is true."""
        batch = self.batch
        load = replace(batch.load, **{item.name: getattr(batch.load, item.name)[keep] for item in fields(batch.load)})
        pools = replace(
            batch.pools, **{item.name: getattr(batch.pools, item.name)[keep] for item in fields(batch.pools)}
        )
        members = tuple(each for each, kept in zip(batch.deployments, keep, strict=True) if kept)
        arrays = {
            item.name: getattr(self, item.name)[keep]
            for item in fields(self)
            if item.name not in ("batch", "file", "family")
        }
        return replace(self, batch=replace(batch, deployments=members, load=load, pools=pools), **arrays)


def plausible(tables: list[Table]) -> list[Table]:
    """The tables without the rows that contradict physics or their own description."""
    found = []
    for table in tables:
        doubts = suspicions(table.batch, table.predict(load_serving_policy(table.batch.engine)))
        keep = np.array([doubt is None for doubt in doubts])
        if keep.any():
            found.append(table.only(keep))
    return found


def make_table(batch: Batch, file: str) -> Table:
    """Kernel times of a batch, by one call of the step model for each point of the grid."""
    load = batch.load
    prefill, decode = batch.prefill_engines(NO_OVERHEAD), batch.decode_engines(NO_OVERHEAD)
    bare = replace(batch.policy_of(load_serving_policy(batch.engine)), launch=0.0, lane_balance=1.0)
    prompt = prompt_time(batch.model, prefill, load, bare)
    top = load.concurrency / batch.pools.decode_workers
    steps = [decode_time(batch.model, decode, np.maximum(top * share, 1e-3), load) for share in GRID]
    rows = [each.row for each in batch.deployments]
    return Table(
        batch=batch,
        file=file,
        family=f"{batch.model.num_layers} layers of {batch.model.hidden}",
        alone=prompt.alone,
        shared=prompt.shared,
        group=prompts_in_a_step(prefill, load, bare),
        lanes=prefill.data,
        pipeline=prefill.pipeline,
        ranks=decode.data,
        top=top,
        steps=np.hstack(steps),
        ttft=np.array([[row.ttft] for row in rows]),
        tpot=np.array([[row.tpot] for row in rows]),
    )


def load_tables(*, corrected: bool = False) -> list[Table]:
    """Every batch of the data folder, as labelled or with the layouts that recipes state (`serving_layouts`)."""
    return [table for file in FILES for table in tables_of(file, corrected=corrected)]


def tables_of(file: str, *, corrected: bool = False) -> list[Table]:
    """Every batch of one file, with the flags of its scripts (`search_spaces.measured_settings`)."""
    folder = data_folder()
    _, rows = read_measurements(folder / "serving" / file)
    rows = with_settings(rows, read_scripts(folder / "serving" / SCRIPTS))
    found, refused = deployments_of(map(as_run, rows) if corrected else rows, load_catalog(), folder / "models")
    if not corrected:
        for reason, count in Counter(one.reason for one in refused).items():
            print(f"{file}: {count} rows are not predicted: {reason}")
    return [make_table(batch, file) for batch in batches_of(found)]
