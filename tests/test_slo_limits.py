"""An SLO class with only some of its three limits: what is allowed, and that a missing one limits nothing anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from optimizer.loads.diagnose import check_floors
from optimizer.plans.plan import Plan
from optimizer.plans.reading import parse_plan
from reports.asked import asked
from reports.deploy.describe import limits_of
from reports.json_text import plan_json
from reports.words import slo_words
from search_spaces.loader import load_problem, problem_of
from search_spaces.problem import Slo
from search_spaces.schema import json_schema
from tests.optimizer_cases import instance_of, slo, workload
from tests.report_cases import text_of as render_plan
from tests.running import tiny
from tests.small_problems import given, optimize

NONE = math.inf


def stated(folder: Path, limits: dict[str, str]) -> Slo:
    return load_problem(tiny(folder, slo=limits)).slos[0]


@pytest.mark.parametrize(
    ("limits", "meant"),
    [
        ({"ttft": "1s", "tpot": "40ms"}, (1.0, 0.04, NONE)),
        ({"e2e": "20s"}, (NONE, NONE, 20.0)),
        ({"ttft": "2s", "e2e": "20s"}, (2.0, NONE, 20.0)),
        ({"tpot": "40ms", "e2e": "20s"}, (NONE, 0.04, 20.0)),
        ({"ttft": "2s", "tpot": "40ms", "e2e": "20s"}, (2.0, 0.04, 20.0)),
    ],
)
def test_limits_that_may_stand_together(tmp_path: Path, limits: dict[str, str], meant: tuple[float, ...]) -> None:
    path = tiny(tmp_path, slo=limits)
    problem = load_problem(path)
    found = problem.slos[0]
    assert (found.ttft, found.tpot, found.e2e) == meant
    echo = json.loads(json.dumps(problem.inputs, allow_nan=False))
    assert problem_of(echo, "echo", tmp_path).slos == problem.slos


@pytest.mark.parametrize(
    ("limits", "found"), [({"ttft": "1s"}, "ttft alone"), ({"tpot": "1s"}, "tpot alone"), ({}, "none")]
)
def test_one_part_of_a_request_is_not_limited_alone(tmp_path: Path, limits: dict[str, str], found: str) -> None:
    with pytest.raises(InputError) as caught:
        stated(tmp_path, limits)
    said = str(caught.value)
    assert "slo: needs ttft and tpot, or e2e, but has " in said
    assert found in said


def test_the_json_schema_says_the_same() -> None:
    section = json_schema()["$defs"]["SloClass"]
    assert "required" not in section
    assert section["anyOf"] == [{"required": ["ttft", "tpot"]}, {"required": ["e2e"]}]


def test_a_missing_limit_is_one_that_never_binds() -> None:
    """The flows are those of limits beyond the end-to-end one, number by number."""
    load = workload(8.0, ((500.0, 100.0, 0.5), (4000.0, 1.0, 0.5)))
    bare, loose = (
        instance_of(given(workload=load, slos=(slo(ttft, tpot, e2e=20.0),))).flows
        for ttft, tpot in ((NONE, NONE), (20.0, 20.0))
    )
    for name in ("ttft", "tpot"):
        np.testing.assert_array_equal(getattr(bare, name), getattr(loose, name))
        assert np.isfinite(getattr(bare, name)).all()


def test_fewer_limits_are_never_dearer() -> None:
    full, fewer, one = (
        optimize(given(slos=(slo(ttft, tpot, 0.95, e2e=4.0),)))
        for ttft, tpot in ((0.5, 0.02), (0.5, NONE), (NONE, NONE))
    )
    costs = [plan.cost_usd_per_hour for plan in (one, fewer, full)]
    assert None not in costs
    assert costs == sorted(costs, key=float)


def test_only_the_limit_that_stands_is_below_the_floor() -> None:
    instance = instance_of(given(slos=(slo(NONE, NONE, e2e=1e-3),)))
    with pytest.raises(InputError, match=r"slo\.0\.e2e") as caught:
        check_floors(instance)
    assert "ttft" not in str(caught.value)
    assert "tpot" not in str(caught.value)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return optimize(given(slos=(slo(NONE, NONE, 0.9, e2e=6.0, name="whole"),)))


def test_the_plan_file_and_its_views_show_no_limit_where_there_is_none(plan: Plan) -> None:
    text = plan_json(plan)
    assert json.loads(text)["classes"][0]["ttft_limit_s"] is None
    again = parse_plan(text.encode())
    assert render_plan(again) == render_plan(plan)
    assert slo_words(asked(again)[0]) == "whole: the whole request within 6 s for 90 % of its requests"


def test_a_deployment_gets_the_limits_that_the_whole_request_leaves(plan: Plan) -> None:
    limits = limits_of(plan)
    assert limits.ttft == 6.0
    assert limits.tpot == pytest.approx(6.0 / (plan.workload.mean_osl - 1.0))
    tight = plan.classes[0].model_copy(update={"ttft_limit_s": 1.0, "e2e_limit_s": None, "tpot_limit_s": 0.05})
    both = plan.model_copy(update={"classes": [*plan.classes, tight]})
    assert (limits_of(both).ttft, limits_of(both).tpot) == (1.0, min(0.05, limits.tpot))
