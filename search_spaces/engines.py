"""Serving engines of the catalog: what their schedulers add to a step."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from costmodel.accelerator import Origin
from costmodel.errors import UnknownNameError
from costmodel.host import EngineOverhead
from costmodel.units import MICRO


class _Entry(BaseModel):
    """One engine of engines.yaml; times in microseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_overhead_us: Annotated[float, Field(ge=0)]
    per_request_overhead_us: Annotated[float, Field(ge=0)]
    origin: Origin
    source: Annotated[str, Field(min_length=1)]


def engine_names() -> tuple[str, ...]:
    """Serving engines that the catalog knows."""
    return tuple(sorted(_entries()))


def load_engine_overhead(name: str) -> EngineOverhead:
    """Host overhead of a serving engine; an unknown name is an error that offers the nearest.

    >>> load_engine_overhead("vllm").step > 0
    True
    """
    entries = _entries()
    if name not in entries:
        raise UnknownNameError("engine", name, entries)
    entry = entries[name]
    return EngineOverhead(
        step=entry.step_overhead_us * MICRO,
        per_request=entry.per_request_overhead_us * MICRO,
        origin=entry.origin,
        source=entry.source,
    )


@cache
def _entries() -> dict[str, _Entry]:
    text = (resources.files("costmodel.catalog") / "engines.yaml").read_text(encoding="utf-8")
    return {name: _Entry.model_validate(entry) for name, entry in yaml.safe_load(text).items()}
