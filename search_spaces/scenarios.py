"""Scenarios: one problem with some of its values changed, by name or over a grid.

A scenario is made from the canonical echo of a problem (`Problem.inputs`), so that whatever the file was written like,
a change is one value in one place, and what comes out is checked as a workload.yaml is. Levers are short names for what
`pdplan whatif` changes most, each with what it does to these inputs.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, product
from types import MappingProxyType
from typing import Any, Final

from pydantic import TypeAdapter

from costmodel.errors import InputError, UnknownNameError, name_list, shortened, shown, value_of
from costmodel.metric import METRICS, Metric

from .bounds import LATENCIES, REQUEST_RATE, TARGET_NAMES, TARGET_SPELLINGS
from .demand import Diurnal
from .fields import section_of
from .files import shipped_table
from .loader import place_in, problem_of, set_value
from .problem import Problem, target_of
from .quantities import Kind, QuantityError, as_number, as_share, check_plain, parse
from .quotes import quotes_lost
from .schema import WorkloadFile
from .sources import nested_keys, parse_value

Inputs = dict[str, Any]
Setter = Callable[[Inputs, str, str, Any], None]
"""Changes the inputs; told the lever, the name after its dot, and the value."""

EFFICIENCIES: Mapping[str, float] = MappingProxyType({"pessimistic": 0.9, "expected": 0.0, "optimistic": -0.9})
"""Names of efficiencies: at the ends of the interval that holds nine predictions in ten, or between."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A lever: an example for the command line, what it says; kind: of its values, None: plain ones.

    path: dotted one of the value that it sets, * the item that is named; none: it does what `SETTERS` say.
    classes: whether a name after its dot is that of an SLO class, and may be left out; name: in tables, if not its own;
    unit: of plain values, "×" where they multiply; cheap: whether it leaves the engines and the demand alone; ordered:
    whether its values have an order.
    """

    example: str
    says: str
    path: str = ""
    kind: Kind | None = None
    classes: bool = False
    name: str = ""
    unit: str = ""
    cheap: bool = False
    ordered: bool = True

    def apply(self, inputs: Inputs, key: str, value: Any) -> None:
        """Change the inputs; key: of the lever, with a name after its dot where the example has one."""
        head, _, name = key.partition(".")
        lever = self.example.partition("=")[0]
        if name and not self.classes and "." not in lever:
            raise InputError(f"{head} stands alone, but {shown(name)} follows it")
        if "." in lever and not name:
            noun = "months" if head == "growth" else "accelerator"
            raise InputError(f"name the {noun}, such as {lever}={value}")
        if not self.path:
            SETTERS[head](inputs, head, name, value)
            return
        set_value(inputs, [name if step == "*" else step for step in self.path.split(".")], value, key)


def _one_dtype(inputs: Inputs, lever: str, _name: str, value: Any) -> None:
    """A precision that the model is served in, whatever the search might choose from."""
    inputs["model"][lever] = value
    inputs["search"].pop(lever, None)


def _of_classes(inputs: Inputs, lever: str, name: str, value: Any) -> None:
    """A limit of every SLO class, or of the class named: ttft = value, ttft.CLASS = value."""
    for slo in [inputs["slo"][place_in(inputs["slo"], name, f"slo.{name}")]] if name else inputs["slo"]:
        slo[lever] = f"{value!r}s" if isinstance(value, float) and lever != "attainment" else value


def _scale(inputs: Inputs, lever: str, _name: str, value: Any) -> None:
    """The demand, all prompts or outputs, links out of a node, or limits times a factor."""
    factor = _above(0.0, lever, value, "a factor above zero")
    what = lever.removesuffix("_scale")
    if what == "rate":
        _demand(inputs["workload"], lambda rate: rate * factor)
    elif what in {"isl", "osl"}:
        _scale_lengths(inputs["workload"], what, factor)
    elif what == "link":
        for link in (entry["scale_out"] for entry in inputs["accelerators"]):
            link["bandwidth"] = _quantity("scale_out.bandwidth", link["bandwidth"], Kind.BANDWIDTH) * factor
    else:
        for slo, key in product(inputs["slo"], map(str, Metric) if what == "slo" else [what]):
            if slo.get(key) is not None:
                slo[key] = f"{_quantity(f'slo.{key}', slo[key], Kind.DURATION) * factor!r}s"


def _scale_lengths(load: Inputs, key: str, factor: float) -> None:
    """All prompts or all outputs times a factor.

    max_tokens shrinks in step, and grows only where the longest request would exceed it: it may be a limit of the
    service that the file states.
    """
    rows = _histogram(key, load)
    longest = max(row["isl"] + row["osl"] for row in rows)
    for row in rows:
        row[key] = max(row[key] * factor, 1.0)
    scaled = max(row["isl"] + row["osl"] for row in rows)
    load["max_tokens"] = math.ceil(max(load["max_tokens"] * min(scaled / longest, 1.0), scaled, 1.0))


def _histogram(key: str, load: Mapping[str, Any]) -> list[dict[str, float]]:
    """The rows of the lengths, which sessions have none of."""
    if "lengths" not in load:
        raise InputError(
            f"{key}: the lengths follow from the sessions; state workload.sessions.user_tokens, for example"
        )
    rows: list[dict[str, float]] = load["lengths"]["histogram"]
    return rows


def _mean_length(inputs: Inputs, lever: str, _name: str, value: Any) -> None:
    """The mean of all prompts or all outputs [tokens], by whose ratio to the stated mean each is longer."""
    rows = _histogram(lever, inputs["workload"])
    mean = sum(row["share"] * row[lever] for row in rows) / sum(row["share"] for row in rows)
    _scale_lengths(inputs["workload"], lever, _above(0.0, lever, value, "a number of tokens above zero") / mean)


def _rate(inputs: Inputs, _lever: str, _name: str, value: Any) -> None:
    """The rate to plan for."""
    rate = _quantity("rate", value, Kind.RATE)
    if not REQUEST_RATE.holds(rate):
        raise InputError(f"rate={shortened(str(value))} is out of range; it {REQUEST_RATE.sentence()}")
    _demand(inputs["workload"], lambda _: rate)


def _growing(inputs: Inputs, _lever: str, months: str, value: Any) -> None:
    """The demand after so many months of growth: growth.MONTHS = share per month."""
    if not months.isdigit():
        raise InputError(f"name the months, such as growth.6={value}")
    share = _above(-1.0, f"growth.{months}", value, "a share per month such as 0.05 or 5%")
    _scale(inputs, "rate_scale", "", (1.0 + share) ** int(months))


def _demand(load: Inputs, change: Callable[[float], float]) -> None:
    """Change the rate that is planned for [1/s]; of a daily profile, every hour in proportion.

    An earlier change of the scenario may have written either.
    """
    if load["diurnal"] is None:
        load["request_rate"] = change(_quantity("workload.request_rate", load["request_rate"], Kind.RATE))
        return
    day = section_of(load["diurnal"], Diurnal, ("workload", "diurnal"))
    old_rate = day.planned_rate
    rate = change(old_rate)
    hours = [rate * (hour / old_rate) for hour in day.requests_per_second_by_hour]  # the hour planned for: rate exactly
    load["diurnal"] = {"requests_per_second_by_hour": hours, "percentile": day.percentile}


def _quantity(key: str, value: Any, kind: Kind) -> float:
    """A value in the base unit of its kind, which an earlier change of the scenario may have written as a text."""
    with value_of(key):
        return parse(value, kind)


def _prices(inputs: Inputs, _lever: str, _name: str, value: Any) -> None:
    """Take other quotes of the catalog; a price that the user stated, or a lever has changed, stays."""
    if sentence := quotes_lost(inputs.get("prices"), value):
        raise InputError(f"prices: {sentence}")
    inputs["prices"] = value
    for entry in inputs["accelerators"]:
        if entry.get("price") == entry.get("catalog_price"):
            entry["price"] = None


def _without(inputs: Inputs, _lever: str, name: str, value: Any) -> None:
    """Leave an accelerator out."""
    place = place_in(inputs["accelerators"], name, f"accelerators.{name}")
    if value not in {True, False}:
        raise InputError(f"without.{name}={shortened(str(value))} is neither true nor false")
    if value:
        del inputs["accelerators"][place]


def _step_times(inputs: Inputs, lever: str, _name: str, value: Any) -> None:
    """How quick the engines are within what past predictions were wrong by: in a word, or as a quantile of them."""
    if lever == "step_time_quantile":
        inputs["confidence"] = 2.0 * _above(0.0, lever, value, "a share such as 95%") - 1.0
        return
    if value not in EFFICIENCIES:
        raise InputError(f"efficiency={shortened(str(value))} is not one of {', '.join(EFFICIENCIES)}")
    inputs["confidence"] = EFFICIENCIES[value]


def _above(least: float, lever: str, value: Any, noun: str) -> float:
    """A finite number or share above the least; noun: what the refusal of anything else calls it."""
    number = _share(value)
    if number is None or not least < number < math.inf:
        raise InputError(f"{lever}={shortened(str(value))} is not {noun}")
    return number


def _share(value: Any) -> float | None:
    """A number, or a text such as 5%; None for anything else."""
    share = as_share(value) if isinstance(value, str) else None
    return as_number(value) if share is None else share


SETTERS: Mapping[str, Setter] = {
    "prices": _prices,
    "without": _without,
    "with": lambda inputs, _lever, name, price: inputs["accelerators"].append({"name": name, "price": price}),
    "rate": _rate,
    "growth": _growing,
    **dict.fromkeys(("efficiency", "step_time_quantile"), _step_times),
    **dict.fromkeys(("isl", "osl"), _mean_length),
    **dict.fromkeys(("weight_dtype", "kv_dtype"), _one_dtype),
    **dict.fromkeys((*map(str, Metric), "attainment"), _of_classes),
    **{f"{what}_scale": _scale for what in ("link", "rate", "isl", "osl", "slo", *Metric)},
}
"""What those levers do that do not set one value; the rows of all are in levers.yaml."""


LEVERS: Mapping[str, Lever] = MappingProxyType(
    TypeAdapter(dict[str, Lever]).validate_python(shipped_table("search_spaces", "levers.yaml"))
    | {
        str(key): Lever(
            f"{key}={row.span}:4",
            f"{row.label} limit; of a class: {key}.CLASS",
            kind=Kind.DURATION,
            classes=True,
            name=f"{row.label} limit",
        )
        for key, row in METRICS.items()
    }
    | {
        f"{key}_scale": Lever(
            f"{key}_scale=0.5,1", f"{row.label} limits times a factor", name=f"{row.label} limit", unit="×"
        )
        for key, row in METRICS.items()
    }
)
"""Short names of what is asked about most; any other value of the inputs goes by its dotted path."""


PLAIN: Final = Lever("", "")
"""What is known of a key that is no lever."""


def lever_of(key: str) -> Lever:
    """The lever of a key."""
    return LEVERS.get(key.partition(".")[0], PLAIN)


def number_of(key: str, text: str) -> float:
    """A number as a command line states it for a key, in the unit of the key; shares and factors also in percent.

    >>> number_of("ttft", "300ms"), number_of("price.H200", "$2.50"), number_of("attainment", "95%")
    (0.3, 2.5, 0.95)

    Raises QuantityError with what is wrong.
    """
    kind = lever_of(key).kind
    if kind is not None:
        value = parse(text, kind)
        name = key.partition(".")[0]
        if name in set(Metric):
            metric = Metric(name)
            check_plain(text, value, METRICS[metric].plain, LATENCIES[metric].holds)
        return value
    number = _share(text)
    if number is None or not math.isfinite(number):
        raise QuantityError(f"{shown(text.strip())} is not a number or a percentage, which {key} needs")
    return number


# --- where a lever stands, and goes --------------------------------------------------------------------------------

GOALS: Final = 0.5, 0.999
"""Goals of attainment that a curve goes over where no others are asked for [1]."""


def check_order(key: str) -> None:
    """Raise InputError for a lever whose values have no order."""
    if not lever_of(key).ordered:
        ordered_levers = ", ".join(name for name, lever in LEVERS.items() if lever.ordered)
        raise InputError(f"{key} has no order, so it has no break-even; levers with an order: {ordered_levers}")


def own_value(problem: Problem, key: str) -> float | None:
    """The problem's own value of a lever, in its unit; factors stand at 1. None where it has none.

    A limit of latency is that of the first class, and a goal that of all classes.
    """
    head, _, name = key.partition(".")
    if head.endswith("_scale"):
        return 1.0
    load, goals = problem.workload, {slo.attainment for slo in problem.slos}
    values: dict[str, float | None] = {
        "rate": load.request_rate,
        "burstiness": load.burstiness,
        "isl": load.mean_isl,
        "osl": load.mean_osl,
        **{str(metric): limit for metric, limit in problem.slos[0].limits.items()},
        "attainment": goals.pop() if len(goals) == 1 else None,
        "budget": problem.constraints.budget,
        "power": problem.constraints.power,
        **{f"price.{offer.accelerator.name.casefold()}": offer.usd_per_hour for offer in problem.offers},
    }
    value = values.get(f"price.{name.casefold()}" if head == "price" else key)
    return None if value is None or math.isinf(value) else value


def usual_range(problem: Problem, key: str) -> tuple[float, float]:
    """From a quarter to four times the value at hand; factors stand at 1, goals have a range of their own.

    Raises InputError for names and precisions, which have no order, and for what has no such value.
    """
    check_order(key)
    value = own_value(problem, key)
    if key == "attainment":
        return GOALS
    if value is None:
        changed(problem.inputs, {key: 1.0})  # raises where there is no such value at all
        raise InputError(f"{key}: say between which values, such as --between 1:8")
    return value / 4, value * 4


# --- scenarios --------------------------------------------------------------------------------------------------------

MOST_SCENARIOS = 1_000_000
"""More than that is a mistake in a range."""


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """One thing that varies, such as `price.H200`, and the values that it takes."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named set of changes: key -> value, applied in order."""

    name: str
    changes: Mapping[str, Any]


