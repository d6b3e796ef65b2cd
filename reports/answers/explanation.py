"""The answer of explain: why an engine config is impossible, or how it ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.engine import Role
from costmodel.metric import Scope, limit_names
from costmodel.words import dearer, dollars, join_words, percentage
from optimizer.loads.instance import ROLES, Instance
from optimizer.plans.records import ROUNDING, pool_records
from optimizer.recommend.explain import EngineQuery, Explanation, Ruling, Standing
from optimizer.search.search import FleetSearch
from reports.document import Column, Document, Section, Table, said, table_of
from reports.fleets import fleet_line
from reports.question import constraint_words
from reports.text import capital, hourly
from search_spaces.enumeration import pair_refusal

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
                "binding": None if standing.binding is None else constraint_words(standing.binding),
                "used": standing.used,
                "why": why_words(standing),
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
    refused = {config for config, _, explanation in explanations if not explanation.feasible}
    standings = [standing for _, _, explanation in explanations for standing in explanation.standings]
    return Document(
        headline=(
            *(f"{config}: {_verdict(explanation)}" for config, _, explanation in explanations),
            *(_pair_sentence(pair, refused) for pair in pairs),
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


def _pair_sentence(pair: Pair, refused: Collection[str]) -> str:
    """The verdict on a hand-over; refused: configs that are not possible themselves."""
    prefill, decode, rulings = pair
    reasons = [ruling.reason for ruling in rulings if ruling.reason is not None]
    ends = [role for role, config in (("prefill", prefill), ("decode", decode)) if config in refused]
    verdict = f"not possible, because {reasons[0]}" if reasons else "possible"
    if ends and not reasons:
        itself = f"{ends[0]} config itself is" if len(ends) == 1 else "prefill and decode configs themselves are"
        verdict = f"the KV formats match, but the {itself} not possible"
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
        return f"As {standing.role.value}: {why_words(standing)}."
    fleet = f"{hourly(standing.cost)} with {fleet_line(standing.pools)}"
    rank = f"rank {standing.rank} of {standing.of}"
    return f"As {standing.role.value}: {rank}, {fleet}. {capital(why_words(standing))}."


def why_words(standing: Standing) -> str:
    """Why a config has its rank, or no fleet with it holds, as the end of a sentence."""
    cost, best, binding = standing.cost, standing.best, standing.binding
    if cost is None or best is None or binding is None:
        return _why_none(standing.search, standing.config, standing.role)
    full = f"its pool uses {percentage(standing.used or 0.0)} of its {constraint_words(binding)} on average"
    ranked = "fleet of one pool" if standing.role is Role.COLOCATED else "fleet of a prefill and a decode pool"
    if cost <= best * (1.0 + ROUNDING):
        return f"no other engine of this role makes a cheaper {ranked}; {full}"
    return f"its fleet costs {dearer(cost, best)} than the cheapest {ranked}; {full}"


def _why_none(space: FleetSearch, config: EngineQuery, role: Role) -> str:
    """Why no fleet of one or two pools with the config holds; space: its settings, and its possible partners."""
    instance, tables, flows = space.instance, space.instance.tables, space.instance.flows
    own = np.flatnonzero(space.settings.role == ROLES.index(role))
    shape = tables.shapes.index(config.shape)
    step, limit = float(tables.decode_base[shape].min()), float(flows.tpot.max())
    if not own.size:
        partners = tables.talks[shape] if role is Role.PREFILL else tables.talks[:, shape]
        if role is not Role.COLOCATED and not partners.any():
            own_shape = tables.shapes[shape]
            pairs = [(own_shape, own_shape)]  # what keeps it from another one just like it, before all
            pairs += [(own_shape, peer) if role is Role.PREFILL else (peer, own_shape) for peer in tables.shapes]
            reasons = (pair_refusal(instance.problem, *pair) for pair in pairs)
            return f"no engine of the search space can exchange KV with it: {next(filter(None, reasons))}"
        if step >= limit:
            return (
                f"its shortest decode step, {step * 1e3:,.4g} ms, is not below the {limit * 1e3:,.4g} ms a token that "
                f"the {limit_names(flows.limits, Scope.LATER)} limit allows"
            )
        return _why_unsearched(instance, config)
    if not any(space.able(int(setting), space.most(int(setting))) for setting in own):
        most = max(space.most(int(setting)) for setting in own)
        return f"too many requests miss their SLO even with {most:,} replicas of it and the best partners"
    constraints = instance.problem.constraints
    limits = [name for name in ("budget", "power", "max_gpus", "max_pools") if getattr(constraints, name) is not None]
    limit_words = join_words(limits) if limits else "the inventory and the links of its possible partners"
    return f"no fleet with it serves the whole demand within {limit_words}"


def _why_unsearched(instance: Instance, config: EngineQuery) -> str:
    """Why an engine is in no fleet that no rule refuses, and that has partners and short enough steps."""
    tables, budget = instance.tables, instance.problem.constraints.budget
    shape = tables.shapes.index(config.shape)
    price, chunk = float(tables.usd_per_hour[shape]), config.stated.get("max_num_batched_tokens")
    if budget is not None and price > budget:
        return f"one replica of it costs {dollars(price)}/h, over the budget of {dollars(budget)}/h"
    if not tables.roomy[shape, :, slice(None) if chunk is None else tables.chunks == chunk].any():
        return "the longest request does not fit in memory beside a step of max_num_batched_tokens"
    limits = limit_names(instance.flows.limits, Scope.LATER)
    return f"its decode steps of {config.stated.get('max_num_seqs')} requests take too long for the {limits} limit"
