"""Precisions as a dimension of the search: what each is worth, and how a plan says which it chose."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from optimizer.fleets.build_plan import fleet_of_plan
from optimizer.fleets.fleet import fleet_cost, pool_config
from optimizer.loads.effort import never
from optimizer.plans.plan import parse_plan
from optimizer.plans.records import NOTABLE
from optimizer.recommend.changed_problem import narrower, precision_savings
from optimizer.search.search import evaluated, unmixed
from optimizer.search.settings import make_settings
from search_spaces.problem import Problem
from tests.optimizer_cases import instance_of, model, offer, problem, slo, space, workload
from tests.running import QUICK, TINY, tiny, within


def test_only_what_is_wide_is_narrowed() -> None:
    changed = [
        [(one.weight_dtype, one.kv_dtype) for one in narrower(problem(weight_dtype=weights))]
        for weights in ("bf16", "int4")
    ]
    assert changed == [[("bf16", "fp8"), ("fp8", "bf16"), ("fp8", "fp8")], [("int4", "fp8")]]


def test_tables_hold_each_precision_as_if_it_were_the_only_one() -> None:
    both = space(weight_dtype=("bf16", "fp8"), kv_dtype=("bf16", "fp8"), tensor_parallel=(1,))
    tables = instance_of(problem(space=both)).tables
    for number, shape in enumerate(tables.shapes):
        alone = instance_of(replace(problem(space=space(tensor_parallel=(1,))), weight_dtype=shape.weight_dtype))
        alone = instance_of(replace(alone.problem, kv_dtype=shape.kv_dtype))
        for name in ("kv_transferred", "kv_capacity", "kv_held", "decode_base", "prefill_time", "mixed_base"):
            np.testing.assert_allclose(getattr(tables, name)[number], getattr(alone.tables, name)[0], rtol=1e-12)
    cache = np.array([shape.kv_dtype for shape in tables.shapes])
    narrow, wide = tables.kv_transferred[cache == "fp8"], tables.kv_transferred[cache == "bf16"]
    np.testing.assert_array_equal(2.0 * narrow, wide)


def test_no_token_budget_leaves_too_little_memory_for_the_longest_request() -> None:
    """70B in FP8 on one H100: 8192 tokens of activations leave less than one request of 8192 tokens needs."""
    sizes = space(max_num_batched_tokens=(512, 8192), weight_dtype=("fp8",))
    instance = instance_of(problem(model=model("Llama-3.1-70B"), space=sizes))
    tables, engines = instance.tables, make_settings(instance)
    assert tables.kv_longest[0] == 8192 * instance.problem.model.kv_bytes_per_token("bf16")
    assert tables.roomy.all(axis=1).tolist() == [[True, False], [True, True]]
    assert (tables.kv_capacity[0, :, 1] < tables.kv_longest[0]).all()
    assert (tables.kv_capacity[engines.shape, engines.seqs, engines.chunk] >= tables.kv_longest[engines.shape]).all()
    assert {0, 1} == set(engines.shape.tolist())


def test_a_plan_says_which_precision_it_chose_and_is_read_back(tmp_path: Path) -> None:
    few = {"tensor_parallel": [1, 2], "max_num_seqs": [64, 256], "max_num_batched_tokens": 2048}
    file = tiny(
        tmp_path,
        workload=TINY["workload"] | {"request_rate": "20/s"},
        slo={"ttft": "1s", "tpot": "30ms", "attainment": 0.9},
        accelerators=["H100", "L4"],
        search=few | {"weight_dtype": ["fp8", "bf16"], "kv_dtype": ["bf16", "fp8"]},
        constraints={"max_pools": 2},
    )
    plan = parse_plan(within("optimize", file, *QUICK, "--json").stdout.encode())
    chosen = {(pool.weight_dtype, pool.kv_dtype) for pool in plan.pools}
    instance, fleet = fleet_of_plan(plan)
    configs = [pool_config(instance, pool) for pool in fleet.pools]
    assert {(config.weight_dtype, config.kv_dtype) for config in configs} == chosen
    (own,) = [row for row in plan.alternatives if row.kind == "own_precision"]
    assert own.label == "bf16 weights and bf16 KV cache only"
    assert own.cost_usd_per_hour >= (plan.bound_usd_per_hour or 0.0)
    assert {(pool.weight_dtype, pool.kv_dtype) for pool in own.pools} == {("bf16", "bf16")}
    said = [line for line in plan.provenance.assumptions if "answers differ" in line]
    assert len(said) == len({w for w, _ in chosen if w != "bf16"}) + len({k for _, k in chosen if k != "bf16"})
    assert said[0] == (
        "Weights are served in fp8, but Llama-3.1-8B is published in bf16: answers differ; compare their quality "
        "before relying on it."
    )
    lost = plan.model_copy(update={"pools": [plan.pools[0].model_copy(update={"weight_dtype": "int4"})]})
    with pytest.raises(InputError, match=r"int4 weights and .* KV cache is possible here"):
        fleet_of_plan(lost)


# --- what fp8 weights and an fp8 KV cache save: by a search in that precision, told where it is notable

LONG = workload(8.0, ((6000.0, 1500.0, 1.0),))
"""Its KV cache fills the memory."""


def formula_cost(given: Problem) -> float:
    instance = instance_of(given)
    return fleet_cost(instance, unmixed(evaluated(instance)))


def test_a_saving_is_what_the_search_finds_in_that_precision() -> None:
    given = problem(workload=LONG, offers=(offer("H100"), offer("A100-80")), slos=(slo(3.0, 0.04),))
    base = formula_cost(given)
    savings = precision_savings(instance_of(given), base, never)
    assert savings
    for saving in savings:
        asked = replace(given, weight_dtype=saving.weight_dtype, kv_dtype=saving.kv_dtype)
        assert saving.cost_usd_per_hour == pytest.approx(formula_cost(asked))
        assert saving.base_usd_per_hour == base
        assert sum(pool.usd_per_hour or 0.0 for pool in saving.pools) == pytest.approx(saving.cost_usd_per_hour)
    costs = [base, *(saving.cost_usd_per_hour for saving in savings)]
    assert all(later <= before * (1.0 - NOTABLE) * (1.0 + 1e-5) for before, later in pairwise(costs))
