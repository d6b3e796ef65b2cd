"""Names of the deployment targets, apart from what they can do: the command line needs them before it imports more."""

from __future__ import annotations

from typing import Final

TARGET_NAMES: Final = ("vllm", "dynamo", "llmd", "sglang", "trtllm")
"""As users write them, in the order in which they are listed; `targets.yaml` says what each can do."""
NO_TARGET: Final = "none"
"""In place of a target: fleets that no target runs may be planned too."""
