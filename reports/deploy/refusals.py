"""Plans that a target cannot run as they were evaluated, each refused in one sentence."""

from __future__ import annotations

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.simulation_sentences import kept_by_requests

from . import facts
from .description import Deployment, Routing
from .gateway import by_size, gateway_rules
from .routing_grid import refuse_coarse


def refuse_undeployable(plan: Plan, deployment: Deployment) -> None:
    """Raise InputError for the first thing of a plan, or of the options, that no file of the target could say."""
    _routing(deployment)
    _balancing(plan, deployment)
    _vendor(deployment)
    _size(deployment)


def _routing(deployment: Deployment) -> None:
    if deployment.routing is Routing.BY_LENGTH:
        _lengths(deployment)
    if deployment.routing is Routing.BOTH_KINDS:
        raise InputError(
            "the plan serves some requests in one engine and hands others over, and no router of a target does both; "
            "plan again with search: {roles: [prefill, decode]} or [colocated]"
        )


def _balancing(plan: Plan, deployment: Deployment) -> None:
    """Refuse a router that counts requests where the plan holds with one that counts tokens only."""
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    alike = deployment.router is deployment.balancing or all(pool.replicas == 1 for pool in prompts)
    if alike or plan.simulation is None:
        return
    found = plan.simulation.fewest_requests
    if found is not None and found.held:
        return
    shown = "was not simulated"
    if found is not None:
        shown = f"is not shown to hold ({kept_by_requests(plan.simulation, found)})"
    able = "choose --target llmd, or " if deployment.engine in facts.engines_of("llmd") else ""
    raise InputError(
        f"the router there counts requests, not the tokens of prompts, and behind such a router the plan {shown}; "
        f"{able}plan again with --set constraints.balancing=fewest_requests"
    )


def _lengths(deployment: Deployment) -> None:
    """Refuse what no router keeps to, and a target without the router that does."""
    refuse = refuse_coarse if deployment.disaggregated else gateway_rules
    routers = facts.length_routers({pool.role.value for pool in deployment.pools})
    able = [name for name in routers if deployment.engine in facts.engines_of(name)]
    if able:
        refuse(deployment)
    if deployment.options.target not in able:
        nobody = f"no target that runs {deployment.engine} has a router that does:"
        mend = f"the router of --target {able[0]} alone does that: name it, or" if able else nobody
        raise InputError(
            "the plan sends requests of different lengths or classes to different pools of one role, and "
            f"{mend} plan again with --set constraints.max_pools={2 if deployment.disaggregated else 1}"
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
