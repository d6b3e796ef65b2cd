"""The terms of buying: the block of the workload file, a file of their own, options, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.errors import InputError
from optimizer.procurement.buying import buy
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from search_spaces.buying_terms import load_terms
from search_spaces.contracts import HOURS_PER_MONTH, Contract, Tier, hourly_price
from search_spaces.loader import load_problem, problem_of
from tests.optimizer_cases import problem


def refusal_of_terms(folder: Path, text: str) -> str:
    path = folder / "terms.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as error:
        load_terms(problem(), path)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "pdplan.plan/1", "pools": []}', "pdplan.plan/1 is not a file of terms (pdplan.terms/1)"),
        ("demand: {growth: 0.1, low: 0.2}", "low is 20%, growth 10% and high 10%; an end that is not"),
        ("demand: {month: 3}", "is not a known key; did you mean 'months'?"),
        ("accelerators: [{name: H100}, {name: h100}]", "H100 stands twice"),
        ("demand: {growth: 5}", "must be at least -0.9 and at most 1 (-90% to 100%); did you mean 0.05 (5%)?"),
    ],
)
def test_faults_of_the_terms_are_told_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    told = refusal_of_terms(tmp_path, text)
    assert message in told
    assert "terms.yaml:1:" in told


BLOCK = """
procurement:
  demand: {months: 6, growth: 0.1, low: 0.0, high: 0.1}
  electricity: {usd_per_kwh: 0.2}
  accelerators:
    - {name: H100, reserved_1_year: $2/h, owned: {gpus: 2, hosting_usd_per_month: 10}}
    - {name: B200, reserved_1_year: $3/h}
"""
FILE = """
model: Llama-3.1-8B
workload: {request_rate: 10/s, lengths: {histogram: [{isl: 500, osl: 200, share: 1}]}}
slo: {ttft: 1s, tpot: 50ms}
accelerators: [H100]
search: quick
"""


def test_the_terms_stand_in_the_workload_file_and_options_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(FILE + BLOCK, "utf-8")
    given = load_problem(path, {"procurement.electricity.pue": "1.1"})
    stated = load_terms(given)
    assert [(one.growth, one.probability) for one in stated.forecast.paths] == [(0.0, 0.3), (0.1, 0.7)]
    owned = next(one for one in stated.contracts if one.tier is Tier.OWNED)
    assert owned.running == pytest.approx(given.offers[0].accelerator.tdp / 1000 * 1.1 * 0.2)
    assert stated.unused == ("B200",)
    assert {one.source for one in stated.contracts if one.committed} == {"workload file, procurement"}
    again = load_terms(problem_of(given.inputs, "echo", tmp_path))
    assert again == stated
    changed = load_terms(given, None, {"months": 3, "high": 0.2})
    assert changed.forecast.months == 3
    assert changed.forecast.paths[-1].growth == 0.2
    with pytest.raises(InputError, match=r"with --high, demand: .* but low is 0%, growth 10% and high -50%"):
        load_terms(given, None, {"high": -0.5})
    other = tmp_path / "terms.yaml"
    other.write_text("demand: {months: 9}\n", "utf-8")
    both = load_terms(given, other)
    assert (both.forecast.months, len(both.forecast.paths)) == (9, 1)
    assert any(one.tier is Tier.OWNED for one in both.contracts)


def owned_in(path: Path) -> Contract:
    return next(one for one in load_terms(load_problem(path)).contracts if one.tier is Tier.OWNED)


HOSTED = """
procurement:
  demand: {months: 1}
  electricity: {usd_per_kwh: 0.2, pue: 1.5}
  accelerators: {name: H100, owned: {gpus: 1, power: 1kW, hosting_usd_per_month: 73}}
"""


def test_optimize_and_buy_price_owned_gpus_alike(tmp_path: Path) -> None:
    """1 kW x 1.5 x $0.20/kWh and $73 a month are $0.40 an hour, in the price of a fleet as in that of a month."""
    path = tmp_path / "workload.yaml"
    path.write_text(FILE.replace("[H100]", "[{name: H100, owned: 1}]") + HOSTED, "utf-8")
    given = load_problem(path)
    assert [one.owned_usd_per_hour for one in given.offers if one.owned] == [pytest.approx(0.4)]
    mine = owned_in(path)
    assert hourly_price(mine, 1) == pytest.approx(mine.running + mine.monthly / HOURS_PER_MONTH) == pytest.approx(0.4)
    plan, bought = optimize(given, level=Level.QUICK), buy(given, load_terms(given))
    assert dict(plan.gpus) == {"H100": 1}
    assert plan.cost_usd_per_hour == pytest.approx(0.4)
    assert bought.total / HOURS_PER_MONTH == pytest.approx(0.4)
