"""Names of the deployment targets, apart from what they can do: the command line needs them before it imports more."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class TargetName(StrEnum):
    """A deployment target, as users write it; `search_spaces.problem.TARGETS` says what each can do."""

    VLLM = "vllm"
    DYNAMO = "dynamo"
    LLMD = "llmd"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


TARGET_NAMES: Final = tuple(name.value for name in TargetName)
NO_TARGET: Final = "none"
"""In place of a target: fleets that no target runs may be planned too."""
