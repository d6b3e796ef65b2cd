"""The answer of compare: one signed price, the pools that it comes from, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from costmodel.metric import METRICS
from costmodel.words import join_words, listed, plural
from optimizer.plans.plan import Plan, Pool
from reports.document import Column, Document, Section, Table, said, table_of, without_empty
from reports.fleets import split_words
from reports.question import basis_words, has_fleet, is_simulated_row, readable_inputs, speed_words
from reports.rows import ENGINE_SETTINGS
from reports.slos import goal_label, latencies
from reports.text import MISSING, clean, hourly, is_number, money, points, quantity, signed_percent, size
from reports.verdict import gap_of_any_fleet

SCHEMA: Final = "pdplan.comparison/1"
SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
SETTINGS: Final = ("replicas", "spare_replicas", *ENGINE_SETTINGS)
"""Fields of a pool that may differ between two pools of one shape."""
FIGURES: Final = (
    ("price per million output tokens", "usd_per_million_output_tokens", "$", "lower"),
    ("requests that meet the SLO", "attainment", "1", "higher"),
    ("goodput", "goodput_rps", "req/s", "higher"),
    ("goodput per dollar", "goodput_per_dollar", "req/$", "higher"),
)
"""Figures of a fleet: name, field of the plan, unit, and what is good."""
QUESTION: Final = {"model": "the model", "workload": "the workload", "slo": "the SLOs"}
"""Sections of the inputs that say what is to be served, and their names."""
CATALOG_PRICE: Final = "catalog_price"
"""What the catalog asks for a GPU, which is no input of a user's."""
GPU_PRICES: Final = {"price", "owned_price"}
"""Of the inputs of an accelerator [$/h]."""
INPUT_UNITS: Final = {
    "request_rate": "req/s",
    "budget": "$/h",
    "power": "W",
    "capacity_per_gpu": "byte",
    "bandwidth": "byte/s",
    "latency": "s",
    "price_per_gib": "$/h",
}
"""Of the inputs that are plain numbers."""
MOST_VALUES: Final = 8
"""Of a list of numbers that is written out."""
MOST_WORDS: Final = 160
"""Characters that tell of a whole class or accelerator which only one plan has."""

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of both plans; better: what is good for a reader, "lower" or "higher", where one of them is."""

    name: str
    before: float | None
    after: float | None
    unit: str
    better: str = ""

    @property
    def differs(self) -> bool:
        """Tell whether the two numbers differ."""
        return self.before != self.after and (is_number(self.before) or is_number(self.after))


@dataclass(frozen=True, slots=True)
class Change:
    """A setting or an input with another value; None where one plan does not have it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What became of a pool: prices of both plans [$/h], 0 where it is not there, and its settings that differ."""

    kind: Kind
    name: str
    shape: str
    engines: tuple[int, int]
    usd_per_hour: tuple[float, float]
    settings: tuple[Change, ...] = ()

    @property
    def difference(self) -> float:
        """What the change costs [$/h], without what rounding leaves of equal prices."""
        return round(self.usd_per_hour[1] - self.usd_per_hour[0], 9)


@dataclass(frozen=True, slots=True)
class SloChange:
    """One class of either plan: figures at the quantile of its goal; before or after is None where it is missing."""

    name: str
    held: tuple[bool | None, bool | None]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two plans side by side; pools are those that differ, and their differences sum to that of the price."""

    names: tuple[str, str]
    found: tuple[bool, bool]
    price: Figure
    figures: tuple[Figure, ...]
    pools: tuple[PoolChange, ...]
    unchanged_pools: int
    classes: tuple[SloChange, ...]
    inputs: tuple[Change, ...]
    note: str = ""
    """What stands in the way of comparing their figures; empty where nothing does."""

    @property
    def same(self) -> bool:
        """Tell whether nothing differs."""
        slos = (figure for item in self.classes for figure in item.figures)
        return not (self.pools or self.inputs or any(f.differs for f in (self.price, *self.figures, *slos)))


