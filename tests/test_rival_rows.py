"""The comparison: each row is what the same search gives when it is kept to some engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.engine import Role
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import make_settings, never
from optimizer.plans.plan import Alternative, Plan, Status
from optimizer.plans.proof import Proof
from optimizer.recommend import comparison, search
from optimizer.recommend.comparison import comparison_rows, judged_rivals, recommended, with_cheaper_rival
from optimizer.recommend.search import Brake, Effort, FormulaResult, Level, Restriction, Rival, restrictions
from optimizer.verification.bench import Verdict, fleet_key
from optimizer.verification.verify import SearchResult
from search_spaces.problem import Problem
from tests.optimizer_cases import offer, slo, space
from tests.small_fleets import apart, replicas, small
from tests.small_problems import given, optimize
from tests.test_verified_search import Oracle

ROOT = Path(__file__).resolve().parents[1]
BOTH = offer("H100"), offer("L40S")
COARSE = space(tensor_parallel=(1,), max_num_seqs=(64,), max_num_batched_tokens=(512,))
SPLIT = {"slos": (slo(1.0, 0.05, 0.9, e2e=8.0),), "offers": BOTH, "space": COARSE}
EFFORT = Effort(Level.STANDARD, Brake())


def restricted(problem: Problem, row: Alternative) -> Problem | None:
    """The problem of which a row of the comparison is the answer; None where no search space says so."""
    if row.kind == "single_type":
        offers = [bought for bought in problem.offers if row.label == f"{bought.accelerator.name} only"]
        return replace(problem, offers=tuple(offers))
    roles = {"colocated_only": (Role.COLOCATED,), "disaggregated_only": (Role.PREFILL, Role.DECODE)}.get(row.kind)
    return None if roles is None else replace(problem, space=replace(problem.space, roles=roles))


def costs_apart(problem: Problem, **effort: Any) -> list[tuple[str, float, float]]:
    """Each row of the comparison: its label, its cost and that of the search under its restriction alone [$/h]."""
    plan: Plan = optimize(problem, **effort)
    alone = ((row, restricted(problem, row)) for row in plan.alternatives[1:])
    plans = [(row, optimize(only, **effort)) for row, only in alone if only is not None]
    return [(row.label, row.cost_usd_per_hour or 1e9, other.cost_usd_per_hour or 1e9) for row, other in plans]


MIXED = {"slos": (slo(1.0, 0.04, 0.9),), "offers": (offer("H100"), offer("A100-80")), "space": COARSE}


@pytest.mark.parametrize(
    ("problem", "effort"),
    [
        (given(20.0, **MIXED), {}),
        (given(4.0, **SPLIT), {}),
    ],
    ids=["mixtures", "end-to-end limit"],
)
def test_no_row_is_dearer_than_its_own_search(problem: Problem, effort: dict[str, Any], short_runs: None) -> None:
    rows = costs_apart(problem, **effort)
    assert len(rows) == 4
    assert all(alone >= 0.99 * cost for _, cost, alone in rows), rows


def restriction_of(label: str) -> Restriction:
    """A restriction of the small instance."""
    rows = restrictions(small(), make_settings(small()))
    return next(restriction for restriction in rows if restriction.label == label)


APART = "disaggregated only"
PROOF = Proof(Status.FEASIBLE, None, None)


def posed(label: str, *fleets: Fleet) -> FormulaResult:
    """A search that came to the first fleet, and to the others under a restriction."""
    best, *others = fleets
    return FormulaResult(small(), PROOF, rivals=(Rival((best,)), Rival(tuple(others), (), restriction_of(label))))


def one_pool(replicas: int) -> Fleet:
    """Colocated engines."""
    pool = apart(small(), replicas, 1).pools[0]
    return Fleet((replace(pool, name="colocated-1", role=Role.COLOCATED),))


def confirming(least: int) -> Callable[..., Verdict]:
    """A last word that refutes fleets of fewer engines than `least`, as fresh requests do."""

    def confirmed(bench: Any, chosen: Verdict, numbers: Any, *_: Any) -> Verdict:
        number = numbers if isinstance(numbers, int) else next(numbers)
        verdict = replace(chosen, held=sum(replicas(chosen.fleet)) >= least, confirmation=number)
        bench.verdicts[fleet_key(chosen.fleet)] = verdict
        return verdict

    return confirmed


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fleets hold with one prefill and one decode engine, or with two colocated ones; nothing is left to mend."""
    monkeypatch.setattr(search, "confirmed", confirming(0))
    monkeypatch.setattr(search, "without_room", lambda *_: None)
    monkeypatch.setattr(search, "with_larger_batches", lambda _bench, winner, _late: winner)
    return Oracle(small(), (1, 1), others=True)


def rows_of(result: FormulaResult, bench: Any, winner: Fleet) -> dict[str, Alternative]:
    """The comparison by label."""
    verdict = bench.verdict(winner)
    judged = judged_rivals(result, bench, verdict, EFFORT)
    best = recommended(small(), winner, PROOF, verdict=verdict)
    return {row.label: row for row in comparison_rows(small(), best, winner, result.rivals[1:], judged)}


def test_a_row_gives_up_what_it_can_spare_and_stays_within_its_restriction(bench: Any) -> None:
    row = rows_of(posed(APART, one_pool(1), apart(small(), 5, 2)), bench, one_pool(1))[APART]
    assert (row.status, row.simulated, row.confirmed) == (Status.FEASIBLE, True, True)
    assert row.pools == engine_pools(small(), apart(small(), 1, 1))
    allows = restriction_of(APART).allows
    assert [allows(verdict.fleet) for verdict in bench.verdicts.values()].count(False) == 1  # the winner's own


def test_what_fresh_requests_refute_is_no_row(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "confirmed", confirming(3))
    row = rows_of(posed(APART, one_pool(1), apart(small(), 1, 1), apart(small(), 2, 1)), bench, one_pool(1))[APART]
    assert row.pools == engine_pools(small(), apart(small(), 2, 1))


def test_where_nothing_holds_the_row_says_how_its_cheapest_misses(bench: Any) -> None:
    bench.needed = (90, 1)
    first = apart(small(), 1, 1)
    row = rows_of(posed(APART, one_pool(1), first), bench, one_pool(1))[APART]
    assert (row.status, row.cost_usd_per_hour, row.pools) == (Status.TIME_LIMIT, None, [])
    assert row.why_not.startswith(f"the cheapest found by formula (${fleet_cost(small(), first):.2f}/h) misses")


def test_the_recommended_fleet_is_its_own_row_where_the_restriction_allows_it(bench: Any) -> None:
    rows = rows_of(posed(APART, one_pool(1), apart(small(), 1, 1)), bench, apart(small(), 2, 1))
    assert rows[APART].pools == rows["recommended"].pools
    assert rows[APART].why_not == "the same cost"


@pytest.mark.parametrize("least", [0, 99])
def test_a_cheaper_row_is_recommended_once_it_is_confirmed_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(comparison, "confirmed_once", confirming(least))
    winner, lean = bench.verdict(one_pool(9)), bench.verdict(apart(small(), 1, 1))
    best, cheaper = SearchResult(winner=winner), SearchResult(winner=lean)
    rival = posed(APART, one_pool(9), apart(small(), 1, 1)).rivals[1]
    chosen = with_cheaper_rival(bench, best, [(rival, cheaper), (rival, SearchResult())], never).winner
    assert chosen is not None
    assert chosen.fleet is (winner if least else lean).fleet
