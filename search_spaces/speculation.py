"""Speculative decoding as a workload states it, and the acceptance that the catalog has where it states none."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import AfterValidator, model_validator

from costmodel.speculation import Draft, Speculation

from .bounds import ACCEPTANCE, MAX_VALUES
from .fields import Section, Text, at_most, house_error, member, one_or_more, share
from .yaml_source import shipped_table

DRAFTED = (0, 1, 2, 3)
"""Drafted tokens that are tried where a workload states none; 0: no speculation."""


def _not_empty(values: list[float]) -> list[float]:
    if not values:
        raise house_error("is empty, but needs the acceptance of the first position at least")
    return values


_Accepted = Annotated[float, share(ACCEPTANCE)]


class SpeculationSection(Section):
    """Speculative decoding: who drafts tokens, and how many of them the model accepts."""

    method: Annotated[Draft, member(Draft)]
    """mtp: the checkpoint's own layer for it; eagle3: a trained draft layer; ngram: look-up in the prompt."""
    acceptance: (
        Annotated[
            list[_Accepted],
            at_most(MAX_VALUES, "values"),
            one_or_more(_Accepted),
            AfterValidator(_not_empty),
        ]
        | None
    ) = None
    """Share of drafted tokens accepted, by position, given those before; default: the catalog's of mtp and eagle3."""
    draft_model: Text | None = None
    """Weights of an EAGLE-3 draft: folder or Hugging Face id, for the deployment files."""

    @model_validator(mode="after")
    def _has_acceptance(self) -> SpeculationSection:
        if self.acceptance is None and self.method not in shipped_acceptance():
            raise house_error(f"{self.method} needs acceptance, which depends on the prompts; such as acceptance: 0.5")
        if self.draft_model is not None and self.method is not Draft.EAGLE3:
            raise house_error(f"draft_model belongs to eagle3; found method {self.method}")
        return self

    @property
    def template(self) -> Speculation:
        """The speculation of an engine that drafts nothing yet."""
        return Speculation(self.method, 0, tuple(self.acceptance or shipped_acceptance()[self.method]))


@cache
def shipped_acceptance() -> dict[Draft, tuple[float, ...]]:
    """Acceptance by position of methods that the catalog has figures for [1].

    >>> Draft.NGRAM in shipped_acceptance()
    False
    """
    entries = shipped_table("costmodel.catalog", "acceptance.yaml")
    return {Draft(name): tuple(entry["acceptance"]) for name, entry in entries.items()}
