"""What explain answers: why an engine config is not possible, or where it ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from optimizer.plans.records import pool_records
from optimizer.recommend.explain import Explanation, Ruling, Standing
from reports.document import Document, Section, Table, said, table_of
from reports.numbers import hourly
from reports.sensitivity import fleet_line
from reports.table import Column

Explained = tuple[str, Mapping[str, int | str], Explanation]
"""A config, the settings that it leaves open, and what was found."""
Pair = tuple[str, str, Sequence[Ruling]]
"""A prefill config, a decode config, and what the rules say of a hand-over."""
NOTE: Final = (
    "Ranked by the cheapest fleet of one pool, or of a prefill and a decode pool, that meets the SLO by formula, not "
    "simulated. Other fleets may cost less."
)


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


def explanation_document(explained: Sequence[Explained], pairs: Sequence[Pair]) -> Document:
    """The answer: a verdict on each config and each hand-over, then where each config ranks and what rules refuse."""
    several = len(explained) + len(pairs) > 1
    standings = [standing for _, _, found in explained for standing in found.standings]
    return Document(
        headline=(*(f"{config}: {_verdict(found)}" for config, _, found in explained), *map(_pair_sentence, pairs)),
        sections=(
            *(_config(assumed, found, config if several else "") for config, assumed, found in explained),
            *(
                Section(f"Hand-over from {prefill} to {decode}", (_passed(rulings),), _refused(rulings))
                for prefill, decode, rulings in pairs
            ),
            Section(sentences=(NOTE,) if standings else ()),
        ),
        positive=any(standing.rank is not None for standing in standings),
    )


def _config(assumed: Mapping[str, int | str], found: Explanation, title: str) -> Section:
    """What a config leaves open, where it ranks in each role, and which rules refuse it."""
    taken = ", ".join(f"{name} {value}" for name, value in assumed.items())
    ranges = "; ".join(f"{name} tries {', '.join(map(str, values))}" for name, values in found.unsearched.items())
    return Section(
        title,
        said(
            "" if found.other is None else _offers(found, found.other),
            f"Assumed, as the config does not say: {taken}." if assumed else "",
            f"The search does not try it: {ranges}." if ranges else "",
            *map(_standing, found.standings),
            _passed(found.rulings),
        ),
        _refused(found.rulings),
    )


def _passed(rulings: Sequence[Ruling]) -> str:
    passed = sum(ruling.reason is None for ruling in rulings)
    number = f"All {len(rulings)}" if passed == len(rulings) else f"{passed} of {len(rulings)}"
    return f"{number} feasibility rules pass (--json lists them)."


def _refused(rulings: Sequence[Ruling]) -> Table:
    """The rules that refuse, and why."""
    columns = ("rule", Column("refuses because", shrink=True, lines=3))
    return table_of(
        columns, [(ruling.rule.replace("_", " "), ruling.reason) for ruling in rulings if ruling.reason is not None]
    )


def _pair_sentence(pair: Pair) -> str:
    prefill, decode, rulings = pair
    refused = [ruling.reason for ruling in rulings if ruling.reason is not None]
    verdict = f"not possible, because {refused[0]}" if refused else "possible"
    return f"Hand-over from {prefill} to {decode}: {verdict}."


def _verdict(found: Explanation) -> str:
    refused = [ruling.reason for ruling in found.rulings if ruling.reason is not None]
    if refused:
        return f"not possible, because {refused[0]}."
    ranked = [standing for standing in found.standings if standing.rank is not None]
    if not ranked:
        return "possible, but no fleet with it is ranked."
    best = min(ranked, key=lambda standing: standing.rank or 0)
    return f"possible, at best number {best.rank} of {best.of} as a {best.role.value} replica."


def _offers(found: Explanation, other: Explanation) -> str:
    """Which of the two offers of a GPU is meant, and what becomes of the config on the other."""
    taken, left = (
        f"{item.offer.accelerator.name} at {hourly(item.offer.usd_per_hour)} per GPU" for item in (found, other)
    )
    unranked = all(standing.rank is None for standing in other.standings)
    why = "".join(f" As {standing.role.value}: {standing.why}." for standing in other.standings if unranked)
    return f"Taken for {taken}, the better of two offers. On {left}: {_verdict(other)}{why}"


def _standing(standing: Standing) -> str:
    """The rank of a config in a role, with the cheapest fleet that has it, and why."""
    if standing.cost is None:
        return f"As {standing.role.value}: {standing.why}."
    fleet = f"{hourly(standing.cost)} with {fleet_line(standing.pools)}"
    why = f"{standing.why[:1].upper()}{standing.why[1:]}"
    return f"As {standing.role.value}: number {standing.rank} of {standing.of}, {fleet}. {why}."
