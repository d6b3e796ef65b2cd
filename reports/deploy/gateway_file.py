"""The gateway's files for HAProxy: written from the plan's routing, and read back as HAProxy reads them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.words import join_words, percentage

from . import facts
from .description import Deployment
from .found import FoundRouter
from .gateway import (
    PARTS,
    SURPLUS,
    Gateway,
    Rule,
    by_class,
    by_size,
    bytes_per_token,
    chosen_by,
    gateway_rules,
    placed,
    tolerated,
)
from .manifests import load_sections
from .placement import Instance
from .plain import ROUTER_FILE, read_command
from .rendering import Raw, render

GATEWAY_FILE: Final = "router.cfg"
HEADER: Final = "x-slo-class"
"""Header in which a request says which class it is of."""
LEAST_CONNECTIONS: Final = 1000
"""Connections of clients that the gateway takes in any case."""
EXPORTED: Final = 'set -a # HAProxy finds the addresses in its environment\n. "$here/hosts.env"\nset +a\n'
DICE: Final = f"rand({PARTS})"


def gateway_files(deployment: Deployment, instances: Sequence[Instance]) -> dict[str, str]:
    """HAProxy's configuration and its start script."""
    shared = {
        "version": facts.fact("gateway", "version"),
        "port": facts.fact("ports", "http"),
        "chosen_by": Raw(chosen_by(deployment)),
    }
    rules = gateway_rules(deployment)
    config = render(
        "plain/router.cfg",
        **shared,
        bytes_per_token=Raw(f"{bytes_per_token(deployment):g}"),
        tolerated=Raw(tolerance_sentence(deployment)),
        sized=by_size(rules),
        connections=_connections(deployment),
        header=HEADER,
        parts=PARTS,
        labels=[one.label for one in deployment.classes] if by_class(rules) else [],
        rules=_rows(deployment, rules),
        pools=[{"name": pool.name, "servers": _servers(pool.name, instances)} for pool in deployment.pools],
    )
    return {GATEWAY_FILE: config, ROUTER_FILE: render("plain/gateway.sh", **shared)}


def _connections(deployment: Deployment) -> int:
    """Connections of clients: twice the requests that all engines run at once, so that as many can wait for them."""
    running = sum(pool.replicas * pool.settings.max_num_seqs for pool in deployment.pools)
    return max(2 * running, LEAST_CONNECTIONS)


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
    return f"While it is {span}, no pool gets more than {percentage(SURPLUS)} on top of what was planned for it."


def gateway_notes(deployment: Deployment) -> list[str]:
    """What the gateway cannot know, for the page."""
    rules, notes = gateway_rules(deployment), []
    if by_size(rules):
        notes.append(
            f"The router counts no tokens: it assumes {bytes_per_token(deployment):g} bytes of a request's body for "
            "each token of its prompt. English text has about 4; code and other languages differ. "
            f"{tolerance_sentence(deployment)} Measure it, as the mean of bytes= in the router's log over the mean of "
            "usage.prompt_tokens in the replies, and write these files again with --bytes-per-token. A request without "
            "a Content-Length is refused (411)."
        )
    if by_class(rules):
        names = [one.label if one.label == one.name else f"{one.label} for {one.name}" for one in deployment.classes]
        notes.append(f"Every request says its class in the header {HEADER}, or is refused (400): {join_words(names)}.")
    notes.append("No pool stands in for another: while all engines of one are down, its requests are refused (503).")
    if deployment.demand.prefix_share > 0.0 and any(pool.replicas > 1 for pool in deployment.pools):
        notes.append(
            "The router does not know which engine holds a prefix: one that all prompts share is soon held by every "
            "engine, but the next request of a conversation may meet another engine than the last."
        )
    return notes


def class_header(deployment: Deployment, label: str) -> list[str]:
    """What tells a load generator to say the class of its requests; nothing where the router does not ask."""
    asked = deployment.parted and by_class(gateway_rules(deployment))
    return ["--header", f"{HEADER}:{label}"] if asked else []


def read_gateway(files: Mapping[str, str]) -> FoundRouter | None:
    """Whom HAProxy sends which requests, and whether its start script tells it where they are."""
    if not files.get(ROUTER_FILE):
        return None
    env, command = read_command(ROUTER_FILE, files[ROUTER_FILE], ["haproxy", "-db", "-f", f"$here/{GATEWAY_FILE}"])
    if env or command or EXPORTED not in files[ROUTER_FILE]:
        raise InputError(
            f"{ROUTER_FILE} does not start HAProxy with the addresses of hosts.env and {GATEWAY_FILE} alone"
        )
    if GATEWAY_FILE not in files:
        raise InputError(f"{GATEWAY_FILE} is missing, so no request finds a pool")
    gateway = _read_config(files[GATEWAY_FILE])
    urls = tuple(f"http://{address}" for addresses in gateway.backends.values() for address in addresses)
    return FoundRouter(GATEWAY_FILE, splits=False, targets={Role.COLOCATED.value: urls}, gateway=gateway)


def _read_config(text: str) -> Gateway:
    rules: list[Rule] = []
    backends: dict[str, tuple[str, ...]] = {}
    checked: set[str] = set()
    for section, lines in load_sections(GATEWAY_FILE, text).items():
        kind, _, name = section.partition(" ")
        for words in lines:
            if words[0] in {"use_backend", "default_backend"}:
                rules.append(_rule(words))
            elif words[0] == "server" and kind == "backend":
                backends[name] = (*backends.get(name, ()), words[2])
                checked |= {words[2]} if "check" in words[3:] else set()
    return Gateway(tuple(rules), backends, frozenset(checked))


def _rule(words: Sequence[str]) -> Rule:
    """A line that chooses a backend: `use_backend POOL if { TEST } ...`, or `default_backend POOL`."""
    _, pool, *tests = words
    rule = Rule(pool)
    while tests:
        match tests:
            case ["if", *tests]:
                pass
            case ["{", "req.body_size", "le", size, "}", *tests] if size.isdecimal():
                rule = replace(rule, upto=int(size))
            case ["{", fetch, "lt", part, "}", *tests] if fetch == DICE and part.isdecimal():
                rule = replace(rule, chance=int(part))
            case ["{", fetch, "-m", "str", label, "}", *tests] if fetch == f"req.hdr({HEADER})":
                rule = replace(rule, slo_class=label)
            case _:
                raise InputError(f"{GATEWAY_FILE}: {shlex.join(words)} has a condition that no plan needs")
    return rule