def parse_axis(text: str) -> SweepAxis:
    """Read KEY=LOW:HIGH:COUNT (evenly spaced), KEY=LOW:HIGH:COUNT:log, or KEY=VALUE,VALUE,… as on a command line.

    >>> parse_axis("price.H200=1:2:3").values, parse_axis("model.weight_dtype=bf16,fp8").values
    ((1.0, 1.5, 2.0), ('bf16', 'fp8'))

    Raises InputError when it is none of these.
    """
    key, equals, spec = (item.strip() for item in text.partition("="))
    if not equals or not key or not spec:
        raise InputError(f"--vary {shown(text)} is not KEY=LOW:HIGH:COUNT or KEY=VALUE,VALUE, such as price.H200=1:8:8")
    items = [item.strip() for item in spec.split(",")]
    if ":" not in spec and "" in items:
        raise InputError(f"--vary {shown(text)} has an empty value")
    try:
        return SweepAxis(key, _range_values(key, spec.split(":")) if ":" in spec else tuple(map(parse_value, items)))
    except QuantityError as error:
        raise InputError(f"--vary {shown(text)}: {error}") from None


def _range_values(key: str, fields: list[str]) -> tuple[float, ...]:
    """Values from low to high, evenly spaced or evenly in their logarithms; units as the key takes them."""
    if not 3 <= len(fields) <= 4 or (len(fields) == 4 and fields[3] != "log"):
        raise QuantityError("a range is LOW:HIGH:COUNT or LOW:HIGH:COUNT:log")
    low, high = (number_of(key, field) for field in fields[:2])
    try:
        count = int(fields[2])
    except ValueError:
        raise QuantityError(f"COUNT is a whole number, not {shown(fields[2])}") from None
    wrong = []
    if not (math.isfinite(low) and math.isfinite(high)):
        wrong.append("LOW and HIGH must be finite")
    elif low > high:
        wrong.append(f"LOW {fields[0]} is above HIGH {fields[1]}")
    if not 1 <= count <= MOST_SCENARIOS:
        wrong.append(f"COUNT is {count:,}, but must be at least 1 and at most {MOST_SCENARIOS:,}")
    if len(fields) == 4 and low <= 0.0 and count != 1:
        wrong.append("LOW and HIGH of a log range must be above zero")
    if wrong:
        raise QuantityError(", and ".join(wrong))
    if count == 1:
        return (low,)
    if len(fields) == 4:
        return tuple(low * (high / low) ** (step / (count - 1)) for step in range(count))
    return tuple(low + (high - low) * step / (count - 1) for step in range(count))


