"""workload.yaml -> Problem: golden text of every refusal, YAML's traps, the canonical echo, the shipped examples."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.metric import limits_of
from optimizer.fleets.error_bars import hardware_remarks, price_remarks
from search_spaces import bounds
from search_spaces.files import shipped_text
from search_spaces.loader import load_problem, problem_of
from search_spaces.problem import Billing, Slo
from search_spaces.quantities import Kind, format_quantity, parse
from search_spaces.schema import json_schema
from search_spaces.sources import parse_source
from tests.bad_input_cases import LONGEST
from tests.workload_texts import SOUND, load, refusal

GOLDEN = Path(__file__).parent / "golden" / "workload_faults.txt"
INIT = shipped_text("search_spaces", "init_template.yaml")


def golden_cases() -> list[tuple[str, str, str]]:
    blocks = GOLDEN.read_text(encoding="utf-8").split("### ")[1:]
    return [(*json.loads(head), text.strip("\n")) for head, _, text in (block.partition("\n") for block in blocks)]


@pytest.mark.parametrize(("old", "new", "message"), golden_cases(), ids=lambda value: str(value)[:40])
def test_a_fault_is_told_in_golden_words(folder: Path, old: str, new: str, message: str) -> None:
    assert SOUND.count(old) >= 1
    assert refusal(SOUND.replace(old, new, 1)) == message


def test_no_message_is_the_validation_librarys() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= LONGEST
    assert not any(word in text for word in ("Input should", "pydantic", "validation error", "Traceback", "http"))


def test_all_faults_are_told_at_once_in_the_order_of_the_file(folder: Path) -> None:
    text = SOUND.replace("10/s", "-1").replace("H100", "B20O").replace("2s", "soon").replace("bf16", "bf15")
    text = text.replace("objective: min_cost", "search: {tensor_parallel: 3}\nsede: 1")
    heads = [line.split(": ")[0:2] for line in refusal(text).splitlines() if line.startswith("w.yaml")]
    places = "model.weight_dtype workload.request_rate slo.ttft accelerators.0 sede"
    assert [place for _, place in heads] == places.split()
    assert "search.tensor_parallel: has 3" in refusal(text.replace("bf15", "bf16"))


def test_a_loaded_problem_is_in_si_units(folder: Path) -> None:
    problem = load(
        SOUND.replace(
            "{name: H200, inventory: 64}",
            "{name: H200, inventory: 64, price: $3.50/h, billing: node, node_size: 4, "
            "scale_up: {bandwidth: 300GB/s}, scale_out: {bandwidth: 400Gb/s, latency: 5us}}",
        )
        + "constraints: {budget: $100/h, power: 50kW, max_gpus: 64, max_pools: 4, headroom: {replicas: 1}}\n"
    )
    h100, h200 = problem.offers
    assert (h100.accelerator.name, h100.inventory, h100.billing) == ("H100", None, Billing.GPU)
    assert h100.usd_per_hour == h100.accelerator.price.usd_per_hour
    assert (h200.usd_per_hour, h200.inventory, h200.billing) == (3.5, 64, Billing.NODE)
    assert (h200.accelerator.node_size, h200.accelerator.scale_up_size) == (4, 4)
    assert h200.accelerator.scale_up.bandwidth == 300e9
    assert (h200.accelerator.scale_out.bandwidth, h200.accelerator.scale_out.latency) == (50e9, 5e-6)
    limits = {"budget": 100.0, "power": 5e4, "max_gpus": 64, "max_pools": 4, "spare_replicas": 1}
    assert {name: getattr(problem.constraints, name) for name in limits} == limits
    assert problem.slos == (Slo("default", limits_of(ttft=2.0, tpot=0.05), 0.9),)
    assert (problem.workload.request_rate, problem.workload.burstiness, problem.workload.max_tokens) == (10, 1, 3300)
    assert problem.workload.mean_isl == pytest.approx(0.4 * 500 + 0.6 * 3000)
    assert problem.space.roles == (Role.PREFILL, Role.DECODE, Role.COLOCATED)


TRACE = "arrival,isl,osl\n" + "".join(f"{second / 2},{500 + second % 7},{100 + second % 3}\n" for second in range(200))
ROWS = """    histogram:
      - {isl: 500, osl: 100, share: 0.4}
      - {isl: 3000, osl: 300, share: 0.6}
