"""`pdplan explain`: refused by rule, and ranked by the fleet it makes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.loads.effort import Level
from optimizer.recommend.explain import EngineQuery, Explanation, engine_query, explain_each, parse_query
from optimizer.recommend.optimize import optimize
from pdplan.cli import run
from reports.answers.explanation import why_words
from search_spaces.enumeration import RULES
from search_spaces.loader import load_problem
from search_spaces.problem import Problem
from tests.running import tiny, within


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    two = {"preset": "quick", "tensor_parallel": [1, 2]}
    folder = tmp_path_factory.mktemp("explain")
    return tiny(folder, accelerators=["H100", "L4"], search=two, constraints={"max_pools": 2})


@pytest.fixture(scope="module")
def problem(file: Path) -> Problem:
    return load_problem(file)


def explained(problem: Problem, config: EngineQuery) -> Explanation:
    return explain_each(problem, [config])[0]


def test_a_config_that_breaks_a_rule_is_out_with_the_reason(problem: Problem) -> None:
    explanation = explained(problem, parse_query({"gpu": "H100", "tp": "3"}, problem))
    refused = {one.rule: one.reason for one in explanation.rulings if one.reason}
    assert not explanation.feasible
    assert not explanation.standings
    assert refused["tensor_divides_heads"] == "TP 3 does not divide 32 attention heads"
    assert len(explanation.rulings) == len(RULES)


def test_the_best_config_ranks_first_and_costs_what_the_search_finds(problem: Problem) -> None:
    plan = optimize(problem, level=Level.QUICK)
    pool = plan.pools[0]
    stated = {"tensor_parallel": pool.tensor_parallel, "role": Role(pool.role)}
    config = engine_query(problem, 0 if pool.accelerator == "H100" else 1, stated)
    (standing,) = explained(problem, config).standings
    assert standing.rank == 1
    assert standing.cost == pytest.approx(plan.cost_usd_per_hour)
    assert standing.best == standing.cost


def test_ranks_agree_with_costs(problem: Problem) -> None:
    """Over all splits and roles: a worse rank never has a cheaper fleet, and none is below the best."""
    seen: dict[Role, list[tuple[int, float]]] = {}
    for offer in (0, 1):
        for tensor in (1, 2):
            for one in explained(problem, engine_query(problem, offer, {"tensor_parallel": tensor})).standings:
                if one.cost is not None and one.rank is not None and one.best is not None:
                    seen.setdefault(one.role, []).append((one.rank, one.cost))
                    assert one.cost >= one.best
                    ranked = "one pool" if one.role is Role.COLOCATED else "a prefill and a decode pool"
                    better = f"than the cheapest fleet of {ranked}; " in why_words(one)
                    assert better == (one.cost > one.best * (1.0 + 1e-9))
    for ranked in seen.values():
        costs = [cost for _, cost in sorted(ranked)]
        assert np.all(np.diff(costs) >= -1e-9)


def test_the_command_end_to_end(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(file), "--config", "gpu=H100,tp=1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("gpu=H100,tp=1: possible; as a ")
    assumed = "pipeline_parallel 1, expert_parallel 1, data_parallel 1, weight_dtype bf16, kv_dtype bf16."
    assert f"Assumed, as the config does not say: {assumed}" in " ".join(said.split())
    assert f"All {len(RULES)} feasibility rules pass" in said
    assert run(["explain", str(file), "--config", "gpu=H100,tp=3", "--json"]) == 3
    (said_json,) = json.loads(capsys.readouterr().out)
    assert said_json["feasible"] is False
    assert said_json["assumed"].keys().isdisjoint({"tensor_parallel"})
    assert said_json["standings"] == []
    assert run(["explain", str(file), "--config", "gpu"]) == 2
    assert capsys.readouterr().err == "pdplan: error: --config 'gpu' is not KEY=VALUE, such as gpu=H100,tp=4\n"


def test_a_config_is_explained_where_no_engine_of_the_space_is_possible(tmp_path: Path) -> None:
    large = {"model": {"name": "DeepSeek-V3", "weight_dtype": "fp8"}, "search": "quick", "accelerators": ["H100"]}
    done = within("explain", tiny(tmp_path, **large), "--config", "gpu=H100,tp=8", "--config", "gpu=H100,tp=8,pp=2")
    assert "gpu=H100,tp=8: not possible, because weights do not fit in memory" in done.stdout
    assert "gpu=H100,tp=8,pp=2: possible" in done.stdout