def grid(axes: Sequence[SweepAxis], scenarios: Sequence[Scenario] = ()) -> Iterator[Scenario]:
    """Every combination of the axes' values, the last axis fastest, for each of the named scenarios (or none).

    Raises InputError when two axes have one key, or when there are too many.
    """
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise InputError(f"--vary {twice} is stated twice; list all its values in one")
    count = math.prod(len(axis.values) for axis in axes) * max(len(scenarios), 1)
    if count > MOST_SCENARIOS:
        raise InputError(f"the axes make {count:,} scenarios, but at most {MOST_SCENARIOS:,} are allowed")
    for base in scenarios or (Scenario("", {}),):
        for values in product(*(axis.values for axis in axes)):
            yield Scenario(base.name, {**base.changes, **dict(zip(keys, values, strict=True))})


def named_scenarios(problem: Problem) -> dict[str, Scenario]:
    """The scenarios that the problem's own file names, with what they extend, in the file's order.

    Raises InputError where one extends a name that there is not, or itself.
    """
    definitions = (problem.source.value if problem.source is not None else {}).get("scenarios") or {}
    return {name: Scenario(name, _with_extended(definitions, name, ())) for name in definitions}


def chosen_scenarios(problem: Problem, names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names; all of the file's for 'all'."""
    scenarios = named_scenarios(problem)
    if names and not scenarios:
        raise InputError("--scenario: the file names no scenarios; state them under `scenarios:`, or use --vary")
    if "all" in names and "all" not in scenarios:
        return list(scenarios.values())
    missing = next((name for name in names if name not in scenarios), None)
    if missing is not None:
        raise UnknownNameError("scenario", missing, scenarios)
    return [scenarios[name] for name in dict.fromkeys(names)]


def _with_extended(definitions: Mapping[str, Mapping[str, Any]], name: str, below: tuple[str, ...]) -> dict[str, Any]:
    """Changes of a scenario laid over those that it extends, in the order in which it names them."""
    if name in below:
        raise InputError(f"scenarios.{name}: extends itself ({' -> '.join([*below, name])})")
    if name not in definitions:
        raise UnknownNameError("scenario", name, definitions)
    own = dict(definitions[name])
    above = own.pop("extends", [])
    changes: dict[str, Any] = {}
    for parent in [above] if isinstance(above, str) else above:
        changes |= _with_extended(definitions, str(parent), (*below, name))
    return changes | own


def scenario_problem(problem: Problem, changes: Mapping[str, Any], name: str = "") -> Problem:
    """The problem with some levers or values changed and everything checked again; name: of the scenario, if any.

    Raises InputError as `load_problem` does.
    """
    inputs = changed(problem.inputs, changes)
    return problem_of(inputs, f"scenario {shortened(name or told(changes))}", problem.base)


def told(changes: Mapping[str, Any]) -> str:
    """Changes in words.

    >>> told({"price.H200": 2.5, "rate": 20})
    'price.H200=2.5, rate=20'
    """
    return ", ".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in changes.items()
    )


