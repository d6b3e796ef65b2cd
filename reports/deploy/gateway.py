"""Which pool a gateway sends a request to, where colocated pools take different lengths or classes.

A gateway counts no tokens: it takes the bytes of a request's body for the length of its prompt, so many to a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from costmodel.errors import InputError
from costmodel.words import join_words, percentage

from . import facts
from .deployment import Deployment, Lane
from .formats import Raw, render
from .hosts import ROUTER_FILE, Instance

SURPLUS: Final = 0.05
"""Most [1] that a pool may get on top of the requests that were planned for it."""
PARTS: Final = 10_000
"""Requests of one length are parted in 1 / PARTS."""
Parts = tuple[int, ...]
"""What each pool takes of a range of lengths [1 / PARTS], in the plan's order."""
NEXT: Final = 1e-9
"""Relative step that leads from an edge to its other side."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests that a pool gets, of those that no rule before it took.

    upto: largest body [byte], None: any; chance: part of them [1 / PARTS], drawn at random, None: all;
    slo_class: label of their class, empty: any.
    """

    pool: str
    upto: int | None = None
    chance: int | None = None
    slo_class: str = ""


def bytes_per_token(deployment: Deployment) -> float:
    """Bytes of a body for each token of its prompt [byte]: the user's, or those of English text."""
    asked = deployment.options.bytes_per_token
    return float(facts.fact("gateway", "bytes_per_token")) if asked is None else asked


def gateway_rules(deployment: Deployment) -> tuple[Rule, ...]:
    """Rules that send requests where the plan does, by size alone if that will do, else by class and size.

    InputError where neither comes near the plan's routing.
    """
    lost = math.inf
    for labels in ([""], [one.label for one in deployment.classes]):
        rules = tuple(rule for label in labels for rule in _rules(deployment, label))
        lost = misplacing(deployment, rules)(bytes_per_token(deployment))
        if lost <= SURPLUS:
            return rules if rules[-1] == Rule(rules[-1].pool) else (*rules, Rule(rules[-1].pool))
    known = "class and prompt length" if len(deployment.classes) > 1 else "prompt length"
    raise InputError(
        f"a pool would get {percentage(lost, 1)} on top of the requests that were planned for it, as a gateway tells "
        f"requests apart by {known} alone"
    )


def by_class(rules: Sequence[Rule]) -> bool:
    """Whether requests have to say which class they are of."""
    return any(rule.slo_class for rule in rules)


def by_size(rules: Sequence[Rule]) -> bool:
    """Whether requests have to say how long they are."""
    return any(rule.upto is not None for rule in rules)


def chosen_by(deployment: Deployment) -> str:
    """What decides on the pool of a request, in words."""
    rules = gateway_rules(deployment)
    return " and ".join(["the class"] * by_class(rules) + ["the size"] * by_size(rules))


def _rules(deployment: Deployment, label: str) -> list[Rule]:
    """Rules for the requests of a class, or of all: for each range of lengths, the parts that pools take of it."""
    names = [pool.name for pool in deployment.pools]
    mine = [lane for lane in deployment.lanes if lane.share > 0.0 and label in {"", lane.slo_class}]
    ranges = _ranges(mine, names)
    following = [first for first, _, _ in ranges[1:]]
    edges = [_edge(deployment, last, first) for (_, last, _), first in zip(ranges, following, strict=False)]
    return [
        Rule(name, upto, chance, label)
        for (_, _, parts), upto in zip(ranges, [*edges, None], strict=True)
        for name, chance in _chances(names, parts)
    ]


def _edge(deployment: Deployment, last: float, first: float) -> int:
    """The largest body of a range [byte], as far in proportion from its last length as from the next range's first."""
    return int(bytes_per_token(deployment) * math.sqrt(last * first))


def _ranges(lanes: Sequence[Lane], names: Sequence[str]) -> list[tuple[float, float, Parts]]:
    """Neighbouring lengths of which pools take the same parts: the first and the last length [token], and the parts."""
    found: list[tuple[float, float, Parts]] = []
    for length in sorted({lane.isl for lane in lanes}):
        parts = _middle([lane for lane in lanes if lane.isl == length], names)
        if found and found[-1][2] == parts:
            found[-1] = (found[-1][0], length, parts)
        else:
            found.append((length, length, parts))
    return found


def _middle(lanes: Sequence[Lane], names: Sequence[str]) -> Parts:
    """The parts of one lane that differ least from those of all: a gateway cannot tell requests of one length apart."""
    every = [(lane.share, tuple(round(lane.decode.get(name, 0.0) * PARTS) for name in names)) for lane in lanes]
    return min(
        (parts for _, parts in every),
        key=lambda parts: sum(
            share * abs(mine - its) for share, one in every for mine, its in zip(parts, one, strict=True)
        ),
    )


