"""Which pool a gateway sends a request to, where colocated pools take different lengths or classes.

A gateway counts no tokens: it takes the bytes of a request's body for the length of its prompt, so many to a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from costmodel.errors import InputError
from costmodel.words import join_words, percentage
from optimizer.plans.plan import Route
from reports.deploy.deployment import fact

from .deployment import Deployment
from .formats import Raw, render

SURPLUS: Final = 0.05
"""Most [1] that a pool may get on top of the requests that were planned for it."""
PARTS: Final = 10_000
"""Requests of one length are parted in 1 / PARTS."""
Shares = tuple[int, ...]
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
    user_value = deployment.options.bytes_per_token
    return float(fact("gateway", "bytes_per_token")) if user_value is None else user_value


def gateway_rules(deployment: Deployment) -> tuple[Rule, ...]:
    """Rules that send requests where the plan does, by size alone if that will do, else by class and size.

    InputError where neither comes near the plan's routing.
    """
    excess = math.inf
    for labels in ([""], [slo.label for slo in deployment.classes]):
        rules = tuple(rule for label in labels for rule in _rules(deployment, label))
        excess = misplacing(deployment, rules)(bytes_per_token(deployment))
        if excess <= SURPLUS:
            return rules if rules[-1] == Rule(rules[-1].pool) else (*rules, Rule(rules[-1].pool))
    criteria = "class and prompt length" if len(deployment.classes) > 1 else "prompt length"
    raise InputError(
        f"a pool would get {percentage(excess, 1)} on top of the requests that were planned for it, as a gateway tells "
        f"requests apart by {criteria} alone"
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
    """Rules for the requests of a class, or of all: for each range of lengths, the shares that pools take of it.

    Neighboring lengths of which pools take the same shares are a range. The largest body of a range [byte] is as far
    in proportion from its last length as from the next range's first.
    """
    ids = [pool.id for pool in deployment.pools]
    routes = [
        route for route in deployment.routes if route.share > 0.0 and label in {"", deployment.label(route.slo_class)}
    ]
    ranges: list[tuple[float, float, Shares]] = []
    for length in sorted({route.isl for route in routes}):
        shares = _middle([route for route in routes if route.isl == length], ids)
        first = ranges.pop()[0] if ranges and ranges[-1][2] == shares else length
        ranges.append((first, length, shares))
    rules = []
    for (_, last, shares), following in zip(ranges, [*ranges[1:], None], strict=True):
        upto = None if following is None else int(bytes_per_token(deployment) * math.sqrt(last * following[0]))
        rest = sum(shares)
        for pool, share in zip(deployment.pools, shares, strict=True):
            if share:
                rules.append(Rule(pool.name, upto, None if share == rest else round(share / rest * PARTS), label))
                rest -= share
    return rules


def _middle(routes: Sequence[Route], ids: Sequence[str]) -> Shares:
    """The shares of one route that differ least from those of all: requests of one length cannot be told apart."""
    all_shares = [[round(route.decode.get(pool, 0.0) * PARTS) for pool in ids] for route in routes]

    def apart(shares: Shares) -> float:
        return sum(
            route.share * sum(abs(own - other) for own, other in zip(shares, route_shares, strict=True))
            for route, route_shares in zip(routes, all_shares, strict=True)
        )

    return min(map(tuple, all_shares), key=apart)


def placed(rules: Sequence[Rule], size: float, slo_class: str) -> dict[str, float]:
    """The part of the requests of one size [byte] and class that each pool gets [1].

    >>> placed([Rule("a", 100, 2_500), Rule("b")], 80.0, "")
    {'a': 0.25, 'b': 0.75}
    """
    shares: dict[str, float] = {}
    rest = 1.0
    for rule in rules:
        if rule.slo_class in {"", slo_class} and (rule.upto is None or size <= rule.upto):
            taken_share = rest if rule.chance is None else rest * rule.chance / PARTS
            shares[rule.pool] = shares.get(rule.pool, 0.0) + taken_share
            rest -= taken_share
    return {pool: share for pool, share in shares.items() if share > 0.0}


def misplacing(deployment: Deployment, rules: Sequence[Rule]) -> Callable[[float], float]:
    """By bytes per token: what the worst pool gets on top of its own, as a share of that [1].

    Or the share of all requests that find no pool of the plan, if that is more.
    """
    names, routes = [pool.name for pool in deployment.pools], deployment.routes
    edges = sorted({float(rule.upto) for rule in rules if rule.upto is not None})
    route_labels = [deployment.label(route.slo_class) for route in routes]
    labels = sorted(set(route_labels))
    got = np.array(
        [[_row(placed(rules, size, label), names) for size in (*edges, math.inf)] for label in labels], dtype=np.float64
    )
    label_of = np.array([labels.index(label) for label in route_labels])
    length, share = (np.array(values) for values in zip(*((route.isl, route.share) for route in routes), strict=True))
    plan_shares = np.array([_row(route.decode, [pool.id for pool in deployment.pools]) for route in routes])
    pool_shares = np.maximum(share @ plan_shares, 1.0 / PARTS)

    def worst(ratio: float) -> float:
        here = got[label_of, np.searchsorted(edges, length * ratio)]
        surplus = share @ np.maximum(here - plan_shares, 0.0) / pool_shares
        return float(max(share @ (1.0 - here.sum(axis=1)), *surplus.tolist()))

    return worst


def _row(shares: Mapping[str, float], names: Sequence[str]) -> list[float]:
    return [shares.get(name, 0.0) for name in names]


def tolerated(deployment: Deployment, rules: Sequence[Rule]) -> tuple[float, float]:
    """Fewest and most bytes per token [byte] between which pools get what was planned for them, up to SURPLUS.

    0 and infinite where there is no end. A request changes its pool where its size passes an edge, and only there.
    """
    worst, ratio = misplacing(deployment, rules), bytes_per_token(deployment)
    edges = sorted(
        {
            rule.upto / route.isl
            for rule in rules
            if rule.upto is not None
            for route in deployment.routes
            if route.isl > 0.0
        }
    )
    low = (edge for edge in reversed(edges) if edge < ratio and worst(edge * (1.0 - NEXT)) > SURPLUS)
    high = (edge for edge in edges if edge >= ratio and worst(edge * (1.0 + NEXT)) > SURPLUS)
    return next(low, 0.0), next(high, math.inf)


GATEWAY_FILE: Final = "router.cfg"
HEADER: Final = "x-slo-class"
"""Header in which a request says which class it is of."""
LEAST_CONNECTIONS: Final = 1000
"""Connections of clients that the gateway takes in any case."""


def gateway_config(deployment: Deployment, servers: Mapping[str, Sequence[tuple[str, Raw]]]) -> str:
    """HAProxy's configuration; servers: names and addresses of each pool's engines."""
    rules = gateway_rules(deployment)
    running = sum(pool.replicas * pool.settings.max_num_seqs for pool in deployment.pools)
    return render(
        "plain/router.cfg",
        version=fact("gateway", "version"),
        ports=fact("ports"),
        chosen_by=Raw(chosen_by(deployment)),
        bytes_per_token=Raw(f"{bytes_per_token(deployment):g}"),
        tolerated=Raw(tolerance_sentence(deployment) if by_size(rules) else ""),
        connections=max(2 * running, LEAST_CONNECTIONS),  # twice what engines run, so that as many can wait
        check=Raw(" ".join(check_words())),
        check_timeout=Raw(f"{fact('health', 'timeout')}s"),
        header=HEADER,
        parts=PARTS,
        labels=[slo.label for slo in deployment.classes] if by_class(rules) else [],
        rules=rules,
        about=lambda rule: Raw(_about(deployment, rule, tells_size=by_size(rules))),
        servers=servers,
    )


def _about(deployment: Deployment, rule: Rule, *, tells_size: bool) -> str:
    """Which requests a rule is about, in words; tells_size: whether rules tell lengths apart."""
    length = "all others"
    if rule.upto is not None:
        length = f"prompts of up to {rule.upto / bytes_per_token(deployment):,.0f} tokens"
    words = [f"class {rule.slo_class}"] * bool(rule.slo_class) + [length] * (tells_size or not rule.slo_class)
    return ": ".join(words)


def pool_lines(deployment: Deployment) -> list[str]:
    """Which requests each pool gets, for the page: a line for each range of lengths, in the router's order."""
    rules = gateway_rules(deployment)
    active_rules = [rule for rule in rules if rule.slo_class] if by_class(rules) else rules  # others are refused
    lines = []
    for _, group in groupby(active_rules, key=lambda rule: (rule.upto, rule.slo_class)):
        takers = list(group)
        about = _about(deployment, takers[0], tells_size=by_size(rules))
        pool_shares = placed([replace(rule, upto=None, slo_class="") for rule in takers], 0.0, "")
        shares = [f"{percentage(share, 2)} to {pool}" for pool, share in pool_shares.items()]
        lines.append(f"{about}: {takers[0].pool if len(pool_shares) == 1 else join_words(shares)}")
    return lines


