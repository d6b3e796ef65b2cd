"""What a comparison answers: one signed price, the pools that it comes from, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from costmodel.metric import METRICS, Metric
from costmodel.words import join_words
from optimizer.plans.plan import ClassResult, Plan, Pool
from reports.asked import readable_inputs
from reports.document import Document, Section, Table, said, table_of
from reports.figures import goal_label
from reports.numbers import MISSING, hourly, is_number, money, quantity, signed_percent
from reports.table import Column
from reports.text import clean, plural
from reports.verdict import gap_of_any_fleet
from reports.words import gpus_per_engine, has_fleet, has_tpot, limited_metrics, split_words

SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
FIGURES: Final = (Column("figure", shrink=True, lines=2), "#before", "#after", "#difference")


def comparison_document(comparison: Comparison) -> Document:
    """The answer of a comparison."""
    before, after = comparison.names
    differences = () if comparison.same else _differences(comparison)
    names = Section(sentences=said(f"before: {before}; after: {after}", comparison.note))
    about = ("Two plans compared", f"before, {before}; after, {after}")
    return Document(headline=(headline(comparison),), sections=(names, *differences), about=about)


def _differences(comparison: Comparison) -> tuple[Section, ...]:
    unchanged = f"{plural(comparison.unchanged_pools, 'pool')} unchanged." if comparison.unchanged_pools else ""
    pools = [
        (f"{SIGNS[item.kind]} {item.kind}", pool_words(item), f"{signed_money(item.difference)}/h")
        for item in comparison.pools
    ]
    classes = [
        Section(
            f"SLO: {outcome_words(item, comparison)}",
            said(lone_words(item)),
            None if None in item.held else _figures(item.figures),
        )
        for item in comparison.classes
    ]
    inputs = [(item.name, item.before or MISSING, item.after or MISSING) for item in comparison.inputs]
    pool, *columns = (Column(name, shrink=True, lines=6) for name in ("pool", "input", "before", "after"))
    return (
        Section("Fleet", table=table_of(("change", pool, "#price"), pools), notes=said(unchanged)),
        Section("Figures", table=_figures(comparison.figures)),
        Section("SLOs", sections=tuple(classes)),
        Section("Inputs", table=table_of(columns, inputs)),
    )


def _figures(figures: Sequence[Figure]) -> Table:
    """The figures that differ: both values, and the difference."""
    differing = [figure for figure in figures if figure.differs]
    rows = [
        (figure.name, _value(figure, figure.before), _value(figure, figure.after), _difference_words(figure))
        for figure in differing
    ]
    return table_of(FIGURES, rows, [tone(figure) for figure in differing])


def headline(comparison: Comparison) -> str:
    """Say the difference of the prices, signed, and both prices."""
    if comparison.same:
        return "The plans do not differ."
    before, after = comparison.price.before, comparison.price.after
    if not all(comparison.found) or not is_number(before) or not is_number(after):
        if not any(comparison.found):
            return "Neither plan has a fleet."
        words = [
            hourly(price) if has else "no fleet" for price, has in zip((before, after), comparison.found, strict=True)
        ]
        return f"From {words[0]} to {words[1]}."
    if before == after:
        return f"±$0/h: both cost {hourly(after)}."
    share = f" ({signed_percent(after / before - 1)})" if before else ""
    return f"{signed_money(after - before)}/h{share}: {hourly(after)} instead of {hourly(before)}."


def signed_money(value: float) -> str:
    """Write a difference of prices with its sign.

    >>> signed_money(3.2), signed_money(-0.5), signed_money(0.0)
    ('+$3.20', '-$0.50', '±$0')
    """
    return "±$0" if value == 0 else money(value) if value < 0 else f"+{money(value)}"


def pool_words(change: PoolChange) -> str:
    """Say what became of a pool, such as "d0: decode 2 × H100 TP2, 3 → 4 replicas; max_num_seqs 64 → 128"."""
    before, after = change.engines
    number = f"{before} → {plural(after, 'replica')}" if before and after and before != after else None
    words = [number or plural(after or before, "replica")]
    words += [
        f"{item.name} {item.before or 'none'} → {item.after or 'none'}"
        for item in change.settings
        if item.name != "replicas"
    ]
    return f"{change.name}: {change.shape}, {'; '.join(words)}"


def _value(figure: Figure, value: float | None) -> str:
    return money(value) if figure.unit == "$" else quantity(value, figure.unit)


def _difference_words(figure: Figure) -> str:
    """Write how much more or less a figure is: in points where it is a share, else relative; a dash where unknown."""
    if not is_number(figure.before) or not is_number(figure.after):
        return MISSING
    if figure.unit == "1":
        return f"{signed_percent(figure.after - figure.before).removesuffix('%')}points"
    return signed_percent(figure.after / figure.before - 1) if figure.before else MISSING


def tone(figure: Figure) -> str:
    """Tell whether a difference is good or bad news; empty where it is neither."""
    if not figure.better or not figure.differs or not is_number(figure.before) or not is_number(figure.after):
        return ""
    return "good" if (figure.after < figure.before) == (figure.better == "lower") else "bad"


def outcome_words(item: SloChange, comparison: Comparison) -> str:
    """Say whether each plan meets the SLO of a class, was asked for it at all, or has no fleet."""
    before, after = (
        "not asked for" if held is None and has else "no fleet" if held is None else "meets" if held else "misses"
        for held, has in zip(item.held, comparison.found, strict=True)
    )
    return f"{item.name} {after}" if before == after else f"{item.name}: {before} → {after}"


def lone_words(item: SloChange) -> str:
    """Write the figures of a class that only one plan has; empty where both have it."""
    if None not in item.held:
        return ""
    sides = [(figure, figure.after if item.held[0] is None else figure.before) for figure in item.figures]
    return ", ".join(f"{figure.name} {_value(figure, value)}" for figure, value in sides if value is not None)


SCHEMA: Final = "pdplan.comparison/1"
SETTINGS: Final = (
    "replicas",
    "spare_replicas",
    "weight_dtype",
    "kv_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "memory_fraction",
)
"""Fields of a pool that may differ between two pools of one shape."""

_QUESTION: Final = {"model": "the model", "workload": "the workload", "slo": "the SLOs"}
"""Sections of the inputs that say what is to be served, and their names."""
MOST_LEAVES: Final = 160
"""Characters that tell of a whole class or accelerator which only one plan has."""

Kind = Literal["added", "removed", "changed"]
Better = Literal["lower", "higher", ""]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of both plans; better: what is good for a reader, where one of them is."""

    name: str
    before: float | None
    after: float | None
    unit: str
    better: Better = ""

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
        """What the change costs [$/h]."""
        return self.usd_per_hour[1] - self.usd_per_hour[0]


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
        slos = any(figure.differs for item in self.classes for figure in item.figures)
        figures = any(figure.differs for figure in (self.price, *self.figures))
        return not (self.pools or self.inputs or slos or figures)


