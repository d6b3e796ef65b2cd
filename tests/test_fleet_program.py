"""The fleet problem: its programme as text, a golden file per kind of constraint, and its cheapest fleets.

Prices and loads of the goldens are round numbers made by hand, so that only a change of the programme changes a file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, make_instance
from optimizer.search.program import (
    Aim,
    Matrices,
    Program,
    SolveStatus,
    aim_of,
    cheapest,
    engine_cost,
    fleet_limits,
    pool_limits,
    solve,
    write_model,
)
from search_spaces.problem import Billing, Constraints, Gateway, Offer, Problem
from tests.fleet_matrices import (
    MOST_EACH,
    billed_by_node,
    by_trying_all,
    columns_of,
    cost_of,
    lp_text,
    random_matrices,
    routable,
    within,
)
from tests.golden_files import GOLDEN, assert_golden
from tests.optimizer_cases import problem, slo, space, workload
from tests.toy import llama_8b, toy_accelerator

EXACT = {"gap": 0.0}
SEEDS = st.integers(0, 2**32 - 1)
NVIDIA = toy_accelerator("N", tdp=700.0, node_size=8)
AMD = toy_accelerator("A", vendor="amd", tdp=750.0, node_size=4, kv_domain="amd")


def toy_problem(**changes: Any) -> Problem:
    """Six short and two long requests per second; engines of one or two N at 3 $/h or A at 2 $/h."""
    fields: dict[str, Any] = {
        "model": llama_8b(),
        "workload": workload(8.0, ((1000, 100, 0.75), (4000, 200, 0.25))),
        "slos": (slo(attainment=0.9),),
        "offers": (Offer(NVIDIA, 3.0), Offer(AMD, 2.0)),
        "space": space(max_num_seqs=(64,)),
    }
    return problem(**(fields | changes))


TIME, QUEUE, SLOTS, MEMORY, ATTENTION, LINK = range(6)


def toy_matrices(asked: Problem) -> Matrices:
    """A prefill and a decode engine on N, a colocated one of two A; another prefill engine of A of two GPUs.

    need: shares of an engine that the flow takes, by resource; late: misses; the same in each class.
    """
    instance, classes = make_instance(asked), len(asked.slos)
    load = np.zeros((4, 6, 2))
    load[0, TIME], load[0, QUEUE], load[0, LINK] = (0.05, 0.2), (0.02, 0.4), (0.01, 0.04)
    load[1, SLOTS], load[1, MEMORY], load[1, ATTENTION] = (0.03, 0.06), (0.01, 0.08), (0.02, 0.05)
    load[2, TIME], load[2, SLOTS] = (0.04, 0.15), (0.05, 0.1)
    load[3, TIME] = (0.1, np.inf)
    late = np.array([[0.01, 0.02], [0.005, 0.005], [0.03, 0.06], [0.0, 0.0]])
    flows, role, shape = instance.flows, np.array([PREFILL, DECODE, COLOCATED, PREFILL]), np.array([0, 1, 3, 3])
    share = np.bincount(flows.slo, flows.share, classes)
    possible = np.isfinite(load).all(axis=1, keepdims=True)
    return Matrices(
        role=role,
        domain=instance.tables.group[role, shape],
        price=engine_cost(instance)[shape],
        need=np.tile(np.where(possible, load, np.inf), classes) * flows.rate,
        late=np.tile(late, classes) * flows.share,
        slo=flows.slo,
        permitted=np.array([1.0 - item.attainment for item in asked.slos]) * share,
        talks=instance.tables.hands_over,
        limits=tuple(replace(limit, weight=limit.weight[shape]) for limit in fleet_limits(instance)),
        spares=asked.constraints.spare_replicas,
        pool_limits=pool_limits(asked, role),
    )


def program(asked: Problem, aim: Aim | None = None) -> Program:
    return write_model(toy_matrices(asked), aim or Aim()).program


NODES = (Offer(NVIDIA, 3.0, billing=Billing.NODE), Offer(AMD, 2.0))
FEW = (Offer(NVIDIA, 3.0, inventory=16), Offer(AMD, 2.0, inventory=6))
SPARED = Constraints(spare_replicas=1, max_gpus=12, budget=40.0)
TWO_CLASSES = (slo(attainment=0.9, share=0.8), slo(name="batch", attainment=0.5, share=0.2))
CASES: dict[str, tuple[Problem, Aim | None, tuple[str, ...]]] = {
    "everything": (toy_problem(), None, ("",)),
    "cover": (toy_problem(), None, ("cover", "volume")),
    "volume": (toy_problem(), Aim(0.5, 1.0, 1.0, 4.0), ("cover", "volume")),
    "hand-over": (toy_problem(), None, ("sends", "takes")),
    "loads": (toy_problem(), None, ("load",)),
    "attainment": (toy_problem(slos=TWO_CLASSES), None, ("attainment_",)),
    "inventory": (toy_problem(offers=FEW), None, ("inventory",)),
    "nodes": (toy_problem(offers=NODES), None, ("nodes",)),
    "budget": (toy_problem(constraints=Constraints(budget=40.0)), None, ("budget",)),
    "budget-of-nodes": (toy_problem(offers=NODES, constraints=Constraints(budget=40.0)), None, ("nodes", "budget")),
    "power": (toy_problem(constraints=Constraints(power=9000.0)), None, ("power",)),
    "max-gpus": (toy_problem(constraints=Constraints(max_gpus=12)), None, ("max_gpus",)),
    "max-pools": (toy_problem(constraints=Constraints(max_pools=2)), None, ("used", "max_pools")),
    "gateway": (toy_problem(constraints=Constraints(gateway=Gateway(1, 8))), None, ("used", "gateway")),
    "spare-replicas": (toy_problem(constraints=SPARED), None, ("used", "max_gpus", "budget")),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    asked, aim, rows = CASES[name]
    assert_golden(f"lp/{name}.lp", lp_text(program(asked, aim), *rows))


@pytest.mark.parametrize("factor", [0.01, 1.0, 2.0, 1e4])
def test_prices_that_all_change_alike_change_no_aim(factor: float) -> None:
    offers = (Offer(NVIDIA, 3.0 * factor), Offer(AMD, 2.0 * factor))
    weight = aim_of(toy_problem(offers=offers)).cost_weight
    assert [weight * offer.usd_per_hour for offer in offers] == pytest.approx([1.0, 2.0 / 3.0])


def test_every_kind_of_row_has_a_golden() -> None:
    assert {path.stem for path in GOLDEN.glob("lp/*.lp")} == set(CASES)
    limits = Constraints(budget=1e3, power=1e5, max_gpus=99, max_pools=3, spare_replicas=1, gateway=Gateway(1, 1))
    offers = (Offer(NVIDIA, 3.0, 50, Billing.NODE), Offer(AMD, 2.0, 50))
    prefixes = {prefix for name, (_, _, rows) in CASES.items() for prefix in rows if name != "everything"}
    for row in program(toy_problem(offers=offers, constraints=limits)).linear_constraints.names:
        assert row.startswith(tuple(prefixes)), row


class TestByHand:
    @pytest.mark.parametrize(
        ("changes", "cost"),
        [
            ({}, 4.0),  # two A need 6 x 0.05 + 2 x 0.1 = 0.5 of an engine, or 0.54 by their time: one
            ({"slos": (slo(attainment=0.975),)}, 3.0 + 6.0),  # it misses 3.75 %, engines apart 1.25 % + 0.5 %
            ({"constraints": Constraints(spare_replicas=1)}, 4.0 + 4.0),
            ({"offers": (NODES[0], Offer(AMD, 20.0))}, 24.0),  # three N for prefill and decode: a node of eight
        ],
    )
    def test_the_cheapest_toy_fleet(self, changes: dict[str, Any], cost: float) -> None:
        assert solve(program(toy_problem(**changes))).objective == pytest.approx(cost)

    def test_a_volume_that_is_paid_for_is_served(self) -> None:
        """A request rate is worth 20 and a colocated engine costs 4 per 1 / 0.54 of it: as much as allowed."""
        found = solve(program(toy_problem(), Aim(1.0, 20.0, 1.0, 4.0)))
        assert found.objective == pytest.approx(3 * 4.0 - 80.0)  # 4 x 0.54 = 2.16

    @pytest.mark.parametrize("noise", [0.0, 1e-16, -1e-16, 1e-13, -1e-13])
    def test_two_resources_of_the_same_load_keep_one_row_at_least(self, noise: float) -> None:
        """With a single flow, time and queue are equal but for rounding: one row may go, never both."""
        need = np.zeros((1, 2, 1))
        need[0, 0], need[0, 1] = 2.0, 2.0 * (1.0 + noise)
        assert cheapest(colocated(need, [2.0]), Aim(), **EXACT).x.tolist() == [2]

    def test_who_can_hand_over_to_one_domain_alone_does(self) -> None:
        """Each flow has a decode engine that takes it: both are needed, and both must be talked to."""
        need = np.full((3, 1, 2), 0.5)
        need[1, 0, 1] = need[2, 0, 0] = np.inf
        role, domain = np.array([PREFILL, DECODE, DECODE]), np.array([0, 0, 1])
        asked = replace(colocated(need, [1.0, 9.0, 1.0]), role=role, domain=domain)
        for able, cost in (([True, True], 11.0), ([True, False], np.inf), ([False, True], np.inf)):
            assert cheapest(replace(asked, talks=np.array([able])), Aim(), **EXACT).objective == pytest.approx(cost)

    def test_fractions_of_an_engine_prove_less_than_whole_ones(self) -> None:
        """One flow needs 1.1 of the engine at 4 $/h, or 2.9 of that at 2 $/h: fractions 4.4, whole engines 6."""
        matrices = colocated(np.array([[[1.1]], [[2.9]]]), [4.0, 2.0])
        assert cheapest(matrices, Aim(), **EXACT).bound == pytest.approx(6.0)
        assert solve(write_model(matrices, Aim()).program, relaxed=True).objective == pytest.approx(4.4)
        assert cheapest(matrices, Aim(), 5.0, **EXACT).bound == pytest.approx(5.0)

    def test_no_columns_are_no_fleet(self) -> None:
        none = columns_of(random_matrices(0), np.zeros(0, dtype=np.int64))
        assert cheapest(none, Aim(), **EXACT).outcome is SolveStatus.INFEASIBLE


def colocated(need: np.ndarray[tuple[int, ...], np.dtype[np.float64]], price: list[float]) -> Matrices:
    """Colocated engines that need so much of each resource for each flow."""
    size, _, flows = need.shape
    nothing = np.zeros(size, dtype=np.int64)
    late, slo_of = np.zeros((size, flows)), np.zeros(flows, dtype=np.int64)
    return Matrices(nothing + COLOCATED, nothing, np.array(price), need, late, slo_of, np.ones(1))


def wider(seed: int, columns: int) -> Matrices:
    """Several columns of each kind: equal price, role and domain, other strengths, so that some are dominated."""
    random = np.random.default_rng(seed)
    made = random_matrices(seed, columns=columns, flows=4)
    kind = random.integers(0, 6, columns)
    price = np.round(random.uniform(1.0, 6.0, 6), 1)[kind]
    need = made.need * made.price[:, None, None] / price[:, None, None]
    return replace(made, role=kind % 3, domain=np.zeros_like(kind), talks=None, price=price, need=need)


def with_dearer_twins(matrices: Matrices) -> Matrices:
    """Every column twice, the second at a higher price."""
    twice = columns_of(matrices, np.tile(np.arange(matrices.size), 2))
    return replace(twice, price=twice.price + np.repeat([0.0, 1.0], matrices.size))


@settings(max_examples=15)
@given(SEEDS)
@example(66564822)
def test_it_equals_trying_every_fleet(seed: int) -> None:
    matrices = random_matrices(seed, columns=3, flows=2 + seed % 2, limited=seed % 3 == 0)
    matrices = billed_by_node(matrices, owned=seed % 4) if seed % 5 == 0 else matrices
    best, engines = by_trying_all(matrices), cheapest(matrices, Aim(), **EXACT)
    if not engines.x.size:
        assert engines.outcome is SolveStatus.INFEASIBLE
        assert np.isinf(best)
        return
    counts = engines.x.astype(np.int64)
    assert within(matrices, counts)
    assert routable(matrices, counts)
    assert cost_of(matrices, counts) == pytest.approx(engines.objective, abs=1e-6)
    assert engines.outcome is SolveStatus.OPTIMAL
    assert engines.bound == pytest.approx(engines.objective, rel=1e-6)
    assert engines.objective <= best + 1e-6
    if counts.max() <= MOST_EACH:
        assert engines.objective == pytest.approx(best, abs=1e-6)


@settings(max_examples=6)
@given(SEEDS, st.booleans(), st.sampled_from([0.5, 0.9, 1.2]))
def test_neither_pruning_nor_a_ceiling_changes_the_optimum(seed: int, nodes: bool, share: float) -> None:
    matrices = billed_by_node(wider(seed, 18)) if nodes else wider(seed, 18)
    assert with_dearer_twins(matrices).undominated().size <= matrices.size
    pruned, whole = cheapest(matrices.undominated(), Aim(), **EXACT), solve(write_model(matrices, Aim()).program)
    assert pruned.outcome is whole.outcome
    assert pruned.objective == pytest.approx(whole.objective, abs=1e-6)
    bound = cheapest(matrices, Aim(), share * whole.objective, **EXACT).bound
    assert min(bound, share * whole.objective) == pytest.approx(min(share, 1.0) * whole.objective, rel=1e-6)