"""


def test_a_trace_gives_what_is_not_stated(folder: Path) -> None:
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    text = SOUND.replace(ROWS, "    trace: {path: t.csv, buckets: 8}\n")
    measured = load(text.replace("  request_rate: 10/s\n", "")).workload
    assert measured.request_rate == pytest.approx(2.0, rel=0.02)
    assert measured.burstiness == pytest.approx(0.0, abs=0.01)
    assert measured.mean_isl == pytest.approx(500 + sum(second % 7 for second in range(200)) / 200)
    assert measured.max_tokens == 608
    assert len(measured.share) <= 8
    stated = load(text.replace("10/s", "10/s\n  burstiness: 2\n  prefix_hit_share: 0.5\n  max_tokens: 900")).workload
    assert (stated.request_rate, stated.burstiness, stated.prefix_hit_share, stated.max_tokens) == (10, 2, 0.5, 900)


def test_overrides_replace_values_and_are_named_in_faults(folder: Path) -> None:
    problem = load(SOUND, {"workload.request_rate": "20/s", "accelerators": "[H100]", "slo.tpot": 0.1, "seed": "7"})
    assert problem.workload.request_rate == 20
    assert [offer.accelerator.name for offer in problem.offers] == ["H100"]
    assert (problem.slos[0].tpot, problem.seed) == (0.1, 7)
    for item in ("1", "h200"):
        assert load(SOUND, {f"accelerators.{item}.inventory": "8"}).offers[1].inventory == 8
    assert load(SOUND, {"constraints.max_gpus": "8"}).constraints.max_gpus == 8
    assert refusal(SOUND, {"workload.request_rate": "-1"}) == (
        "w.yaml (overridden by workload.request_rate=-1): workload.request_rate: -1 is out of range; "
        "must be at least 1e-06/s and at most 1000000/s"
    )
    assert refusal(SOUND, {"seed.x": "8"}) == "w.yaml (overridden by seed.x=8): seed: a mapping is not a number"
    assert refusal(SOUND, {"accelerators.5.inventory": "8"}) == (
        "override 'accelerators.5.inventory': 5 is not one of the 2 items (0 is the first)"
    )
    assert load(SOUND, {"accelerators.H100.price": "2.5"}).offers[0].usd_per_hour == 2.5
    assert refusal(SOUND, {"accelerators.H20O.inventory": "8"}) == (
        "override 'accelerators.H20O.inventory': 'H20O' is not one of H100, H200; did you mean 'H200'?"
    )
    assert refusal(SOUND, {"name.x": "8"}) == "override 'name.x': 'chat' stands above 'x'; override the whole of it"


def test_inputs_are_json_deterministic_and_state_the_same_problem(folder: Path) -> None:
    problem = load(SOUND)
    assert json.dumps(problem.inputs) == json.dumps(load(SOUND).inputs)
    again = load(json.dumps(problem.inputs))
    assert {**again.inputs, "workload": None} == {**problem.inputs, "workload": None}
    assert again.inputs["workload"]["lengths"]["histogram"] == problem.inputs["workload"]["lengths"]["histogram"]
    for name in ("slos", "offers", "space", "constraints"):
        assert getattr(again, name) == getattr(problem, name)


def test_the_init_example_loads_and_its_hints_are_true(folder: Path) -> None:
    assert load(INIT).name == "first-plan"
    uncommented = INIT.replace("    # price: $1.80/h ", "    price: $1.80/h ").replace("  # budget:", "  budget:")
    assert load(uncommented).offers[2].usd_per_hour == 1.8


def test_a_users_catalog_and_config_are_relative_to_the_file(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "my.yaml").write_text("accelerators: {Mine: {like: H100, memory_gib: 100}}\n", encoding="utf-8")
    text = SOUND.replace("[H100, {name: H200, inventory: 64}]", "[Mine]") + "catalog: my.yaml\n"
    (folder / "sub" / "w.yaml").write_text(text, encoding="utf-8")
    assert load_problem(Path("sub/w.yaml")).offers[0].accelerator.memory == 100 * 2**30


def test_a_users_quotes_are_prices(folder: Path) -> None:
    """By any spelling; of several providers the median; a GPU that the file does not name keeps the catalog's price."""
    rows = "h100_sxm,$2.10,A\nH100,2.5,B\nNVIDIA-H100-80GB-HBM3,3,C\n"
    (folder / "quotes.csv").write_text(f"accelerator,usd_per_hour,provider\n{rows}", encoding="utf-8")
    problem = load(SOUND, {"prices": "quotes.csv"})
    own, listed = problem.offers
    assert (own.usd_per_hour, listed.usd_per_hour) == (2.5, 4.19)
    assert price_remarks(problem) == ["H100 at your price, H200 at the catalog's."]
    assert (own.quote.origin, own.quote.remark("H100")) == ("stated", "")
    assert own.quote.source == "on-demand list price: A, B, C"
    again = problem_of(problem.inputs, "plan", Path())
    assert [offer.usd_per_hour for offer in again.offers] == [2.5, 4.19]
    assert "w.yaml:12:9: prices: spot would replace your own quotes in 'quotes.csv' with the" in refusal(
        f"{SOUND}prices: quotes.csv\n", {"prices": "spot"}
    )
    (folder / "quotes.csv").write_text(f"accelerator, usd_per_hour ,source\n,,\nH100,2,{'x' * 2**18}\n", "utf-8")
    assert "quotes.csv:3: not readable as CSV: field larger" in refusal(SOUND, {"prices": "quotes.csv"})