def compare(before: Plan, after: Plan) -> Comparison:
    """Set two plans side by side."""
    changes = list(_pool_changes(before.pools, after.pools))
    inputs = tuple(_input_changes(*(readable_inputs(plan.provenance.inputs) for plan in (before, after))))
    differing = [change for change in changes if change.difference or change.settings or change.kind != "changed"]
    return Comparison(
        names=(_plan_name(before), _plan_name(after)),
        found=(has_fleet(before), has_fleet(after)),
        price=Figure("price", before.cost_usd_per_hour, after.cost_usd_per_hour, "$/h", "lower"),
        figures=_plan_figures(before, after),
        pools=tuple(sorted(differing, key=lambda change: (-abs(change.difference), change.name, change.kind))),
        unchanged_pools=len(changes) - len(differing),
        classes=tuple(_slo_changes(before, after)),
        inputs=inputs,
        note=" ".join(filter(None, (_question(inputs), _note(before, after)))),
    )


def _plan_name(plan: Plan) -> str:
    """Name a plan and what its figures are."""
    basis = "simulated" if plan.simulated else "by formula" if has_fleet(plan) else "no fleet"
    return f"{clean(plan.name)} ({basis})"


def _question(inputs: Sequence[Change]) -> str:
    """Say that the plans are of different problems, so that the prices do not tell which is the better answer."""
    sections = {change.name.partition(".")[0] for change in inputs}
    words = [words for key, words in _QUESTION.items() if key in sections]
    verb = "differs" if words in (["the model"], ["the workload"]) else "differ"
    return f"The plans answer different questions: {join_words(words)} {verb}." if words else ""