def compare(before: Plan, after: Plan) -> Comparison:
    """Set two plans side by side."""
    plans = before, after
    names = [f"{clean(plan.name)} ({basis_words(plan) if has_fleet(plan) else 'no fleet'})" for plan in plans]
    changes = list(_pool_changes(before.pools, after.pools))
    inputs = tuple(_input_changes((), *(readable_inputs(plan.provenance.inputs) for plan in plans)))
    differing = [change for change in changes if change.difference or change.settings or change.kind != "changed"]
    fleets = [plan if has_fleet(plan) else None for plan in plans]
    gpus = [None if plan is None else float(sum(plan.gpus.values())) for plan in fleets]
    gaps = [None if plan is None else gap_of_any_fleet(plan) for plan in fleets]
    return Comparison(
        names=(names[0], names[1]),
        found=(has_fleet(before), has_fleet(after)),
        price=Figure("price", before.cost_usd_per_hour, after.cost_usd_per_hour, "$/h", "lower"),
        figures=(
            *(_figure(name, [getattr(plan, field, None) for plan in fleets], *how) for name, field, *how in FIGURES),
            _figure("GPUs", gpus, "GPU", "lower"),
            Figure("demand", before.demand_rps, after.demand_rps, "req/s"),
            _figure("most that another fleet could save", gaps, "1", "lower"),
        ),
        pools=tuple(sorted(differing, key=lambda change: (-abs(change.difference), change.name, change.kind))),
        unchanged_pools=len(changes) - len(differing),
        classes=tuple(_slo_changes(before, after)),
        inputs=inputs,
        note=" ".join(_notes(before, after, inputs)),
    )


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    return {"schema": SCHEMA, "same": comparison.same} | asdict(comparison)


def _notes(before: Plan, after: Plan, inputs: Sequence[Change]) -> tuple[str, ...]:
    """Say that the plans are of different problems or GPU speeds, or that one was simulated and the other was not."""
    sections = {change.name.partition(".")[0] for change in inputs}
    subjects = [words for key, words in QUESTION.items() if key in sections]
    verb = "differs" if subjects in (["the model"], ["the workload"]) else "differ"
    question = f"The plans answer different questions: {join_words(subjects)} {verb}." if subjects else ""
    if not (has_fleet(before) and has_fleet(after)):
        return said(question)
    of_each = [f"the {place} plan's {speed_words(plan)}" for place, plan in (("first", before), ("second", after))]
    speeds = f"Latencies, SLO shares and goodput are for GPUs of different speeds: {join_words(of_each)}."
    place, plain = ("second", after) if before.simulated else ("first", before)
    figures = "goodput is" if is_simulated_row(plain) else "latencies, SLO shares and goodput are"
    basis = f"The {place} plan's {figures} by formula, not simulated."
    apart = speeds * (before.confidence != after.confidence)
    return said(question, apart, basis * (before.simulated != after.simulated))


def _figure(name: str, values: Sequence[float | None], unit: str, better: str = "") -> Figure:
    """A figure of two fleets, or of two classes: None where there is no number."""
    before, after = (value if is_number(value) else None for value in values)
    return Figure(name, before, after, unit, better)


def shape_words(pool: Pool) -> str:
    """Write what one engine of a pool is, such as "prefill H100 TP2"."""
    return f"{pool.role} {clean(pool.accelerator, 24)} {split_words(pool)}"


def _pool_changes(before: Sequence[Pool], after: Sequence[Pool]) -> Iterator[PoolChange]:
    """Pair pools of one shape, those of one name first; what is left over was removed or added."""
    unmatched_pools = list(after)
    for pool in before:
        twins = [candidate for candidate in unmatched_pools if shape_words(candidate) == shape_words(pool)]
        twin = next((candidate for candidate in twins if candidate.id == pool.id), twins[0] if twins else None)
        if twin is None:
            replicas, price = (pool.replicas, 0), (pool.usd_per_hour, 0.0)
            yield PoolChange("removed", clean(pool.id, 20), shape_words(pool), replicas, price)
            continue
        unmatched_pools.remove(twin)
        pairs = [(field, getattr(pool, field), getattr(twin, field)) for field in SETTINGS]
        settings = tuple(Change(field, value_words(a), value_words(b)) for field, a, b in pairs if a != b)
        replicas, price = (pool.replicas, twin.replicas), (pool.usd_per_hour, twin.usd_per_hour)
        yield PoolChange("changed", clean(twin.id, 20), shape_words(twin), replicas, price, settings)
    for pool in unmatched_pools:
        replicas, price = (0, pool.replicas), (0.0, pool.usd_per_hour)
        yield PoolChange("added", clean(pool.id, 20), shape_words(pool), replicas, price)