def _chances(names: Sequence[str], parts: Parts) -> list[tuple[str, int | None]]:
    """Pools with their part of what those before them left; None for the last, who takes the rest."""
    takers = [(name, part) for name, part in zip(names, parts, strict=True) if part]
    left, found = sum(parts), []
    for name, part in takers[:-1]:
        found.append((name, round(part / left * PARTS)))
        left -= part
    return [*found, *((name, None) for name, _ in takers[-1:])]


def placed(rules: Sequence[Rule], size: float, slo_class: str) -> dict[str, float]:
    """The part of the requests of one size [byte] and class that each pool gets [1].

    >>> placed([Rule("a", 100, 2_500), Rule("b")], 80.0, "")
    {'a': 0.25, 'b': 0.75}
    """
    parts: dict[str, float] = {}
    left = 1.0
    for rule in rules:
        if rule.slo_class in {"", slo_class} and (rule.upto is None or size <= rule.upto):
            taken = left if rule.chance is None else left * rule.chance / PARTS
            parts[rule.pool] = parts.get(rule.pool, 0.0) + taken
            left -= taken
    return {pool: part for pool, part in parts.items() if part > 0.0}


def misplacing(deployment: Deployment, rules: Sequence[Rule]) -> Callable[[float], float]:
    """By bytes per token: what the worst pool gets on top of its own, as a share of that [1].

    Or the share of all requests that find no pool of the plan, if that is more.
    """
    names, lanes = [pool.name for pool in deployment.pools], deployment.lanes
    edges = sorted({float(rule.upto) for rule in rules if rule.upto is not None})
    labels = sorted({lane.slo_class for lane in lanes})
    got = np.array(
        [[_row(placed(rules, size, label), names) for size in (*edges, math.inf)] for label in labels], dtype=np.float64
    )
    label_of = np.array([labels.index(lane.slo_class) for lane in lanes])
    length, share = (np.array(values) for values in zip(*((lane.isl, lane.share) for lane in lanes), strict=True))
    planned = np.array([_row(lane.decode, names) for lane in lanes])
    taken = np.maximum(share @ planned, 1.0 / PARTS)

    def worst(ratio: float) -> float:
        here = got[label_of, np.searchsorted(edges, length * ratio)]
        surplus = share @ np.maximum(here - planned, 0.0) / taken
        return float(max(share @ (1.0 - here.sum(axis=1)), *surplus.tolist()))

    return worst


def _row(parts: Mapping[str, float], names: Sequence[str]) -> list[float]:
    return [parts.get(name, 0.0) for name in names]


def tolerated(deployment: Deployment, rules: Sequence[Rule]) -> tuple[float, float]:
    """Fewest and most bytes per token [byte] between which pools get what was planned for them, up to SURPLUS.

    0 and infinite where there is no end. A request changes its pool where its size passes an edge, and only there.
    """
    worst, assumed = misplacing(deployment, rules), bytes_per_token(deployment)
    edges = sorted(
        {rule.upto / lane.isl for rule in rules if rule.upto is not None for lane in deployment.lanes if lane.isl > 0.0}
    )
    low = (edge for edge in reversed(edges) if edge < assumed and worst(edge * (1.0 - NEXT)) > SURPLUS)
    high = (edge for edge in edges if edge >= assumed and worst(edge * (1.0 + NEXT)) > SURPLUS)
    return next(low, 0.0), next(high, math.inf)


GATEWAY_FILE: Final = "router.cfg"
HEADER: Final = "x-slo-class"
"""Header in which a request says which class it is of."""
LEAST_CONNECTIONS: Final = 1000
"""Connections of clients that the gateway takes in any case."""


def gateway_files(deployment: Deployment, instances: Sequence[Instance]) -> dict[str, str]:
    """HAProxy's configuration and its start script."""
    shared = {
        "version": facts.fact("gateway", "version"),
        "port": facts.fact("ports", "http"),
        "chosen_by": Raw(chosen_by(deployment)),
    }
    rules = gateway_rules(deployment)
    running = sum(pool.replicas * pool.settings.max_num_seqs for pool in deployment.pools)
    config = render(
        "plain/router.cfg",
        **shared,
        bytes_per_token=Raw(f"{bytes_per_token(deployment):g}"),
        tolerated=Raw(tolerance_sentence(deployment)),
        sized=by_size(rules),
        connections=max(2 * running, LEAST_CONNECTIONS),  # twice what engines run, so that as many can wait
        metrics_port=facts.fact("ports", "router_metrics"),
        check=Raw(" ".join(check_words())),
        check_timeout=Raw(f"{facts.fact('health', 'timeout')}s"),
        header=HEADER,
        parts=PARTS,
        labels=[one.label for one in deployment.classes] if by_class(rules) else [],
        rules=_rows(deployment, rules),
        pools=[{"name": pool.name, "servers": _servers(pool.name, instances)} for pool in deployment.pools],
    )
    return {GATEWAY_FILE: config, ROUTER_FILE: render("plain/gateway.sh", **shared)}


