"""plan.json read back: what no plan says is refused, what is no plan is not read whole, and what is read is shown."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pdplan
from costmodel.accelerator import PriceBasis
from costmodel.errors import InputError
from costmodel.words import dollars
from optimizer.fleets.build_plan import pool_binding, volume_bindings
from optimizer.fleets.error_bars import limits_by_use
from optimizer.fleets.evaluate import Headroom, pool_headroom
from optimizer.fleets.fleet import billed_gpus
from optimizer.loads.engine_table import Resource
from optimizer.plans.plan import Plan, Status
from optimizer.plans.reading import parse_plan
from optimizer.plans.records import engine_counts
from optimizer.recommend.evaluate import plan_of_alternative
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from pdplan.files import LARGEST_PLAN, read_plan
from reports.answers.plan import plan_page as as_page
from reports.answers.plan import plan_page as render_html
from reports.json_text import plan_json
from reports.verdict import volume_sentence
from reports.whole_files import is_plan
from reports.words import distinct_alternatives
from search_spaces.problem import Billing, Constraints, Goal, Objective
from tests import report_cases as markdown
from tests.optimizer_cases import accelerator, offer, problem
from tests.report_cases import PLANS, load
from tests.report_cases import text_of as as_text
from tests.running import tiny, within
from tests.small_fleets import apart, small

FLEET = json.loads((PLANS / "disaggregated.json").read_text("utf-8"))


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The plan with one value replaced."""
    plan = copy.deepcopy(FLEET)
    section: Any = plan
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    return plan


