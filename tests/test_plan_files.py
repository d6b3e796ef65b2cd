"""plan.json read back: what no plan says is refused, what is no plan is not read whole, and what is read is shown."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from optimizer.plans.reading import parse_plan
from optimizer.plans.records import engine_counts
from pdplan.files import LARGEST_PLAN, read_plan
from reports.answers.plan import plan_page as render_html
from reports.json_text import plan_json
from reports.whole_files import is_plan
from tests.report_cases import text_of as render_text
from tests.running import within

PLANS = Path(__file__).parent / "plans"
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
        assert render_text(plan, width=80, color=False)
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
    told = render_text(plan, width=100, color=False)
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
