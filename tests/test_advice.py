"""What a refusal advises is accepted where it is given, and no refusal is longer than a few lines."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from benchmarks.hostile_inputs import LINES, paths, prepare
from costmodel.errors import InputError, PdplanError, UnknownNameError
from costmodel.metric import METRICS, Metric
from costmodel.quoting import LONGEST_SHOWN
from optimizer.recommend.search import Level
from pdplan.files import read_plan
from search_spaces import bounds
from search_spaces.benchmark_results import read_results
from search_spaces.buying_terms import TermsFile
from search_spaces.catalog import load_catalog
from search_spaces.fields import Reader, member, quantity, share
from search_spaces.files import shown_path
from search_spaces.loader import load_problem
from search_spaces.models import load_model
from search_spaces.quantities import Kind, QuantityError
from search_spaces.scenarios import LEVERS, number_of
from search_spaces.schema import WorkloadFile
from search_spaces.yaml_source import parse_value
from tests.bad_input_cases import LONGEST
from tests.running import within


def readers(annotation: object, seen: set[object]) -> Iterator[Reader]:
    """The readers of a field type and of the sections in it."""
    if isinstance(annotation, Reader):
        yield annotation
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        for field in annotation.model_fields.values():
            yield from readers(field, seen)
    elif isinstance(annotation, FieldInfo):
        for part in (annotation.annotation, *annotation.metadata):
            yield from readers(part, seen)
    else:
        for part in (*get_args(annotation), *getattr(annotation, "__metadata__", ())):
            yield from readers(part, seen)


SEEN: set[object] = set()
READERS = [
    *readers(WorkloadFile, SEEN),
    *readers(TermsFile, SEEN),
    share(bounds.EFFICIENCY),
    quantity(Kind.DURATION, bounds.TIME_LIMIT),
    member(Level),
]
"""Every way in which a value of a user's file is read."""
VALUES = (
    st.floats()
    | st.integers()
    | st.floats(0, 1000).map(str)
    | st.integers(-5, 10**6).map(str)
    | st.sampled_from(["90", "0.9", "010", "1_000", "٣", " 5 ", "1e3", "+5", "-0.0", "1.5", "50", "5,50", "1,000"])
    | st.builds("{}{}".format, st.floats(0, 1e9), st.sampled_from(["%", "ms", "S", "kb", "gib/s", "KW", "pc", "/h"]))
    | st.sampled_from([None, True, False, [], {}, "", " ", "no", "p90", "p100", "FP8x", "colocatd", "quik", "x" * 5000])
    | st.text(max_size=20)
)


def advised(sentence: str) -> list[str]:
    """The values that a refusal says to write, as they would stand in a file."""
    found = re.findall(r"; write (\S+) without quotes", sentence)
    found += re.findall(r"; write ('.*') in quotes", sentence)
    found += re.findall(r"did you mean ('.*?')\?", sentence)
    found += [one for pair in re.findall(r"did you mean ([0-9.e+-]+) \(([0-9.e+-]+%)\)", sentence) for one in pair]
    if re.search(r"write for example|, for example|closed up: |without a unit means", sentence):
        examples = re.split(r"for example |closed up: |; write ", sentence)[-1]
        found += re.split(r", | or ", examples)
    return found


def refused(reader: Reader, value: object) -> str:
    """The sentence of a refusal; empty for a value that is taken."""
    try:
        reader.read(value)
    except InputError as error:
        return str(error)
    return ""


def test_the_readers_of_all_files_are_looked_at() -> None:
    assert len(READERS) > 60


@settings(deadline=None, max_examples=1000)
@given(st.sampled_from(READERS), VALUES)
def test_what_a_refusal_advises_is_accepted(reader: Reader, value: object) -> None:
    sentence = refused(reader, value)
    assert len(sentence) <= LONGEST
    for text in advised(sentence):
        if "has the unit" not in sentence:  # what is meant there is a unit
            assert not refused(reader, parse_value(text)), sentence


@pytest.mark.parametrize(
    ("reader", "value", "sentence"),
    [
        (
            next(readers(WorkloadFile.model_fields["confidence"], set())),
            "0.5",
            "'0.5' is not a share; write 0.5 without quotes",
        ),
        (
            next(readers(WorkloadFile.model_fields["memory_fraction"], set())),
            "90",
            "'90' is out of range; must be at least 0.1 and at most 1 (10% to 100%); did you mean 0.9 (90%)?",
        ),
        (
            next(readers(WorkloadFile.model_fields["memory_fraction"], set())),
            "much",
            "'much' is not a share; write for example 0.3 or 30%",
        ),
        (
            quantity(Kind.DURATION, bounds.LATENCY),
            "slow",
            "'slow' is not a duration; write a number and a unit, for example 500ms",
        ),
        (
            quantity(Kind.DURATION, bounds.TPOT, METRICS[Metric.TPOT].plain),
            7000,
            "7000 without a unit means 7000 s; write 7000ms",
        ),
    ],
)
def test_advice_keeps_the_limits_of_its_place(reader: Reader, value: object, sentence: str) -> None:
    assert refused(reader, value) == sentence


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["ttft", "tpot", "e2e", "attainment", "rate", "price.H200", "budget"]), VALUES)
def test_what_a_sweep_advises_is_accepted(key: str, value: object) -> None:
    sentence = ""
    try:
        number_of(key, str(value))
    except QuantityError as error:
        sentence = str(error)
    assert len(sentence) <= LONGEST
    for text in advised(sentence):
        if "has the unit" not in sentence:
            number_of(key, str(parse_value(text)))


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=500), st.lists(st.text(max_size=200), max_size=200))
def test_an_unknown_name_is_a_short_sentence(name: str, names: list[str]) -> None:
    assert len(str(UnknownNameError("model", name, names))) <= LONGEST
    assert len(str(UnknownNameError("lever", name, [*LEVERS, name[:-1]]))) <= LONGEST
    assert LONGEST_SHOWN < LONGEST


