"""What is on record of serving predictions for the accelerators, the engine and the model of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from costmodel.engine import Role
from optimizer.plans.records import AccuracyRecord
from search_spaces.catalog import normalized_name
from search_spaces.problem import Problem
from search_spaces.serving_error import HeldOutOn, load_serving_error

Mode = Literal["colocated", "disaggregated"]

MODES: Final[tuple[tuple[Mode, frozenset[Role]], ...]] = (
    ("colocated", frozenset({Role.COLOCATED})),
    ("disaggregated", frozenset({Role.PREFILL, Role.DECODE})),
)


def accuracy_records(problem: Problem) -> list[AccuracyRecord]:
    """For every accelerator on offer and way of serving: this model, any model, any engine; the first even if none is.

    Errors are those of the catalog's serving_error.yaml.
    """
    known = load_serving_error().held_out_on
    records = []
    for offer in problem.offers:
        for mode, roles in MODES:
            if roles <= set(problem.space.roles):
                name = offer.accelerator.name
                kinds = ((name, problem.engine, problem.model.name), (name, problem.engine, ""), (name, "", ""))
                found = [_record(known, mode, kind) for kind in kinds]
                records += [found[0], *(record for record in found[1:] if record.rows)]
    return records


def _record(known: Sequence[HeldOutOn], mode: Mode, kind: tuple[str, str, str]) -> AccuracyRecord:
    """What is on record of one kind: accelerator, engine and model; empty: any."""
    accelerator, engine, model = kind
    wanted = [normalized_name(word) for word in kind]
    for one in known:
        if one.mode == mode and [normalized_name(word) for word in (one.accelerator, one.engine, one.model)] == wanted:
            return AccuracyRecord(
                accelerator=accelerator,
                mode=mode,
                engine=engine,
                model=model,
                rows=one.rows,
                ttft_median_abs=one.ttft_median_abs_pct / 100.0,
                ttft_bias=one.ttft_bias_pct / 100.0,
                tpot_median_abs=one.tpot_median_abs_pct / 100.0,
                tpot_bias=one.tpot_bias_pct / 100.0,
            )
    return AccuracyRecord(accelerator=accelerator, mode=mode, engine=engine, model=model, rows=0)