def _slo_changes(before: Plan, after: Plan) -> Iterator[SloChange]:
    old, new = ({item.name: item for item in plan.classes if has_fleet(plan)} for plan in (before, after))
    for name in {**old, **new}:
        pair = old.get(name), new.get(name)
        label = goal_label(next(item.attainment_goal for item in reversed(pair) if item is not None))
        outcomes = [None if item is None else item.attainment >= item.attainment_goal for item in pair]
        values, figures = list[dict[str, float | None]](), []
        for item in pair:  # what the class attains, and what it asks for
            values.append({} if item is None else {MEETING: item.attainment, "goal": item.attainment_goal})
            for metric, times, limit, _ in [] if item is None else latencies(item):
                metric_name = METRICS[metric].label
                values[-1] |= {f"{metric_name} {label}": getattr(times, label), f"{metric_name} limit": limit}
        for key in {**values[0], **values[1]}:
            unit = "1" if key in {MEETING, "goal"} else "s"
            better = "higher" if key == MEETING else "" if key == "goal" or key.endswith("limit") else "lower"
            figures.append(_figure(key, [side.get(key) for side in values], unit, better))
        yield SloChange(clean(name, 30), (outcomes[0], outcomes[1]), tuple(figures))


MEETING: Final = "SLO met"


def _input_changes(path: tuple[str, ...], before: object, after: object) -> Iterator[Change]:
    """Inputs that differ, by dotted path. A class or an accelerator that one plan lacks is one change.

    What the catalog asked for a GPU is no input, but says whose the price is that stands beside it.
    """
    if before == after or path[-1:] == (CATALOG_PRICE,):
        return
    old, new = (_children(value, path) for value in (before, after))
    if len(path) == 1 and None in (before, after):  # of a section that one plan lacks, each of its parts
        old, new = (children if value is not None else {} for children, value in ((old, before), (new, after)))
    if old is not None and new is not None:
        for key in {**old, **new}:
            yield from _input_changes((*path, key), old.get(key), new.get(key))
        return
    a, b = (None if value is None else _with_unit(value, path) for value in (before, after))
    yield Change(clean(".".join(path), 80), a, f"{b}, other ones" if a == b else b)


def _children(value: object, path: tuple[str, ...]) -> Mapping[str, object] | None:
    """The named parts of an input; None where it is one value, as lists of numbers and histograms are."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value) and path[-1:] != ("histogram",):
        return {str(item.get("name", number)): item for number, item in enumerate(value)}
    return None


def _with_unit(value: object, path: tuple[str, ...]) -> str:
    """A value of an input with its unit."""
    if path[-1] in GPU_PRICES and isinstance(value, int | float):
        return listed(value)
    unit = INPUT_UNITS.get(path[-1])
    if unit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value_words(value)
    return size(value) if unit == "byte" else quantity(value, unit)


def value_words(value: object) -> str:
    """Write a value of a setting or an input; of a whole section what it states itself, but its name.

    >>> value_words([1, 2]), value_words([*range(1, 9), 256]), value_words({"ttft": "1s", "name": "chat"})
    ('[1, 2]', '9 values, 1 to 256', 'ttft 1s')
    >>> value_words({"name": "H100", "price": 2.8973, "billing": "gpu"})
    'price $2.8973/h, billing gpu'
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}" if math.isfinite(value) else "none"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return plural(len(value), "row")
    if isinstance(value, Mapping):
        stated = {key: item for key, item in value.items() if key not in {"name", CATALOG_PRICE} and item is not None}
        pieces = {key: item for key, item in stated.items() if not isinstance(item, Mapping)}
        leaves = (f"{key} {_with_unit(item, ('', key))}" for key, item in pieces.items())
        return clean(", ".join(leaves), MOST_WORDS) or "there"
    if isinstance(value, list) and len(value) > MOST_VALUES and all(isinstance(item, int | float) for item in value):
        return f"{len(value)} values, {value_words(min(value))} to {value_words(max(value))}"
    return clean(str(value), 60)


# --- the answer ------------------------------------------------------------------------------------------------------