@pytest.mark.parametrize(
    ("written", "remark"),
    [
        ("A100", "The file's 'A100' is read as A100-80."),
        ("A100-PCIe", "is read as A100-80-PCIe."),
        ("A100-SXM4-80GB", ""),
    ],
)
def test_a_name_that_leaves_the_memory_open_is_told(folder: Path, written: str, remark: str) -> None:
    problem = load(SOUND.replace("H100", written, 1))
    assert remark in " ".join(hardware_remarks(problem))
    assert ("is read as" in " ".join(hardware_remarks(problem))) == bool(remark)


# --- quantities: every unit, the round trip, and the words of each refusal


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1.5 s", Kind.DURATION, 1.5),
        ("3min", Kind.DURATION, 180.0),
        ("5 µs", Kind.DURATION, 5e-6),
        ("2", Kind.DURATION, 2.0),
        ("80GiB", Kind.SIZE, 80 * 2**30),
        ("80GB", Kind.SIZE, 80e9),
        ("10/s", Kind.RATE, 10.0),
        ("600/min", Kind.RATE, 10.0),
        ("36000 req/h", Kind.RATE, 10.0),
        ("50kW", Kind.POWER, 50e3),
        ("2.5 $/h", Kind.PRICE, 2.5),
    ],
)
def test_a_quantity_is_read_in_base_units(text: object, kind: Kind, value: float) -> None:
    assert parse(text, kind) == pytest.approx(value, rel=1e-15)


