"""Sentences say what the plan holds: what a view says anew of a changed plan, as golden text."""

from __future__ import annotations

import math
import re
from typing import Any

from markupsafe import escape

from optimizer.plans.plan import Plan, Status
from optimizer.plans.records import CheaperFleets, EnginePool, ErrorBars, PrefixCache, Range
from reports.answers.plan import plan_page
from reports.answers.plan_details import deploy_command, sensitivity_section, what_runs
from reports.question import again_command
from reports.verdict import losses_sentence
from tests.deploy_cases import plan_of, with_inputs
from tests.engine_cases import engines
from tests.golden_files import assert_golden
from tests.report_cases import judged, load, simulated, text_of, with_command, with_sensitivity

BASE, TOGETHER, NONE = load("disaggregated"), load("colocated"), load("infeasible")
BASES = (BASE, TOGETHER, NONE)
NINE = engines(9, "H200", 1, "colocated")
APART = [engines(1, "H200", 1, "colocated"), NINE]


def having(plan: Plan = BASE, **changes: Any) -> Plan:
    return plan.model_copy(update=changes)


def with_bars(low: float, high: float | None, classes: int = 2, **changes: Any) -> Plan:
    """The plan whose first class has this attainment at the slow end, where it has a TTFT or is overloaded."""
    span = Range(low=0.1, high=high)
    bars = ErrorBars(ttft_s=span, tpot_s=span, attainment=Range(low=low, high=1.0))
    first, *rest = BASE.classes
    return having(classes=[having(first, error_bars=bars), *rest][:classes], **changes)


def against(kind: str, pools: list[EnginePool], cost: float | None, plan: Plan = BASE, **changes: Any) -> Plan:
    """The plan beside a fleet without the hand-over, or with it."""
    status = Status.INFEASIBLE if cost is None else Status.FEASIBLE
    fields = {"kind": kind, "label": kind.replace("_", " "), "pools": pools, "cost_usd_per_hour": cost} | changes
    first = having(BASE.alternatives[0], status=status, simulated=True, why_not="it takes two pools")
    return having(plan, alternatives=[plan.alternatives[0], having(first, **fields)])


def tier(read: float) -> Plan:
    """The plan of sessions with a KV cache tier, of which this share of the tokens is read."""
    sections = {"workload": BASE.provenance.inputs["workload"] | {"sessions": {}}}
    sections["kv_cache_tier"] = {"capacity_per_gpu": 500.0 * 2**30, "bandwidth": 50e9, "shared": False}
    cache = PrefixCache(at_best=0.807, sustained=0.75, read=read, keeps_s=744.0)
    return having(with_inputs(BASE, **sections), prefix_cache=cache, simulation=None)


def session(target: str | None) -> Plan:
    """The plan of sessions on colocated replicas, by formula, for a target; None: any."""
    load = BASE.provenance.inputs["workload"] | {"sessions": {}}
    plan = with_inputs(TOGETHER, workload=load, constraints={"balancing": "least-tokens"}, target=target)
    cache = PrefixCache(at_best=0.9, sustained=0.8, read=0.0, keeps_s=60.0)
    return having(plan, pools=[having(TOGETHER.pools[0], replicas=2)], prefix_cache=cache, simulation=None)


def sensitive(more: float) -> Plan:
    """The plan that costs so much more than the fleet whose sensitivity is told."""
    plan = with_sensitivity(BASE)
    return having(plan, cost_usd_per_hour=plan.sensitivity.usd_per_hour + more)


def cheaper(count: int, simulated: int) -> Plan:
    return having(TOGETHER, cheaper_fleets=CheaperFleets(count=count, simulated=simulated), floor_usd_per_hour=1.0)


def crowded(plan: Plan) -> Plan:
    """The plan of which one pool gets more requests than it can serve, with slots that fill without end."""
    point = having(plan.pools[0].operating_point, utilization={"time": 1.0, "slots": math.inf})
    return having(plan, pools=[having(plan.pools[0], operating_point=point), *plan.pools[1:]])


def by_node(plan: Plan) -> Plan:
    """The plan without a fleet for its inventory of GPUs of which whole nodes are billed."""
    short = having(plan.binding[0], constraint="inventory", where="H200", unit="GPU", used=12.0, limit=8.0)
    return having(with_inputs(plan, accelerators=[{"name": "H200", "billing": "node"}]), binding=[short])


