"""Targets without a scheduler: the GPUs and host of each engine, the scripts that start it, and its router.

A gateway chooses a pool where colocated pools take different lengths or classes. It counts no tokens: it takes the
bytes of a request's body for the length of its prompt, so many to a token.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.memory import kv_capacity_bytes
from costmodel.units import GIB
from costmodel.words import join_words, percentage
from optimizer.fleets.fleet import first_fit
from optimizer.plans.plan import Route
from search_spaces.problem import target_of

from .deployment import DeployedPool, Deployment, Device, fact
from .flags import engine_flags, node_flags, node_ranks, plain_words
from .formats import Raw, manifest, manifest_of, render

# --- the gateway ------------------------------------------------------------------------------------------------------

SURPLUS: Final = 0.05
"""Most [1] that a pool may get on top of the requests that were planned for it."""
PARTS: Final = 10_000
"""Requests of one length are parted in 1 / PARTS."""
Shares = tuple[int, ...]
"""What each pool takes of a range of lengths [1 / PARTS], in the plan's order."""


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
        excess = misplacing(deployment, rules)
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
    """How the router chooses a pool, in words; empty where there is one pool."""
    rules = gateway_rules(deployment)
    criteria = ["the class"] * by_class(rules) + ["the size"] * by_size(rules)
    if criteria:
        return f"by {' and '.join(criteria)} of a request"
    return "at random, in the plan's shares" if deployment.parted else ""


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


def misplacing(deployment: Deployment, rules: Sequence[Rule]) -> float:
    """What the worst pool gets on top of its own, as a share of that [1].

    Or the share of all requests that find no pool of the plan, if that is more.
    """
    names, routes = [pool.name for pool in deployment.pools], deployment.routes
    edges = sorted({float(rule.upto) for rule in rules if rule.upto is not None})
    route_labels = [deployment.label(route.slo_class) for route in routes]
    labels = sorted(set(route_labels))
    rows = [[placed(rules, size, label) for size in (*edges, math.inf)] for label in labels]
    got = np.array([[[shares.get(name, 0.0) for name in names] for shares in row] for row in rows], dtype=np.float64)
    label_of = np.array([labels.index(label) for label in route_labels])
    length, share = (np.array(values) for values in zip(*((route.isl, route.share) for route in routes), strict=True))
    plan_shares = np.array([[route.decode.get(pool.id, 0.0) for pool in deployment.pools] for route in routes])
    pool_shares = np.maximum(share @ plan_shares, 1.0 / PARTS)
    here = got[label_of, np.searchsorted(edges, length * bytes_per_token(deployment))]
    surplus = share @ np.maximum(here - plan_shares, 0.0) / pool_shares
    return float(max(share @ (1.0 - here.sum(axis=1)), *surplus.tolist()))


GATEWAY_FILE: Final = "router.cfg"
LEAST_CONNECTIONS: Final = 1000
"""Connections of clients that the gateway takes in any case."""


def gateway_config(deployment: Deployment, engines: Sequence[HostedReplica]) -> str:
    """HAProxy's configuration."""
    rules = gateway_rules(deployment)
    running = sum(pool.replicas * pool.settings.max_num_seqs for pool in deployment.pools)
    return render(
        "plain/router.cfg",
        fleet=deployment,
        chosen_by=Raw(chosen_by(deployment)),
        bytes_per_token=Raw(f"{bytes_per_token(deployment):g}"),
        by_size=by_size(rules),
        connections=max(2 * running, LEAST_CONNECTIONS),  # twice what engines run, so that as many can wait
        parts=PARTS,
        labels=[slo.label for slo in deployment.classes] if by_class(rules) else [],
        rules=rules,
        about=lambda rule: Raw(_about(deployment, rule, rules)),
        engines=engines,
    )


def _about(deployment: Deployment, rule: Rule, rules: Sequence[Rule]) -> str:
    """Which requests one of the rules is about, in words."""
    length = "all others" if by_size(rules) or by_class(rules) else "all requests"
    if rule.upto is not None:
        length = f"prompts of up to {rule.upto / bytes_per_token(deployment):,.0f} tokens"
    words = [f"class {rule.slo_class}"] * bool(rule.slo_class) + [length] * (by_size(rules) or not rule.slo_class)
    return ": ".join(words)


