"""A stated fleet evaluated: that of a plan, one too large, one too small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pdplan
from costmodel.errors import InputError
from costmodel.simulator.metrics import Overload
from optimizer.plans.plan import FleetEvaluation, Plan
from optimizer.plans.records import Outcome
from optimizer.verification.bench import Slice
from optimizer.verification.judge import Judgement, judge_runs
from reports.answers.plan import evaluation_document, provisioning_sentence
from reports.slos import brief_slo_table
from reports.views import terminal_view
from search_spaces.fleet_file import load_fleet
from tests.running import TINY, tiny, within
from tests.test_fleet_file import DECODE, POOL, PREFILL, fleet

BUSY = {"workload": TINY["workload"] | {"request_rate": "40/s"}, "search": {"preset": "quick"}}
"""A rate that one engine does not serve."""
APART = BUSY | {"search": {"preset": "quick", "roles": ["prefill", "decode"]}}


def evaluated(folder: Path, *pools: dict[str, Any], level: str | None = None, **sections: Any) -> FleetEvaluation:
    return pdplan.evaluate(load_fleet(fleet(folder, *pools, workload=TINY | sections)), effort=level or "none")


def test_requests_that_no_pool_serves_are_told_with_the_place_of_the_pools(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fleet.yaml:\d+:\d+: pools: no pool computes the prompts of class default"):
        evaluated(tmp_path, POOL | {"isl": {"from": 0, "to": 1}})


def stated_pools(plan: Plan) -> list[dict[str, Any]]:
    """The pools of a plan as a fleet file has them."""
    keys = ("role", "replicas", "tensor_parallel", "max_num_seqs", "max_num_batched_tokens")
    return [{"gpu": pool.accelerator} | {key: getattr(pool, key) for key in keys} for pool in plan.pools]


def figures(plan: Plan) -> dict[str, Any]:
    """All that a plan says of its own fleet; not of others, nor of how it was evaluation."""
    searched = {"one_replica_less", "others", "judged", "repairs", "tuning"}
    keys = "attainment ttft_s tpot_s classes cost_usd_per_hour goodput_rps pools routing binding"
    own = {key: value for key, value in plan.simulation.model_dump().items() if key not in searched}
    return plan.model_dump(include={*keys.split()}) | {"simulation": own}


def test_the_fleet_of_a_plan_has_the_figures_of_the_plan(short_runs: None, tmp_path: Path) -> None:
    plan = pdplan.optimize(pdplan.load_problem(tiny(tmp_path, **APART)))
    assert {pool.role for pool in plan.pools} == {"prefill", "decode"}
    evaluation = evaluated(tmp_path, *stated_pools(plan), **APART)
    again = pdplan.evaluate(plan, effort="none")
    assert plan.simulation.confirmation == 1
    np.testing.assert_equal(figures(evaluation.plan), figures(plan))
    np.testing.assert_equal(figures(again.plan), figures(plan))
    assert evaluation.outcome == again.outcome == "meets"
    less = {row.what.split(":")[0]: row.held for row in plan.simulation.one_replica_less}
    fewer = {row.what.split(":")[0]: row.held for row in evaluation.provisioning.one_replica_fewer}
    assert fewer == {name: held for name, held in less.items() if name in fewer}
    assert (evaluation.provisioning.missing, evaluation.provisioning.spare) == (0, 0)


def test_one_that_is_too_large_says_by_how_much(short_runs: None, tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, POOL | {"replicas": 3}, level="quick")
    assert evaluation.outcome == "meets"
    assert [(pool.replicas, pool.needed) for pool in evaluation.provisioning.pools] == [(3, 1)]
    assert evaluation.provisioning.cost_usd_per_hour == pytest.approx(3.99)
    assert evaluation.usd_per_month == pytest.approx(3 * 3.99 * 730)
    assert evaluation.saving_usd_per_hour == pytest.approx(2 * 3.99)
    said = " ".join(terminal_view(evaluation_document(evaluation)).split())
    assert "at 6 req/s of " in said
    assert "It costs $11.97/h ($8,738/month): $4.07 per million output tokens at " in said
    assert "the fleet needs 1 × colocated-1 (now 3), for $3.99/h in all (-$7.98/h, -66.7 %)." in said
    risk = "If these GPUs are as slow as the worst 5 % of our predictions, this fleet still meets the SLO, by formula."
    assert f" Risk: {risk} " in said
    assert "Cheapest fleet found by formula: 1 colocated replica of 1 H100 GPU for $3.99/h, $7.98/h less" in said
    pools = [pool.model_copy(update={"spare_replicas": 1}) for pool in evaluation.plan.pools]
    spared = provisioning_sentence(evaluation.provisioning, evaluation.plan.model_copy(update={"pools": pools}))
    assert "1 × colocated-1 (now 3) beside the spares, for $3.99/h in all" in spared
    undecided = evaluation.model_copy(update={"outcome": Outcome.UNDECIDED})  # by the wider interval of a confirmation
    doubt = " ".join(terminal_view(evaluation_document(undecided)).split())
    assert doubt.startswith("May or may not meet the SLO: ")
    assert "The interval that decides is wider and contains the goal." in doubt
    simulation = evaluation.plan.simulation
    doubtful = simulation.model_copy(update={"classes": [replace(simulation.classes[0], attainment_low=0.5)]})
    assert "undecided: 100 %" in brief_slo_table(evaluation.plan.model_copy(update={"simulation": doubtful})).rows[0]
    late = [
        point.model_copy(update={"overloaded": point.rate_rps == simulation.rate_rps}) for point in simulation.curve
    ]
    behind = doubtful.model_copy(update={"curve": late})
    assert "✗ 100 %" in brief_slo_table(evaluation.plan.model_copy(update={"simulation": behind})).rows[0]
    whole = terminal_view(evaluation_document(evaluation, brief=False))
    titles = [line.partition(":")[0] for line in whole.splitlines() if line and not line.startswith(" ")]
    assert {"Fleet", "Cost and goodput", "SLOs", "What binds", "Trust"} <= set(titles)


@pytest.mark.parametrize(
    ("replicas", "need", "cheapest"),
    [
        (1, "Under-provisioned: the fleet needs 2 × colocated-1 (now 1) with 1 spare", "$3.99/h more (+100 %)."),
        (2, "Apart from the spares, every pool has one replica.", "the same price."),
        (3, "Over-provisioned: the fleet needs 2 × colocated-1 (now 3) with 1 spare", "$3.99/h less (-33.3 %, "),
    ],
)
def test_spares_that_the_workload_asks_for_are_needed(
    short_runs: None, tmp_path: Path, replicas: int, need: str, cheapest: str
) -> None:
    headroom = {"constraints": {"headroom": {"replicas": 1}}}
    evaluation = evaluated(tmp_path, POOL | {"replicas": replicas}, level="quick", **headroom)
    said = " ".join(terminal_view(evaluation_document(evaluation)).split())
    assert said.startswith("Meets the SLO: ")
    assert "All replicas serve in these figures; none is kept as a spare." in said
    assert need in said
    best = "Cheapest fleet found by formula with 1 spare replica in every pool: 2 colocated replicas of 1 H100 GPU"
    assert f"{best} for $7.98/h, {cheapest}" in said


def test_gpus_that_are_billed_with_their_node_stand_below_the_fleet(short_runs: None, tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, POOL, accelerators=[{"name": "H100", "billing": "node"}])
    said = " ".join(terminal_view(evaluation_document(evaluation)).split())
    assert " Whole nodes are billed: 2 H100 (8 billed, 2 used) GPUs. " in said
    assert "the fleet needs 1 × colocated-1 (now 2), for $31.92/h in all (the same price)." in said


def test_one_with_a_pool_that_others_can_replace_is_told_so(short_runs: None, tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, POOL, POOL | {"replicas": 2, "tensor_parallel": 4})
    assert [(pool.replicas, pool.needed) for pool in evaluation.provisioning.pools] == [(2, 1), (2, 0)]
    advice = provisioning_sentence(evaluation.provisioning, evaluation.plan)
    assert "the fleet needs 1 × colocated-1 (now 2) and 0 × colocated-2 (now 2), for " in advice
    assert evaluation.provisioning.cost_usd_per_hour == pytest.approx(3.99)


def test_one_near_its_capacity_is_undecided(short_runs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run at more than the rate falls behind, where those at the rate itself meet every goal."""

    def falls_behind(portion: Slice, number: int) -> Judgement:
        runs = portion.runs(portion.requests, number, number + 1)
        judgement = judge_runs(portion.instance, portion.engines, runs)
        return replace(judgement, overload=Overload(overloaded=True, growth=0.1, drift=0.1, where="queue"))

    monkeypatch.setattr(Slice, "gives_way", falls_behind)
    evaluation = evaluated(tmp_path, POOL)
    assert evaluation.near_capacity
    assert evaluation.outcome == "undecided"
    said = " ".join(terminal_view(evaluation_document(evaluation)).split())
    assert said.startswith("May or may not meet the SLO: ")
    assert "It is too near its limit to tell: with 5 % more requests its queues grow without end." in said


