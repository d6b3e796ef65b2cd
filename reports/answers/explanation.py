"""What explain answers: why an engine config is not possible, or where it ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from optimizer.plans.records import pool_records
from optimizer.recommend.explain import Explanation, Ruling, Standing
from reports.document import Column, Document, Section, Table, said, table_of
from reports.numbers import hourly
from reports.words import fleet_line

Explained = tuple[str, Mapping[str, int | str], Explanation]
"""A config, the settings that it leaves open, and what was found."""
Pair = tuple[str, str, Sequence[Ruling]]
"""A prefill config, a decode config, and what the rules say of a hand-over."""
NOTE: Final = (
    "Ranked by the cheapest fleet of one pool, or of a prefill and a decode pool, that meets the SLO by formula, not "
    "simulated. Other fleets may cost less."
)


def explanation_dict(config: str, assumptions: Mapping[str, int | str], explanation: Explanation) -> dict[str, Any]:
    """Everything that was found, ready for JSON; assumptions: settings that the config leaves open."""
    return {
        "config": config,
        "accelerator": explanation.offer.accelerator.name,
        "assumed": dict(assumptions),
        "feasible": explanation.feasible,
        "rules": _rule_records(explanation.rulings),
        "not_searched": {name: list(values) for name, values in explanation.unsearched.items()},
        "standings": [
            {
                "role": standing.role.value,
                "cost_usd_per_hour": standing.cost,
                "best_usd_per_hour": standing.best,
                "rank": standing.rank,
                "of": standing.of,
                "pools": pool_records(standing.pools),
                "binding": standing.binding,
                "used": standing.used,
                "why": standing.why,
            }
            for standing in explanation.standings
        ],
    }


def pair_dict(prefill: str, decode: str, rulings: Sequence[Ruling]) -> dict[str, Any]:
    """What the rules say of a hand-over, ready for JSON."""
    return {
        "prefill": prefill,
        "decode": decode,
        "possible": all(rule.reason is None for rule in rulings),
        "rules": _rule_records(rulings),
    }


def _rule_records(rulings: Sequence[Ruling]) -> list[dict[str, Any]]:
    return [{"rule": rule.rule, "holds": rule.reason is None, "reason": rule.reason} for rule in rulings]


def explanation_document(explanations: Sequence[Explained], pairs: Sequence[Pair]) -> Document:
    """The answer: a verdict on each config and each hand-over, then where each config ranks and what rules refuse."""
    several = len(explanations) + len(pairs) > 1
    standings = [standing for _, _, explanation in explanations for standing in explanation.standings]
    return Document(
        headline=(
            *(f"{config}: {_verdict(explanation)}" for config, _, explanation in explanations),
            *map(_pair_sentence, pairs),
        ),
        sections=(
            *(
                _config(assumptions, explanation, config if several else "")
                for config, assumptions, explanation in explanations
            ),
            *(
                Section(f"Hand-over from {prefill} to {decode}", (_passes_sentence(rulings),), _refusals_table(rulings))
                for prefill, decode, rulings in pairs
            ),
            Section(sentences=(NOTE,) if standings else ()),
        ),
        positive=any(standing.rank is not None for standing in standings),
    )


def _config(assumptions: Mapping[str, int | str], explanation: Explanation, title: str) -> Section:
    """What a config leaves open, where it ranks in each role, and which rules refuse it."""
    settings = ", ".join(f"{name} {value}" for name, value in assumptions.items())
    ranges = "; ".join(f"{name} tries {', '.join(map(str, values))}" for name, values in explanation.unsearched.items())
    return Section(
        title,
        said(
            f"Assumed, as the config does not say: {settings}." if assumptions else "",
            f"The search does not try it: {ranges}." if ranges else "",
            *map(_standing, explanation.standings),
            _passes_sentence(explanation.rulings),
        ),
        _refusals_table(explanation.rulings),
    )


def _passes_sentence(rulings: Sequence[Ruling]) -> str:
    passes = sum(ruling.reason is None for ruling in rulings)
    number = f"All {len(rulings)}" if passes == len(rulings) else f"{passes} of {len(rulings)}"
    return f"{number} feasibility rules pass (--json lists them)."


def _refusals_table(rulings: Sequence[Ruling]) -> Table:
    """The rules that refuse, and why."""
    columns = ("rule", Column("refuses because", shrink=True, lines=3))
    return table_of(
        columns, [(ruling.rule.replace("_", " "), ruling.reason) for ruling in rulings if ruling.reason is not None]
    )


def _pair_sentence(pair: Pair) -> str:
    prefill, decode, rulings = pair
    reasons = [ruling.reason for ruling in rulings if ruling.reason is not None]
    verdict = f"not possible, because {reasons[0]}" if reasons else "possible"
    return f"Hand-over from {prefill} to {decode}: {verdict}."


def _verdict(explanation: Explanation) -> str:
    reasons = [ruling.reason for ruling in explanation.rulings if ruling.reason is not None]
    if reasons:
        return f"not possible, because {reasons[0]}."
    standings = [standing for standing in explanation.standings if standing.rank is not None]
    if not standings:
        return "possible, but no fleet with it is ranked."
    best = min(standings, key=lambda standing: standing.rank or 0)
    return f"possible; as a {best.role.value} replica it ranks {best.rank} of {best.of}."


def _standing(standing: Standing) -> str:
    """The rank of a config in a role, with the cheapest fleet that has it, and why."""
    if standing.cost is None:
        return f"As {standing.role.value}: {standing.why}."
    fleet = f"{hourly(standing.cost)} with {fleet_line(standing.pools)}"
    why = f"{standing.why[:1].upper()}{standing.why[1:]}"
    return f"As {standing.role.value}: rank {standing.rank} of {standing.of}, {fleet}. {why}."