WRONG: dict[str, tuple[tuple[str | int, ...], object, str]] = {
    "negative-cost": (("cost_usd_per_hour",), -1, "cost_usd_per_hour: -1 is below 0"),
    "no-pools": (("pools",), [], "the status is feasible, but pools or cost_usd_per_hour are missing"),
    "no-cost": (("cost_usd_per_hour",), None, "pools or cost_usd_per_hour are missing"),
    "pools-of-no-fleet": (("status",), "infeasible", "the status is infeasible, but there are pools"),
    "negative-price": (("pools", 0, "usd_per_hour"), -0.5, "pools.0.usd_per_hour"),
    "no-replicas": (("pools", 1, "replicas"), 0, "pools.1.replicas"),
    "negative-latency": (("ttft_s", "p50"), -1, "ttft_s.p50: -1 is negative"),
    "null-attainment": (("attainment",), None, "attainment"),
    "attainment-above-1": (("classes", 0, "attainment"), 1.5, "classes.0.attainment"),
    "absurd": (("pools", 0, "operating_point", "ridge_point"), 1e300, "1e+300 is beyond any plan"),
    "huge-integer": (("gpus",), {"H100": 10**400}, "gpus.H100"),
    "same-id": (("pools", 1, "id"), FLEET["pools"][0]["id"], "two pools have one id"),
    "replica-less": (("pools", 0, "replicas"), 1, "pools.0.gpus: 8 is not 4, which replicas (1) of 4 GPUs each have"),
    "gpu-more": (("gpus", "H200-SXM"), 7, "gpus.H200-SXM: 7 is not 6, which its pools have"),
    "gpu-of-no-pool": (("gpus", "L4"), 1, "gpus.L4: 1 is not 0, which its pools have"),
    "stranger": (
        ("transfers", 0, "source"),
        "nobody",
        "transfers.0.source: pool 'nobody' is not known; known: d0, d1, p0",
    ),
    "lengths": (("workload", "isl"), [1.0], "workload.isl, osl and share differ in length"),
    "other-version": (
        ("schema",),
        "pdplan.plan/9",
        "schema: is 'pdplan.plan/9', not pdplan.plan/2 or pdplan.plan/1; make it again with pdplan optimize",
    ),
    "text": (("cost_usd_per_hour",), "cheap", "cost_usd_per_hour: 'cheap' is not a number"),
    "stranger-key": (("colour",), "red", "colour: is not known to this version of pdplan"),
    "half": (("pools", 0, "replicas"), 1.5, "pools.0.replicas: 1.5 is not a whole number"),
    "status": (
        ("status",),
        "fine",
        "status: 'fine' is none of 'optimal', 'feasible', 'infeasible', 'time_limit' or 'stated'",
    ),
    "list": (("classes",), {}, "classes: an object is not an array"),
    "object": (("workload",), 3, "workload: 3 is not an object"),
    "truth": (("simulated",), [], "simulated: an array is not true or false"),
    "too-much": (("attainment",), 7, "attainment: 7 is above 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_plan_says_is_refused(case: str) -> None:
    path, value, words = WRONG[case]
    text = json.dumps(changed(path, value), indent=2)
    with pytest.raises(InputError) as refusal:
        parse_plan(text.encode(), "my/plan.json")
    said = str(refusal.value)
    assert words in said
    assert "\n" not in said
    place = re.match(r"my/plan\.json:(\d+):(\d+): is not a plan of this version of pdplan: ", said)
    assert place is not None
    line, column = int(place[1]), int(place[2])
    keys, colon, _ = said[place.end() :].partition(": ")
    if colon and " " not in keys:
        assert text.splitlines()[line - 1][: column - 1].strip() == f'"{keys.rpartition(".")[2]}":'
    else:  # the whole plan is at fault
        assert text.splitlines()[line - 1][column - 1] == "{"


@pytest.mark.parametrize("name", ["RTX.6", "8.1", "7", "a: b"])
def test_a_name_with_signs_in_it_is_found_where_it_stands(name: str) -> None:
    text = json.dumps(changed(("gpus", name), 1), indent=2)
    line = next(number for number, row in enumerate(text.splitlines(), 1) if row.strip() == f'"{name}": 1')
    with pytest.raises(InputError, match=rf"plan.json:{line}:\d+: .*: gpus.{name}: 1 is not 0, which its pools have"):
        parse_plan(text.encode(), "plan.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"schema": NaN}', ":1:12: {}it is not valid JSON: NaN is not a number there"),
        (b"", ": {}it is empty"),
        (b"name: chat\n", ":1:1: {}it is not valid JSON: expecting value"),
        (b"{\n  'a': 1}", ":2:3: {}it is not valid JSON: expecting property name enclosed in double quotes"),
        (b'{"seed": 1,\n "seed": 2}', ":2:2: {}seed: stands here again; keep one of them"),
        (b"\xff\xfe\xfa", ": is UTF-16 text; save it as UTF-8"),
        (json.dumps(FLEET).encode("utf-16"), ": is UTF-16 text; save it as UTF-8"),
        (json.dumps(FLEET).encode("utf-16-be"), ": is UTF-16 text; save it as UTF-8"),
        (b'{"name":\n"\xe9"}', ":2: is not UTF-8 text (byte 0xe9 at offset 10); save it as UTF-8"),
        (gzip.compress(b"{}", mtime=0), ": is gzip-compressed; save it as UTF-8"),
        (b"[" * 200_000, ": {}it is nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", ": {}it is not valid JSON: a number has thousands of digits"),
        (b"[]", ":1:1: {}it is an array, and a plan is an object with the schema pdplan.plan/2"),
        (b'\n"chat"', ":2:1: {}it is a string, and"),
        (b"true", ":1:1: {}it is true, and"),
        (b"null", ":1:1: {}it is null, and"),
        (b"1.5", ":1:1: {}it is a number, and"),
        (b"{}", ":1:1: {}it names no schema, which for a plan is pdplan.plan/2"),
        (b'{"schema": "pdplan.comparison/1"}', ":1:12: {}schema: is 'pdplan.comparison/1', not pdplan.plan/2"),
        (
            b'{"schema": "pdplan.plan/3"}',
            ":1:12: {}schema: is 'pdplan.plan/3', not pdplan.plan/2 or pdplan.plan/1",
        ),
        (b'{"schema": "pdplan.plan/2"}', ":1:1: {}name: is missing"),
        (b'{"schema": "pdplan.plan/1"}', ":1:1: {}name: is missing"),
    ],
)
def test_what_is_no_json_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_plan(text)
    assert str(refusal.value).startswith("plan.json" + words.format("is not a plan of this version of pdplan: "))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: pdplan.workload/1\n", "{}: this is a workload, not a plan; pdplan optimize {} takes it"),
        ("name: chat\npools:\n- gpu: H100\n", "{}: this is a fleet file, not a plan; pdplan evaluate {} takes it"),
        ("name: chat\n", "{}: a plan is the plan.json that pdplan optimize -o DIR writes"),
    ],
)
def test_another_file_in_place_of_a_plan_is_told_its_command(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError) as refusal:
        read_plan(file)
    assert str(refusal.value) == said.format(file, file)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to every value, three of each list."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from leaves(item, (*path, key))


