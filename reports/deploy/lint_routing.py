"""Rules about who sends requests where: routers, grids of lengths, the planner; see `lint`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.words import percentage

from .description import Deployment
from .found import Found
from .gateway import SURPLUS, bytes_per_token, misplaced
from .plain import BALANCES, thresholds
from .planner import FROM_FILES
from .routing_grid import MISROUTED, STAGES, misrouted


def router_knows_all(deployment: Deployment, found: Found) -> Iterator[str]:
    """The router splits requests if and only if the plan does, and knows every engine once in its role."""
    router = found.router
    if router is None:
        yield "no router is started, so no request finds an engine"
        return
    if deployment.options.target == "dynamo" and "--router-mode" not in dict(router.words):
        yield f"{router.where}: --router-mode is not stated"
    if deployment.options.target in {"dynamo", "llmd"}:  # these find their workers by themselves
        if router.splits != deployment.disaggregated and deployment.options.target == "llmd":
            yield f"{router.where}: it does not treat prompts and tokens as the plan does"
        return
    if router.splits != deployment.disaggregated:
        does = "splits" if router.splits else "does not split"
        yield f"{router.where}: it {does} prompts and tokens, unlike the plan"
    for role in Role:
        urls = router.targets.get(role.value, ())
        planned = sum(pool.replicas for pool in deployment.of_role(role))
        if len(urls) != planned or len(set(urls)) != len(urls):
            yield f"{router.where}: it knows {len(set(urls))} {role.value} engines, but {planned} are started"
        bound = {f"{host}:{port}" for one in found.workers if one.role == role.value for host, port in one.addresses}
        for url in urls:
            address = url.rpartition("://")[2].replace("${", "").replace("}", "")
            if bound and address not in bound:
                yield f"{router.where}: no {role.value} engine listens at {url}"


def router_balances(deployment: Deployment, found: Found) -> Iterator[str]:
    """A request goes to the engine with the fewest, as it did when the plan was simulated."""
    if found.router is None or not found.router.command:
        return
    options = dict(found.router.words)
    for role, urls in found.router.targets.items():
        policy = options.get(f"--{role}-policy") or options.get("--policy")
        if urls and policy != BALANCES:
            chosen = f"chosen by {policy}" if policy else "not chosen by any policy that is stated"
            yield f"router: {role} engines are {chosen}; {BALANCES} sends to the one with the fewest requests"
    told = thresholds(prefixes=deployment.demand.prefix_share > 0.0)
    for name, wanted in zip(told[::2], told[1::2], strict=True):
        if options.get(name) != wanted:
            yield f"router: {name} is {options.get(name, 'not stated')}, not {wanted}, beyond which requests decide"


def lengths_find_their_pools(deployment: Deployment, found: Found) -> Iterator[str]:
    """A router that chooses by length sends requests where the plan does."""
    if found.router is not None and found.router.gateway is not None:
        lost, surplus = misplaced(deployment, found.router.gateway.rules)(bytes_per_token(deployment))
        if lost > SURPLUS:
            yield f"router: {percentage(lost)} of the requests find no pool of the plan"
        for pool, more in surplus.items():
            if more > SURPLUS:
                yield f"router: pool {pool} gets {percentage(more)} on top of what was planned for it"
    grid = None if found.router is None else found.router.grid
    if grid is None:
        return
    for role in STAGES:
        try:
            lost = misrouted(deployment, role, grid)
        except InputError as error:
            yield str(error)
            continue
        if lost > MISROUTED:
            yield f"router: {percentage(lost)} of the requests would find another {role.value} pool than planned"
        names = grid.get(f"{role.value}_pool_dynamo_namespaces", [])
        planned = [pool.name for pool in deployment.of_role(role)]
        if [name for name, pool in zip(names, planned, strict=False) if name.endswith(f"-{pool}")] != list(names):
            yield f"router: {role.value} pools {', '.join(map(str, names))} are not the plan's {', '.join(planned)}"


def backends_are_the_pools(deployment: Deployment, found: Found) -> Iterator[str]:
    """A gateway's backend is a pool: its engines, all of them, each asked for its health."""
    gateway = None if found.router is None else found.router.gateway
    if gateway is None:
        return
    for name in sorted({*gateway.backends, *(rule.pool for rule in gateway.rules)}):
        if deployment.pool(name) is None:
            yield f"router: the plan has no pool {shown(name)}"
    for pool in deployment.pools:
        bound = [
            f"${{{host}}}:{port}" for one in found.workers if one.pool == pool.name for host, port in one.addresses
        ]
        listed = gateway.backends.get(pool.name, ())
        if sorted(listed) != sorted(bound):
            yield f"router: the backend {pool.name} has {', '.join(listed) or 'no engine'}, not {', '.join(bound)}"
        for address in sorted(set(listed) - gateway.checked):
            yield f"router: {address} of {pool.name} is not asked for its health, so it gets requests when it is down"


def planner_keeps_the_plan(deployment: Deployment, found: Found) -> Iterator[str]:
    """The planner may use all planned GPUs, starts no other engines, and aims at the plan's limits."""
    if found.planner is None:
        return
    config = found.planner
    if int(config.get("max_gpu_budget", 8)) < deployment.budget_gpus:
        given = config.get("max_gpu_budget", "(8 by default)")
        yield f"planner: max_gpu_budget {given} is below the plan's {deployment.budget_gpus} GPUs"
    most = max(pool.replicas for pool in deployment.pools)
    if int(config.get("max_throughput_scaling_replicas", 8)) < most:
        yield f"planner: max_throughput_scaling_replicas is below the plan's {most}"
    for name, planned in (("ttft_ms", deployment.limits.ttft), ("itl_ms", deployment.limits.tpot)):
        if not math.isclose(float(config.get(name, 0.0)), planned * 1e3, rel_tol=1e-6, abs_tol=1e-3):
            yield f"planner: {name} {config.get(name)} is not the plan's {planned * 1e3:g}"
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    tokens = deployment.of_role(Role.DECODE) or prompts
    for name, wanted in (
        ("backend", deployment.engine),
        ("mode", "disagg" if deployment.disaggregated else "agg"),
        ("pre_deployment_sweeping_mode", FROM_FILES),  # or it would not start from the profile
        ("prefill_engine_num_gpu", prompts[0].settings.gpus),
        ("decode_engine_num_gpu", tokens[0].settings.gpus),
    ):
        if config.get(name) != wanted:
            yield f"planner: {name} is {config.get(name)}, not {wanted}"