# --- however long what is refused -------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
SECTIONS: dict[str, Any] = {
    "model": {"name": "Llama-3.1-8B", "weight_dtype": "bf16"},
    "workload": {
        "diurnal": {"requests_per_second_by_hour": [1] * 24, "percentile": 95},
        "lengths": {
            "isl": {"lognormal": {"median": 100, "p99": 1000}},
            "osl": {"quantiles": {"0.5": 100, "0.9": 200, "1": 300}},
        },
    },
    "slo": [{"name": "a", "share": 0.5, "ttft": "2s", "tpot": "50ms", "attainment": "90%"}, {"name": "b", "e2e": "3s"}],
    "accelerators": [
        {
            "name": "H100",
            "price": 2,
            "inventory": 8,
            "billing": "gpu",
            "owned": 2,
            "owned_price": 1,
            "scale_out": {"bandwidth": "50GB/s", "latency": "5us"},
        }
    ],
    "objective": {"goal": "min_cost"},
    "constraints": {"budget": 100, "power": "1MW", "headroom": {"replicas": 1}, "routing": "threshold"},
    "search": {"preset": "quick", "tensor_parallel": [1, 2]},
    "confidence": 0.5,
    "scenarios": {"s": {"rate": 2}},
    "procurement": {"demand": {"months": 6, "growth": "5%"}},
}
CATALOG = {
    "accelerators": {
        "H100": {"price_usd_per_hour": 2.1},
        "My": {"like": "H100", "memory_gib": 96, "efficiency": {"gemm": {"bf16": {"compute": 0.5}}}},
    }
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
FILES: dict[str, tuple[Callable[[], Any], Callable[[Path], object]]] = {
    "workload.yaml": (lambda: SECTIONS, load_problem),
    "catalog.yaml": (lambda: CATALOG, load_catalog),
    "config.json": (lambda: CONFIG, lambda path: load_model(str(path))),
    "plan.json": (lambda: json.loads((ROOT / "tests/plans/disaggregated.json").read_text("utf-8")), read_plan),
    "aiperf.json": (
        lambda: json.loads((ROOT / "tests/benchmark_results/profile_export_aiperf.json").read_text("utf-8")),
        lambda path: read_results([path]),
    ),
}
"""What a file may hold, and what reads it."""
MOST_PLACES = 60
"""Places of a file that are spoiled: of plans, which have more, the first."""
LONG = ("x" * 5000, "\x1b[2J" * 999, "9" * 5000, ["y\n" * 5000])


@pytest.mark.parametrize("name", FILES)
def test_a_value_or_key_however_long_makes_a_short_message(name: str, tmp_path: Path) -> None:
    good, read = FILES[name]
    path = tmp_path / name
    sections = set()
    for number, place in enumerate(list(paths(good()))[:MOST_PLACES]):
        for key in (None,) if place[:-1] in sections else (None, "k" * 5000):
            sections.add(place[:-1])
            made = copy.deepcopy(good())
            section = made
            for step in place[:-1]:
                section = section[step]
            if key is None:
                section[place[-1]] = LONG[number % len(LONG)]
            elif isinstance(section, dict):
                section[key] = section.pop(place[-1])
            path.write_text(json.dumps(made, indent=1), "utf-8")
            try:
                read(path)
            except PdplanError as error:
                for line in str(error).replace(str(path), name).splitlines():
                    assert len(line) <= LONGEST, (place, line)


def test_a_word_however_long_makes_a_short_message(tmp_path: Path) -> None:
    """Of every word of every command line; what is shown of it tells the terminal nothing."""
    prepare(tmp_path)
    long = "a\x1b[31m,/" * 2_000
    seen = set()
    for words in map(shlex.split, LINES):
        for at in range(1, len(words)):
            key, equals, _ = words[at].partition("=")
            place = words[0], words[at - 1] if at > 1 else "", key if equals or key.startswith("--") else ""
            if place in seen:
                continue
            seen.add(place)
            word = key + equals + long if equals or key.startswith("--") else long
            done = within(*words[:at], word, *words[at + 1 :], cwd=tmp_path)
            assert done.returncode in {0, 2}, (words[:at], done.stderr[:LONGEST])
            said = done.stderr.replace(shown_path(long), "FILE")
            assert "\x1b" not in said
            assert all(len(line) <= LONGEST for line in said.splitlines()), (words[:at], said[:LONGEST])