FLOORED = having(floor_usd_per_hour=30.0)
NEAR = against("colocated_only", [NINE], 12_021.875)
MEETS = simulated(BASE).simulation
SLOW = having(NONE.binding[0], constraint="ttft", where="default", unit="s", used=0.06, limit=0.02)
STATES: dict[str, Plan] = {
    "a floor": FLOORED,
    "a floor of fleets with spares": with_inputs(FLOORED, constraints={"headroom": {"replicas": 1}}),
    "a floor, and no cheaper fleet of one or two pools": having(FLOORED, gap=0.0, status=Status.OPTIMAL),
    "a floor far below": having(FLOORED, gap=0.388, bound_usd_per_hour=30.0),
    "at the floor": having(gap=0.0, status=Status.OPTIMAL, floor_usd_per_hour=49.08, bound_usd_per_hour=49.08),
    "no bound": having(gap=None),
    "below what formulas predict": having(gap=None, floor_usd_per_hour=60.0, bound_usd_per_hour=None),
    "most goodput": having(objective="max_goodput", gap=0.0),
    "most goodput per dollar": having(objective="max_goodput_per_dollar", gap=0.0),
    "perhaps not most goodput": having(objective="max_goodput", gap=0.2),
    "goodput without a bound": having(objective="max_goodput", gap=None),
    "one cheaper fleet": cheaper(1, 0),
    "two cheaper fleets, simulated": cheaper(2, 2),
    "many cheaper fleets": cheaper(9, 0),
    "many cheaper fleets, one simulated": cheaper(1234, 1),
    "a fleet for slow GPUs": against("safe", [NINE], 60.0, label="for slow GPUs"),
    "a runner-up": against("other_engines", [NINE], 60.0, label="without H100-SXM TP4 prefill"),
    "slow GPUs miss": with_bars(0.0, None),
    "planned for slow GPUs": with_bars(0.0, None, confidence=0.9),
    "planned for quick GPUs": with_bars(0.0, None, confidence=-0.5),
    "of one class nothing is known": with_bars(0.99, 0.2),
    "slow GPUs meet": with_bars(0.99, 0.2, 1),
    "disaggregation saves": having(NEAR, cost_usd_per_hour=11_421.875),
    "disaggregation saves by formula": against("colocated_only", [NINE], 60.0, simulated=False),
    "disaggregation saves nothing": having(NEAR, cost_usd_per_hour=12_021.9),
    "nothing colocated": against("colocated_only", [], None),
    "disaggregation costs": against("disaggregated_only", APART, 60.0, having(TOGETHER, cost_usd_per_hour=50.0)),
    "no alternative": having(alternatives=[]),
    "all requests of all classes": having(classes=[having(item, attainment=1.0) for item in BASE.classes]),
    "requests that never end": having(simulation=having(MEETS, unfinished=0.003, rejected=0.001)),
    "the fleet of the sensitivity": sensitive(0.0),
    "dearer than the fleet of the sensitivity": sensitive(9.0),
    "a KV cache tier": tier(0.549),
    "a KV cache tier of no use": tier(0.0),
    "a KV cache of an overloaded fleet": crowded(tier(0.0)),
    "sessions that need a router by prefix": session(None),
    "sessions planned for the router of the target": session("vllm"),
    "no fleet, for an inventory of whole nodes": by_node(NONE),
    "no fleet, for a latency": having(NONE, binding=[SLOW]),
    "a relaxed limit that an option set": with_command(NONE, "pdplan optimize a.yaml --set constraints.budget=$9/h"),
    "no fleet, for the budget alone": having(NONE, binding=NONE.binding[:1]),
    "no fleet, for either of two limits": having(NONE, alternatives=NONE.alternatives * 2),
    "no fleet found": having(NONE, status=Status.TIME_LIMIT),
    "no fleet, and nothing in the way": having(NONE, binding=[], alternatives=[]),
    "a nearest miss, simulated": having(NONE, alternatives=[having(row, simulated=True) for row in NONE.alternatives]),
}


def lines(plan: Plan) -> dict[str, None]:
    """Sentences of the whole answer, without its tables."""
    text = (line.strip() for line in text_of(plan, 1000).splitlines())
    return dict.fromkeys(line for line in text if not re.search(r"\S  +\S|^-*$", line))


def test_what_is_said_anew() -> None:
    text = ""
    for name, plan in STATES.items():
        base = lines(next(one for one in BASES if one.name == plan.name))
        text += "\n".join([f"### {name}", *(line for line in lines(plan) if line not in base), "", ""])
    assert_golden("sentences.txt", text)


def test_a_fleet_that_meets_a_long_limit_while_its_queue_grows_is_no_spare() -> None:
    row = judged(BASE, "p0: one replica fewer", 40.0, 4.0)
    row = row.model_copy(update={"attainment": dict.fromkeys(row.attainment, 1.0)})
    words = losses_sentence([row], BASE)
    assert "100 % of chat requests meet the SLO so far, but the queue grows without end; pdplan" in words


def test_a_problem_planned_again_keeps_its_options_and_writes_elsewhere() -> None:
    begin = "pdplan optimize my.yaml --target llm-d --set slo.ttft=1s"
    first = with_command(BASE, f"{begin} --set constraints.headroom.replicas=0 --force -q -o plan")
    more = "--set constraints.headroom.replicas=1 -o spares"
    assert again_command(first, more) == f"{begin} --set constraints.headroom.replicas=0 {more}"


def test_a_plan_without_moved_levers_says_what_moves_them() -> None:
    assert "pdplan whatif moves" in " ".join(sensitivity_section(BASE).sentences)


def test_the_page_has_the_command_that_writes_the_files() -> None:
    plan = with_command(plan_of(), "pdplan optimize w.yaml -o 'out/a b' --deploy 'out/to run'")
    command = deploy_command(plan, what_runs(plan))
    assert command == "pdplan deploy 'out/a b/plan.json' -o deploy"
    assert escape(command) in plan_page(plan)
    assert what_runs(NONE) is None
    stated = plan.model_copy(update={"status": Status.STATED})
    for asked, file in (("fleet.yaml -o out", "fleet.yaml"), ("w.yaml --fleet fleet.yaml", ""), ("--json f.yaml", "")):
        command = deploy_command(with_command(stated, f"pdplan evaluate {asked}"), what_runs(stated))
        assert command == (f"pdplan deploy {file} -o deploy" if file else "")
