"""What a refusal advises is accepted where it is given, and no refusal is longer than a few lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from costmodel.errors import InputError
from optimizer.recommend.search import Level
from search_spaces import bounds
from search_spaces.buying_schema import TermsFile
from search_spaces.fields import Reader, member, quantity, share, stated
from search_spaces.quantities import Kind
from search_spaces.schema import WorkloadFile
from search_spaces.yaml_source import parse_value
from tests.bad_input_cases import LONGEST


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
        stated(reader, value)
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


# --- however long what is refused -------------------------------------------------------------------------------------
