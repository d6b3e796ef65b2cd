"""YAML as it is read: what is no mapping of keys, what would blow up, and numbers and texts as they are meant."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from search_spaces.loader import load_problem
from search_spaces.yaml_source import parse_source, parse_value
from tests.workload_texts import refusal


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "w.yaml: is empty; a workload to start from is written by `pdplan init`"),
        (b"- a\n", "w.yaml: contains a list, but must have keys and values such as 'name: chat'"),
        (b"a: 1\nb: \xff", "w.yaml:2: is not UTF-8 text (byte 0xff at offset 8); save it as UTF-8"),
        (b"a:\n\t- b\n", "w.yaml:2:1: a tab in column 1 cannot indent or separate in YAML; use spaces\n   - b\n  ^"),
        (
            b"a: 1\n---\nb: 1\n",
            "w.yaml:2:1: a second document starts here ('---'), but one file states one problem\n  ---\n  ^",
        ),
        (
            b"a: &a [*a]",
            "w.yaml:1:4: is nested deeper than 50 levels (an alias that contains itself?)\n  a: &a [*a]\n     ^",
        ),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(folder: Path, data: bytes, message: str) -> None:
    Path("w.yaml").write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_problem(Path("w.yaml"))
    assert str(caught.value) == message


@pytest.mark.parametrize("bracket", ["[", "{a: "])
def test_endless_nesting_is_refused(folder: Path, bracket: str) -> None:
    assert "is nested deeper than 50 levels" in refusal("a: " + bracket * 5000)


def test_a_billion_laughs_are_refused(folder: Path) -> None:
    """Every line repeats the one before ten times."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "aliases (*name) repeat more than" in refusal("\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *lines]))


def test_a_tag_runs_nothing(folder: Path) -> None:
    said = refusal("name: !!python/object/apply:os.system 'touch pwned'\n")
    assert "w.yaml:1:" in said
    assert "not allowed" in said
    assert not Path("pwned").exists()


def test_a_number_in_exponent_form_is_a_number() -> None:
    assert parse_value("1e12") == 1e12
    assert parse_value("-2E-3") == -0.002
    assert parse_value("'1e12'") == "1e12"
    assert parse_value("1_000") == 1000
    assert parse_value("2024-01-01") == "2024-01-01"
    assert math.isinf(parse_value(".inf"))


@settings(deadline=None, max_examples=60)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**15), 10**15)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda children: (
            st.lists(children, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=6), children, max_size=4)
        ),
        max_leaves=15,
    )
)
def test_json_is_read_as_json(value: Any) -> None:
    """JSON is YAML, so whatever JSON says must come out, with a place for every value."""
    source, faults = parse_source(json.dumps({"root": value}), "j.yaml")
    assert faults == []
    assert source.value == {"root": value}
    assert ("root",) in source.values


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        source, _ = parse_source(text, "t.yaml")
        assert isinstance(source.value, dict)
