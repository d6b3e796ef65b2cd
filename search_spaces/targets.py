"""What a plan is deployed to, as far as that limits which plans there can be: engines, routers and hand-overs.

How the files of a target are written is the affair of `reports.deploy`; what its programs cannot do belongs to the
search, which otherwise finds fleets that nothing can run. Sources: the routers' own help texts and configuration
schemas (HAProxy before colocated engines, vllm-router 0.1.17, sglang_router 0.3.2, the global router of Dynamo 1.6.1,
llm-d's endpoint picker, `trtllm-serve disaggregated` 1.3.0rc29); `kv_connector_protocols` of the ai-dynamo 1.6.1 wheel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from costmodel.accelerator import Accelerator
from costmodel.engine import Role
from costmodel.errors import UnknownNameError

from .problem import Balancing, Constraints, Gateway, Pools, Routing, SearchSpace

MANY: Final = 8
"""Pools of a role, where the router can tell them apart: more are never worth their trouble (assumed)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment target.

    engines: serving engines that it runs, its own before all; parts: roles whose pools its router tells apart by prompt
    length; by_class: whether it also does so by SLO class; counts: how its router chooses an engine within a pool;
    stage_by_stage: engines that hand over from a pipeline of several stages there; spans: whether it starts engines of
    several nodes; vendors: whose GPUs its files ask for.
    """

    name: str
    title: str
    engines: tuple[str, ...]
    parts: frozenset[Role] = frozenset()
    by_class: bool = False
    counts: Balancing = Balancing.FEWEST_REQUESTS
    stage_by_stage: tuple[str, ...] = ()
    spans: bool = True
    vendors: frozenset[str] = frozenset({"nvidia"})

    @property
    def gateway(self) -> Gateway:
        """The pools that its router can choose among."""
        return Gateway(MANY if Role.COLOCATED in self.parts else 1, MANY if Role.PREFILL in self.parts else 1)

    def balancing(self, plan_balancing: Balancing, *, prefixes: bool) -> Balancing:
        """How its router chooses an engine: as planned, where it can; prefixes: whether the plan counts on them.

        Dynamo's router counts the blocks of prompts where it knows which ones engines hold, else requests.
        """
        counts_blocks = self.name == "dynamo" and prefixes
        return plan_balancing if counts_blocks or self.counts is Balancing.FEWEST_TOKENS else self.counts

    def limits(self, constraints: Constraints, classes: int, *, prefixes: bool) -> Constraints:
        """The limits on a fleet that it is to run, for so many SLO classes: its router goes before what is stated."""
        apart = constraints.pools is Pools.PER_CLASS and classes > 1
        return replace(
            constraints,
            gateway=None if apart else self.gateway,  # which is told the class; `space` leaves out prefill engines
            routing=Routing.THRESHOLD if self.parts else constraints.routing,
            balancing=self.balancing(constraints.balancing, prefixes=prefixes),
        )

    def space(self, full_space: SearchSpace, constraints: Constraints, classes: int) -> SearchSpace:
        """The search space without roles that it could not run: no router tells classes apart for prefill pools."""
        apart = constraints.pools is Pools.PER_CLASS and classes > 1 and Role.COLOCATED in full_space.roles
        return replace(full_space, roles=(Role.COLOCATED,)) if apart else full_space


_APART: Final = frozenset({Role.PREFILL, Role.DECODE})
_ALONE: Final = frozenset({Role.COLOCATED})
_BOTH: Final = frozenset({"nvidia", "amd"})
TARGETS: Final[tuple[Target, ...]] = (
    Target("vllm", "vLLM", ("vllm",), _ALONE, by_class=True, stage_by_stage=("vllm",), vendors=_BOTH),
    Target("dynamo", "NVIDIA Dynamo", ("vllm", "sglang", "trtllm"), _APART, stage_by_stage=("sglang", "trtllm")),
    Target("llmd", "llm-d", ("vllm",), counts=Balancing.FEWEST_TOKENS, stage_by_stage=("vllm",), vendors=_BOTH),
    Target("sglang", "SGLang", ("sglang",), _ALONE, by_class=True, stage_by_stage=("sglang",), vendors=_BOTH),
    Target("trtllm", "TensorRT-LLM", ("trtllm",), _ALONE, by_class=True, stage_by_stage=("trtllm",), spans=False),
)
TARGET_NAMES: Final = tuple(one.name for one in TARGETS)
NO_TARGET: Final = "none"
"""In place of a target: fleets that no target runs may be planned too."""


def undeployed(accelerator: Accelerator) -> str:
    """That no target writes files for an accelerator; empty where one does."""
    vendors = frozenset[str]().union(*(target.vendors for target in TARGETS))
    if accelerator.vendor in vendors:
        return ""
    targets = " and ".join(sorted(vendor.upper() for vendor in vendors))
    return f"No target deploys {accelerator.name}: the files of all targets ask for devices of {targets}."


def target_of(name: str) -> Target:
    """The target of a name; an unknown one offers the nearest.

    >>> target_of("llmd").gateway
    Gateway(colocated=1, apart=1)
    """
    target = next((candidate for candidate in TARGETS if candidate.name == name), None)
    if target is None:
        raise UnknownNameError("target", name, TARGET_NAMES)
    return target


def any_target(engine: str) -> Target:
    """What at least one of the targets that run an engine can do, as the abilities of a single one.

    An engine of a pool is chosen as is stated: plans say whether they hold where requests are counted. stage_by_stage:
    the engine, if it hands over from pipelines where a router tells several pools of a role apart.

    >>> any_target("vllm").gateway
    Gateway(colocated=8, apart=8)
    """
    able = [target for target in TARGETS if engine in target.engines]
    routers = [target for target in able if Role.PREFILL in target.parts]
    return Target(
        "any",
        "any target",
        (engine,),
        frozenset[Role]().union(*(target.parts for target in able)),
        by_class=any(target.by_class for target in able),
        counts=Balancing.FEWEST_TOKENS,
        stage_by_stage=(engine,) if any(engine in target.stage_by_stage for target in routers) else (),
    )


def length_routers(roles: Collection[str]) -> tuple[str, ...]:
    """Targets with a router that chooses among pools of one role by prompt length; roles: of the plan's pools.

    >>> length_routers({"colocated"}), length_routers({"prefill", "decode"})
    (('vllm', 'sglang', 'trtllm'), ('dynamo',))
    """
    return tuple(target.name for target in TARGETS if {role.value for role in target.parts} >= set(roles))