def tolerance_sentence(deployment: Deployment) -> str:
    """How far off the assumed bytes per token may be."""
    low, high = tolerated(deployment, gateway_rules(deployment))
    ends = [f"more than {low:.3g}"] * (low > 0.0) + [f"at most {high:.3g}"] * (high < math.inf)
    span = " and ".join(ends) or "anything"
    return f"While it is {span}, no pool gets over {percentage(SURPLUS)} more requests than planned for it."


def class_names(deployment: Deployment) -> str:
    """The names that requests give their classes, for the page; empty where the gateway does not ask."""
    asks = deployment.parted and by_class(gateway_rules(deployment))
    classes = deployment.classes if asks else ()
    return join_words([slo.label if slo.label == slo.name else f"{slo.label} for {slo.name}" for slo in classes])


def class_header(deployment: Deployment, label: str) -> list[str]:
    """What tells a load generator to say the class of its requests; nothing where the router does not ask."""
    needs_class = deployment.parted and by_class(gateway_rules(deployment))
    return ["--header", f"{HEADER}:{label}"] if needs_class else []


def check_words() -> list[str]:
    """How HAProxy finds that a replica is down, or is there again."""
    health = fact("health")
    return f"check inter {health['router_interval']}s fall {health['failures']} rise {health['successes']}".split()
