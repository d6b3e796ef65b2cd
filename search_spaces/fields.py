"""Field types of the user's files: they read numbers with units and refuse in the words of the house.

Each type carries its own JSON Schema, so that an editor knows the units, and refuses with an InputError, as validators
do, so that no message of the validation library reaches a user; what it says itself becomes faults in `faults_of`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import starmap
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, core_schema

from costmodel.errors import UNWRITABLE, InputError, name_hint, name_list, nearest_name, shown, value_of
from costmodel.units import HOURS_PER_DAY
from costmodel.words import join_words, plural

from .bounds import DAY_PARTS, Bounds
from .files import Fault, FaultsError, Keys, Source, delimiter_of
from .quantities import (
    BASE_UNIT,
    EXAMPLES,
    Kind,
    allowed_units,
    as_share,
    check_plain,
    finite_number,
    format_quantity,
    parse,
)


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Metadata of a field type: how a value is read, or refused with an InputError, and its JSON Schema."""

    read: Callable[[object], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Only `read` decides."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema as given."""
        return dict(self.schema)


def csv_rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """The header and the rows of a CSV text that are not blank: the line where each ends, and its trimmed cells.

    where: how messages call the file. InputError, with the line, for what is no CSV.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
    try:
        for number, record in enumerate(reader):
            cells = [cell.strip() for cell in record]
            if any(cells) or number == 0:
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{where}:{reader.line_num}: not readable as CSV: {error}") from error


def read_cell(column: str, text: str, reader: Reader) -> Any:
    """Read a cell of a table, where numbers are texts, as a field type; an InputError names the column."""
    value: int | float | str = text
    for kind in (float, int):
        with suppress(ValueError):
            value = kind(text)
    with value_of(column):
        return reader.read(value)


def quantity(kind: Kind, bounds: Bounds, plain_limit: float = math.inf) -> Reader:
    """A float in the base unit of `kind`, written with or without a unit, within `bounds` [base unit].

    A plain number of seconds above `plain_limit` is refused, for its writer may have had milliseconds in mind.
    """
    base = BASE_UNIT[kind]
    forms = join_words([text for text in EXAMPLES[kind] if bounds.holds(parse(text, kind))], "or")
    low, high = (format_quantity(end, kind) if end else "0" for end in (bounds.low, bounds.high))

    def convert(value: object) -> float:
        number = parse(value, kind, forms)
        check_plain(value, number, plain_limit, bounds.holds)
        if not bounds.holds(number):
            raise InputError(f"{shown(value)} is out of range; must be at least {low} and at most {high}")
        return number

    plain: dict[str, Any] = {
        "type": "number",
        "minimum": bounds.low,
        "maximum": bounds.high,
        "description": f"{kind} in {base}",
    }
    text = {"type": "string", "description": f"number and unit ({allowed_units(kind)}), for example {forms}"}
    return Reader(convert, {"anyOf": [plain, text]})


def number(bounds: Bounds) -> Reader:
    """A plain finite number within `bounds`."""

    def convert(value: object) -> float:
        figure = _finite(value, bounds.holds)
        if not bounds.holds(figure):
            raise InputError(f"{shown(value)} is out of range; {bounds.sentence(figure)}")
        return figure

    return Reader(convert, {"type": "number", "minimum": bounds.low, "maximum": bounds.high})


def share(
    limits: Bounds,
    forms: tuple[str, ...] = ("0.3", "30%"),
    in_percent: Callable[[str], float | None] = as_share,
    negative: str = "",
) -> Reader:
    """A share within `limits` [1], as a fraction or in percent.

    forms: examples of how it may be written; in_percent: reads those that are no plain fraction, None for others;
    negative: what a share below 0 is for, where it is another question than one above.
    """
    example = join_words(forms, "or")
    rule = f"{limits.sentence()} ({100 * limits.low:g}% to {100 * limits.high:g}%)"
    if negative:
        rule = f"must be from 0 to {limits.high:g} (0% to {100 * limits.high:g}%), or down to {limits.low:g} {negative}"

    def convert(value: object) -> float:
        fraction = in_percent(value) if isinstance(value, str) else None
        if fraction is None and isinstance(value, str) and finite_number(value) is None:
            raise InputError(f"{shown(value)} is not a share; write for example {example}")
        figure = _finite(value, limits.holds, "a share") if fraction is None else fraction
        if not limits.holds(figure):
            meant = figure / 100 if fraction is None else 100 * figure  # 90 for 90%, or 0.9% for 90%
            likely = limits.holds(meant) and (fraction is not None or abs(figure) >= LIKELY_PERCENT)
            hint = f"; did you mean {meant:g} ({100 * meant:g}%)?" if likely else ""
            raise InputError(f"{shown(value)} is out of range; {rule}{hint}")
        return figure

    text = {"type": "string", "description": f"share, for example {example}"}
    return Reader(convert, {"anyOf": [{"type": "number", "minimum": limits.low, "maximum": limits.high}, text]})


LIKELY_PERCENT = 2.0
"""A number from here on, where a share belongs, is taken for a percentage without its sign; 1.5 may be a slip."""


def _finite(value: object, accepts: Callable[[float], bool], label: str = "a number") -> float:
    """Read a number. A number in quotes is refused for that, unless it would be refused anyway, for a better reason.

    accepts: whether the number may stand here; label: what is wanted.
    """
    number = finite_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"{shown(value)} is not a number")
    try:
        as_float = float(number)
    except OverflowError:  # a whole number of hundreds of digits
        as_float = math.inf
    if not math.isfinite(as_float):
        raise InputError(f"{shown(value)} is not a finite number")
    if isinstance(value, str) and accepts(as_float):
        raise InputError(f"{shown(value)} is not {label}; write {as_float:.15g} without quotes")
    return as_float


def count(bounds: Bounds) -> Reader:
    """A whole number within `bounds`; 1e3 is as good as 1000."""

    def convert(value: object) -> int:
        figure = _finite(value, lambda number: number == int(number) and bounds.holds(number))
        if figure != int(figure):
            raise InputError(f"{shown(value)} is not a whole number")
        return int(number(bounds).read(value))

    return Reader(convert, {"type": "integer", "minimum": int(bounds.low), "maximum": int(bounds.high)})


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        quotes = f"; write '{shown(value)}' in quotes if the text is meant" if isinstance(value, int | float) else ""
        raise InputError(f"{shown(value)} is not a text{quotes}")
    if not value.strip():
        raise InputError("is empty, but must be a text")
    if len(value) > MAX_TEXT:
        raise InputError(f"has {len(value):,} characters, but at most {MAX_TEXT:,} may stand here")
    odd = UNWRITABLE.search(value.strip())
    if odd is not None:
        raise InputError(f"has the control character U+{ord(odd[0]):04X}; leave it out")
    return value.strip()


MAX_TEXT = 1000
"""Characters of a name or a path; file systems allow no more than 255 in one part of it."""

Text = Annotated[str, Reader(_read_text, {"type": "string", "minLength": 1, "maxLength": MAX_TEXT})]


def choice(*allowed: str, same: Mapping[str, str] = MappingProxyType({}), ending: str = "") -> Reader:
    """One of a few words, or members of an enumeration, in any case.

    same: other words, and which of those they stand for; ending: of the names of files that may stand there too.
    """
    words = {word.lower(): word for word in allowed}
    words |= {other: words[word.lower()] for other, word in same.items()}

    def convert(value: object) -> str:
        text = value if isinstance(value, str) else ""
        if text.lower() in words:
            return words[text.lower()]
        if ending and text.lower().endswith(ending):
            return text
        close = nearest_name(text, allowed)
        hint = f"did you mean {shown(close)}? " if close else ""
        raise InputError(f"{shown(value)} is not known; {hint}allowed: {name_list(allowed)}")

    schema = {"type": "string", "enum": [*map(str, allowed), *same]}
    file = {"type": "string", "pattern": rf"\.{ending.removeprefix('.')}$"}
    return Reader(convert, {"anyOf": [schema, file]} if ending else schema)


def short_for(section: Any, key: str, kind: Any = str) -> BeforeValidator:
    """Let a word, or a value of another kind, stand for a section of one key: `H100` for `{name: H100}`."""
    short = (str,) if kind is str else (str, int, float)

    def expand(value: object) -> object:
        return {key: value} if isinstance(value, short) and not isinstance(value, bool) else value

    return BeforeValidator(expand, json_schema_input_type=kind | section)


@dataclass(frozen=True, slots=True)
class OneOrMore:
    """Metadata of a list: one item may stand for a list of one; a list of more than `most` is refused unread."""

    most: int = 2**53
    label: str = "items"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A list is read as it is."""

        def listed(value: object) -> object:
            items = value if isinstance(value, list) else [value]
            if len(items) > self.most:
                raise InputError(f"has {len(items):,} {self.label}, but at most {self.most:,} are read here")
            return items

        return core_schema.no_info_before_validator_function(listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The list, or what is in it."""
        items = handler(schema)
        return {"anyOf": [items, *items["items"].get("anyOf", [items["items"]])]}


def day_multiples(values: object) -> tuple[float, ...]:
    """Multiples of a rate in equal parts of a day; InputError for others than such numbers or texts of them.

    >>> day_multiples(["0.4", 1])
    (0.4, 1.0)
    """
    try:
        multiples = tuple(map(float, [] if isinstance(values, str) else values))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        multiples = ()
    if not multiples:
        text = shown(",".join(values)[:80] if isinstance(values, list) else values)
        raise InputError(f"{text} is neither 'plan' nor numbers such as 0.4,1,0.8")
    if not DAY_PARTS.holds(len(multiples)):
        raise InputError(f"has {plural(len(multiples), 'number')}; {DAY_PARTS.sentence()}")
    if not all(math.isfinite(multiple) and multiple >= 0.0 for multiple in multiples) or max(multiples) <= 0.0:
        raise InputError("its numbers must be finite, 0 or more, and one of them above 0")
    return multiples


def _whole_day(rates: list[float]) -> list[float]:
    if len(rates) != HOURS_PER_DAY:
        raise InputError(f"has {len(rates)} rates, but a day has {HOURS_PER_DAY} hours")
    if max(rates) <= 0:
        raise InputError("has no rate above 0")
    return rates


WHOLE_DAY = AfterValidator(_whole_day)
"""Rates of 24 hours, not all of them zero."""


class FileSection(BaseModel):
    """Base of all sections of a user's file: unknown keys are faults, docstrings document."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)
    forms: ClassVar[tuple[str, ...]] = ()
    """Keys of which exactly one must stand there, where a section has such."""
    other_names: ClassVar[Mapping[str, str]] = {}
    """Hints for wrong keys that people try and that resemble no right one."""

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """Faults of the keys that have a value, regardless of the values."""
        present = [name for name in cls.forms if name in section]
        if cls.forms and len(present) != 1:
            words = f"has {' and '.join(present)}" if present else "has none of them"
            yield f"needs exactly one of {', '.join(cls.forms)}, but {words}"

    @classmethod
    def hint_for(cls, key: str) -> str:
        """The hint for an unknown key: a similar key, the section that the key belongs to, or all allowed keys."""
        if key in cls.other_names:
            return cls.other_names[key]
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        names, places = sorted(fields), set[str]()
        for name, field in fields.items():
            kinds: list[Any] = [field.annotation]
            for kind in kinds:
                kinds.extend(get_args(kind))
                if isinstance(kind, type) and issubclass(kind, FileSection) and key in kind.model_fields:
                    places.add(name)
        if places and nearest_name(key, names) is None:
            return f"it belongs under {' or '.join(map(shown, sorted(places)))}"
        return name_hint(key, names, "allowed")

    @model_validator(mode="wrap")
    @classmethod
    def _all_faults(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Faults of keys and of values at once; a known key without a value (commented out, say) counts as missing."""
        if isinstance(value, cls):
            return handler(value)
        names = {field.alias or key for key, field in cls.model_fields.items()}
        if not isinstance(value, dict):
            keys = f"write {{KEY: VALUE}} there, KEY one of: {name_list(sorted(names))}"
            raise InputError(f"{shown(value)} is not a mapping; {keys}")
        known = names | cls.model_fields.keys()
        section = {key: item for key, item in value.items() if item is not None or key not in known}
        sentences = cls.key_faults(section) if section.keys() <= known else ()  # a misspelled one may be any of them
        faults = [Fault((), sentence) for sentence in sentences]
        for key in (key for key in section if key not in known):
            comma = section[key] is None and key.isdecimal()
            hint = _COMMA if comma else cls.hint_for(key)
            faults.append(Fault((key,), f"is not a known key; {hint}", on_key=True))
        meant = {nearest_name(str(key), sorted(names)) for key in section if key not in known}
        for key, field in cls.model_fields.items():
            if field.is_required() and not {key, field.alias} & (section.keys() | meant):
                text = " ".join((field.description or "").split()).rstrip(".")
                meaning = text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"
                faults.append(Fault((field.alias or key,), f"is missing ({meaning})" if text else "is missing"))
            if field.alias and {key, field.alias} <= section.keys():
                sentence = f"means the same as {shown(field.alias)}, which is stated too; keep one of them"
                faults.append(Fault((key,), sentence, on_key=True))
        return _all_at_once(section, handler, faults)


_COMMA = "inside {...} a comma ends a value, so write decimals with a point: 2.50, not 2,50"


T = TypeVar("T")


def _all_at_once(value: object, handler: Callable[[Any], T], before: Iterable[Fault]) -> T:
    """Validate a value; its faults and earlier ones are raised as one error."""
    faults = list[InitErrorDetails]()
    for fault in before:
        refusal = FaultsError(replace(fault, path=()))
        faults.append({"type": "value_error", "loc": fault.path, "input": value, "ctx": {"error": refusal}})
    try:
        result = handler(value)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            kind, context = details["type"], details.get("ctx", {})
            is_before = kind in {"missing", "extra_forbidden"} and isinstance(details["loc"][-1], str)
            if not is_before:  # keys are among the faults before, items of a list are not
                faults.append({"type": kind, "loc": details["loc"], "input": details["input"], "ctx": context})
    if faults:
        raise ValidationError.from_exception_data("faults", faults)
    return result


def checked_together(check: Callable[[Any], Iterator[tuple[Keys, str]]]) -> WrapValidator:
    """Faults of a value as it was written, each with its place in it, together with those that reading it finds."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        return _all_at_once(value, handler, starmap(Fault, check(value)))

    return WrapValidator(validate)


S = TypeVar("S", bound=BaseModel)


def sections_of(source: Source, kind: type[S]) -> S:
    """Read a file as its sections; an InputError has all faults: those of its text, and those found at other places."""
    file, all_faults = sound_sections(source, kind)
    if file is None or all_faults:
        raise InputError(source.render(all_faults))
    return file


def sound_sections(source: Source, kind: type[S], context: object = None) -> tuple[S | None, list[Fault]]:
    """Read a file as its sections (None if they have faults), with all faults, for callers that look for more.

    Where its text is at fault nothing else is looked for. context: what validation may look up.
    """
    try:
        return kind.model_validate(source.value, context=context), [*source.faults]
    except ValidationError as error:
        places = {fault.path for fault in source.faults}
        return None, [*source.faults, *(f for f in faults_of(error) if source.settle(f.path) not in places)]


def section_of(value: object, kind: type[S], above: Keys) -> S:
    """A value as a section of a file; InputError with all its faults in one line; above: the keys that it is under."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        faults = faults_of(error)
        raise InputError("; ".join(replace(fault, path=(*above, *fault.path)).told() for fault in faults)) from None


_TYPES = {
    "string": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    **dict.fromkeys(("list", "tuple", "iterable"), "a list"),
    **dict.fromkeys(("model", "dict", "mapping", "dataclass"), "a mapping"),
}
"""What is expected, by the first word of the validation library's error type."""
_SENTENCES = {
    "missing": "is missing",
    "extra_forbidden": "is not a known key",
    "too_long": "has more than {max_length} values",
    "too_short": "is empty, but needs at least one value",  # nowhere are more needed
    "value_error": "{error}",
    "greater_than_equal": "{value} is below {ge:g}",
    "less_than_equal": "{value} is above {le:g}",
    "greater_than": "{value} is not above {gt:g}",
    **dict.fromkeys(("enum", "literal_error"), "{value} is none of {expected}"),
}
"""Messages on a value, by error type."""


def faults_of(error: ValidationError) -> list[Fault]:
    """Return one fault for each error, in the order in which they were found."""
    return [_fault(details) for details in error.errors(include_url=False)]


def _fault(details: ErrorDetails) -> Fault:
    path: Keys = tuple(details["loc"])
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    refusal = context.get("error")
    if isinstance(refusal, InputError):
        is_key = path[-1:] == ("[key]",)
        fault = refusal.faults[0] if isinstance(refusal, FaultsError) else Fault((), str(refusal))
        sentence = fault.sentence.removeprefix("accelerator ").removeprefix("model ")  # which the path says
        return Fault((*(path[:-1] if is_key else path), *fault.path), sentence, is_key or fault.on_key)
    if kind == "union_tag_invalid":
        tags = str(context.get("expected_tags", "")).replace("'", "")
        place = str(context.get("discriminator", "kind")).strip("'")
        return Fault((*path, place), f"is {shown(context.get('tag'))}; allowed: {tags}")
    if kind == "missing" and isinstance(path[-1], int):
        return Fault(path[:-1], "has too few values")
    wanted = _TYPES.get(kind.partition("_")[0])
    sentence = f"{shown(value)} is not {wanted}" if wanted else f"{shown(value)} cannot stand here"
    if kind in _SENTENCES:
        sentence = _SENTENCES[kind].format(**{"value": shown(value)} | context)
    return Fault(path, sentence, kind == "extra_forbidden")
