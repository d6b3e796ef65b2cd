"""deployment.json: for which plan a directory was written and with which choices, so that it can be checked later."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optimizer.plans.reading import first_fault
from search_spaces.json_source import JsonText

from .description import Deployment, Options

RECORD: Final = "deployment.json"
SCHEMA: Final = "pdplan.deployment/1"


class Record(BaseModel):
    """The choices that the plan does not make; see `Options`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_: Literal["pdplan.deployment/1"] = Field(alias="schema")
    plan: str
    """Name of the plan."""
    inputs_sha256: str
    """Of the plan's inputs."""
    target: str
    version: str
    model: str | None
    image: str | None
    namespace: str
    rdma: str
    labels: dict[str, str]
    api: str
    claim: str | None
    bytes_per_token: float | None = None
    """Written where it was asked for, so that records without it stay as they were."""


def record_text(deployment: Deployment) -> str:
    """The record of a deployment."""
    record = Record(
        schema=SCHEMA, plan=deployment.title, inputs_sha256=deployment.plan_sha, **asdict(deployment.options)
    )
    return json.dumps(record.model_dump(by_alias=True, exclude_defaults=True), indent=1) + "\n"


def recorded_options(text: str, where: str = RECORD) -> Options:
    """The options of a record; InputError if it is none. where: the file, in messages."""
    record = JsonText(where, text)
    try:
        found = Record.model_validate(record.value())
    except ValidationError as error:
        raise record.fault(first_fault(error)) from error
    return Options(**found.model_dump(include=set(Options.__dataclass_fields__)))