def pool_lines(deployment: Deployment) -> list[str]:
    """Which requests each pool gets, for the page: a line for each range of lengths, in the router's order."""
    rules = gateway_rules(deployment)
    active_rules = [rule for rule in rules if rule.slo_class] if by_class(rules) else rules  # others are refused
    lines = []
    for _, group in groupby(active_rules, key=lambda rule: (rule.upto, rule.slo_class)):
        takers = list(group)
        about = _about(deployment, takers[0], rules)
        pool_shares = placed([replace(rule, upto=None, slo_class="") for rule in takers], 0.0, "")
        shares = [f"{percentage(share, 2)} to {pool}" for pool, share in pool_shares.items()]
        lines.append(f"{about}: {takers[0].pool if len(pool_shares) == 1 else join_words(shares)}")
    return lines


def class_names(deployment: Deployment) -> str:
    """The names that requests give their classes, for the page; empty where the gateway does not ask."""
    asks = deployment.parted and by_class(gateway_rules(deployment))
    classes = deployment.classes if asks else ()
    return join_words([slo.label if slo.label == slo.name else f"{slo.label} for {slo.name}" for slo in classes])


# --- hosts ------------------------------------------------------------------------------------------------------------

ROUTER_FILE: Final = "router.sh"
HOSTS: Final = "hosts.env"
"""File of the hosts' addresses, for the user to fill in."""
LOCAL: Final = "127.0.0.1"
"""Address of the only host."""
ANYWHERE: Final = "0.0.0.0"  # noqa: S104 - engines are for clients of other hosts


@dataclass(frozen=True, slots=True)
class Host:
    """A server of one accelerator type; its address stands in hosts.env under `variable`.

    group: number of its GPU type, which a job of Slurm has a component for; index: its number there; gres: how Slurm
    calls its GPUs.
    """

    name: str
    group: int
    index: int
    gres: Raw

    @property
    def variable(self) -> Raw:
        """Name of the shell variable that holds the address."""
        return Raw("HOST_" + re.sub(r"[^A-Z0-9]", "_", self.name.upper()))

    @property
    def address(self) -> Raw:
        """The address as the shell, and docker compose, expand it."""
        return Raw(f"${{{self.variable}}}")

    @property
    def node(self) -> Raw:
        """The node of Slurm's job that is this host, as its script expands it."""
        return Raw(f'"${{nodes_{self.group}[{self.index}]}}"')


@dataclass(frozen=True, slots=True)
class HostedReplica:
    """One engine: replica `number` of its pool on its hosts, which all give it the same GPUs.

    slot: how many engines stand on its first host before it; rank: data ranks of those engines.
    """

    pool: DeployedPool
    number: int
    hosts: tuple[Host, ...]
    gpus: tuple[int, ...]
    slot: int
    rank: int

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.pool.name}-{self.number}"

    def port(self, use: str) -> int:
        """Its port for a use, different from those of its neighbors on a host."""
        first = int(fact("ports", use))
        # engines take a side channel for each data rank, counted up from the first
        return first + (self.rank if use == "side_channel" else self.slot * int(fact("port_step")))

    def script(self, rank: int) -> str:
        """File of the script that starts it on its host of that number."""
        return f"{self.name}.sh" if len(self.hosts) == 1 else f"{self.name}.node{rank}.sh"

    @property
    def url(self) -> Raw:
        """Where it takes requests, as the shell expands it."""
        return Raw(f'"http://{self.hosts[0].address}:{self.port("worker")}"')


