"""Sentences say what the plan holds: cheapest is compared, what binds is used most, a missed goal is not hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.plans.plan import Alternative, Plan, Status
from optimizer.plans.records import EnginePool, ErrorBars, PrefixCache, Range
from pdplan.api import deploy
from pdplan.commands.optimize import show_plan
from pdplan.console import Console
from reports import numbers, verdict
from reports.alternatives import miss_sentences
from reports.answers import plan_details
from reports.answers.plan import plan_page
from reports.answers.plan_details import deployment, what_runs
from reports.command_lines import again_command
from reports.deploy.files import deployable
from reports.limits import relax_sentence, relaxed_settings, tightest_limits, used_words, violated
from reports.whole_files import SUMS
from tests.deploy_cases import plan_of
from tests.engine_cases import engines
from tests.report_cases import load, text_of, with_command, with_sensitivity


@pytest.fixture
def plan() -> Plan:
    return load("disaggregated")


def test_proof(plan: Plan) -> None:
    dearer = "By formula a fleet for $48.34/h meets every SLO; the simulation confirmed none below this price."
    assert verdict.proof_sentence(plan) == dearer
    floored = plan.model_copy(update={"floor_usd_per_hour": 30.0})
    least = "No fleet in bf16 can cost less than $30.00/h."
    assert verdict.proof_sentence(floored) == f"{dearer} {least}"
    exact = floored.model_copy(update={"gap": 0.0, "status": Status.OPTIMAL})
    found = "Cheapest fleet found: no fleet of one pool, or of a prefill and a decode pool, is cheaper."
    assert verdict.proof_sentence(exact) == f"{found} {least}"
    assert verdict.search_outcome(exact) == "cheapest found"
    cheaper = floored.model_copy(update={"gap": 0.388, "bound_usd_per_hour": 30.0})
    assert verdict.proof_sentence(cheaper) == least
    assert verdict.search_outcome(cheaper) == "a cheaper fleet may exist"
    whole = {"gap": 0.0, "status": Status.OPTIMAL, "floor_usd_per_hour": 49.08, "bound_usd_per_hour": 49.08}
    proved = plan.model_copy(update=whole)
    assert verdict.proof_sentence(proved) == ("Cheapest fleet possible: no fleet in bf16 can cost less than $49.08/h.")
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


def test_a_problem_planned_again_keeps_its_target_and_what_is_not_said_anew(plan: Plan) -> None:
    begin = "pdplan optimize my.yaml --target llm-d --set slo.ttft=1s"
    first = with_command(plan, f"{begin} --set constraints.headroom.replicas=0 --force -q -o plan")
    more = "--set constraints.headroom.replicas=1 -o spares"
    assert again_command(first, more) == f"{begin} {more}"
    assert again_command(first, "--target vllm").startswith("pdplan optimize my.yaml --set slo.ttft=1s --set")


def test_no_fleet_says_what_is_in_the_way_and_what_to_relax() -> None:
    plan = load("infeasible")
    assert verdict.headlines(plan) == [
        "No fleet in the search space meets the SLO: the budget and the GPU inventory of H200-SXM are in the way."
    ]
    assert [relax_sentence(item) for item in violated(plan)] == [
        "Relax the budget to $49.08/h (+63.6 %).",
        "Relax the GPU inventory of H200-SXM to 6 GPUs (+50 %).",
    ]
    (miss,) = miss_sentences(plan)
    assert miss.startswith("Cheapest fleet without these limits: ")
    assert miss.endswith(" for $49.08/h; it would meet the SLO (96.5 % of requests, by formula).")
    slow = plan.binding[0].model_copy(update={"constraint": "ttft", "where": "default", "unit": "s", "used": 0.06})
    tight = plan.model_copy(update={"binding": [slow.model_copy(update={"limit": 0.02})]})
    assert miss_sentences(tight)[0].startswith("Cheapest fleet with this limit relaxed as below: ")
    assert relaxed_settings(tight) == {"slo.ttft": "60ms"}
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


# --- the first screen of a view: how sure the answer is, and what disaggregation saves

PLAN = load("disaggregated")
ONE, NINE = (engines(count, "H200", 1, "colocated") for count in (1, 9))


def having(plan: Plan = PLAN, **changes: object) -> Plan:
    return plan.model_copy(update=changes)


def with_bars(low: float, high: float | None) -> Plan:
    """The plan whose first class has this attainment at the slow end, where it has a TTFT or is overloaded."""
    span = Range(low=0.1, high=high)
    bars = ErrorBars(ttft_s=span, tpot_s=span, attainment=Range(low=low, high=1.0))
    return having(classes=[PLAN.classes[0].model_copy(update={"error_bars": bars}), *PLAN.classes[1:]])


def alternative(kind: str, label: str, pools: list[EnginePool], cost: float | None) -> Alternative:
    status = Status.FEASIBLE if cost is not None else Status.INFEASIBLE
    return PLAN.alternatives[0].model_copy(
        update={
            "kind": kind,
            "label": label,
            "pools": pools,
            "cost_usd_per_hour": cost,
            "status": status,
            "why_not": "it takes two pools",
            "simulated": True,
        }
    )


def test_how_sure_it_is_stands_on_the_first_screen() -> None:
    slow = "If these GPUs are as slow as the worst 5 % of our predictions"
    lost = with_bars(0.0, None)
    missed = f"{slow}, this fleet misses an SLO by formula: 0 % of chat (95 % asked) meet it"
    assert verdict.risk_sentence(lost) == f"Risk: {missed}; --confidence 0.9 plans for that."
    assert verdict.risk_sentence(having(lost, confidence=0.9)) == (
        "Figures are for GPUs as slow as the worst 5 % of our predictions (confidence: 0.9)."
    )
    assert verdict.risk_sentence(having(lost, confidence=-0.5)) == (
        "Figures are for GPUs as fast as the best 25 % of our predictions (confidence: -0.5)."
    )
    assert verdict.risk_sentence(with_bars(0.99, 0.2)) == ""  # of the other class nothing is known
    alone = having(with_bars(0.99, 0.2), classes=with_bars(0.99, 0.2).classes[:1])
    assert verdict.risk_sentence(alone) == f"Risk: {slow}, this fleet still meets the SLO, by formula."
    assert verdict.risk_sentence(PLAN) == ""
    assert "<b>Risk:</b> If these GPUs" in plan_page(lost)


def test_the_answer_says_what_disaggregation_saves() -> None:
    colocated = [PLAN.alternatives[0], alternative("colocated_only", "colocated only", [NINE], 12_021.875)]
    near = having(cost_usd_per_hour=11_421.875, alternatives=colocated)
    saved = "Disaggregation saves $600.00/h (5 %) against the cheapest colocated fleet found."
    assert verdict.disaggregation_sentence(near) == saved
    unproven = having(near, alternatives=[colocated[0], colocated[1].model_copy(update={"simulated": False})])
    assert verdict.disaggregation_sentence(unproven) == saved.replace("found.", "found by formula.")
    same = having(near, cost_usd_per_hour=12_021.9)
    assert verdict.disaggregation_sentence(same) == "The cheapest colocated fleet found costs the same."
    lost = having(alternatives=[alternative("colocated_only", "colocated only", [], None)])
    assert verdict.disaggregation_sentence(lost) == "No colocated fleet is possible: it takes two pools."
    apart = alternative("disaggregated_only", "disaggregated only", [ONE, NINE], 60.0)
    together = having(load("colocated"), cost_usd_per_hour=50.0, alternatives=[apart])
    dearer = "Disaggregation does not pay: the cheapest disaggregated fleet found costs $10.00/h more (+20 %)."
    assert verdict.disaggregation_sentence(together) == dearer
    assert verdict.disaggregation_sentence(having(alternatives=[])) == ""


# --- deployment files -----------------------------------------------------------------------------------------------


def test_the_page_names_the_files_and_the_command_that_writes_them(tmp_path: Path) -> None:
    plan = with_command(plan_of(), "pdplan optimize w.yaml -o 'out/a b' --deploy 'out/to run'")
    files, command = deployment(plan, what_runs(plan))
    assert command == "pdplan deploy 'out/a b/plan.json' -o deploy"
    written = {path.relative_to(tmp_path).as_posix() for path in deploy(plan, tmp_path)}
    assert set(files) == written - {SUMS}
    assert "README.md" in plan_page(plan)
    assert what_runs(load("infeasible")) is None
    assert deployment(with_command(load("infeasible"), "pdplan optimize w.yaml"), None)[0] == ()


def test_what_runs_a_plan_is_worked_out_once_for_all_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(plan_details, "deployable", lambda plan: looks.append(plan) or deployable(plan))
    for verbose in (False, True):
        show_plan(Console(verbose=verbose, quiet=True), plan_of(), tmp_path, as_json=False, force=True)
        assert len(looks) == 1
        looks.clear()


# --- one word for one thing -----------------------------------------------------------------------------------------


def test_of_several_classes_none_is_tightest_where_none_misses() -> None:
    classes = [item.model_copy(update={"attainment": 1.0}) for item in PLAN.classes]
    met = verdict.slo_result_sentence(having(classes=classes))
    assert met == "Meets every SLO: 100 % of requests of every class, by formula, not simulated."
    assert "is tightest" in verdict.slo_result_sentence(having(classes=[classes[0], PLAN.classes[1]]))


def test_the_load_of_a_pool_is_what_it_uses_of_its_limit() -> None:
    first = tightest_limits(PLAN)[0]
    assert used_words(first) == f"{numbers.percent(1.0 - first.slack)}"
    assert used_words(first.model_copy(update={"limit": 0.0})) == "–"
    text = text_of(PLAN, brief=True)
    assert "load\n" in text
    assert "slack" not in text


def test_a_plan_without_a_fleet_says_of_its_nearest_miss_alone_how_that_is_known() -> None:
    plan = load("infeasible")
    rows = [row.model_copy(update={"simulated": True}) for row in plan.alternatives]
    text = " ".join(text_of(plan.model_copy(update={"alternatives": rows})).split())
    assert "it would meet the SLO (96.5 % of requests, in simulation)." in text
    assert "simulated" not in text
    assert "Latencies" not in text


def test_the_sensitivity_says_what_its_costs_are_of() -> None:
    known = with_sensitivity(PLAN).sensitivity
    assert known is not None
    own = known.usd_per_hour
    text = " ".join(text_of(having(cost_usd_per_hour=own, sensitivity=known)).split())
    assert f"Costs are of the cheapest fleet by formula, now the recommended one: ${own:.2f}/h." in text
    text = " ".join(text_of(having(cost_usd_per_hour=own + 9.0, sensitivity=known)).split())
    assert f"by formula, now ${own:.2f}/h. The recommended fleet costs ${own + 9.0:.2f}/h." in text


def test_the_prefix_cache_says_what_the_tier_adds() -> None:
    inputs = dict(PLAN.provenance.inputs)
    inputs["workload"] = {**inputs["workload"], "sessions": {}}
    inputs["kv_cache_tier"] = {"capacity_per_gpu": 500.0 * 2**30, "bandwidth": 50e9, "shared": False}
    source = PLAN.provenance.model_copy(update={"inputs": inputs})
    cache = PrefixCache(at_best=0.807, sustained=0.75, read=0.549, keeps_s=744.0)
    plan = having(provenance=source, prefix_cache=cache, simulation=None)
    size = "KV cache tier: 500 GiB of host memory per GPU; no price is counted."
    assert verdict.prefix_sentence(plan) == (
        "Prefix cache: 75 % of the input tokens are not computed again: 20.1 % are found in GPU memory and 54.9 % in "
        f"the KV cache tier; the traffic allows 80.7 %. The tier keeps unused prefixes for 12.4 min. {size}"
    )
    unread = plan.model_copy(update={"prefix_cache": cache.model_copy(update={"read": 0.0})})
    assert verdict.prefix_sentence(unread).endswith(f" The KV cache tier adds nothing here. {size}")
