"""What other tools' fleet cases look like: what is missing, or of another type, is said in one sentence."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from costmodel.errors import InputError
from search_spaces.fields import faults_of

Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]
Domain = Annotated[int, Field(ge=0, le=1000)]


class Case(BaseModel):
    """Part of a case; what its tool says beside it is left alone."""

    model_config = ConfigDict(frozen=True, strict=True)


CaseT = TypeVar("CaseT", bound=Case)


class MelangeType(Case):
    """A GPU type: its price [$/h], and requests per second of one instance that serves a bucket alone."""

    cost: Amount
    tputs: list[list[Amount]]


class MelangeCase(Case):
    """Mélange's problem: GPU types by name, and the share of the requests per cell of the length distribution."""

    gpu_info: Annotated[dict[str, MelangeType], Field(min_length=1)]
    workload_distribution: list[list[Amount]]
    total_request_rate: Amount

    @model_validator(mode="after")
    def _same_cells(self) -> Self:
        cells = [len(row) for row in self.workload_distribution]
        for name, one in self.gpu_info.items():
            if [len(row) for row in one.tputs] != cells:
                raise ValueError(f"the tputs of {name} have other rows or cells than the workload_distribution")
        return self


class MelangeOptimum(Case):
    """The proven optimum of a case in Mélange's format [$/h]."""

    fractional_optimal_cost: Amount | None = None


class PairType(Case):
    """An accelerator: price of a GPU [$/h], nodes at hand (None: any), the domain within which KV is handed over."""

    name: str
    price: Amount
    inventory_nodes: Amount | None = None
    domain: Domain


class PairColumn(Case):
    """An engine that can be bought, and its requests per second in each bucket."""

    role: Literal["p", "d", "c"]
    type: str
    gpus: Positive
    rate: list[Amount]


class PairOptimum(Case):
    """The best fleet known [$/h]."""

    best_known: Amount | None = None


class PairCase(Case):
    """A prefill/decode/colocated problem; demand in requests per second of each bucket."""

    name: str | None = None
    rho: Positive
    unit: Literal["gpu", "node"]
    demand: list[Amount]
    types: Annotated[list[PairType], Field(min_length=1)]
    columns: Annotated[list[PairColumn], Field(min_length=1)]
    expected: PairOptimum = PairOptimum()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = {one.name for one in self.types}
        for number, column in enumerate(self.columns):
            if len(column.rate) != len(self.demand):
                found = f"{len(column.rate)} rates for {len(self.demand)} buckets"
                raise ValueError(f"column {number} has {found} of demand")
            if column.type not in names:
                raise ValueError(f"column {number} is of the type {column.type}, which is none of {sorted(names)}")
        return self


def read_case(path: Path, schema: type[CaseT]) -> CaseT:
    """Read a case, gzipped or not; raise InputError, which says where it is at fault."""
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise InputError(f"{path}: is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds a {type(data).__name__}, but a case is an object")
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{path}: {faults_of(error)[0].told()}") from None