def place(deployment: Deployment) -> tuple[HostedReplica, ...]:
    """Put the engines on hosts, in the plan's order: the first host of the type with enough free GPUs."""
    types = list(dict.fromkeys(pool.accelerator for pool in deployment.pools))
    pools = [(pool, number) for pool in deployment.pools for number in range(pool.replicas)]
    sizes = ((types.index(p.accelerator), p.settings.gpus, p.config.accelerator.node_size) for p, _ in pools)
    replicas, engines, ranks = list[HostedReplica](), Counter[Host](), Counter[Host]()
    for (pool, number), (nodes, gpu) in zip(pools, first_fit(sizes), strict=True):
        stem = re.sub(r"[^a-z0-9]+", "-", pool.accelerator.lower()).strip("-") or "gpu"
        gres = Raw(f"{stem.replace('-', '_')}:{pool.config.accelerator.node_size}")
        hosts = tuple(Host(f"{stem}-{index}", types.index(pool.accelerator), index, gres) for index in nodes)
        places = tuple(range(gpu, gpu + pool.node_gpus))
        replicas.append(HostedReplica(pool, number, hosts, places, engines[hosts[0]], ranks[hosts[0]]))
        for host in hosts:
            engines[host] += 1
            ranks[host] += pool.settings.data
    return tuple(replicas)


def hosts_of(engines: Sequence[HostedReplica]) -> tuple[Host, ...]:
    """Every host once, in the order of its first engine."""
    return tuple(dict.fromkeys(host for engine in engines for host in engine.hosts))


def router_hosts(engines: Sequence[HostedReplica]) -> tuple[Host, ...]:
    """The hosts that have a router each: two where there are two, so that a dead host takes no other replica along."""
    return hosts_of(engines)[: int(fact("routers"))]


def host_files(deployment: Deployment) -> dict[str, str]:
    """Every file of a target without a scheduler: the router, the hosts' addresses, and what starts each engine.

    A job of Slurm starts all of them where scripts find hosts by their addresses, and containers where the engine's
    router has an image; neither is for a CPU.
    """
    engines, facts, has_addresses = place(deployment), deployment.engine_facts, deployment.has_router
    hosts = hosts_of(engines)
    files = _router_files(deployment, engines)
    if has_addresses or deployment.behind_gateway:
        files[HOSTS] = render("plain/hosts.env", hosts=hosts, local=LOCAL)
    for engine in engines:
        if "file" in facts:
            address = {} if "address" in facts["words"] else _address(deployment, engine)
            options = engine_flags(deployment, engine.pool) | address
            options = {name.removeprefix("--"): value for name, value in options.items()}
            files[f"workers/{engine.name}.yaml"] = manifest(facts["file"], options)
        for rank, host in enumerate(engine.hosts):
            files[f"workers/{engine.script(rank)}"] = render(
                "plain/worker.sh",
                fleet=deployment,
                title=target_of(deployment.engine).title,
                engine=engine,
                rank=rank,
                env=[_visible(engine), *_env(deployment, engine, host)],
                words=[*facts["program"], *_command(deployment, engine, rank, '"$here"')],
            )
    if deployment.on_cpu or not has_addresses:
        return files
    groups = [[host for host in hosts if host.group == group] for group in sorted({host.group for host in hosts})]
    files["slurm.sh"] = render(
        "plain/slurm.sh", fleet=deployment, groups=groups, hosts=hosts, engines=engines, routers=router_hosts(engines)
    )
    for host in hosts if "image" in facts["router"] else ():
        files[f"compose/{host.name}.yaml"] = _compose(deployment, engines, host)
    return files


def _address(deployment: Deployment, engine: HostedReplica) -> dict[str, Any]:
    """Where an engine listens: alone and without a router of its kind, at the port that clients know."""
    alone = not (deployment.has_router or deployment.disaggregated or deployment.behind_gateway)
    return {"--host": ANYWHERE, "--port": fact("ports", "http") if alone else engine.port("worker")}


def _command(deployment: Deployment, engine: HostedReplica, rank: int, folder: str) -> list[str]:
    """The command line of an engine, after its program, on its host of that number; folder: that of its options."""
    pool, facts, head = engine.pool, deployment.engine_facts, engine.hosts[0].address
    nodes = node_flags(deployment, pool, engine.port, head=head, rank=rank, first=rank * node_ranks(pool))
    words = {
        "flags": plain_words(engine_flags(deployment, pool)),
        "file": ["--config", Raw(f"{folder}/{engine.name}.yaml")],
        "address": plain_words(_address(deployment, engine)),
        "weights": [deployment.weights],
        "handover": [facts.get("handover", ""), str(engine.port("bootstrap"))] if pool.role is Role.PREFILL else [],
        "nodes": [Raw(f'"{word}"') if head in word else word for word in plain_words(nodes)],
    }
    return [word for name in facts["words"] for word in words[name]]


