"""States of pools are worked out once for all that they do not depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import Instance
from tests.small_fleets import pool, small


def dearer(instance: Instance) -> Instance:
    return replace(instance, tables=replace(instance.tables, usd_per_hour=2.0 * instance.tables.usd_per_hour))


def slower(instance: Instance) -> Instance:
    times = {name: 1.1 * getattr(instance.tables, name) for name in ("prefill_time", "decode_base", "full_base")}
    return replace(instance, tables=replace(instance.tables, **times))


def burstier(instance: Instance, scv: float = 4.0) -> Instance:
    return replace(instance, flows=replace(instance.flows, arrival_scv=scv))


@pytest.mark.parametrize("role", list(Role))
def test_all_else_gives_a_state_of_its_own(role: Role) -> None:
    instance = small()
    one = pool(instance, "one", role, 2)
    state = pool_state(instance, one, 1.0)
    others = [pool_state(instance, replace(one, replicas=3), 1.0), pool_state(instance, one, 1.001)]
    others += [pool_state(other, one, 1.0) for other in (slower(instance), burstier(instance), burstier(instance, 9))]
    assert all(other is not state for other in others)
    assert not np.array_equal(others[1].rate, state.rate)
