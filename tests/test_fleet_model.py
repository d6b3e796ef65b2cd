"""The fleet's programme as text, one golden file per kind of constraint: a changed constraint is a readable diff.

Prices and loads are round numbers made by hand, so that only a change of the programme changes a file.
To accept a change: PDPLAN_UPDATE_GOLDEN=1 pytest tests/test_fleet_model.py
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, Instance, make_instance
from optimizer.search.fleet_program import Aim, Matrices, engine_cost, fleet_limits, pool_limits, write_model
from optimizer.search.program import Program, lp_text, solve
from search_spaces.problem import Billing, Constraints, Gateway, Offer, Problem
from tests.optimizer_cases import problem, slo, space, workload
from tests.toy import OVERHEAD, llama_8b, toy_accelerator

GOLDEN = Path(__file__).parent / "golden" / "lp"
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


RESOURCES = ("time", "queue", "slots", "kv_memory", "attention_time", "link")


def toy_matrices(given: Problem, columns: Sequence[int] = range(4)) -> Matrices:
    """A prefill and a decode block on N, a colocated pair on A; another prefill block of A of two GPUs.

    need: shares of a block that the flow takes, by resource; late: misses; the same in each class.
    """
    made, every = instance(given), len(given.slos)
    load = np.zeros((4, len(RESOURCES), 2))
    load[0, 0], load[0, 1], load[0, 5] = (0.05, 0.2), (0.02, 0.4), (0.01, 0.04)
    load[1, 2], load[1, 3], load[1, 4] = (0.03, 0.06), (0.01, 0.08), (0.02, 0.05)
    load[2, 0], load[2, 2] = (0.04, 0.15), (0.05, 0.1)
    load[3, 0] = (0.1, np.inf)
    miss = np.array([[0.01, 0.02], [0.005, 0.005], [0.03, 0.06], [0.0, 0.0]])
    flows, role, shape = made.flows, np.array([PREFILL, DECODE, COLOCATED, PREFILL]), np.arange(4)
    share = np.bincount(flows.slo, flows.share, every)
    possible = np.isfinite(load).all(axis=1, keepdims=True)
    return Matrices(
        role=role,
        domain=made.tables.group[role, shape],
        pool=np.array([0, 2, 3, 1]),
        replicas=np.array([1, 1, 2, 1]),
        price=engine_cost(made),
        need=np.tile(np.where(possible, load, np.inf), every) * flows.rate,
        late=np.tile(miss, every) * flows.share,
        slo=flows.slo,
        permitted=np.array([1.0 - one.attainment for one in given.slos]) * share,
        resources=RESOURCES,
        domains=made.tables.pairing.prefill.shape[1],
        pairing=made.tables.pairing,
        limits=fleet_limits(made),
        spares=given.constraints.spare_replicas,
        pool_limits=pool_limits(given, role),
        most=10_000.0 if given.constraints.max_gpus is None else float(given.constraints.max_gpus),
    ).take(np.array(columns))


def instance(given: Problem) -> Instance:
    made = make_instance(given, OVERHEAD)
    assert [(s.offer, s.parallelism.tensor) for s in made.tables.shapes] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    return made


def program(given: Problem, aim: Aim | None = None) -> Program:
    return write_model(toy_matrices(given), aim or Aim()).program


def with_rows(whole: Program, *prefixes: str) -> Program:
    """The programme with only the rows whose names begin so; variables and objective stay."""
    kept = [i for i, name in enumerate(whole.row_names) if name.startswith(prefixes)]
    assert kept
    place = {row: index for index, row in enumerate(kept)}
    entries = np.flatnonzero(np.isin(whole.rows, kept))
    return replace(
        whole,
        rows=np.array([place[row] for row in whole.rows[entries]], dtype=np.int64),
        columns=whole.columns[entries],
        values=whole.values[entries],
        row_lower=whole.row_lower[kept],
        row_upper=whole.row_upper[kept],
        row_names=tuple(whole.row_names[i] for i in kept),
    )


NODES = (Offer(NVIDIA, 3.0, billing=Billing.NODE), Offer(AMD, 2.0))
TWO_CLASSES = (slo(attainment=0.9, share=0.8), slo(name="batch", attainment=0.5, share=0.2))
CASES: dict[str, tuple[Problem, Aim | None, tuple[str, ...]]] = {
    "everything": (toy_problem(), None, ("",)),
    "cover": (toy_problem(), None, ("cover", "volume")),
    "volume": (toy_problem(), Aim(0.5, 1.0, 1.0, 4.0), ("cover", "volume")),
    "pair": (toy_problem(), None, ("pair",)),
    "loads": (toy_problem(), None, RESOURCES),
    "attainment": (toy_problem(slos=TWO_CLASSES), None, ("attainment_",)),
    "inventory": (
        toy_problem(offers=(Offer(NVIDIA, 3.0, inventory=16), Offer(AMD, 2.0, inventory=6))),
        None,
        ("inventory",),
    ),
    "nodes": (toy_problem(offers=NODES), None, ("nodes",)),
    "budget": (toy_problem(constraints=Constraints(budget=40.0)), None, ("budget",)),
    "budget-of-nodes": (
        toy_problem(offers=NODES, constraints=Constraints(budget=40.0)),
        None,
        ("nodes", "budget"),
    ),
    "power": (toy_problem(constraints=Constraints(power=9000.0)), None, ("power",)),
    "max-gpus": (toy_problem(constraints=Constraints(max_gpus=12)), None, ("max_gpus",)),
    "max-pools": (toy_problem(constraints=Constraints(max_pools=2)), None, ("used", "max_pools")),
    "gateway": (toy_problem(constraints=Constraints(gateway=Gateway(1, 8))), None, ("used", "gateway")),
    "spare-replicas": (
        toy_problem(constraints=Constraints(spare_replicas=1, max_gpus=12, budget=40.0)),
        None,
        ("used", "max_gpus", "budget"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    given, aim, rows = CASES[name]
    text = lp_text(with_rows(program(given, aim), *rows))
    golden = GOLDEN / f"{name}.lp"
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.lp")} == set(CASES)


def test_every_kind_of_row_has_a_case() -> None:
    limits = Constraints(budget=1e3, power=1e5, max_gpus=99, max_pools=3, spare_replicas=1, gateway=Gateway(1, 1))
    offers = (Offer(NVIDIA, 3.0, 50, Billing.NODE), Offer(AMD, 2.0, 50))
    prefixes = {prefix for name, (_, _, rows) in CASES.items() for prefix in rows if name != "everything"}
    for row in program(toy_problem(offers=offers, constraints=limits)).row_names:
        assert row.startswith(tuple(prefixes)), row


class TestMeaning:
    def test_the_cheapest_toy_fleet_by_hand(self) -> None:
        """Colocated pairs of A cost 4 and need 6 x 0.05 + 2 x 0.1 = 0.5 of a block, or 0.54 by their time: one."""
        model = write_model(toy_matrices(toy_problem()), Aim())
        solution = solve(model.program)
        assert solution.objective == pytest.approx(4.0)
        np.testing.assert_allclose(solution.x[model.blocks], [0, 0, 1, 0])

    def test_a_strict_goal_forbids_what_misses_more(self) -> None:
        """The colocated block misses 0.75 x 0.03 + 0.25 x 0.06 = 3.75 %; apart, 1.25 % + 0.5 %: 9 $/h, not 4."""
        given = toy_problem(slos=(slo(attainment=0.975),))
        model = write_model(toy_matrices(given), Aim())
        solution = solve(model.program)
        assert solution.objective == pytest.approx(3.0 + 6.0)
        np.testing.assert_allclose(solution.x[model.blocks], [1, 1, 0, 0])

    def test_an_impossible_flow_has_no_route(self) -> None:
        model = write_model(toy_matrices(toy_problem()), Aim())
        routes = set(zip(model.routes.column.tolist(), model.routes.flow.tolist(), strict=True))
        assert routes == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)}

    @pytest.mark.parametrize("noise", [0.0, 1e-16, -1e-16, 1e-13, -1e-13])
    def test_two_resources_of_the_same_load_keep_one_row_at_least(self, noise: float) -> None:
        """With a single flow, time and queue are equal but for rounding: one row may go, never both."""
        need = np.zeros((1, len(RESOURCES), 1))
        need[0, 0], need[0, 1] = 2.0, 2.0 * (1.0 + noise)
        alone = toy_matrices(toy_problem(), [2])
        nothing, one = np.zeros(1, dtype=np.int64), np.ones(1)
        single = replace(alone, need=need, late=np.zeros((1, 1)), slo=nothing, permitted=one)
        model = write_model(single, Aim())
        assert solve(model.program).x[model.blocks] == pytest.approx([2.0])

    def test_rows_that_another_implies_are_left_out(self) -> None:
        names = program(toy_problem()).row_names
        assert "link0" not in names  # a fifth of the time that the same requests take
        assert {"time0", "queue0", "slots1", "kv_memory1"} <= set(names)

    def test_whole_nodes_are_paid_and_rounded_up(self) -> None:
        """On N only: one prefill and one decode engine are three GPUs, a node is eight for 24 $/h."""
        given = toy_problem(offers=NODES)
        model = write_model(toy_matrices(given, range(2)), Aim())
        solution = solve(model.program)
        assert solution.objective == pytest.approx(24.0)
        assert solution.x[model.program.variable_names.index("N_N")] == pytest.approx(1.0)

    def test_spares_cost_one_engine_per_pool(self) -> None:
        given = toy_problem(constraints=Constraints(spare_replicas=1))
        solution = solve(write_model(toy_matrices(given), Aim()).program)
        assert solution.objective == pytest.approx(4.0 + 2.0)

    def test_a_volume_that_is_paid_for_is_served(self) -> None:
        """A request rate is worth 20 and a colocated block costs 4 per 1 / 0.54 of it: as much as allowed."""
        model = write_model(toy_matrices(toy_problem()), Aim(1.0, 20.0, 1.0, 4.0))
        solution = solve(model.program)
        assert solution.x[model.volume] == pytest.approx(4.0)
        assert solution.objective == pytest.approx(3 * 4.0 - 80.0)  # 4 x 0.54 = 2.16 blocks


class TestLimits:
    def test_without_limits_there_are_none(self) -> None:
        assert fleet_limits(instance(toy_problem())) == ()

    def test_the_cost_of_an_engine_is_that_of_its_gpus_unless_nodes_are_billed(self) -> None:
        assert engine_cost(instance(toy_problem())).tolist() == [3.0, 6.0, 2.0, 4.0]
        assert engine_cost(instance(toy_problem(offers=NODES))).tolist() == [0.0, 0.0, 2.0, 4.0]