def _note(before: Plan, after: Plan) -> str:
    """Say that one plan was simulated and the other was not, where both have a fleet."""
    if not (has_fleet(before) and has_fleet(after)) or before.simulated == after.simulated:
        return ""
    plain = "second" if before.simulated else "first"
    return (
        f"The {plain} plan is not simulated: its latencies, SLO shares and goodput are by formula, so their "
        "differences are also those of the method."
    )


def _plan_figures(before: Plan, after: Plan) -> tuple[Figure, ...]:
    def pair(name: str, field: str, unit: str, better: Better) -> Figure:
        values = [_number(getattr(plan, field)) if has_fleet(plan) or not better else None for plan in (before, after)]
        return Figure(name, values[0], values[1], unit, better)

    gaps = [_number(gap_of_any_fleet(plan)) if has_fleet(plan) else None for plan in (before, after)]
    gpus = [float(sum(plan.gpus.values())) if has_fleet(plan) else None for plan in (before, after)]
    return (
        pair("price per million output tokens", "usd_per_million_output_tokens", "$", "lower"),
        Figure("GPUs", gpus[0], gpus[1], "GPU", "lower"),
        pair("requests that meet the SLO", "attainment", "1", "higher"),
        pair("goodput", "goodput_rps", "req/s", "higher"),
        pair("goodput per dollar", "goodput_per_dollar", "req/$", "higher"),
        pair("demand", "demand_rps", "req/s", ""),
        Figure("gap to the bound on any fleet", gaps[0], gaps[1], "1", "lower"),
    )


def _number(value: float | None) -> float | None:
    return value if is_number(value) else None


def shape_words(pool: Pool) -> str:
    """Write what one engine of a pool is, such as "prefill 2 × H100 TP2"."""
    return f"{pool.role} {gpus_per_engine(pool)} × {clean(pool.accelerator, 24)} {split_words(pool)}"


def _pool_changes(before: Sequence[Pool], after: Sequence[Pool]) -> Iterator[PoolChange]:
    """Pair pools of one shape, those of one name first; what is left over was removed or added."""
    unmatched = list(after)
    lone: list[Pool] = []
    for pool in before:
        twins = [candidate for candidate in unmatched if shape_words(candidate) == shape_words(pool)]
        if not twins:
            lone.append(pool)
            continue
        twin = next((candidate for candidate in twins if candidate.id == pool.id), twins[0])
        unmatched.remove(twin)
        yield _pool_change(pool, twin)
    for pool in lone:
        yield PoolChange("removed", clean(pool.id, 20), shape_words(pool), (pool.replicas, 0), (pool.usd_per_hour, 0.0))
    for pool in unmatched:
        yield PoolChange("added", clean(pool.id, 20), shape_words(pool), (0, pool.replicas), (0.0, pool.usd_per_hour))


def _pool_change(pool: Pool, twin: Pool) -> PoolChange:
    pairs = [(field, getattr(pool, field), getattr(twin, field)) for field in SETTINGS]
    return PoolChange(
        kind="changed",
        name=clean(twin.id, 20),
        shape=shape_words(twin),
        engines=(pool.replicas, twin.replicas),
        usd_per_hour=(pool.usd_per_hour, twin.usd_per_hour),
        settings=tuple(Change(field, value_words(a), value_words(b)) for field, a, b in pairs if a != b),
    )


