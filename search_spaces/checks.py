"""Checks of workload.yaml across its sections: each yields its faults, and none stops the others.

The last ones check the problem as a whole: too many candidates, or no feasible engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.accelerator import Accelerator, PriceBasis
from costmodel.engine import Role
from costmodel.errors import shown
from costmodel.metric import Metric
from costmodel.transformer import Transformer
from costmodel.units import GIB
from costmodel.words import join_words, listed
from costmodel.workload import Workload

from .bounds import MAX_CELLS, MAX_SETTINGS, MAX_SPLITS, NO_TARGET
from .demand import LengthsSection, WorkloadSection
from .enumeration import MENDS, RULES, candidates, end_of, enumerate_shapes, pair_refusal, refusal, refused_pair
from .files import Fault
from .problem import TARGETS, Goal, Pools, Problem, target_of
from .quotes import basis_of
from .schema import AcceleratorSection, CacheTierSection, ConstraintsSection, ObjectiveSection
from .search_space import DEGREES, DTYPES, SearchSection, allowed_degrees, search_space

SHOWN_DEGREES = 8


def accelerator_faults(entries: Sequence[AcceleratorSection], canonical: Sequence[str]) -> Iterator[Fault]:
    """Accelerators: at least one, and each only once, also under another spelling."""
    if not entries:
        yield Fault(("accelerators",), "is empty, but needs at least one (`pdplan gpus` lists them)")
    first: dict[str, int] = {}
    for index, name in enumerate(canonical):
        if first.setdefault(name, index) != index:
            same = "" if entries[index].name == name else f"is {shown(name)}, which "
            sentence = f"{shown(entries[index].name)} {same}stands in accelerators.{first[name]} already"
            yield Fault(("accelerators", index, "name"), f"{sentence}; keep one of them")


def degree_faults(search: SearchSection, model: Transformer) -> Iterator[Fault]:
    """Degrees of parallelism that the user wrote must suit the model."""
    no_experts = f"but {model.name} has no experts"
    why = {
        "tensor_parallel": f"which cannot divide the attention heads of {model.name}",
        "pipeline_parallel": f"beyond the {model.num_layers} layers of {model.name}",
        "expert_parallel": no_experts,
        "data_parallel": f"{no_experts} to share; replicas do the same",
    }
    for key, degrees_allowed in allowed_degrees(model).items():
        degrees_written: Sequence[int] = getattr(search, key) or ()
        wrong = [degree for degree in degrees_written if degree not in degrees_allowed]
        if wrong:
            examples = ", ".join(str(degree) for degree in degrees_allowed[:SHOWN_DEGREES])
            more = ", ..." if len(degrees_allowed) > SHOWN_DEGREES else ""
            degrees = ", ".join(map(str, wrong[:SHOWN_DEGREES])) + (", ..." if len(wrong) > SHOWN_DEGREES else "")
            yield Fault(("search", key), f"has {degrees}, {why[key]}; allowed: {examples}{more}")


def objective_faults(
    objective: ObjectiveSection, constraints: ConstraintsSection, entries: Sequence[AcceleratorSection]
) -> Iterator[Fault]:
    """A goal must be well-posed: the ratio needs a floor, the most goodput needs something that is limited."""
    goal = objective.goal
    ratio = goal is Goal.MAX_GOODPUT_PER_DOLLAR
    if ratio and objective.min_volume is None:
        yield Fault(
            ("objective",),
            "max_goodput_per_dollar needs min_volume, such as {goal: max_goodput_per_dollar, min_volume: 1}, which "
            "serves at least the stated rate: without it the best ratio serves only the cheapest part of the demand",
        )
    if not ratio:
        for key in ("min_volume", "max_volume"):
            if getattr(objective, key) is not None:
                yield Fault(("objective", key), f"belongs to max_goodput_per_dollar, but the goal is {goal}")
    if (
        objective.min_volume is not None
        and objective.max_volume is not None
        and objective.max_volume < objective.min_volume
    ):
        yield Fault(
            ("objective", "max_volume"), f"{objective.max_volume:g} is below min_volume {objective.min_volume:g}"
        )
    fleet_limit = constraints.budget or constraints.power or constraints.max_gpus
    if goal is Goal.MAX_GOODPUT and not fleet_limit and any(entry.inventory is None for entry in entries):
        yield Fault(
            ("objective",),
            "max_goodput needs a limit: constraints.budget, power or max_gpus, or an inventory for every accelerator; "
            "without one goodput has no bound",
        )
    if goal is not Goal.MIN_COST and constraints.pools is Pools.PER_CLASS:
        yield Fault(("constraints", "pools"), f"per_class plans for min_cost only, but the goal is {goal}")


def target_faults(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """The target must run the engine that is stated, and tell SLO classes apart where each has pools of its own."""
    target, engine = target_of(sections["target"]), sections.get("engine")
    if engine is not None and engine not in target.engines:
        yield Fault(
            ("target",),
            f"{target.name} runs {' or '.join(target.engines)}, but engine: {engine} is stated; leave it out, or "
            "state one that it runs",
        )
    constraints, search = sections.get("constraints"), sections.get("search")
    if constraints is None or constraints.pools is not Pools.PER_CLASS or len(sections.get("slo", ())) < 2:
        return
    if not target.by_class:
        able = join_words([router.name for router in TARGETS if router.by_class])
        yield Fault(
            ("constraints", "pools"),
            f"per_class needs a router that tells SLO classes apart, but {target.title} has none; state "
            f"pools: {Pools.SHARED}, or a target with one ({able})",
        )
    elif search is not None and search.roles and Role.COLOCATED not in search.roles:
        yield Fault(
            ("constraints", "pools"),
            f"per_class with prefill and decode pools: the router of {target.title} tells SLO classes apart for "
            f"colocated pools alone; state pools: {Pools.SHARED}, or allow the role colocated",
        )


def length_faults(workload: Workload, section: WorkloadSection, model: Transformer) -> Iterator[Fault]:
    """The longest request must fit the stated limit, and the model's context."""
    stated_max = section.max_tokens
    longest = float((workload.isl + workload.osl).max())
    if stated_max is not None and longest > stated_max:
        yield Fault(
            ("workload", "max_tokens"),
            f"{stated_max} is below the longest bucket, which has {longest:g} tokens (ISL + OSL)"
            f"{_limit_hint(section.lengths)}",
        )
    longest_request = max(workload.max_tokens, math.ceil(longest))
    if longest_request > model.max_position:
        has_limit = stated_max is not None and stated_max >= longest
        lengths = "lengths" if section.sessions is None else "sessions"
        where = ("workload", "max_tokens") if has_limit else ("workload", lengths)
        sentence = f"{longest_request:,} tokens exceed the context of {model.name}, {model.max_position:,} tokens"
        yield Fault(where, sentence if has_limit else f"{sentence}{_limit_hint(section.lengths)}")


