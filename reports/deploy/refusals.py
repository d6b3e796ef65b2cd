"""Plans that a target cannot run as they were evaluated, each refused in one sentence, with the way to one that it can.

Which other target does run the plan is said where all of them are tried (`files.deployment_files`), and only there.
"""

from __future__ import annotations

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.verdict import kept_by_requests
from search_spaces.problem import Pools
from search_spaces.targets import length_routers, target_of

from .deployment import Deployment, Device, Reason, Routing, UndeployableError
from .dynamo import coarse_words
from .gateway import gateway_rules, sized


def refuse_undeployable(plan: Plan, deployment: Deployment) -> None:
    """Raise an error for what no file of the target could say, of a plan (all of it) or of options."""
    target = deployment.options.target
    vendor = _vendor(deployment)
    told = (Reason(vendor, vendor),) if vendor else (_lengths(deployment), _balancing(plan, deployment))
    found = [one for one in told if one is not None]
    if found:
        shared = f" --set constraints.pools={Pools.SHARED}" if _classes_apart(plan, target) else ""
        raise UndeployableError("; and ".join(one.full for one in found), f"--target {target}{shared}", found)
    _size(deployment)


def _classes_apart(plan: Plan, target: str) -> bool:
    """Whether the problem asks for pools that a target could not have: some for each class."""
    apart = (plan.provenance.inputs.get("constraints") or {}).get("pools") == Pools.PER_CLASS
    return apart and not target_of(target).by_class


def _lengths(deployment: Deployment) -> Reason | None:
    """Requests that are told apart, by a router that does not, or not as the plan does; None: there are none."""
    if deployment.routing is Routing.BY_LENGTH and deployment.options.target not in length_routers(
        {pool.role.value for pool in deployment.pools}
    ):
        reason = "sends requests of different lengths or classes to different pools of one role"
        router = f"no router of {target_of(deployment.options.target).title}"
        apart = "with prefill replicas" if deployment.disaggregated else "without prefill replicas"
        return Reason(f"the plan {reason}, which {router} does {apart}", "no router there parts lengths or classes")
    fault = _parted_fault(deployment)
    return Reason(fault, fault) if fault else None


def _parted_fault(deployment: Deployment) -> str:
    """What is wrong with how a router that parts requests would do so; empty: nothing."""
    if deployment.routing is Routing.BOTH_KINDS:
        return "the plan serves some requests in one engine and hands others over, and no router of a target does both"
    if deployment.routing is not Routing.BY_LENGTH:
        return ""
    if deployment.disaggregated:
        return coarse_words(deployment)
    try:
        gateway_rules(deployment)
    except InputError as error:
        return str(error)
    return ""


def _balancing(plan: Plan, deployment: Deployment) -> Reason | None:
    """A router that counts requests where the plan holds with one that counts tokens only."""
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    alike = deployment.router is deployment.balancing or all(pool.replicas == 1 for pool in prompts)
    if alike or plan.simulation is None:
        return None
    found = plan.simulation.fewest_requests
    if found is not None and found.held:
        return None
    shown = brief = "was not simulated"
    if found is not None:
        brief = "is not shown to meet the SLO"
        shown = f"{brief} ({kept_by_requests(plan.simulation, found)})"
    counts = "the router there counts requests, not the tokens of prompts"
    return Reason(f"{counts}, and behind such a router the plan {shown}", f"{counts}, where the plan {brief}")


def _size(deployment: Deployment) -> None:
    if deployment.options.bytes_per_token is not None and not (deployment.parted and sized(deployment)):
        raise InputError(
            "--bytes-per-token is for a router that chooses a pool by the size of a request, and this plan needs none"
        )


def _vendor(deployment: Deployment) -> str:
    target = target_of(deployment.options.target)
    able = target.vendors | {Device.CPU}  # which `describe` lets pass where the target has files for it
    other = next((pool for pool in deployment.pools if pool.vendor not in able), None)
    if other is None:
        return ""
    return (
        f"pool {other.id}: {other.accelerator} is a GPU of {other.vendor}, for which {target.title} has no files here"
    )
