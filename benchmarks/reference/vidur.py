"""Vidur: one replica with its `vllm` or `sarathi` scheduler and latency tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import UnknownNameError
from costmodel.simulator.fleet import TABLES, Limits, SimulatedFleet, SimulatedPool, StepNumbers
from costmodel.simulator.metrics import Result
from costmodel.simulator.run import simulate
from costmodel.units import MILLI
from costmodel.workload import Trace

from .files import Comparison, columns_of, compare, rows_of, trace_of
from .policies import SARATHI, VLLM_V0

FloatArray = NDArray[np.float64]
ROUNDING = 8
"""Matrix times are looked up at multiples of so many tokens."""
DENSE = (
    "attn_pre_proj",
    "attn_post_proj",
    "attn_rope",
    "input_layernorm",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_down_proj",
    "mlp_act",
    "add",
)
POLICIES = {
    "vllm": VLLM_V0,
    "sarathi": SARATHI,
}
"""Vidur also asks for a free block per running request whether it needs one or not, counts padded prompts, and takes a
prompt that is preempted half-way as ending there: none of these makes a difference in its cases here."""


@dataclass(frozen=True, slots=True)
class TableSteps:
    """Step time [s] = dense[tokens] + prefill[chunk][past] + decode[batch][context], as Vidur looks it up.

    dense, shape (tokens + 1,): all that depends on the number of tokens in the step; chunk = round(sqrt(sum of squared
    chunks)), past = sum of tokens cached before each chunk, rounded up to 64 each; context = mean context of the
    decodes, rounded down to a token and then up to 64. prefill, decode: shape (rows, contexts / 64). The factors apply
    where a step holds more than one prompt, or more than one decode.
    """

    dense: FloatArray
    prefill_attention: FloatArray
    decode_attention: FloatArray
    prefill_factor: float = 1.0
    decode_factor: float = 1.0

    def numbers(self) -> StepNumbers:
        """The tables for the event loop."""
        rows, columns = self.prefill_attention.shape
        scalars = {
            "a0": float(columns),
            "a1": float(rows),
            "a2": float(self.decode_attention.shape[0]),
            "b0": self.prefill_factor,
            "b1": self.decode_factor,
        }
        return StepNumbers(TABLES, scalars, (self.dense, self.prefill_attention, self.decode_attention))


def dense_times(folder: Path, meta: dict[str, Any]) -> FloatArray:
    """Time per layer of all that depends on the tokens in the step, by tokens [ms]."""
    columns = columns_of(folder / "ops_ms_per_layer.csv")
    tokens = columns["num_tokens"].astype(np.int64)
    wide = np.zeros(int(tokens.max()) + 1)
    wide[tokens] = sum((columns[name] for name in DENSE), np.zeros(tokens.size))
    if int(meta["tp"]) > 1:
        wide[tokens] += 2.0 * (columns["all_reduce"] + float(meta["nccl_launch_ms"]))
    save = np.zeros(wide.size)
    save[tokens] = columns["attn_kv_cache_save"]
    rounded = np.minimum(-(-np.arange(wide.size) // ROUNDING) * ROUNDING, wide.size - 1)
    return wide[rounded] + save


def attention_times(path: Path) -> FloatArray:
    """A table of attention times, rows by batch or chunk (row 0: no work), columns by context [ms per layer]."""
    columns = columns_of(path)
    index = next(iter(columns))
    contexts = sorted((name for name in columns if name.startswith("kv")), key=lambda name: int(name[2:]))
    wide = np.zeros((int(columns[index].max()) + 1, len(contexts)))
    wide[columns[index].astype(np.int64)] = np.stack([columns[name] for name in contexts], axis=1)
    return wide


@cache
def steps_of(folder: Path) -> TableSteps:
    """Step times of a model [s]."""
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    scale = MILLI * int(meta["num_layers"])
    return TableSteps(
        dense=scale * dense_times(folder, meta),
        prefill_attention=scale * attention_times(folder / "attn_prefill_ms_per_layer.csv"),
        decode_attention=scale * attention_times(folder / "attn_decode_ms_per_layer.csv"),
        prefill_factor=1.0 + float(meta["attention_prefill_batching_overhead"]),
        decode_factor=1.0 + float(meta["attention_decode_batching_overhead"]),
    )


def fleet_of(row: dict[str, str], tables: Path) -> SimulatedFleet:
    """The replica of a case."""
    meta = json.loads((tables / "meta.json").read_text("utf-8"))
    if row["scheduler"] not in POLICIES:
        raise UnknownNameError("scheduler", row["scheduler"], POLICIES)
    policy = replace(POLICIES[row["scheduler"]], watermark=float(meta["watermark"]))
    limits = Limits(
        max_num_seqs=int(meta["batch_size_cap"]),
        max_num_batched_tokens=int(meta["vllm_max_tokens_in_batch" if row["scheduler"] == "vllm" else "sarathi_chunk"]),
        kv_blocks=int(float(row["num_kv_blocks"])),
        block_size=int(meta["block_size"]),
    )
    return (SimulatedPool(Role.COLOCATED, steps_of(tables), policy, limits),)


def compare_case(row: dict[str, str], folder: Path, tables: Path) -> Comparison:
    """One case against its reference, per request."""
    trace: Trace = trace_of(folder / row["trace"])
    result: Result = simulate(trace, fleet_of(row, tables))
    theirs = columns_of(folder / "per_request" / f"{row['case']}.csv")
    many = trace.osl > 1
    ours = [result.ttft / MILLI, result.e2e / MILLI, result.tpot[many] / MILLI]
    reference = [theirs["ttft_ms"], theirs["e2e_ms"], theirs["tpot_nminus1_ms"][many]]
    return compare(row["case"], ours, reference, result.steps, int(float(row["iterations"])))


def compare_all(folder: Path) -> Iterator[Comparison]:
    """All cases of the folder: results_<model>.csv goes with tables_<model>."""
    for path in sorted(folder.glob("results_*.csv*")):
        model = path.name.removeprefix("results_").split(".")[0]
        for row in rows_of(path):
            yield compare_case(row, folder, folder / f"tables_{model}")