def tier_faults(workload: Workload, section: CacheTierSection | None) -> Iterator[Fault]:
    """A KV cache tier needs a demand that says when a prefix is used again."""
    if section is not None and workload.reuse is None:
        yield Fault(
            ("kv_cache_tier",),
            "keeps prompts that are used again, but the workload does not say when; state workload.sessions, or "
            "workload.reuse_interval beside prefix_hit_share",
        )


def _limit_hint(lengths: LengthsSection | None) -> str:
    """Hint for lengths without a stated maximum: a lognormal reaches far beyond its p99."""
    if lengths is None:
        return "; state fewer turns, or fewer tokens of each"
    length_limits = {"isl": lengths.isl, "osl": lengths.osl}
    endless = [
        f"workload.lengths.{name}.lognormal.maximum"
        for name, limit in length_limits.items()
        if limit is not None and limit.lognormal is not None and limit.lognormal.maximum is None
    ]
    if not endless:
        return ""
    return f"; limit it with {' and '.join(endless)}, which {'is' if len(endless) == 1 else 'are'} not stated"


def unquoted(accelerator: Accelerator, basis: PriceBasis) -> str:
    """Fault: nobody quotes an accelerator on this price basis; with the bases that are quoted, and what to do."""
    quotes = [f"{price.basis} {listed(price.usd_per_hour)}" for price in accelerator.quotes]
    there = f"the catalog has {join_words(quotes)}" if quotes else "the catalog has none for it at all"
    return f"{accelerator.name} has no {basis} quote ({there}); state its price, or leave it out"


def token_faults(search: SearchSection, model: Transformer) -> Iterator[Fault]:
    """A step needs a token for each request that runs; decode engines alone get them whatever is stated."""
    space = search_space(search, model)
    most, fewest = max(space.max_num_batched_tokens), min(space.max_num_seqs)
    if Role.COLOCATED in space.roles and most < fewest and (search.max_num_seqs or search.max_num_batched_tokens):
        key = "max_num_batched_tokens" if search.max_num_batched_tokens else "max_num_seqs"
        why = f"a step of {most:,} tokens at most has none for each of {fewest:,} requests at least"
        yield Fault(("search", key), f"{why}; state max_num_batched_tokens of at least {fewest:,}")


