"""Classes of requests with other limits are parted each by itself, and get engines with the token budget they bear."""

from __future__ import annotations

from functools import cache

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import fleet_cost
from optimizer.loads.instance import DECODE
from optimizer.search.mixtures import leanest
from optimizer.search.search import FleetSearch, at_best_split
from optimizer.search.traffic_split import Stage, TrafficSplit, by_limits
from search_spaces.problem import Slo
from tests.optimizer_cases import instance_of, model, problem, slo, space, workload

LENGTHS = ((400, 200, 0.5), (2500, 300, 0.3), (9000, 700, 0.2))
BATCH = slo(np.inf, np.inf, name="batch", share=0.4, e2e=90.0)
CLASSES = (BATCH, slo(1.0, 0.03, name="interactive", share=0.6))
"""Those who wait for an answer, and others who do not; the laxer class first, for the order must not matter."""


@cache
def known_of(slos: tuple[Slo, ...] = CLASSES, rate: float = 44.0) -> FleetSearch:
    """Engines of one, two or four H100, with three token budgets each."""
    posed = problem(
        model=model("Qwen3-30B-A3B"),
        workload=workload(rate, LENGTHS, burstiness=1.2, max_tokens=16384),
        slos=slos,
        space=space(tensor_parallel=(1, 2, 4), max_num_seqs=(64, 256), max_num_batched_tokens=(512, 4096, 8192)),
    )
    return at_best_split(instance_of(posed))


def whole(known: FleetSearch, role: int) -> Stage:
    return Stage(role, np.ones(known.instance.flows.isl.size))


def of_role(known: FleetSearch, role: int) -> list[int]:
    return [int(setting) for setting in np.flatnonzero(known.settings.role == role)]


def test_each_class_is_cut_at_a_length_of_its_own() -> None:
    """The long prompts of those who wait go to the engine of four GPUs: no order of lengths alone parts them so."""
    known = known_of()
    fleet = leanest(known)
    assert holds(known.instance, predict_misses(known.instance, fleet))
    price = known.instance.problem.offers[0].usd_per_hour
    assert fleet_cost(known.instance, fleet) <= 9 * price * (1.0 + 1e-9)
    decode = [pool for pool in fleet.pools if pool.role is Role.DECODE]
    assert len({pool.shape for pool in decode}) == 2


def test_either_side_may_take_a_whole_class_before_any_of_the_other() -> None:
    known = known_of()
    orders = TrafficSplit(known, 0).orders(whole(known, DECODE), *((one,) for one in of_role(known, DECODE)[:2]))
    tight = set(by_limits(known.instance.flows)[0].tolist())
    size = len(tight)
    starts = [set(order.flows[:size].tolist()) for order in orders]
    ends = [set(order.flows[-size:].tolist()) for order in orders]
    assert tight in starts
    assert tight in ends
    assert any(
        start not in (tight, set(order.flows.tolist()) - tight) for start, order in zip(starts, orders, strict=True)
    )
