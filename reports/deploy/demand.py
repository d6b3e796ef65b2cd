"""What is asked of a deployment: its workload, and the limits of each SLO class."""

from __future__ import annotations

import math
import re
from typing import Final

from costmodel.errors import UnknownNameError
from optimizer.fleets.plan_fleet import planned_volume
from optimizer.plans.plan import Plan
from reports.numbers import is_number
from search_spaces.recorded import Recorded

from .description import ClassLimits, Demand, Limits

NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?")
"""What may name a deployment, or the files of a class."""


def limits_of(plan: Plan) -> Limits:
    """The tightest limits of all classes.

    Where a class limits whole requests alone, its first token may take all of that, and so may the later tokens of a
    request of mean length together.
    """
    gaps = max(plan.workload.mean_osl - 1.0, 1.0)
    wholes = [one.e2e_limit_s or math.inf for one in plan.classes]
    pairs = [(one.ttft_limit_s, one.tpot_limit_s) for one in plan.classes]
    return Limits(
        ttft=min(ttft if is_number(ttft) else whole for (ttft, _), whole in zip(pairs, wholes, strict=True)),
        tpot=min(tpot if is_number(tpot) else whole / gaps for (_, tpot), whole in zip(pairs, wholes, strict=True)),
    )


def classes_of(plan: Plan) -> tuple[ClassLimits, ...]:
    """The limits of every class, and what its files are called by; of all together where no route tells them apart."""
    if not told_apart(plan) and len(plan.classes) > 1:
        tightest = limits_of(plan)
        return (ClassLimits("", "", tightest.ttft, tightest.tpot, None),)
    return tuple(
        ClassLimits(
            name=one.name,
            ending=_ending(one.name, number) if told_apart(plan) else "",
            ttft=one.ttft_limit_s if is_number(one.ttft_limit_s) else None,
            tpot=one.tpot_limit_s if is_number(one.tpot_limit_s) else None,
            whole=one.e2e_limit_s,
        )
        for number, one in enumerate(plan.classes, start=1)
    )


def told_apart(plan: Plan) -> bool:
    """Whether there are several classes, and the routes tell the requests of each."""
    names = {one.name for one in plan.classes}
    return len(names) > 1 and {one.slo_class for one in plan.routing if one.share > 0.0} == names


def _ending(name: str, number: int) -> str:
    """What names the files of a class: its own name where that can be part of one.

    >>> _ending("interactive", 1), _ending("Day & night", 2)
    ('-interactive', '-class-2')
    """
    return f"-{name}" if NAME.fullmatch(name) and not name.startswith("class-") else f"-class-{number}"


def demand_of(plan: Plan, slo_class: str | None = None, recorded: Recorded | None = None) -> Demand:
    """The workload at the planned volume; slo_class: only the requests of this one; recorded: those of a trace."""
    load, rate = plan.workload, plan.workload.request_rate_rps * planned_volume(plan)
    names = [one.name for one in plan.classes]
    if slo_class is not None and slo_class not in names:
        raise UnknownNameError("--slo-class", slo_class, names)
    wanted = names if slo_class is None else [slo_class]
    rows = [(names.index(one.slo_class), one) for one in plan.routing if one.slo_class in wanted]
    several = told_apart(plan)
    return Demand(
        rate=rate * sum(one.share for _, one in rows) if several and slo_class is not None else rate,
        burstiness=load.burstiness,
        prefix_share=load.prefix_hit_share,
        isl=tuple(one.isl for _, one in rows) if several else tuple(load.isl),
        osl=tuple(one.osl for _, one in rows) if several else tuple(load.osl),
        share=tuple(one.share for _, one in rows) if several else tuple(load.share),
        seed=plan.provenance.seed,
        slo_class=tuple(number for number, _ in rows) if several else (),
        recorded=recorded,
    )
