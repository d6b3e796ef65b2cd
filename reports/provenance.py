"""What the figures of a plan are of: the engine, the speed of its GPUs, and whether they are simulated."""

from __future__ import annotations

from optimizer.plans.plan import Plan
from search_spaces.bounds import NO_TARGET, TARGET_NAMES
from search_spaces.problem import target_of

from .numbers import percent
from .text import clean


def engine_title(name: str) -> str:
    """An engine as its makers write it; a name that no target knows, as a plan may have, as it is.

    >>> engine_title("vllm"), engine_title("mine")
    ('vLLM', 'mine')
    """
    return target_of(name).title if name in TARGET_NAMES else name


def serving_words(plan: Plan) -> str:
    """Say which engine serves, and on which other target the plan has to run where it was planned for one."""
    target, engine = plan.provenance.inputs.get("target"), plan.engine
    title = clean(engine_title(engine), 20)
    is_alone = target in {None, NO_TARGET, engine}
    return title if is_alone else f"{title} with {clean(engine_title(str(target)), 20)}"


def has_fleet(plan: Plan) -> bool:
    """Tell whether the plan has a fleet."""
    return plan.cost_usd_per_hour is not None and plan.status.has_fleet


def basis_words(plan: Plan) -> str:
    """Say whether the figures of a plan with a fleet are simulated."""
    if plan.simulated:
        return "simulated"
    return "simulated, request rates by formula" if is_simulated_row(plan) else "by formula, not simulated"


def is_simulated_row(plan: Plan) -> bool:
    """Whether the latencies of a plan are those that an alternative of another plan was simulated with."""
    return not plan.simulated and any(row.kind == "recommended" and row.latencies for row in plan.alternatives)


def speed_words(plan: Plan) -> str:
    """How fast the GPUs are that a plan's figures are for."""
    end = f"{percent((1.0 - abs(plan.confidence)) / 2.0)} of our predictions"
    if plan.confidence < 0.0:
        return f"as fast as the best {end}"
    return f"as slow as the worst {end}" if plan.confidence else "as fast as expected"
