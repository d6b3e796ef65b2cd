"""Sentences say what the plan holds: cheapest is compared, binding is the least slack, a missed goal is not hidden."""

from pathlib import Path

import pytest

from optimizer.plans.plan import Plan, Status
from reports import verdict, words

PLANS = Path(__file__).parent / "plans"


def load(name: str) -> Plan:
    return Plan.model_validate_json((PLANS / f"{name}.json").read_bytes())


@pytest.fixture
def plan() -> Plan:
    return load("disaggregated")


def test_proof(plan: Plan) -> None:
    dearer = "By formula a fleet for $48.34/h meets every SLO; the simulation confirmed none below this price."
    assert verdict.proof_sentence(plan) == dearer
    floored = plan.model_copy(update={"floor_usd_per_hour": 30.0})
    least = "No fleet of any shape with bf16 weights and bf16 KV can cost less than $30.00/h under this model."
    assert verdict.proof_sentence(floored) == f"{dearer} {least}"
    exact = floored.model_copy(update={"gap": 0.0, "status": Status.OPTIMAL})
    found = "Cheapest fleet found: no fleet of one pool, or of a prefill and a decode pool, is cheaper."
    assert verdict.proof_sentence(exact) == f"{found} {least}"
    assert verdict.search_outcome(exact) == "cheapest found"
    cheaper = floored.model_copy(update={"gap": 0.388, "bound_usd_per_hour": 30.0})
    assert verdict.proof_sentence(cheaper) == least
    assert verdict.search_outcome(cheaper) == "a cheaper one may exist"
    whole = {"gap": 0.0, "status": Status.OPTIMAL, "floor_usd_per_hour": 49.08, "bound_usd_per_hour": 49.08}
    proved = plan.model_copy(update=whole)
    assert verdict.proof_sentence(proved) == (
        "Cheapest fleet possible: no fleet of any shape with bf16 weights and bf16 KV can cost less than $49.08/h "
        "under this model."
    )
    assert verdict.search_outcome(proved) == "cheapest possible"
    assert verdict.proof_sentence(load("colocated")).startswith(found)
    unknown = plan.model_copy(update={"gap": None})
    assert verdict.proof_sentence(unknown) == "No lower bound on the price is known."
    below = unknown.model_copy(update={"floor_usd_per_hour": 60.0, "bound_usd_per_hour": None})
    assert verdict.proof_sentence(below) == (
        "No lower bound on the price is known: by formula no fleet below $60.00/h meets every SLO, "
        "but this one does in simulation."
    )
    assert verdict.gap_of_any_fleet(below) is None


def test_no_fleet_says_what_is_in_the_way_and_what_to_relax() -> None:
    plan = load("infeasible")
    assert verdict.headlines(plan) == [
        "No fleet in the search space meets the SLO: the budget and the GPU inventory of H200-SXM are in the way."
    ]
    assert [words.relax_sentence(item) for item in words.violated(plan)] == [
        "Relax the budget to $49.08/h (+63.6 %).",
        "Relax the GPU inventory of H200-SXM to 6 GPUs (+50 %).",
    ]
    miss = words.nearest_miss(plan)
    assert miss is not None
    assert miss.kind == "nearest_miss"
    assert words.miss_sentence(miss, why=False).endswith("for $49.08/h.")
    late = plan.model_copy(update={"status": Status.TIME_LIMIT})
    (headline,) = verdict.headlines(late)
    assert headline.startswith("No fleet was found that meets the SLO: the budget and ")
    assert headline.endswith(" in the way. One may exist: the search did not try every fleet.")
    bare = plan.model_copy(update={"binding": [], "alternatives": []})
    assert verdict.headlines(bare) == ["No fleet in the search space meets the SLO."]


@pytest.mark.parametrize(
    ("objective", "gap", "sentence"),
    [
        ("max_goodput", 0.0, "No fleet of any shape has more goodput."),
        ("max_goodput_per_dollar", 0.0, "No fleet of any shape has more goodput per dollar."),
        ("max_goodput", 0.2, "The goodput of a fleet of any shape is at most 25 % higher, by formula."),
        ("max_goodput", None, "No upper bound on the goodput is known."),
    ],
)
def test_proof_of_goodput(plan: Plan, objective: str, gap: float | None, sentence: str) -> None:
    assert verdict.proof_sentence(plan.model_copy(update={"objective": objective, "gap": gap})) == sentence
