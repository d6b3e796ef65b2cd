"""An SLO class with only some of its three limits: what is allowed, and that a missing one limits nothing anywhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reference.lone_steps import CoefficientSteps
from benchmarks.reference.policies import VLLM_V1
from costmodel.engine import Parallelism, Role
from costmodel.metric import METRICS, Metric, Scope, limits_of, metrics_of
from costmodel.simulator.fleet import Limits
from costmodel.simulator.metrics import Result, gap_edges, within
from costmodel.simulator.run import simulate
from costmodel.workload import make_trace
from optimizer.fleets.build_plan import class_error_bars
from optimizer.fleets.evaluate import FIRST_FORMULAS, LATER_FORMULAS, evaluate, pool_headroom
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan import parse_plan
from optimizer.verification.simulated_plan import judge
from reports.slos import TONES
from search_spaces.loader import load_problem, problem_of
from tests.optimizer_cases import instance_of, problem, slo, space, workload
from tests.running import tiny
from tests.running import within as pdplan_within
from tests.simulator_cases import colocated
from tests.small_fleets import alone, each_of

NONE = math.inf


@pytest.mark.parametrize(
    ("limits", "meant"),
    [
        ({"e2e": "20s"}, (NONE, NONE, 20.0)),
        ({"normalized_latency": "50ms"}, (NONE, NONE, NONE)),
        ({"ttft": "2s", "e2e": "20s"}, (2.0, NONE, 20.0)),
        ({"ttft": "2s", "tpot": "40ms", "e2e": "20s"}, (2.0, 0.04, 20.0)),
    ],
)
def test_limits_that_may_stand_together(tmp_path: Path, limits: dict[str, str], meant: tuple[float, ...]) -> None:
    path = tiny(tmp_path, slo=limits)
    problem = load_problem(path)
    found = problem.slos[0]
    assert (found.ttft, found.tpot, found.limit(Metric.E2E)) == meant
    echo = json.loads(json.dumps(problem.inputs, allow_nan=False))
    assert problem_of(echo, "echo", tmp_path).slos == problem.slos


def test_every_metric_but_those_of_whole_requests_has_a_formula_and_every_metric_is_measured() -> None:
    assert set(FIRST_FORMULAS) == set(metrics_of(Scope.FIRST))
    assert set(LATER_FORMULAS) == set(metrics_of(Scope.LATER))
    assert set(METRICS) == set(Metric)
    assert all(hasattr(Result, metric) for metric in Metric)
    assert set(TONES) == set(Metric)
    style = resources.files("templates").joinpath("report/style.css").read_text("utf-8")
    assert len({*TONES.values()}) == len(TONES)
    assert all(f"path.curve.{tone} " in style for tone in TONES.values())


# --- iTL p99 as a limit of an SLO: counted, judged, predicted and planned for; nothing changes where none is asked fo

ITL = Metric.ITL_P99
OF_GAPS = sorted({*metrics_of(Scope.LATER)} - {Metric.TPOT})
"""Metrics of later tokens but their mean, each of which every test below that takes a metric asks for."""
STEPS = CoefficientSteps((0.1, 0.0, 0.0), (0.01, 0.0, 0.0))
"""A step takes 10 ms, one with a prompt 100 ms or more."""


def served(prompts: int, osl: int = 201, edges: tuple[float, ...] = ()) -> Result:
    """One request of `osl` tokens whose steps so many other prompts join, one at a time and far apart."""
    arrival = [0.0, *(0.3 + 0.3 * k for k in range(prompts))]
    trace = make_trace(np.array(arrival), np.full(prompts + 1, 50), np.array([osl, *[1] * prompts]))
    return simulate(trace, colocated(VLLM_V1, STEPS, Limits()), gap_edges=edges)


@pytest.mark.parametrize(("prompts", "kept"), [(0, True), (2, True), (3, False)])
def test_of_200_gaps_two_may_be_longer(prompts: int, kept: bool) -> None:
    """By hand: quiet gaps take 10 ms, those with a prompt over 100 ms; 1 % of 200 gaps are two."""
    assert not within(served(prompts, edges=(0.008,)), limits_of(itl_p99=0.008))[0]
    result = served(prompts, edges=gap_edges([0.02]))
    assert within(result, limits_of(itl_p99=0.02))[0] == kept
    assert (result.itl_p99[0] < 0.02) == kept
    assert (result.itl_max[0] > 0.09) == (prompts > 0)
    assert np.isnan(result.itl_p99[1:]).all()
    assert within(result, limits_of(itl_p99=0.02))[1:].all()


def asking(**limits: float | None) -> Instance:
    return instance_of(problem(slos=(slo(**limits),), workload=workload(6.0), space=space()))


def test_what_a_pool_runs_out_of_names_the_limits_of_the_class_that_misses() -> None:
    patient = slo(math.inf, math.inf, name="patient", share=0.5, e2e=600.0)
    instance = instance_of(
        problem(slos=(slo(0.5, math.inf, share=0.5), patient), workload=workload(6.0), space=space())
    )
    headroom = pool_headroom(instance, alone(instance, 1, seqs=99), 0)
    assert 1.0 < headroom.load < math.inf
    assert headroom.metrics == {Metric.TTFT}


def limited(metric: Metric, limit: float | None) -> Instance:
    return asking(**{metric: limit})


@cache
def unlimited() -> Instance:
    return limited(ITL, None)


def fleets() -> dict[str, Fleet]:
    prefill, decode = each_of(unlimited(), (Role.PREFILL, Role.DECODE)).pools
    return {
        "colocated, 1 GPU": alone(unlimited(), 1, seqs=99),
        "colocated, 2 GPUs": alone(unlimited(), 2, split=Parallelism(2), seqs=99),
        "apart": Fleet((replace(prefill, replicas=2), decode)),
    }


@pytest.mark.parametrize("metric", OF_GAPS)
@pytest.mark.parametrize("name", fleets())
def test_the_formula_accepts_what_the_simulation_accepts(name: str, metric: Metric) -> None:
    """At limits around what each fleet does: it rejects 10 % of the requests more at most, and in the end both agree.

    It takes each prompt to have its steps for itself, so that it may accept limits up to a fifth below.
    """
    fleet = fleets()[name]
    middle = judge(limited(metric, 0.02), fleet, requests=4_000).classes[0].metrics[metric].p90
    for factor in (0.5, 0.8, 0.95, 1.05, 1.3, 2.0):
        instance = limited(metric, middle * factor)
        formula = float(evaluate(instance, fleet).attainment[0])
        simulated = judge(instance, fleet, requests=4_000).classes[0].attainment
        assert formula >= simulated - 0.1, factor
        if factor in (0.5, 2.0):
            assert formula == pytest.approx(simulated, abs=0.1), factor


@pytest.mark.parametrize("metric", OF_GAPS)
@pytest.mark.parametrize("name", fleets())
def test_a_tighter_limit_never_holds_for_more(name: str, metric: Metric) -> None:
    limits, fleet = np.geomspace(0.004, 1, 9), fleets()[name]
    shares = [float(evaluate(limited(metric, limit), fleet).attainment[0]) for limit in limits]
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert shares[-1] == pytest.approx(float(evaluate(unlimited(), fleet).attainment[0]), abs=1e-12)


def whole(metric: Metric, limit: float) -> Instance:
    return asking(ttft=math.inf, tpot=math.inf, **{metric: limit})


@pytest.mark.parametrize("metric", metrics_of(Scope.WHOLE))
@pytest.mark.parametrize("name", fleets())
def test_whole_requests_by_formula_are_those_of_the_simulation(name: str, metric: Metric) -> None:
    """Their distribution follows from those of the first and of the later tokens."""
    fleet = fleets()[name]
    middle = float(evaluate(whole(metric, 20.0), fleet).quantiles(metric)[0, 1])
    judgement = judge(whole(metric, middle), fleet, requests=4_000)
    assert judgement.classes[0].attainment == pytest.approx(0.9, abs=0.06)
    limits = np.geomspace(0.1, 3.0, 9) * middle
    shares = [float(evaluate(whole(metric, limit), fleet).attainment[0]) for limit in limits]
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert evaluate(whole(metric, middle), fleet).attainment[0] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("metric", metrics_of(Scope.WHOLE))
def test_a_limited_metric_has_a_90_percent_interval_around_what_is_expected(metric: Metric) -> None:
    instance, fleet = whole(metric, 20.0), fleets()["colocated, 2 GPUs"]
    (bars,) = class_error_bars(instance, fleet, 1.0)
    expected = evaluate(instance, fleet).classes[0].metrics[metric].p90
    high = bars.ranges[metric].high
    assert set(bars.ranges) == {Metric.TTFT, Metric.TPOT, metric}
    assert high is None or bars.ranges[metric].low < expected < high


def test_a_simulated_plan_keeps_it_and_says_so(tmp_path: Path, short_runs: None) -> None:
    """Standard effort end to end: its own requests, fresh ones, and what `simulate` and the page say of them."""
    file = tiny(tmp_path, slo={"ttft": "1s", "tpot": "40ms", "itl_p99": "40ms"}, accelerators=["H100"])
    done = pdplan_within("optimize", file, "-o", tmp_path / "plan")
    assert done.returncode == 0, done.stderr
    plan = parse_plan((tmp_path / "plan" / "plan.json").read_bytes())
    assert "ITL p99 p90  limit" in done.stdout
    (row,), (simulated,) = plan.classes, plan.simulation.classes
    assert row.metrics[ITL].limit_s == 0.04
    assert row.metrics[ITL].quantiles_s == simulated.metrics[ITL]
    assert simulated.metrics[ITL].p90 <= 0.04
    assert simulated.by_formula.metrics[ITL].p90 <= simulated.metrics[ITL].p90 * 1.05
    assert "ITL p99" in (tmp_path / "plan" / "report.html").read_text("utf-8")
    shown = pdplan_within("simulate", tmp_path / "plan" / "plan.json", "--json", "--requests", "4000")
    assert shown.returncode == 0, shown.stderr
    (found,) = json.loads(shown.stdout)["classes"]
    assert found["metrics"]["itl_p99"]["p90"] <= 0.04
    assert found["metrics"]["itl_p99"]["p99"] <= found["itl_max_s"]["p99"]