def comparison_document(comparison: Comparison) -> Document:
    """The answer of a comparison: the plans, then what differs."""
    before, after = comparison.names
    names = Section(sentences=said(f"Before: {before}. After: {after}.", comparison.note))
    about = ("Two plans compared", f"before, {before}; after, {after}")
    if comparison.same:
        return Document(headline=(headline(comparison),), sections=(names,), about=about)
    pool_note = f"{plural(comparison.unchanged_pools, 'pool')} unchanged." if comparison.unchanged_pools else ""
    pools = [
        (f"{SIGNS[item.kind]} {item.kind}", pool_words(item), f"{signed_money(item.difference)}/h")
        for item in comparison.pools
    ]
    inputs = [(item.name, item.before or MISSING, item.after or MISSING) for item in comparison.inputs]
    pool, *columns = (Column(name, shrink=True, lines=6) for name in ("pool", "input", "before", "after"))
    figures = [("", figure) for figure in comparison.figures if figure.differs]
    slos = [  # of a class that one plan lacks, only the share
        (item.name, figure)
        for item in comparison.classes
        for figure in item.figures
        if figure.differs and (None not in item.held or figure.name == MEETING)
    ]
    classes = _figures(slos, dict(zip((item.name for item in comparison.classes), comparison.classes, strict=True)))
    sections = (
        Section("Fleet", table=table_of(("change", pool, "#cost"), pools), notes=said(pool_note)),
        Section("Figures", table=without_empty(_figures(figures, {}))),
        Section("SLOs", table=classes),
        Section("Inputs", table=table_of(columns, inputs)),
    )
    return Document(headline=(headline(comparison),), sections=(names, *sections), about=about)


def headline(comparison: Comparison) -> str:
    """Say the difference of the prices, signed, and both prices."""
    if comparison.same:
        return "The plans do not differ."
    before, after = comparison.price.before, comparison.price.after
    if not any(comparison.found):
        return "Neither plan has a fleet."
    if not all(comparison.found) or not is_number(before) or not is_number(after):
        pairs = zip((before, after), comparison.found, strict=True)
        return f"From {' to '.join(hourly(price) if has else 'no fleet' for price, has in pairs)}."
    if before == after:
        return f"Same cost: {hourly(after)}."
    share = f" ({signed_percent(after / before - 1)})" if before else ""
    return f"{signed_money(after - before)}/h{share}: {hourly(after)} instead of {hourly(before)}."


def _figures(figures: Sequence[tuple[str, Figure]], classes: Mapping[str, SloChange]) -> Table:
    """Figures with their classes, if any: both values, and the difference; a share says whether the SLO is met."""
    rows = []
    for name, figure in figures:
        outcomes = classes[name].held if figure.name == MEETING else (None, None)
        marks = [{True: "✓ ", False: "✗ ", None: ""}[outcome] for outcome in outcomes]
        values = [
            money(value) if figure.unit == "$" else quantity(value, figure.unit)
            for value in (figure.before, figure.after)
        ]
        cells = (f"{mark}{value}" for mark, value in zip(marks, values, strict=True))
        difference = MISSING
        if is_number(figure.before) and is_number(figure.after) and figure.unit == "1":
            before, after = (round(value, 3) for value in (figure.before, figure.after))  # as `percent` shows them
            difference = points(signed_percent(after - before))
        elif is_number(figure.before) and is_number(figure.after) and figure.before:
            difference = signed_percent(figure.after / figure.before - 1)
        rows.append((name or MISSING, figure.name, *cells, difference))
    columns = (
        Column("class", shrink=True),
        Column("figure", shrink=True, lines=2),
        *("#before", "#after", "#difference"),
    )
    return table_of(columns, rows, [tone(figure) for _, figure in figures])


def signed_money(value: float) -> str:
    """Write a difference of prices with its sign.

    >>> signed_money(3.2), signed_money(-0.5), signed_money(0.0)
    ('+$3.20', '-$0.50', '±$0')
    """
    return "±$0" if value == 0 else money(value) if value < 0 else f"+{money(value)}"


def pool_words(change: PoolChange) -> str:
    """Say what became of a pool, such as "d0: decode H100 TP2, 3 → 4 replicas; max_num_seqs 64 → 128"."""
    before, after = change.engines
    grown = before and after and before != after
    words = [f"{before} → {plural(after, 'replica')}" if grown else plural(after or before, "replica")]
    words += [f"{item.name} {item.before} → {item.after}" for item in change.settings if item.name != "replicas"]
    return f"{change.name}: {change.shape}, {'; '.join(words)}"


def tone(figure: Figure) -> str:
    """Tell whether a difference is good or bad news; empty where it is neither."""
    if not figure.better or not figure.differs or not is_number(figure.before) or not is_number(figure.after):
        return ""
    return "good" if (figure.after < figure.before) == (figure.better == "lower") else "bad"