def _env(deployment: Deployment, engine: HostedReplica, host: Host) -> list[tuple[str, str]]:
    """Environment of an engine on a host, besides its GPUs: KV memory on a CPU, where its peers find it, transports."""
    env: list[tuple[str, str]] = []
    if deployment.on_cpu:  # the tokens of KV that the plan counts on, as wide as a CPU has them, in whole GiB
        device = fact("vendors", Device.CPU)
        cache = kv_capacity_bytes(deployment.model, engine.pool.config) * int(device["wider"]) / GIB
        env.append((device["cache"], str(max(round(cache), 1))))
    if deployment.disaggregated and (channel := deployment.engine_facts.get("side_channel")):
        env.append((f"{channel}_HOST", Raw(f'"{host.address}"')))
        env.append((f"{channel}_PORT", str(engine.port("side_channel"))))
    return env + deployment.engine_env(engine.pool)


def _compose(deployment: Deployment, engines: Sequence[HostedReplica], host: Host) -> str:
    """The containers of a host, where quotes around a variable are no shell's."""

    def unquoted(word: str) -> str:
        return word.replace('"', "") if isinstance(word, Raw) else word

    def container(engine: HostedReplica) -> dict[str, Any]:
        pool, rank = engine.pool, engine.hosts.index(host)
        env = [_visible(engine)] if pool.vendor == "amd" else []
        env += [("NVIDIA_IMEX_CHANNELS", "0")] if pool.nvlink else []  # the container's door to other nodes
        return {
            "engine": engine,
            "rank": rank,
            "image": deployment.engine_image(pool.vendor).replace("$", "$$"),  # else docker compose fills in variables
            "env": {name: unquoted(value) for name, value in [*env, *_env(deployment, engine, host)]},
            "command": [unquoted(word) for word in _command(deployment, engine, rank, "/workers")],
        }

    router = deployment.engine_facts["router"]
    hosts, is_routed = hosts_of(engines), host in router_hosts(engines)
    return manifest_of(
        "plain/compose.yaml",
        fleet=deployment,
        containers=[container(engine) for engine in engines if host in engine.hosts],
        rdma=deployment.leaves_nodes and len(hosts) > 1,
        routed=is_routed,
        router=[] if deployment.parted else [*router["program"], *shlex.split(router_words(deployment, engines))],
        addresses={str(peer.variable): str(peer.address) for peer in hosts},
    )


def _visible(engine: HostedReplica) -> tuple[str, str]:
    """The variable that says which GPUs of its host an engine sees."""
    between = "|" if engine.pool.vendor == Device.CPU else ","
    return fact("vendors", engine.pool.vendor, "visible"), between.join(map(str, engine.gpus))


def _router_files(deployment: Deployment, engines: Sequence[HostedReplica]) -> dict[str, str]:
    """What stands before the engines: HAProxy, which also chooses among pools, or the engine's own router."""
    if deployment.behind_gateway:
        start = render("plain/gateway.sh", chosen_by=Raw(chosen_by(deployment)))
        return {GATEWAY_FILE: gateway_config(deployment, engines), ROUTER_FILE: start}
    files: dict[str, str] = {}
    if deployment.disaggregated and not deployment.has_router:
        files["disagg_config.yaml"] = manifest_of("trtllm/split.yaml", engines=engines, hosts=hosts_of(engines))
    if deployment.disaggregated or deployment.has_router:
        files[ROUTER_FILE] = render("plain/router.sh", fleet=deployment, engines=engines)
    return files


def router_words(deployment: Deployment, engines: Sequence[HostedReplica]) -> Raw:
    """The command line of vllm-router or SGLang's router after its name, as a shell reads it."""
    return Raw(render("plain/router_words.sh", fleet=deployment, engines=engines))