ODD = (-1, 0, None, "", 1e30, 1e308, 10**400, 10**12, [], {}, [None], {"a": None}, "x" * 999, "\u202e\x1b[31m", True)


def test_what_is_read_can_be_shown() -> None:
    chosen = random.Random(0)
    places = list(leaves(FLEET))
    shown = 0
    for _ in range(60):
        try:
            plan = parse_plan(json.dumps(changed(chosen.choice(places), chosen.choice(ODD))).encode())
        except InputError:
            continue
        shown += 1
        assert render_html(plan)
        assert as_text(plan, width=80, color=False)
        assert Plan.model_validate(json.loads(plan_json(plan)))
    assert shown > 10


def test_a_plan_is_known_by_its_beginning(tmp_path: Path) -> None:
    ours, other, deep = tmp_path / "ours", tmp_path / "other", tmp_path / "deep"
    ours.write_text('{\n "schema" : "pdplan.plan/7", and then anything')
    other.write_text('{"name": "x", "schema": "pdplan.plan/1"}')
    deep.write_text("[" * 200_000)
    assert [is_plan(path) for path in (ours, other, deep, tmp_path, tmp_path / "absent")] == [True, *[False] * 4]


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert not is_plan(tmp_path / "pipe")
        with pytest.raises(InputError, match="is not a regular file"):
            read_plan(tmp_path / "pipe")
    if Path("/dev/zero").exists():
        with pytest.raises(InputError, match="is not a regular file"):
            read_plan(Path("/dev/zero"))


def test_a_file_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as file:
        file.truncate(LARGEST_PLAN + 1)
    with pytest.raises(InputError, match="has 33,554,433 bytes, but at most 33,554,432 are read here"):
        read_plan(tmp_path / "plan.json")


# --- plans of schema pdplan.plan/1 ----------------------------------------------------------------------------------


BEFORE = PLANS / "schema-1.json"
"""Written by `pdplan optimize --front 4` of the last version of that schema."""


def earlier(*lines: object) -> bytes:
    """The plan of the earlier schema with other pools in its second alternative."""
    plan = json.loads(BEFORE.read_text("utf-8"))
    plan["alternatives"][1]["pools"] = list(lines)
    return json.dumps(plan).encode()


def test_an_earlier_plan_says_of_its_pools_what_it_said_and_nothing_more() -> None:
    plan = parse_plan(BEFORE.read_bytes())
    assert plan.schema_ == "pdplan.plan/2"
    (own,), (rival,) = plan.pools, next(row.pools for row in plan.alternatives if row.label == "only H100")
    stated = (rival.role, rival.accelerator, rival.replicas, rival.tensor_parallel, rival.gpus)
    assert stated == ("colocated", "H100", 1, 1, 1)
    assert (rival.weight_dtype, rival.kv_dtype) == ("fp8", "bf16")
    limits = (rival.max_num_seqs, rival.max_num_batched_tokens, rival.max_model_len, rival.memory_fraction)
    assert (*limits, rival.usd_per_hour) == (None,) * 5
    assert plan.simulation is not None
    assert plan.simulation.tuning is not None
    assert plan.sensitivity is not None
    (tuned,) = plan.simulation.tuning.front[0].pools
    assert (tuned.max_num_seqs, tuned.max_num_batched_tokens) == (own.max_num_seqs, own.max_num_batched_tokens)
    assert engine_counts(plan.sensitivity.pools) == engine_counts(plan.pools)
    told = as_text(plan, width=100, color=False)
    assert "1 × H100 TP1 fp8/bf16 colocated  " in told  # of the comparison, without limits
    assert "  colocated (256/2,048)" in told  # of the front
    assert Plan.model_validate_json(plan_json(plan)) == plan


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("<pool>", "alternatives.1.pools.0: '<pool>' is not a pool such as \"3 x H100 TP2 decode\""),
        ("3 x H100 decode", "'3 x H100 decode' is not a pool"),
        (7, "7 is not a pool"),
        ({}, "a mapping is not a pool"),
        ("0 x H100 TP2 decode", "alternatives.1.pools.0.replicas: 0 is below 1"),
        ("1 x H100 " + "TP1 " * 50_000 + "decode", "is not a pool"),
    ],
)
def test_what_is_no_pool_of_an_earlier_plan_is_refused(line: object, fault: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_plan(earlier(line))
    assert fault in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report"], "only H100"),
        (["compare", str(PLANS / "colocated.json")], "The plans answer different questions"),
        (["simulate", "--requests", "2000"], "Every class meets its SLO at 20 req/s."),
        (["deploy", "--target", "vllm"], "says how to start it"),
    ],
)
def test_every_command_takes_an_earlier_plan(words: list[str], said: str, tmp_path: Path) -> None:
    command, *options = words
    done = within(command, BEFORE, *options, *(["-o", tmp_path / "out"] if command == "deploy" else []))
    assert (done.returncode, said in done.stdout + done.stderr) == (0, True), done.stderr


