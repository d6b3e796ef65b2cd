"""The rows of a sweep as its journal holds them, read back field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from costmodel.quoting import shown
from optimizer.plans.plan import Status
from optimizer.plans.reading import first_fault
from optimizer.plans.records import Amount, Count, Degree, EnginePool, Record, Share

from .sweep import Task, varied

Finite = Annotated[float, Field(allow_inf_nan=False)]
Engines = Annotated[list[Count], Field(min_length=5, max_length=5)]
"""Role, shape, batch limit, token budget and replicas, as of `physics.Engines`."""


class _Strict(Record):
    model_config = ConfigDict(strict=True)


class _Row(_Strict):
    number: Count


class Fleet(_Strict):
    """The fleet of a row, as `whatif.Solver` knows it again."""

    family: str
    way: Count
    pools: list[Engines]


class Standing(_Strict):
    """Where a row stands among those that share proofs, as of `bound.Place`."""

    family: str
    prices: list[Finite]
    hard: list[float]


class Solved(_Row):
    """A scenario's answer, as of `scenario.answer_row`."""

    status: Annotated[Status, Field(strict=False)]
    cost_usd_per_hour: Amount | None
    bound_usd_per_hour: Finite | None
    gap: Finite | None
    goodput_rps: Amount
    goodput_per_dollar: Amount
    gpus: dict[str, Degree]
    binding: str
    pools: list[EnginePool]
    simulated: bool
    simulated_attainment: Share | None
    refuted: Annotated[list[Any], Field(max_length=0)]
    fleet: Fleet | None = None
    place: Standing | None = None


class Looked(_Row):
    """What a simulation showed of a fleet."""

    attainment: Share
    fault: str


class Proven(_Row):
    """What is proven of a scenario."""

    bound: Finite | None


@dataclass(frozen=True, slots=True)
class RowFault:
    """Says what is wrong with a row of a sweep, beginning with the field; empty where nothing is."""

    scenarios: tuple[Task, ...]

    def __call__(self, row: Mapping[str, Any]) -> str:
        """What is wrong with one row, whose number is sound."""
        if "bound" in row:
            return _fault(Proven, row)
        if row.keys() & {"attainment", "fault"}:
            return _fault(Looked, row)
        varied = self._varied(row["number"])
        for key, value in varied.items():
            if key not in row:
                return f"{key}: is missing"
            if value is not None and json.dumps(row[key]) != json.dumps(value):
                return f"{key}: {shown(row[key])} is not {shown(value)}, which the scenario has"
        return _fault(Solved, {key: value for key, value in row.items() if key not in varied})

    def _varied(self, number: int) -> dict[str, Any]:
        """What a row says of its scenario; without values where it was solved again, under a number of its own."""
        stated = varied(self.scenarios[number if number < len(self.scenarios) else 0])
        return stated if number < len(self.scenarios) else dict.fromkeys(stated)


def _fault(kind: type[_Row], row: Mapping[str, Any]) -> str:
    try:
        kind.model_validate(row)
    except ValidationError as error:
        return first_fault(error).told()
    return ""
