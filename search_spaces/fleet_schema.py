"""The shape of a fleet file: the pools that run today, as frozen pydantic models.

The docstring under each attribute is its documentation, as in `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from costmodel.engine import Role

from . import bounds
from .fields import Reader, Section, Text, at_most, choice, count, house_error, listed, member, quantity, share
from .quantities import Kind
from .schema import ENGINES, KV_DTYPES, SIXTEEN_BIT, WEIGHT_DTYPES

FLEET_SCHEMA: Literal["pdplan.fleet/1"] = "pdplan.fleet/1"


def _workload(value: object) -> object:
    if isinstance(value, str | Mapping):
        return value
    raise house_error("must be the path of a workload.yaml, or what stands in one")


class IslRange(Section):
    """Input lengths of the requests that a pool gets: from <= ISL < to."""

    low: Annotated[int, count(bounds.TOKENS)] | None = Field(None, alias="from")
    """Shortest input [token]; default: any."""
    high: Annotated[int, count(bounds.TOKENS)] | None = Field(None, alias="to")
    """Input length that is too long already [token]; default: none is."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise house_error(f"from {self.low} to {self.high} contains no length; 'to' must be above 'from'")
        return self


class PoolSection(Section):
    """Equal engines in one role."""

    gpu: Text
    """Name of the GPU type in the catalog (`pdplan gpus` lists them)."""
    role: Annotated[Role, member(Role)] = Role.COLOCATED
    """prefill, decode, or colocated, which does both."""
    replicas: Annotated[int, count(bounds.Bounds(1, bounds.MAX_GPUS.high, "replicas"))]
    """Engines of this pool that run."""
    tensor_parallel: Annotated[int, count(bounds.DEGREE)] = 1
    """TP of one engine."""
    pipeline_parallel: Annotated[int, count(bounds.DEGREE)] = 1
    """PP of one engine."""
    data_parallel: Annotated[int, count(bounds.DEGREE)] = 1
    """DP within one engine, of a mixture of experts."""
    expert_parallel: Annotated[int, count(bounds.DEGREE)] = 1
    """EP of one engine, TP x DP where it is above 1."""
    weight_dtype: Annotated[str, choice(*WEIGHT_DTYPES, same=SIXTEEN_BIT)] | None = None
    """Precision of the weights; default: the workload's."""
    kv_dtype: Annotated[str, choice(*KV_DTYPES)] | None = None
    """Precision of the KV cache; default: the workload's."""
    max_num_seqs: Annotated[int, count(bounds.MAX_NUM_SEQS)]
    """Most requests that run in one engine at once."""
    max_num_batched_tokens: Annotated[int, count(bounds.MAX_NUM_BATCHED_TOKENS)]
    """Token budget of one engine step: the chunk of chunked prefill."""
    price: Annotated[float, quantity(Kind.PRICE, bounds.PRICE)] | None = None
    """Price of one GPU [$/h]; default: the workload's."""
    slo_classes: list[Text] | None = None
    """SLO classes whose requests this pool gets; default: all."""
    isl: IslRange | None = None
    """Input lengths of the requests that this pool gets; default: all."""


class FleetFile(Section):
    """A fleet that runs today, for `pdplan evaluate`."""

    schema_: Annotated[str, choice(FLEET_SCHEMA)] = Field(FLEET_SCHEMA, alias="schema")
    """Format of this file."""
    name: Text | None = None
    """Name of the fleet; default: the file's."""
    workload: Annotated[Any, Reader(_workload, {"type": ["string", "object"]})] = None
    """What it serves: path of a workload.yaml, relative to this file, or its content; --fleet names it otherwise."""
    engine: Annotated[str, choice(*ENGINES)] | None = None
    """Serving engine of all pools; default: the workload's."""
    memory_fraction: Annotated[float, share(bounds.MEMORY_FRACTION)] | None = None
    """The engines' own memory fraction [1], as in a workload; default: the workload's."""
    pools: Annotated[
        list[PoolSection],
        at_most(int(bounds.MAX_POOLS.high), "pools"),
        BeforeValidator(listed, json_schema_input_type=list[PoolSection] | PoolSection),
    ]
    """The pools that run."""

    @field_validator("pools")
    @classmethod
    def _serve(cls, pools: list[PoolSection]) -> list[PoolSection]:
        roles = {pool.role for pool in pools}
        if not roles:
            raise house_error("is empty, but a fleet has one pool at least")
        for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if role in roles and other not in roles:
                raise house_error(f"has {role} pools but no {other} pool, without which they serve nothing")
        return pools