# --- what a plan says of its fleet: GPUs that are billed and idle, and what gives out first in a pool


def test_of_whole_nodes_the_idle_gpus_are_billed_too() -> None:
    given = problem(offers=(offer("H100", billing=Billing.NODE), offer("H200")))
    assert billed_gpus(given, np.array([7, 3])) == {"H100": 8}
    assert billed_gpus(given, np.array([9, 0])) == {"H100": 16}
    assert billed_gpus(given, np.array([8, 3])) == {}


def test_where_whole_nodes_are_billed_a_plan_says_what_its_limits_count() -> None:
    nodes = (offer("H100", billing=Billing.NODE), offer("H200"))
    assert limits_by_use(problem(offers=nodes)) == []
    assert limits_by_use(problem(constraints=Constraints(max_gpus=12))) == []
    (said,) = limits_by_use(problem(offers=nodes, constraints=Constraints(max_gpus=12)))
    assert said.startswith("Whole nodes of H100 are billed: the budget pays for all of their GPUs; inventory, power")


@pytest.mark.parametrize("volume", [0.5, 1.0, 4.0])
def test_a_decode_pool_is_never_said_to_keep_prompts_waiting(volume: float) -> None:
    instance = small()
    fleet = apart(instance, 2, 2)
    assert pool_headroom(instance, fleet, 0, volume).resource is Resource.TIME
    decode = pool_headroom(instance, fleet, 1, volume)
    assert decode.resource in {Resource.SLOTS, Resource.KV_MEMORY, Resource.ATTENTION_TIME}


def test_headroom_beyond_the_time_with_prompts_says_why_it_is_there() -> None:
    """97.8 % of the time and 26 % more load: prompts that wait share steps, so the time grows by less."""
    (pool, *_) = apart(small(), 2, 2).pools
    room = Headroom(1.26, Resource.TIME)
    assert pool_binding(pool, room, 0.75).sentence.endswith("more load: prompts then wait too long for the TTFT limit.")
    told = pool_binding(pool, room, 0.978).sentence
    assert told.endswith("limit; its prompt time of 97.8 % grows by less, as prompts that wait share steps.")


def test_a_plan_says_which_prices_of_its_fleet_are_no_quotes_on_demand() -> None:
    """Of the GPUs bought alone; assumptions have those of every GPU on offer; a stated price needs no remark."""
    listed = offer("H100", quote=accelerator("H100").price)
    quote = accelerator("MI325X").price_on(PriceBasis.RESERVED)
    assert quote is not None
    reserved = replace(offer("MI325X", quote=quote), usd_per_hour=quote.usd_per_hour)
    said = "The price of MI325X ($1.80/h) is a 3-year reserved quote."
    plan = optimize(problem(offers=(listed, reserved)), level=Level.QUICK)
    assert set(plan.gpus) == {"MI325X"}
    assert plan.price_remarks == [said]
    assert plan.warnings == [
        "No accelerator of the generation of MI325X was measured: its error bars are wide.",
    ]
    assert said in plan.provenance.assumptions
    other = optimize(problem(offers=(listed, replace(reserved, usd_per_hour=80.0))), level=Level.QUICK)
    assert set(other.gpus) == {"H100"}
    assert other.price_remarks == other.warnings == []
    stated = optimize(problem(offers=(replace(reserved, quote=None),)), level=Level.QUICK)
    assert stated.price_remarks == []


# --- fleets of the comparison as plans of their own: `--alternative N`


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    folder = tmp_path_factory.mktemp("alternatives")
    workload = tiny(folder, accelerators=["H100", "L40S"], workload=LOAD, target="none")
    done = within("optimize", workload, "--effort", "quick", "-o", folder / "plan")
    assert done.returncode == 0, done.stderr
    file = folder / "plan" / "plan.json"
    return file, parse_plan(file.read_bytes())


LOAD = {
    "request_rate": "30/s",
    "max_tokens": 8192,
    "lengths": {"histogram": [{"isl": 800, "osl": 150, "share": 0.8}, {"isl": 3000, "osl": 80, "share": 0.2}]},
}