@given(st.sampled_from(list(Kind)), st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_formatting_and_reading_back_is_exact(kind: Kind, value: float) -> None:
    assert parse(format_quantity(value, kind), kind) == value


# --- yAML as it is read: what is no mapping of keys, what would blow up, and numbers and texts as they are meant


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", ": is empty; a workload to start from is written by `pdplan init`"),
        (b"- a\n", ": contains a list, but must have keys and values such as 'name: chat'"),
        (b"a: 1\nb: \xff", ":2: is not UTF-8 text (byte 0xff at offset 8); save it as UTF-8"),
        (b"a:\n\t- b\n", ":2:1: a tab in column 1 cannot indent or separate in YAML; use spaces\n   - b\n  ^"),
        (b"\xc2\xa0b: 1\n", ":1:1: the space U+00A0 cannot indent in YAML; use ordinary spaces\n  \u00a0b: 1\n  ^"),
        (
            b"a: 1\n---\nb: 1\n",
            ":2:1: a second document starts here ('---'), but one file states one problem\n  ---\n  ^",
        ),
        (b"a: &a [*a]", ":1:4: is nested deeper than 50 levels (an alias that contains itself?)\n  a: &a [*a]\n     ^"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(folder: Path, data: bytes, message: str) -> None:
    Path("w.yaml").write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_problem(Path("w.yaml"))
    assert str(caught.value) == f"w.yaml{message}"


LAUGHS = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
"""Every line repeats the one before ten times."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 5000, "is nested deeper than 50 levels"),
        ("a: " + "{a: " * 5000, "is nested deeper than 50 levels"),
        ("\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *LAUGHS]), r"aliases \(\*name\) repeat more than"),
        ("name: !!python/object/apply:os.system 'touch pwned'\n", r"w\.yaml:1:.*not allowed"),
    ],
    ids=["lists", "mappings", "a billion laughs", "a tag"],
)
def test_what_would_blow_up_or_run_is_refused(folder: Path, text: str, message: str) -> None:
    assert re.search(message, refusal(text))
    assert not Path("pwned").exists()


SCALARS = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.text(min_size=1, max_size=6)


@given(
    st.recursive(
        SCALARS | st.text(max_size=8),
        lambda children: st.lists(children, max_size=4) | st.dictionaries(KEYS, children, max_size=4),
        max_leaves=15,
    )
)
def test_json_is_read_as_json(value: Any) -> None:
    """JSON is YAML, so whatever JSON says must come out, with a place for every value."""
    source = parse_source(json.dumps({"root": value}), "j.yaml")
    assert not source.faults
    assert source.value == {"root": value}
    assert ("root",) in source.values


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        source = parse_source(text, "t.yaml")
        assert isinstance(source.value, dict)


# --- the JSON Schema of workload.yaml, and the search spaces that presets and ranges give


@pytest.mark.parametrize("name", ["chat", "long-context", "code", "init"])
def test_the_schema_accepts_what_the_loader_accepts(root: Path, name: str) -> None:
    text = INIT if name == "init" else (root / "examples" / f"{name}.yaml").read_text("utf-8")
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(parse_source(text, name).value)


def test_every_key_is_described_and_every_section_is_closed() -> None:
    schema = json_schema()
    for name, section in {"root": schema, **schema["$defs"]}.items():
        if section.get("type") != "object":
            continue
        assert section["additionalProperties"] is False, name
        assert all(prop.get("description") for prop in section["properties"].values()), name


def test_every_number_of_the_schema_is_bounded_both_ways() -> None:
    def unbounded(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [found for index, item in enumerate(node) for found in unbounded(item, f"{path}.{index}")]
        if not isinstance(node, dict):
            return []
        open_ended = node.get("type") in ("number", "integer") and not {"minimum", "maximum"} <= node.keys()
        return [path] * open_ended + [found for key in node for found in unbounded(node[key], f"{path}.{key}")]

    assert unbounded(json_schema(), "") == []


def test_a_long_histogram_is_merged_and_keeps_its_means(folder: Path) -> None:
    rows = 20_000
    lines = (f"{100 + k % 5000},{50 + k % 777},{1 / rows:.12f}\n" for k in range(rows))
    Path("h.csv").write_text("isl,osl,share\n" + "".join(lines))
    started = time.process_time()
    workload = load(SOUND, {"workload.lengths": {"histogram": "h.csv"}}).workload
    assert time.process_time() - started < 5
    assert workload.share.size == bounds.BUCKETS.high
    assert workload.share @ workload.isl == pytest.approx(sum(100 + k % 5000 for k in range(rows)) / rows)
    assert workload.share @ workload.osl == pytest.approx(sum(50 + k % 777 for k in range(rows)) / rows)
    assert workload.max_tokens == max(150 + k % 5000 + k % 777 for k in range(rows))


def test_any_accelerator_is_all_that_have_a_price_of_their_own(folder: Path) -> None:
    text = SOUND.replace("[H100, {name: H200, inventory: 64}]", "[any, {name: H100, inventory: 8}]")
    offers = {offer.accelerator.name: offer for offer in load(text).offers}
    assert {"A100-80", "H200", "B200", "MI300X"} < offers.keys()
    assert not {"MI455X", "H200-NVL"} & offers.keys()  # nobody quotes a price
    assert not {"TPU-v6e"} & offers.keys()  # no target deploys it
    assert offers["H100"].inventory == 8
    assert len(load(text + "prices: tco\n").offers) < len(offers)
    few = load(text, {"accelerators.H200.inventory": 8, "accelerators.0.owned": 2}).offers
    assert {offer.accelerator.name: offer.inventory for offer in few}["H200"] == 8
