"""Why an engine config is out or where it ranks, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.plans.records import pool_records
from optimizer.recommend.explain import Explanation, Ruling, Standing

from .numbers import hourly
from .sensitivity import fleet_line
from .table import Column, render_table
from .text import wrap


def explanation_dict(config: str, assumed: Mapping[str, int | str], found: Explanation) -> dict[str, Any]:
    """Everything that was found, ready for JSON; assumed: settings that the config leaves open."""
    return {
        "config": config,
        "accelerator": found.offer.accelerator.name,
        "assumed": dict(assumed),
        "feasible": found.feasible,
        "rules": [{"rule": one.rule, "holds": one.reason is None, "reason": one.reason} for one in found.rulings],
        "not_searched": {name: list(values) for name, values in found.unsearched.items()},
        "standings": [
            {
                "role": one.role.value,
                "cost_usd_per_hour": one.cost,
                "best_usd_per_hour": one.best,
                "rank": one.rank,
                "of": one.of,
                "pools": pool_records(one.pools),
                "binding": one.binding,
                "used": one.used,
                "why": one.why,
            }
            for one in found.standings
        ],
        "other_offer": None if found.other is None else explanation_dict(config, assumed, found.other),
    }


def pair_dict(prefill: str, decode: str, rulings: Sequence[Ruling]) -> dict[str, Any]:
    """What the rules say of a hand-over, ready for JSON."""
    return {
        "prefill": prefill,
        "decode": decode,
        "possible": all(one.reason is None for one in rulings),
        "rules": [{"rule": one.rule, "holds": one.reason is None, "reason": one.reason} for one in rulings],
    }


def pair_text(prefill: str, decode: str, rulings: Sequence[Ruling], width: int) -> str:
    """Whether two configs can talk, then what every rule says."""
    refused = [one.reason for one in rulings if one.reason is not None]
    verdict = f"no, because {refused[0]}" if refused else "yes"
    head = wrap(f"Hand-over from {prefill} to {decode}: {verdict}.", width)
    return "\n".join(head) + "\n\n" + _table(rulings, width)


def explanation_text(config: str, assumed: Mapping[str, int | str], found: Explanation, width: int) -> str:
    """The verdict first, with what the config leaves open, then each role, then what every rule says."""
    blocks = ["\n".join(wrap(f"{config}: {_verdict(found)}", width))]
    if found.other is not None:
        blocks.append("\n".join(wrap(_offers(found, found.other), width)))
    if assumed:
        taken = ", ".join(f"{name} {value}" for name, value in assumed.items())
        blocks.append("\n".join(wrap(f"Assumed, as the config does not say: {taken}.", width)))
    if found.unsearched:
        ranges = "; ".join(f"{name} tries {', '.join(map(str, values))}" for name, values in found.unsearched.items())
        blocks.append("\n".join(wrap(f"The search would not look at it: {ranges}.", width)))
    blocks += [_standing(one, width) for one in found.standings]
    blocks.append(_rules(found, width))
    if found.standings:
        blocks.append("\n".join(wrap(NOTE, width)))
    return "\n\n".join(blocks)


NOTE = (
    "Ranked by the cheapest fleet of one or two pools that meets the SLO by formula, not simulated; "
    "fleets of more pools may cost less."
)


def _rules(found: Explanation, width: int) -> str:
    """All rules where one refuses; else only that they hold."""
    if found.feasible:
        return "\n".join(wrap(f"All {len(found.rulings)} feasibility rules pass (--json lists them).", width))
    return _table(found.rulings, width)


def _table(rulings: Sequence[Ruling], width: int) -> str:
    rows = [[ruling.rule.replace("_", " "), ruling.reason or "passed"] for ruling in rulings]
    return render_table(rows, [Column("rule"), Column("verdict", shrink=True, lines=3)], width)


def _verdict(found: Explanation) -> str:
    refused = [ruling.reason for ruling in found.rulings if ruling.reason is not None]
    if refused:
        return f"out, because {refused[0]}."
    ranked = [one for one in found.standings if one.rank is not None]
    if not ranked:
        return "possible, but part of no fleet that is ranked."
    best = min(ranked, key=lambda one: one.rank or 0)
    return f"possible; at its best as {best.role.value} engine, number {best.rank} of {best.of}."


def _offers(found: Explanation, other: Explanation) -> str:
    """Which of the two offers of a GPU is meant, and what becomes of the config on the other."""
    mine, more = (f"{one.offer.accelerator.name} at {hourly(one.offer.usd_per_hour)} a GPU" for one in (found, other))
    unranked = all(one.rank is None for one in other.standings)
    why = "".join(f" {one.role.value}: {one.why}." for one in other.standings if unranked)
    return f"Taken for {mine}, the better of two offers; on {more}: {_verdict(other)}{why}"


def _standing(one: Standing, width: int) -> str:
    if one.cost is None:
        return "\n".join(wrap(f"{one.role.value}: {one.why}.", width))
    head = f"{one.role.value}: number {one.rank} of {one.of}; {one.why}."
    fleet = f"  {hourly(one.cost)}: {fleet_line(one.pools)}"
    return "\n".join([*wrap(head, width), *wrap(fleet, width)])
