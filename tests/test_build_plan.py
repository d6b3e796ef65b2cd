"""What a plan says of its fleet: GPUs that are billed and idle, and what gives out first in a pool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.accelerator import PriceBasis
from optimizer.fleets.binding import limits_by_use, pool_binding
from optimizer.fleets.evaluate import Headroom, pool_headroom
from optimizer.fleets.fleet import billed_gpus
from optimizer.loads.engine_table import Resource
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from search_spaces.problem import Billing, Constraints
from tests.optimizer_cases import accelerator, offer, problem
from tests.small_fleets import apart, small


def test_of_whole_nodes_the_idle_gpus_are_billed_too() -> None:
    given = problem(offers=(offer("H100", billing=Billing.NODE), offer("H200")))
    assert billed_gpus(given, np.array([7, 3])) == {"H100": 8}
    assert billed_gpus(given, np.array([9, 0])) == {"H100": 16}
    assert billed_gpus(given, np.array([8, 3])) == {}


def test_where_whole_nodes_are_billed_a_plan_says_what_its_limits_count() -> None:
    nodes = (offer("H100", billing=Billing.NODE), offer("H200"))
    assert limits_by_use(problem(offers=nodes)) == []
    assert limits_by_use(problem(constraints=Constraints(max_gpus=12))) == []
    (said,) = limits_by_use(problem(offers=nodes, constraints=Constraints(max_gpus=12)))
    assert said.startswith("Whole nodes of H100 are billed: the budget pays for all of their GPUs; inventory, power")


@pytest.mark.parametrize("volume", [0.5, 1.0, 4.0])
def test_a_decode_pool_is_never_said_to_keep_prompts_waiting(volume: float) -> None:
    instance = small()
    fleet = apart(instance, 2, 2)
    assert pool_headroom(instance, fleet, 0, volume).resource is Resource.TIME
    decode = pool_headroom(instance, fleet, 1, volume)
    assert decode.resource in {Resource.SLOTS, Resource.KV_MEMORY, Resource.ATTENTION_TIME}


def test_headroom_beyond_the_time_with_prompts_says_why_it_is_there() -> None:
    """97.8 % of the time and 26 % more load: prompts that wait share steps, so the time grows by less."""
    (pool, *_) = apart(small(), 2, 2).pools
    room = Headroom(1.26, Resource.TIME)
    assert pool_binding(pool, room, 0.75).sentence.endswith("more load: prompts then wait too long for the TTFT limit.")
    told = pool_binding(pool, room, 0.978).sentence
    assert told.endswith("limit; its prompt time of 97.8 % grows by less, as prompts that wait share steps.")


def test_a_plan_says_which_prices_of_its_fleet_are_no_quotes_on_demand() -> None:
    """Of the GPUs bought alone; assumptions have those of every GPU on offer; a stated price needs no remark."""
    listed = offer("H100", quote=accelerator("H100").price)
    quote = accelerator("MI325X").price_on(PriceBasis.RESERVED)
    assert quote is not None
    reserved = replace(offer("MI325X", quote=quote), usd_per_hour=quote.usd_per_hour)
    said = "The price of MI325X ($1.80/h) is a 3-year reserved quote."
    plan = optimize(problem(offers=(listed, reserved)), level=Level.QUICK)
    assert set(plan.gpus) == {"MI325X"}
    assert plan.price_remarks == [said]
    assert plan.warnings == [
        "No accelerator of the generation of MI325X was measured: its error bars are wide.",
    ]
    assert said in plan.provenance.assumptions
    other = optimize(problem(offers=(listed, replace(reserved, usd_per_hour=80.0))), level=Level.QUICK)
    assert set(other.gpus) == {"H100"}
    assert other.price_remarks == other.warnings == []
    stated = optimize(problem(offers=(replace(reserved, quote=None),)), level=Level.QUICK)
    assert stated.price_remarks == []
