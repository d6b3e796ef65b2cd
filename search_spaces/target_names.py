"""Names of deployment targets and routers, apart from what they can do: the command line needs them at once."""

from __future__ import annotations

from typing import Final

TARGET_NAMES: Final = ("vllm", "dynamo", "llm-d", "sglang", "trtllm")
"""As users write them, in the order in which they are listed; `targets.yaml` says what each can do."""
TARGET_SPELLINGS: Final = {"llmd": "llm-d"}
"""Other ways to write a target's name, as users and older plans do."""
ROUTERS: Final = ("least-tokens", "least-requests")
"""Values of `problem.Balancing`."""
ROUTER_SPELLINGS: Final = {"fewest_tokens": "least-tokens", "fewest_requests": "least-requests"}
"""What they were called before, as in older plans."""
NO_TARGET: Final = "none"
"""In place of a target: fleets that no target runs may be planned too."""