def speculation_faults(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """Tokens are drafted by a stated method, and no limit is on gaps between tokens, which come several at a time."""
    model, search = sections.get("model"), sections.get("search")
    depths = getattr(search, "speculative_tokens", None)
    drafted = (model is not None and model.speculation is not None) and (depths is None or max(depths) > 0)
    if depths and max(depths) > 0 and model is not None and model.speculation is None:
        yield Fault(("search", "speculative_tokens"), "drafts tokens; state model.speculation, such as {method: mtp}")
    limited = [index for index, slo in enumerate(sections.get("slo", ())) if Metric.ITL_P99 in slo.limits]
    for index in limited if drafted else ():
        yield Fault(
            ("slo", index), "limits itl_p99, which is not predicted with speculative decoding; limit tpot instead"
        )


def cross_faults(
    sections: Mapping[str, Any], model: Transformer | None, accelerators: Sequence[Accelerator]
) -> Iterator[Fault]:
    """All checks whose sections are sound."""
    if "accelerators" in sections:
        yield from accelerator_faults(sections["accelerators"], [accelerator.name for accelerator in accelerators])
        basis = basis_of(sections.get("prices"))
        pairs = zip(sections["accelerators"], accelerators, strict=True) if accelerators and basis is not None else ()
        for index, (entry, accelerator) in enumerate(pairs):
            if basis is not None and entry.price is None and accelerator.price_on(basis) is None:
                yield Fault(("accelerators", index), unquoted(accelerator, basis))
    search = sections.get("search")
    yield from speculation_faults(sections)
    if search is not None and model is not None:
        yield from degree_faults(search, model)
        yield from token_faults(search, model)
    if sections.get("target") not in {None, NO_TARGET}:
        yield from target_faults(sections)
    if "objective" in sections and "accelerators" in sections:
        constraints = sections.get("constraints", ConstraintsSection())
        yield from objective_faults(sections["objective"], constraints, sections["accelerators"])


def feasibility_faults(problem: Problem) -> list[Fault]:
    """What is wrong with the search space as a whole: it is too large, or no engine of it can exist.

    Time and memory of the search grow with the engine settings, and with these x buckets x classes.
    """
    space = problem.full_space
    ways = math.prod(len(getattr(space, name)) for name in (*DEGREES, *DTYPES, "speculative_tokens"))
    ways *= len(problem.offers)
    if ways > MAX_SPLITS:
        sentence = f"has {ways:,} ways to split the model over GPUs, but at most {MAX_SPLITS:,} are tried"
        return [Fault(("search",), f"{sentence}; state fewer degrees")]
    enumeration = enumerate_shapes(problem)
    if not enumeration.shapes:
        return list(impossible_faults(problem))
    faults, first = list[Fault](), enumeration.shapes[0]
    settings = {
        "engine shapes": len(enumeration.shapes),
        "values of max_num_seqs": len(space.max_num_seqs),
        "values of max_num_batched_tokens": len(space.max_num_batched_tokens),
    }
    cells = settings | {"buckets of lengths": problem.workload.share.size, "SLO classes": len(problem.slos)}
    for sizes, most in ((settings, MAX_SETTINGS), (cells, MAX_CELLS)):
        candidate_count = math.prod(sizes.values())
        if candidate_count > most and not faults:
            product = " x ".join(f"{count:,} {name}" for name, count in sizes.items())
            sentence = f"makes {candidate_count:,} candidates ({product}), but at most {most:,} are priced; state fewer"
            faults.append(Fault(("search",), sentence))
    ends = dict.fromkeys(end_of(problem, shape) for shape in enumeration.shapes)
    talks = (refused_pair(problem, sender, taker) is None for sender in ends for taker in ends)
    if Role.COLOCATED not in problem.space.roles and not any(talks):
        sentence = "no prefill replica can hand over to any decode replica"
        faults.append(Fault(("search", "roles"), f"{sentence}: {pair_refusal(problem, first, first)}"))
    return faults


def impossible_faults(problem: Problem) -> Iterator[Fault]:
    """One fault for each accelerator of which no engine can be built, however many there are: the closest it comes."""
    for index, offer in enumerate(problem.offers):
        rulings = [
            (ruling, candidate)
            for candidate in candidates(problem, index)
            if (ruling := refusal(problem, candidate)) is not None
        ]  # the closest shape passes most rules, and of these has most GPUs
        (rule, reason), shape = max(rulings, key=lambda row: (RULES.index(row[0][0]), row[1].parallelism.gpus))
        split = shape.parallelism
        weights = problem.model.weight_bytes(shape.weight_dtype) / GIB
        weights_words = f"{problem.model.name} in {shape.weight_dtype} ({weights:,.0f} GiB of weights)"
        mend = MENDS[rule] or "widen the ranges of search"
        yield Fault(
            ("accelerators", index),
            f"{weights_words} runs on no engine of {offer.accelerator.name} within the search space: "
            f"with {split.words if split.gpus > 1 else 'one GPU'}, {reason}; {mend}",
        )