def changed(inputs: Mapping[str, Any], changes: Mapping[str, Any]) -> Inputs:
    """A copy of a problem's inputs with the changes made one after the other.

    Raises InputError for a key that is neither a lever nor in a section of the inputs.
    """
    result = deepcopy(dict(inputs))
    for key, value in _flat(inputs, changes):
        head = key.partition(".")[0]
        lever = LEVERS.get(head)
        if lever is not None:
            lever.apply(result, key, value)
        elif key == "search.preset":
            raise InputError(f"{key}: every range is stated here, so none is the preset's; state search={value}")
        elif head in result or head in WorkloadFile.model_fields:  # a section that the file leaves out is begun
            set_value(result, key.split("."), value, key)
            target = TARGET_SPELLINGS.get(str(value), value)
            if key == "target" and target in TARGET_NAMES and "engine" not in changes:
                engines = target_of(target).engines
                if result["engine"] not in engines:
                    result["engine"] = engines[0]  # inputs state one though the file may not
        else:
            paths = [path for inner in nested_keys(inputs) for path in accumulate(inner.split("."), "{}.{}".format)]
            names = {path.rpartition(".")[2]: path for path in paths} | {path: path for path in (*paths, *LEVERS)}
            near = difflib.get_close_matches(key, names, n=1) or difflib.get_close_matches(head, names, n=1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            sentence = f"{shortened(key)} is not a value of the workload file{hint}; levers: {name_list(LEVERS)}"
            raise InputError(sentence)
    return result


def _flat(inputs: Mapping[str, Any], changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Changes value by value: a mapping is laid over what stands there; limits of `slo` without a class go to all."""
    classes = {str(slo["name"]) for slo in inputs["slo"]}
    for key, value in changes.items():
        if not isinstance(value, Mapping):
            limit = key.removeprefix("slo.")
            for_all = limit in LEVERS and LEVERS[limit].classes and limit not in classes
            yield limit if for_all else key, value
            continue
        for inner_key, inner_value in value.items():
            for_all = key == "slo" and inner_key not in classes
            yield from _flat(inputs, {inner_key if for_all else f"{key}.{inner_key}": inner_value})
