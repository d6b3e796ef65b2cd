"""What engines did in a simulation: shares between 0 and 1, energy between idle and TDP, gaps without the warm-up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.power import POWER, mean_power
from costmodel.simulator.metrics import run_span
from optimizer.verification.judge import judge
from optimizer.verification.record import fleet_use
from tests.test_simulated_demand import fleet, instance

SHARES = st.floats(0.0, 1.0)


@settings(deadline=None, max_examples=100)
@given(tdp=st.floats(50.0, 2000.0), busy=SHARES, compute=SHARES, memory=SHARES)
def test_power_lies_between_idle_and_tdp(tdp: float, busy: float, compute: float, memory: float) -> None:
    """Nothing is computed outside of steps, so MFU and MBU are at most the busy share."""
    power = mean_power(tdp, busy, compute * busy, memory * busy)
    assert POWER.idle * tdp * (1 - 1e-12) <= power <= tdp * (1 + 1e-12)
    assert power <= tdp * (POWER.idle + (1.0 - POWER.idle) * busy) * (1 + 1e-12)
    assert power <= mean_power(tdp, busy, min(1.0, 1.1 * compute) * busy, memory * busy) * (1 + 1e-12)


@pytest.mark.parametrize("volume", [0.05, 1.0, 4.0])
def test_a_run_uses_no_more_than_there_is(volume: float) -> None:
    found = judge(instance(), fleet(), requests=600, volume=volume, replications=2)
    use = fleet_use(instance(), fleet(), found)
    span = sum(run_span(run.result) for run in found.runs)
    for pool in use.pools:
        assert 0.0 < pool.utilization <= 1.0 + 1e-9
        assert 0.0 < pool.mfu < pool.utilization
        assert 0.0 < pool.mbu < pool.utilization
        assert 0.0 < pool.kv_occupancy <= pool.kv_peak <= 1.0
        assert POWER.idle * pool.tdp * span < pool.energy < pool.tdp * span
        assert pool.energy == pytest.approx(pool.power * span)
        assert pool.preemption_rate >= 0.0
        assert pool.rejection_rate == pool.rejected == 0
    tokens = sum(int(run.demand.trace.osl.sum()) for run in found.runs)
    assert use.energy == pytest.approx(sum(pool.energy for pool in use.pools))
    assert use.wh_per_1000_tokens == pytest.approx(use.energy / 3600 / tokens * 1000)


def test_prompts_use_arithmetic_and_decodes_use_bandwidth() -> None:
    prefill, decode, _ = fleet_use(instance(), fleet(), judge(instance(), fleet(), requests=600)).pools
    assert prefill.mfu / prefill.utilization > 2.0 * decode.mfu / decode.utilization
    assert decode.mbu / decode.utilization > 2.0 * prefill.mbu / prefill.utilization
    assert decode.mbu > decode.mfu