def _slo_changes(before: Plan, after: Plan) -> Iterator[SloChange]:
    old = {item.name: item for item in before.classes}
    new = {item.name: item for item in after.classes}
    for name in [*old, *(name for name in new if name not in old)]:
        a, b = old.get(name), new.get(name)
        label = goal_label((b or a or next(iter(old.values()))).attainment_goal)
        yield SloChange(clean(name, 30), (_meets(a), _meets(b)), _class_figures(a, b, label))


def _class_figures(a: ClassResult | None, b: ClassResult | None, label: str) -> tuple[Figure, ...]:
    def figure(name: str, read: Callable[[ClassResult], float | None], unit: str, better: Better = "") -> Figure:
        before, after = (None if item is None else _number(read(item)) for item in (a, b))
        return Figure(name, before, after, unit, better)

    def metric_figures(metric: Metric) -> tuple[Figure, Figure]:
        def quantile(item: ClassResult) -> float | None:
            return float(getattr(item.metrics[metric].quantiles_s, label)) if metric in item.metrics else None

        def limit(item: ClassResult) -> float | None:
            return item.metrics[metric].limit_s if metric in item.metrics else None

        name = METRICS[metric].label
        return figure(f"{name} {label}", quantile, "s", "lower"), figure(f"{name} limit", limit, "s")

    metrics = limited_metrics([item for item in (a, b) if item is not None])
    return (
        figure("meet the SLO", lambda item: item.attainment, "1", "higher"),
        figure("goal", lambda item: item.attainment_goal, "1"),
        figure(f"TTFT {label}", lambda item: getattr(item.ttft_s, label), "s", "lower"),
        figure("TTFT limit", lambda item: item.ttft_limit_s, "s"),
        figure(f"TPOT {label}", lambda item: getattr(item.tpot_s, label) if has_tpot(item) else None, "s", "lower"),
        figure("TPOT limit", lambda item: item.tpot_limit_s, "s"),
        *(item for metric in metrics for item in metric_figures(metric)),
    )


def _meets(item: ClassResult | None) -> bool | None:
    return None if item is None else item.attainment >= item.attainment_goal


def _input_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Inputs that differ; what is null is not there. A class or an accelerator that one plan lacks is one change.

    What the catalog asked for a GPU is no input, but says whose the price is that stands beside it.
    """
    old, new = (
        {path: value for path, value in _flat(inputs, ()) if path[-1:] != ("catalog_price",)}
        for inputs in (before, after)
    )
    lone = ({path[:2] for path in old} ^ {path[:2] for path in new}) - {path for path in (*old, *new) if len(path) < 3}
    heads = set()
    for path in [*old, *(path for path in new if path not in old)]:
        if path[:2] in lone:
            if path[:2] not in heads:
                yield Change(_dotted_name(path[:2]), *(_leaves(inputs, path[:2]) for inputs in (old, new)))
            heads.add(path[:2])
        elif old.get(path) != new.get(path):
            a, b = ((value_words(inputs[path]) if path in inputs else None) for inputs in (old, new))
            yield Change(_dotted_name(path), a, f"{b}, other ones" if a == b else b)


def _dotted_name(path: Sequence[str]) -> str:
    return clean(".".join(path), 80)


def _leaves(inputs: Mapping[tuple[str, ...], Any], head: tuple[str, ...]) -> str | None:
    """Write what the inputs hold below a path, but its name; None where there is nothing."""
    leaves = [(path[2:], value) for path, value in inputs.items() if path[:2] == head and value is not None]
    words = [f"{path[0]} {value_words(value)}" for path, value in leaves if len(path) == 1 and path != ("name",)]
    return (clean(", ".join(words), MOST_LEAVES) or "there") if leaves else None


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Name every leaf of the inputs by its path; lists of numbers and histograms are one value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value) and path[-1:] != ("histogram",):
        for number, item in enumerate(value):
            name = item.get("name", number) if isinstance(item, Mapping) else number
            yield from _flat(item, (*path, str(name)))
    else:
        yield path, value


def value_words(value: object) -> str:
    """Write a value of a setting or an input."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return "none"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return f"{len(value)} rows"
    return clean(str(value), 60)


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    return {"schema": SCHEMA, "same": comparison.same} | asdict(comparison)
