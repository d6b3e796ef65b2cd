"""The pool that falls behind is the one in which requests pile up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.verification.judge import judge, pool_behind
from tests.test_judge import apart, pool, small


def starved(instance: Instance, index: int) -> Fleet:
    """Twenty engines in each pool but one, which has one."""
    fleet = apart(instance)
    counts = [1 if number == index else 20 for number in range(len(fleet.pools))]
    return Fleet(tuple(replace(one, replicas=n) for one, n in zip(fleet.pools, counts, strict=True)))


@pytest.mark.parametrize("index", [0, 1])
def test_the_stage_that_is_too_small_falls_behind(index: int) -> None:
    """Prompts that wait are in the prefill pool; those that are computed and wait are in the decode pool."""
    instance = small()
    found = judge(instance, starved(instance, index), requests=1500, volume=60.0)
    assert found.overload.overloaded
    assert pool_behind(found) == index


def test_of_two_prefill_pools_the_one_with_too_much_falls_behind() -> None:
    instance = small()
    pools = [
        pool(instance, f"prefill-{k + 1}", Role.PREFILL, share, n) for k, (share, n) in enumerate([(0.7, 40), (0.3, 1)])
    ]
    found = judge(
        instance, Fleet((*pools, pool(instance, "decode-1", Role.DECODE, 1.0, 40))), requests=1500, volume=20.0
    )
    assert pool_behind(found) == 1
