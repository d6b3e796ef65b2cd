"""What a fleet does after a loss, and what spares cost: as text and as JSON."""

from __future__ import annotations

from typing import Any

from optimizer.procurement.resilience import Loss, Resilience
from optimizer.verification.judge import Judgement

from .numbers import hourly, percent, signed_percent
from .table import Column, render_table
from .text import wrap


def resilience_dict(found: Resilience) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    return {
        "schema": "pdplan.resilience/1",
        "cost_usd_per_hour": found.cost,
        "whole": _classes(found.whole),
        "losses": [
            {
                "pool": one.pool,
                "loss": one.what,
                "replicas_lost": one.lost,
                "replicas_left": one.left,
                "held": one.held,
                "classes": None if one.judgement is None else _classes(one.judgement),
                "overloaded": one.judgement is not None and one.judgement.overload.overloaded,
                "spares_usd_per_hour": one.spare,
            }
            for one in found.losses
        ],
        "spares_usd_per_hour": {
            what: {
                "every_pool": found.spare_cost(what, only_where_needed=False),
                "where_needed": found.spare_cost(what, only_where_needed=True),
            }
            for what in ("replica", "node")
        },
    }


def _classes(judgement: Judgement) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "goal": one.goal,
            "attainment": one.attainment.share,
            "low": one.attainment.low,
            "high": one.attainment.high,
            "held": one.held,
        }
        for one in judgement.classes
    ]


def resilience_text(found: Resilience, count: int, width: int) -> str:
    """The verdict first, then every loss, then what N+k costs."""
    blocks = [
        _verdict(found, count),
        render_table(
            [_whole(found), *(_row(one, count) for one in found.losses)],
            [
                Column("loss"),
                Column("replicas left", "right"),
                Column("in SLO", shrink=True, lines=2),
                Column("holds"),
                Column("spares against it", "right"),
            ],
            width,
        ),
        f"N+{count} in every pool: {_extra(found, 'replica', only_where_needed=False)} by replica, "
        f"{_extra(found, 'node', only_where_needed=False)} by node; only where a loss breaks an SLO: "
        f"{_extra(found, 'replica', only_where_needed=True)} and {_extra(found, 'node', only_where_needed=True)}.",
        "Simulated after the loss, requests re-routed to what is left; requests that were running when it happened are "
        "not in it. Engines of one pool are taken to share nodes.",
    ]
    return "\n\n".join("\n".join(wrap(block, width)) if "\n" not in block else block for block in blocks)


def _verdict(found: Resilience, count: int) -> str:
    broken = [f"{count} {one.what} of {one.pool}" for one in found.losses if not one.held]
    if not broken:
        return f"The fleet bears the loss of {count} replica or {count} node of any pool."
    if len(broken) == len(found.losses):
        return f"The loss of {count} replica or {count} node of any pool breaks an SLO."
    borne = [f"{count} {one.what} of {one.pool}" for one in found.losses if one.held]
    return f"The loss of {' or '.join(broken)} breaks an SLO; the loss of {' or '.join(borne)} does not."


def _extra(found: Resilience, what: str, *, only_where_needed: bool) -> str:
    spare = found.spare_cost(what, only_where_needed=only_where_needed)
    return f"{hourly(spare)} ({signed_percent(spare / found.cost)})"


def _whole(found: Resilience) -> list[str]:
    return ["none", "all", _attained(found.whole), "yes" if found.whole.held else "no", "–"]


def _row(one: Loss, count: int) -> list[str]:
    attained = "some requests have no engine left" if one.judgement is None else _attained(one.judgement)
    return [
        f"{count} {one.what} of {one.pool}",
        str(one.left),
        attained,
        "yes" if one.held else "no",
        hourly(one.spare),
    ]


def _attained(judgement: Judgement) -> str:
    shares = ", ".join(f"{one.name} {percent(one.attainment.share)}" for one in judgement.classes)
    return f"{shares} (overloaded)" if judgement.overload.overloaded else shares
