"""What no load changes of a TTFT is one law: of fleets by formula, of the simulator, and of the closed loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.engine import Role
from costmodel.queues.steady_state import ClosedLoad, EngineTimes, Prompt, WorkerPools, closed_loop
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import COLOCATED, PREFILL, Instance, make_instance, make_settings
from optimizer.search.bound import late_first_tokens
from optimizer.verification.judge import judge
from search_spaces.engines import EngineChange, engine_names, load_serving_policy
from tests.optimizer_cases import problem, slo, space, workload

APART = (Role.PREFILL, Role.DECODE)
MODES = (APART, (Role.COLOCATED,))
QUICK = EngineChange(arrival_ms=0.0, handover_ms=0.0)
"""An engine whose clients and hand-overs take no time."""


def instance_of(engine: str, changes: EngineChange, ttft: float = 2.0) -> Instance:
    """One request of a thousand tokens per second on H100."""
    stated = problem(
        engine=engine,
        engine_changes={engine: changes},
        workload=workload(1.0, ((1000.0, 100.0, 1.0),)),
        slos=(slo(ttft=ttft),),
        space=space(tensor_parallel=(1,)),
    )
    return make_instance(stated)


def fleet_of(roles: tuple[Role, ...], seqs: int) -> Fleet:
    """A replica of each role."""
    return Fleet(tuple(FleetPool(role.value, role, 0, seqs, 0, 1, 0, np.ones(1)) for role in roles))


@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.parametrize("roles", MODES)
def test_formula_simulation_and_closed_loop_shift_by_the_same(engine: str, roles: tuple[Role, ...]) -> None:
    """By what the user's file says: 7 ms until the queue, and 40 ms for a hand-over."""
    shift = 0.047 if roles == APART else 0.007
    there, here = (instance_of(engine, change) for change in (EngineChange(arrival_ms=7, handover_ms=40), QUICK))
    fleet = fleet_of(roles, int(here.tables.limits[-1]))
    formula = [evaluate(instance, fleet) for instance in (there, here)]
    np.testing.assert_allclose(formula[0].ttft, formula[1].ttft + shift, atol=1e-6)
    np.testing.assert_allclose(formula[0].tpot, formula[1].tpot)
    runs = [judge(instance, fleet, requests=300).runs[0].result for instance in (there, here)]
    np.testing.assert_allclose(runs[0].ttft, runs[1].ttft + shift)
    np.testing.assert_allclose(runs[0].e2e, runs[1].e2e + shift)
    cell = np.ones((1, 1))
    times = EngineTimes(
        Prompt(0.1 * cell, 0.1 * cell, 0.1 * cell, 0.0 * cell), lambda running: np.full_like(running, 0.01)
    )
    load = ClosedLoad(cell, 1000.0 * cell, 101.0 * cell, 0.0 * cell, 10.0 * cell)
    pools = WorkerPools(cell, cell, 0.0 * cell, 100.0 * cell, apart=roles == APART)
    lone = [
        closed_loop(times, replace(instance.policy, hand_over_steps=0.0), load, pools) for instance in (there, here)
    ]
    assert lone[0].ttft - lone[1].ttft == pytest.approx(shift)
    residence = [1.0 / steady.rate for steady in lone]
    change = (lone[0].tpot - lone[1].tpot) * 100.0  # of colocated prompts, the fewer per second the less a token waits
    assert residence[0] - residence[1] == pytest.approx(shift + change)


def test_a_catalog_file_that_says_nothing_of_them_leaves_the_fitted_figures() -> None:
    shipped = load_serving_policy("vllm")
    changed = load_serving_policy("vllm", {"vllm": EngineChange(arrival_ms=7.5)})
    assert shipped.fixed_ttft(False) == pytest.approx(0.0185)
    assert shipped.fixed_ttft(True) == pytest.approx(0.0185 + 0.0781)
    assert changed.fixed_ttft(True) == pytest.approx(0.0075 + 0.0781)


def test_no_engine_is_faster_than_what_no_load_changes() -> None:
    """A limit of 80 ms leaves time for a prompt of 1000 tokens, about 30 ms, but not for a hand-over of 78 ms."""
    usual, quick = (instance_of("vllm", changes, ttft=0.08) for changes in (EngineChange(), QUICK))
    settings = make_settings(usual)
    late = late_first_tokens(usual, settings)
    assert late[settings.role == PREFILL].all()
    assert not late[settings.role == COLOCATED].any()
    assert not late_first_tokens(quick, settings).any()