def test_one_that_is_overloaded_says_what_it_lacks(short_runs: None, tmp_path: Path) -> None:
    rate = {"workload": TINY["workload"] | {"request_rate": "80/s"}}
    evaluation = evaluated(tmp_path, PREFILL | {"replicas": 1}, DECODE | {"replicas": 2, "max_num_seqs": 256}, **rate)
    assert evaluation.outcome == "misses"
    prefill, decode = evaluation.provisioning.pools
    assert prefill.needed > prefill.replicas == 1
    assert decode.needed <= decode.replicas
    assert 0.0 < evaluation.plan.goodput_rps < 80.0
    assert [row.where for row in evaluation.plan.binding if row.slack < 0.0 and row.constraint == "time"] == [
        "prefill-1"
    ]
    enough = [PREFILL | {"replicas": prefill.needed}, DECODE | {"replicas": decode.needed, "max_num_seqs": 256}]
    assert evaluated(tmp_path, *enough, **rate).outcome == "meets"
    said = " ".join(terminal_view(evaluation_document(evaluation)).split())
    assert "Misses the SLO: " in said
    assert "Binds first: prefill-1 gets " in said
    assert f"the fleet needs {prefill.needed} × prefill-1 (now 1)" in said


def test_one_that_is_far_too_small_is_told_what_twice_the_traffic_needs(short_runs: None, tmp_path: Path) -> None:
    hours = {"diurnal": {"requests_per_second_by_hour": [20] * 12 + [150] * 12}}
    demand = {key: value for key, value in TINY["workload"].items() if key != "request_rate"}
    evaluation = evaluated(tmp_path, POOL | {"replicas": 1}, workload=demand | hours)
    once, twice = evaluation.provisioning.pools[0].needed, evaluation.twice.pools[0].needed
    assert 4 < once <= 8 < twice <= 2 * once
    assert "over the day's mean" not in terminal_view(evaluation_document(evaluation, brief=False))


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_and_prints_one_object(short_runs: None, tmp_path: Path) -> None:
    fleet(tmp_path, POOL | {"max_num_seqs": 200, "max_num_batched_tokens": 3000})
    done = within("evaluate", "fleet.yaml", "--effort", "none", "--json", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    evaluation = json.loads(done.stdout)
    assert evaluation == json.loads((tmp_path / "out" / "evaluation.json").read_text("utf-8"))
    refused = within("report", "out/evaluation.json", cwd=tmp_path)
    assert "evaluation.json: this is an evaluation, not a plan; open evaluation.html beside it" in refused.stderr
    page = (tmp_path / "out" / "evaluation.html").read_text("utf-8")
    assert "<h1>Meets the SLO: " in page
    assert '"schema":"pdplan.evaluation/1"' in page
    assert "--sensitivity" not in page  # which evaluate does not have
    assert (evaluation["outcome"], evaluation["plan"]["status"]) == ("meets", "stated")
    assert evaluation["plan"]["pools"][0]["max_num_seqs"] == 200
    assert evaluation["cheapest"] is None
