"""What a fleet must keep to besides its goals: the limits on the whole of it, and how requests may be routed."""

from __future__ import annotations

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from search_spaces.problem import Routing

from .per_class import keeps_apart, keeps_every_limit
from .room import gets_whole


def allowed(instance: Instance, fleet: Fleet) -> bool:
    """Whether inventory, budget, power, GPU and pool count allow a fleet, and its gateway can route as it does."""
    return keeps_every_limit(instance, fleet) and is_routable(instance, fleet)


def is_routable(instance: Instance, fleet: Fleet) -> bool:
    """Whether classes stay apart that must, and a router of thresholds sends every flow whole to one pool."""
    if instance.problem.constraints.routing is not Routing.THRESHOLD:
        return keeps_apart(instance, fleet)
    return gets_whole(fleet) and keeps_apart(instance, fleet)