def _servers(pool: str, instances: Iterable[Instance]) -> list[tuple[str, Raw]]:
    return [
        (one.name, Raw(f'"{one.hosts[0].address}:{one.port("worker")}"')) for one in instances if one.pool.name == pool
    ]


def _rows(deployment: Deployment, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Rules as the template has them; the first of each range says which requests it is about."""
    rows: list[dict[str, Any]] = []
    for _, group in groupby(rules, key=lambda rule: (rule.upto, rule.slo_class)):
        for number, rule in enumerate(group):
            note = None if number else Raw(_about(deployment, rule, sized=by_size(rules)))
            row = {"pool": rule.pool, "upto": rule.upto, "chance": rule.chance, "label": rule.slo_class, "note": note}
            rows.append({**row, "last": rule == Rule(rule.pool)})
    return rows


def _about(deployment: Deployment, rule: Rule, *, sized: bool) -> str:
    """Which requests a rule is about, in words; sized: whether rules tell lengths apart."""
    length = "all others"
    if rule.upto is not None:
        length = f"prompts of up to {rule.upto / bytes_per_token(deployment):,.0f} tokens"
    words = [f"class {rule.slo_class}"] * bool(rule.slo_class) + [length] * (sized or not rule.slo_class)
    return ": ".join(words)


def pool_lines(deployment: Deployment) -> list[str]:
    """Which requests each pool gets, for the page: a line for each range of lengths, in the router's order."""
    rules = gateway_rules(deployment)
    told = [rule for rule in rules if rule.slo_class] if by_class(rules) else rules  # others are refused
    lines = []
    for _, group in groupby(told, key=lambda rule: (rule.upto, rule.slo_class)):
        takers = list(group)
        about = _about(deployment, takers[0], sized=by_size(rules))
        parts = placed([replace(rule, upto=None, slo_class="") for rule in takers], 0.0, "")
        shares = [f"{percentage(part, 2)} to {pool}" for pool, part in parts.items()]
        lines.append(f"{about}: {takers[0].pool if len(parts) == 1 else join_words(shares)}")
    return lines


def tolerance_sentence(deployment: Deployment) -> str:
    """How far off the assumed bytes per token may be."""
    low, high = tolerated(deployment, gateway_rules(deployment))
    above = f"more than {low:.3g}" if low > 0.0 else ""
    below = f"at most {high:.3g}" if high < math.inf else ""
    span = " and ".join(filter(None, (above, below))) or "anything"
    return f"While it is {span}, no pool gets over {percentage(SURPLUS)} more requests than planned for it."


def gateway_notes(deployment: Deployment) -> list[str]:
    """What the gateway cannot know, for the page."""
    rules, notes = gateway_rules(deployment), []
    if by_size(rules):
        notes.append(
            f"The router counts bytes, not tokens: it assumes {bytes_per_token(deployment):g} bytes of a request's "
            "body per prompt token. English text has about 4; code and other languages differ. "
            f"{tolerance_sentence(deployment)} To measure it, divide the mean of bytes= in the router's log by the "
            "mean of usage.prompt_tokens in the replies. Then write these files again with --bytes-per-token. A "
            "request without a Content-Length is refused (411)."
        )
    if by_class(rules):
        names = [one.label if one.label == one.name else f"{one.label} for {one.name}" for one in deployment.classes]
        notes.append(
            f"A request must name its class in the header {HEADER}, or it is refused (400): {join_words(names)}."
        )
    notes.append(
        "Pools do not stand in for each other: while all replicas of a pool are down, its requests are refused (503)."
    )
    if deployment.demand.prefix_share > 0.0 and any(pool.replicas > 1 for pool in deployment.pools):
        notes.append(
            "The router does not know which replica has a prefix. A prefix that all prompts share is soon in every "
            "replica. The next request of a conversation may go to another replica than the last one."
        )
    return notes


def class_header(deployment: Deployment, label: str) -> list[str]:
    """What tells a load generator to say the class of its requests; nothing where the router does not ask."""
    asked = deployment.parted and by_class(gateway_rules(deployment))
    return ["--header", f"{HEADER}:{label}"] if asked else []


def check_words() -> list[str]:
    """How HAProxy finds that a replica is down, or is there again."""
    health = facts.fact("health")
    found = {"inter": f"{health['interval']}s", "fall": str(health["failures"]), "rise": str(health["successes"])}
    return ["check", *(word for pair in found.items() for word in pair)]
