"""Plans that a target cannot run as they were evaluated, each refused in one sentence, with settings that mend it.

Which other target does run the plan is said where all of them are tried (`files.deployment_files`), and only there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.simulation_sentences import kept_by_requests
from search_spaces.problem import Pools

from . import facts
from .description import Deployment, Routing
from .gateway import by_size, gateway_rules
from .routing_grid import coarse_words

APART: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no file of a target can say what a plan does; again: settings of a new plan without this reason."""

    reason: str
    again: str


def refuse_undeployable(plan: Plan, deployment: Deployment) -> None:
    """Raise InputError for what no file of the target could say, of a plan (with all that mends it) or of options."""
    _vendor(deployment)
    found = [one for one in (_lengths(plan, deployment), _balancing(plan, deployment)) if one is not None]
    if found:
        again = " and ".join(one.again for one in found)
        raise InputError(f"{'; and '.join(one.reason for one in found)}; plan again with {again}")
    _size(deployment)


def _lengths(plan: Plan, deployment: Deployment) -> Refusal | None:
    """Requests that are told apart, by a router that does not, or not as the plan does."""
    if deployment.routing is Routing.BOTH_KINDS:
        return Refusal(
            "the plan serves some requests in one engine and hands others over, and no router of a target does both",
            "--set constraints.max_pools=2",  # of either kind, whichever is cheaper
        )
    if deployment.routing is not Routing.BY_LENGTH:
        return None
    if deployment.options.target not in facts.length_routers({pool.role.value for pool in deployment.pools}):
        reason = "sends requests of different lengths or classes to different pools of one role"
        return Refusal(f"the plan {reason}, which no router there does", _one_of_each(plan, deployment))
    if deployment.disaggregated:
        coarse = coarse_words(deployment)
        return Refusal(coarse, _one_of_each(plan, deployment)) if coarse else None
    try:
        gateway_rules(deployment)
    except InputError as error:
        return Refusal(str(error), "--set constraints.routing=threshold")
    return None


def _one_of_each(plan: Plan, deployment: Deployment) -> str:
    """Settings that leave one pool of each role, so that nothing tells requests apart.

    Two pools could both be colocated where roles are open, and every class has its own where classes share none.
    """
    inputs, apart = plan.provenance.inputs, deployment.disaggregated
    told = [f"--set constraints.max_pools={1 + apart}"]
    if (inputs.get("constraints") or {}).get("pools") == Pools.PER_CLASS:
        told.append(f"--set constraints.pools={Pools.SHARED}")
    if apart and set((inputs.get("search") or {}).get("roles") or ()) != set(APART):
        told.append(f"search: {{roles: [{', '.join(APART)}]}} in the workload")
    return " and ".join(told)


def _balancing(plan: Plan, deployment: Deployment) -> Refusal | None:
    """A router that counts requests where the plan holds with one that counts tokens only."""
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    alike = deployment.router is deployment.balancing or all(pool.replicas == 1 for pool in prompts)
    if alike or plan.simulation is None:
        return None
    found = plan.simulation.fewest_requests
    if found is not None and found.held:
        return None
    shown = "was not simulated"
    if found is not None:
        shown = f"is not shown to hold ({kept_by_requests(plan.simulation, found)})"
    return Refusal(
        f"the router there counts requests, not the tokens of prompts, and behind such a router the plan {shown}",
        "--set constraints.balancing=fewest_requests",
    )


def _size(deployment: Deployment) -> None:
    sized = deployment.parted and by_size(gateway_rules(deployment))
    if deployment.options.bytes_per_token is not None and not sized:
        raise InputError(
            "--bytes-per-token is for a router that chooses a pool by the size of a request, and this plan needs none"
        )


def _vendor(deployment: Deployment) -> None:
    other = next((pool for pool in deployment.pools if pool.vendor != "nvidia"), None)
    if other is not None:
        raise InputError(
            f"pool {other.id}: {other.accelerator} is a GPU of {other.vendor}, and the files of every target ask for "
            "NVIDIA's devices and labels; plan again without it"
        )