def test_an_alternative_has_the_cost_and_the_share_of_its_row(written: tuple[Path, Plan]) -> None:
    _, plan = written
    rows = [row for row in distinct_alternatives(plan)[1:] if row.pools]
    assert len(rows) >= 2
    for row in rows:
        other = plan_of_alternative(plan, row)
        assert other.status is Status.STATED
        assert other.cost_usd_per_hour == pytest.approx(row.cost_usd_per_hour)
        assert other.attainment == pytest.approx(row.attainment, abs=1e-9)
        assert sum(pool.gpus for pool in row.pools) == sum(other.gpus.values())


def test_report_compare_simulate_and_deploy_take_it(written: tuple[Path, Plan], tmp_path: Path) -> None:
    file, plan = written
    number, row = next((n, row) for n, row in enumerate(distinct_alternatives(plan), 1) if n > 1 and row.pools)
    shown = within("report", file, "--alternative", number)
    assert row.cost_usd_per_hour is not None
    assert f"for {dollars(row.cost_usd_per_hour)}/h" in shown.stdout
    assert shown.stdout.rstrip().endswith(f"Next: pdplan simulate {file} --alternative {number}")
    compared = json.loads(within("compare", file, "--alternative", number, "--format", "json").stdout)
    assert compared
    served = json.loads(within("simulate", file, "--alternative", number, "--requests", 500, "--json").stdout)
    assert served["requests"] == 500
    deployed = within("deploy", file, "--alternative", number, "--target", "vllm", "-o", tmp_path / "deploy")
    assert deployed.returncode == 0, deployed.stderr


def test_a_number_that_names_no_fleet_is_one_sentence(written: tuple[Path, Plan]) -> None:
    file, plan = written
    count = len(distinct_alternatives(plan))
    beyond = within("report", file, "--alternative", count + 1)
    assert (beyond.returncode, beyond.stdout) == (2, "")
    assert f"--alternative {count + 1}: the plan has {count} fleets;" in beyond.stderr
    assert within("compare", file).returncode == 2
    empty = next(row for row in parse_plan((PLANS / "disaggregated.json").read_bytes()).alternatives if not row.pools)
    with pytest.raises(pdplan.InputError, match="has no fleet"):
        plan_of_alternative(plan, empty)


# --- a plan for goodput per dollar says which loads it was sought among, and which one its ratio is for


def ratio(**objective: object) -> Plan:
    """A plan of 10 $/h for 8 req/s that serves 31.4 req/s."""
    plan = load("colocated")
    source = plan.provenance
    inputs = source.inputs | {"objective": {"goal": "max_goodput_per_dollar", **objective}}
    changes = {"demand_rps": 8.0, "goodput_rps": 31.4, "cost_usd_per_hour": 10.0, "objective": "max_goodput_per_dollar"}
    return plan.model_copy(update=changes | {"provenance": source.model_copy(update={"inputs": inputs})})


def test_the_hidden_cap_and_the_load_of_the_ratio_stand_in_every_view() -> None:
    plan = ratio(min_volume=1.0, max_volume=4.0)
    said = volume_sentence(plan)
    assert said == (
        "Fleets were to serve 8 req/s to 32 req/s: max_volume is 4 (four times min_volume, as none is stated). The "
        "ratio is for 31.4 req/s; at the demand of 8 req/s the fleet serves 2,880 requests per $."
    )
    for text in (as_text(plan), markdown.markdown_of(plan), as_page(plan)):
        assert said in " ".join(text.split())


@pytest.mark.parametrize("plan", [load("colocated"), ratio(), ratio(min_volume="1", max_volume=None)])
def test_other_objectives_and_plans_that_do_not_say_have_no_such_sentence(plan: Plan) -> None:
    assert volume_sentence(plan) == ""


def test_the_cap_is_a_limit_of_the_plan() -> None:
    asked = problem()
    demand = asked.workload.request_rate
    assert volume_bindings(asked, 1.0) == []
    (row,) = volume_bindings(replace(asked, objective=Objective(Goal.MAX_GOODPUT_PER_DOLLAR, 1.0, 4.0)), 3.92)
    assert (row.constraint, row.where, row.unit) == ("max_volume", "fleet", "req/s")
    assert row.slack == pytest.approx(0.02)
    assert row.used == pytest.approx(3.92 * demand)
    assert row.sentence.endswith("req/s at most: max_volume is 4.")
