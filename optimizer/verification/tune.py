"""Tuning by simulation: batch limits, chunks and replicas of a fleet that holds.

Knobs of each pool: max_num_seqs, max_num_batched_tokens, one replica more or less (so also the balance of prefill and
decode). A look judges a fleet like every other (`bench`). Its value is smooth even where every goal is met or missed,
as attainment alone gives a sampler nothing to follow:

    value = cost / cost of the start + TAIL_WEIGHT min(s, 1) + MISS_WEIGHT log max(s, 1)
    s     = largest over classes of the goal's quantile of max(metric / limit over its metrics)

s <= 1 means that the class meets its goal. For a front, cost and s are two objectives instead. A study of Optuna
chooses the looks (docs/theory/verification.md).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.engine import Role
from costmodel.errors import InputError, shown
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.effort import Late, Wish, never
from optimizer.loads.instance import Instance, digest_of
from optimizer.plans.records import NO_DEARER, QUICK_CANDIDATES, TOLERANCE

from .bench import Bench, Verdict, chunks_of, fleet_key, valid

if TYPE_CHECKING:
    import optuna

TAIL_WEIGHT, MISS_WEIGHT = TOLERANCE, 5.0
"""Weight of the distance to the limits: cost decides between fleets that hold, the tail only between equal costs."""
LESS = TOLERANCE / 2.0
"""Least improvement of the tail that is worth another fleet, or a higher cost [limits]: runs resolve no less."""

Point = tuple[int, ...]
Values = tuple[float, ...]
Looks = dict[Point, Values]
"""Value of every point that was looked at, in order."""
Attributes = dict[Point, Mapping[str, float]]
Value = Callable[[Point], Values | None]
"""Evaluates a point; returns None if it is not allowed."""
SQLITE, JOURNAL = "sqlite:///", "journal:"
"""Prefixes of a study's storage name: how Optuna writes it."""
FORMS: Final = f"{SQLITE}FILE or {JOURNAL}FILE"


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of one pool and the values that it may take: indices into the tables, or replicas.

    name, shown: how a study shows it, with the values that engines have.
    """

    pool: int
    setting: str
    values: tuple[int, ...]
    start: int
    name: str
    shown: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """A fleet that was judged: cost [$/h], distance to its limits [1], whether it holds."""

    fleet: Fleet
    cost: float
    distance: float
    held: bool

    @classmethod
    def of(cls, verdict: Verdict) -> Look:
        """What tuning needs of a verdict."""
        return cls(verdict.fleet, verdict.cost, verdict.tail, verdict.held)


@dataclass(frozen=True, slots=True)
class Tuned:
    """Everything that tuning looked at, in order, and the winner: the start if nothing better was proven.

    wish: how it was asked for.
    """

    winner: Verdict
    looks: tuple[Look, ...]
    wish: Wish = field(default_factory=Wish)


def knobs_of(instance: Instance, fleet: Fleet) -> tuple[Knob, ...]:
    """The knobs of a fleet; those with a single value are left out.

    The batch limit of a prefill engine is not a knob: its token budget ends a batch first (distances change by 0.003).
    """
    tables, knobs = instance.tables, list[Knob]()
    for index, pool in enumerate(fleet.pools):
        counts = tuple(range(max(pool.replicas - 1, 1), pool.replicas + 2))
        knobs.append(Knob(index, "replicas", counts, counts.index(pool.replicas), f"{pool.name} replicas", counts))
        if pool.role is not Role.PREFILL:
            limits = tuple(tables.limits_of(pool.shape).tolist())
            name, shown_values = f"{pool.name} max_num_seqs", tuple(tables.seqs[list(limits)].tolist())
            knobs.append(Knob(index, "seqs", limits, limits.index(pool.seqs), name, shown_values))
        if pool.role is not Role.DECODE:
            chunks = tuple(chunks_of(instance, pool))
            name, shown_values = f"{pool.name} max_num_batched_tokens", tuple(tables.chunks[list(chunks)].tolist())
            knobs.append(Knob(index, "chunk", chunks, chunks.index(pool.chunk), name, shown_values))
    return tuple(knob for knob in knobs if len(knob.values) > 1)


def fleet_at(fleet: Fleet, knobs: tuple[Knob, ...], point: Point) -> Fleet:
    """The fleet with its knobs at a point."""
    pools = list(fleet.pools)
    for knob, place in zip(knobs, point, strict=True):
        setting: dict[str, Any] = {knob.setting: knob.values[place]}
        pools[knob.pool] = replace(pools[knob.pool], **setting)
    return Fleet(tuple(pools))


@dataclass(slots=True)
class Tuner:
    """Looks at points of a fleet's knobs; both: whether cost and tail are apart.

    attributes: what each look showed, as a study keeps it.
    """

    bench: Bench
    fleet: Fleet
    knobs: tuple[Knob, ...]
    both: bool = False
    attributes: Attributes = field(default_factory=dict)

    @property
    def start(self) -> Point:
        """The point of the fleet as it is."""
        return tuple(knob.start for knob in self.knobs)

    def value(self, point: Point) -> Values | None:
        """The value of a point, or its objectives: cost over that of the start, distance to the limits; less is better.

        None if it is not allowed, or the time is up.
        """
        fleet, bench = fleet_at(self.fleet, self.knobs, point), self.bench
        if self.attributes and (bench.late() or not valid(bench.instance, fleet)):
            return None
        look = Look.of(bench.verdict(fleet))
        shown = {"usd_per_hour": look.cost, "share_of_limit": look.distance, "holds": float(look.held)}
        self.attributes[point] = shown
        return (look.cost / self._cost, look.distance) if self.both else (self.worth(look),)

    def worth(self, look: Look) -> float:
        """Cost over that of the start, and what the tail adds."""
        tail = TAIL_WEIGHT * min(look.distance, 1.0) + MISS_WEIGHT * math.log(max(look.distance, 1.0))
        return look.cost / self._cost + tail

    @property
    def _cost(self) -> float:
        return fleet_cost(self.bench.instance, self.fleet)

    @property
    def looks(self) -> dict[Point, Look]:
        """All looks, those of earlier runs too."""
        fleets = {point: fleet_at(self.fleet, self.knobs, point) for point in self.attributes}
        return {
            point: Look(fleets[point], row["usd_per_hour"], row["share_of_limit"], row["holds"] > 0.0)
            for point, row in self.attributes.items()
        }

    @property
    def name(self) -> str:
        """Name of the study, from everything that its looks depend on."""
        bench = self.bench
        runs = bench.requests, bench.seed, bench.volume, bench.instance.quantile
        demand = bench.instance.problem.slos, bench.instance.flows.rate.tolist()
        axes = {knob.name: knob.shown for knob in self.knobs}
        basis = digest_of(bench.instance.tables), runs, demand, fleet_key(self.fleet), axes
        goal = "cost and tail" if self.both else "cost, then tail"
        return f"{bench.instance.problem.name}: {goal}, {hashlib.sha256(repr(basis).encode()).hexdigest()[:12]}"


def tuned(bench: Bench, winner: Verdict, wish: Wish) -> Tuned:
    """Tune a fleet that holds: the best look that costs no more and holds too."""
    tuner = Tuner(bench, winner.fleet, knobs_of(bench.instance, winner.fleet), wish.front)
    axes = {knob.name: knob.shown for knob in tuner.knobs}
    search = Search(axes, tuner.value, bench.seed, near=True, stopped=bench.late, attributes=tuner.attributes)
    if wish.study is not None:
        search.storage, search.name = open_storage(wish.study), tuner.name
    search.looks_of(tuner.start, wish.looks)
    looks = tuple(tuner.looks.values())
    enough, most = tuner.worth(looks[0]) - TAIL_WEIGHT * LESS, looks[0].cost * NO_DEARER
    better_looks = (look for look in looks if look.held and look.cost <= most and tuner.worth(look) < enough)
    best = min(better_looks, key=tuner.worth, default=None)
    return Tuned(winner if best is None else bench.verdict(best.fleet), looks, wish)


def front_beside(bench: Bench, winner: Verdict, tuning: Tuned) -> tuple[list[Look], int]:
    """The front of the looks; where it was asked for, fleets of the comparison that cost more among them, and how many.

    Those were judged as looks are.
    """
    rows = {fleet_key(look.fleet): look for look in tuning.looks}
    looks = rows.keys() | {fleet_key(winner.fleet)}
    if tuning.wish.front:
        compared = {key: Look.of(verdict) for key, verdict in bench.verdicts.items() if verdict.cost > winner.cost}
        rows = compared | rows | {fleet_key(winner.fleet): Look.of(winner)}
    best = front(rows.values())
    return best, sum(fleet_key(look.fleet) not in looks for look in best)


def front(looks: Iterable[Look]) -> list[Look]:
    """Looks that keep their goals and that no other beats in both cost and tail, cheapest first.

    One that only takes less than LESS off the tail of a cheaper one is left out. What holds is beaten only by what does
    so too: of others it is not sure that they keep their goals.
    """
    best: list[Look] = []
    for look in sorted(looks, key=lambda look: (look.cost, look.distance)):
        rivals = [rival.distance for rival in best if rival.held or not look.held]
        if look.distance <= 1.0 and (not rivals or look.distance <= min(rivals) - LESS):
            best.append(look)
    return best


def front_of(looks: Mapping[Point, Values]) -> list[Point]:
    """The Pareto front of points, least values first; of equal points the first.

    Of one value it is the best.

    >>> front_of({(0,): (2.0, 1.0), (1,): (1.0, 3.0), (2,): (2.0, 2.0)})
    [(1,), (0,)]
    """
    front: list[Point] = []
    for point in sorted(looks, key=lambda candidate: looks[candidate]):
        if not any(all(a <= b for a, b in zip(looks[rival], looks[point], strict=True)) for rival in front):
            front.append(point)
    return front


@dataclass(slots=True)
class Search:
    """One search of the best point: by turns a neighbor of the best, enqueued, and what a sampler proposes.

    A neighbor differs in one knob by one step. Of several values the best are the front, one of which is drawn. A known
    point that the sampler proposes gives way to a neighbor of it. axes: values of each knob by its name; near: whether
    neighbors are looked at; stopped: asked before each look; storage, name: where its study is kept, else in memory;
    attributes: what the study keeps of points besides their values, which `value` adds, and earlier runs have.
    """

    axes: Mapping[str, Sequence[int]]
    value: Value
    seed: int
    near: bool = False
    stopped: Late = never
    storage: optuna.storages.BaseStorage | None = None
    name: str | None = None
    attributes: Attributes = field(default_factory=dict)
    history: set[Point] = field(default_factory=set)
    looks: Looks = field(default_factory=dict)
    draw: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng([self.seed, 7])

    @property
    def sizes(self) -> list[int]:
        """Number of values of each knob."""
        return [len(values) for values in self.axes.values()]

    def see(self, point: Point) -> Values | None:
        """Look at a point."""
        self.history.add(point)
        values = self.value(point)
        if values is not None:
            self.looks[point] = values
        return values

    def ended(self, budget: int) -> bool:
        """Whether all looks are taken, or hardly any point is left: QUICK_CANDIDATES were asked for each look."""
        most = min(math.prod(self.sizes), QUICK_CANDIDATES * budget)
        return len(self.looks) >= budget or len(self.history) >= most or self.stopped()

    def looks_of(self, start: Point, budget: int, sampler: optuna.samplers.BaseSampler | None = None) -> Looks:
        """Look at the start and at what a study proposes; at nothing where it is not allowed.

        Points that earlier runs of the study looked at join the looks. sampler: by default the tree-structured Parzen
        estimator with categorical knobs.
        """
        import optuna
        from optuna.trial import TrialState

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        first = self.see(start)
        if first is None:
            return self.looks
        study = optuna.create_study(
            storage=self.storage,
            sampler=sampler or optuna.samplers.TPESampler(seed=self.seed),
            directions=["minimize"] * len(first),
            study_name=self.name,
            load_if_exists=self.storage is not None,
        )
        space: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(tuple(values)) for name, values in self.axes.items()
        }
        earlier = {self._point(trial.params): trial for trial in study.get_trials(states=(TrialState.COMPLETE,))}
        for point, earlier_trial in earlier.items():
            if point != start:
                self.attributes[point] = earlier_trial.user_attrs
                self.looks[point] = tuple(earlier_trial.values)
        if start not in earlier:
            attributes = dict(self.attributes.get(start, {}))
            study.add_trial(
                optuna.create_trial(
                    params=self._params(start), distributions=space, values=first, user_attrs=attributes
                )
            )
        self.history |= self.looks.keys()
        budget += len(earlier.keys() - {start})
        while not self.ended(budget):
            trial = self._next(study, space)
            point = self._point(trial.params)
            values = self.see(point)
            for name, attribute in self.attributes.get(point, {}).items():
                trial.set_user_attr(name, attribute)
            study.tell(trial, values, state=TrialState.FAIL if values is None else None)
        return self.looks

    def _params(self, point: Point) -> dict[str, int]:
        """A point as the parameters of a trial."""
        return {name: values[place] for (name, values), place in zip(self.axes.items(), point, strict=True)}

    def _point(self, params: Mapping[str, int]) -> Point:
        return tuple(values.index(params[name]) for name, values in self.axes.items())

    def _next(self, study: optuna.Study, space: dict[str, optuna.distributions.BaseDistribution]) -> optuna.Trial:
        """A trial of a point that is not known."""
        import optuna

        around = self.neighbor(front_of(self.looks)) if self.near and len(self.looks) % 2 else None
        if around is not None:
            study.enqueue_trial(self._params(around))
        trial = study.ask(space)
        if self._point(trial.params) not in self.history:
            return trial
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        instead = self.neighbor([self._point(trial.params)]) if self.near else None
        study.enqueue_trial(self._params(instead or self.unknown()))
        return study.ask(space)

    def neighbor(self, points: Collection[Point]) -> Point | None:
        """A neighbor of one of some points that is not known, drawn evenly; None where there is none."""
        steps = itertools.product(range(len(self.sizes)), (-1, 1))
        moves = [(point, knob, point[knob] + step) for point, (knob, step) in itertools.product(points, steps)]
        near = [
            candidate
            for point, knob, place in moves
            if 0 <= place < self.sizes[knob]
            and (candidate := (*point[:knob], place, *point[knob + 1 :])) not in self.history
        ]
        return near[int(self.draw.integers(len(near)))] if near else None

    def unknown(self) -> Point:
        """A point that was not asked for; there is one."""
        for _ in range(QUICK_CANDIDATES * len(self.sizes)):
            point = tuple(int(self.draw.integers(size)) for size in self.sizes)
            if point not in self.history:
                return point
        return next(point for point in itertools.product(*map(range, self.sizes)) if point not in self.history)


def open_storage(url: str) -> optuna.storages.BaseStorage:
    """The storage of a name such as sqlite:///tuning.db; the file is made where there is none.

    Raises InputError for another form, and for a file that cannot be written or is no study.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    form = next((form for form in (SQLITE, JOURNAL) if url.startswith(form)), None)
    file = "" if form is None else url.removeprefix(form)
    if file in {"", ":memory:"}:
        raise InputError(f"--study: {shown(url)} names no file; allowed: {FORMS}, such as {SQLITE}tuning.db")
    try:
        if form == JOURNAL:
            with Path(file).open("a", encoding="utf-8"):
                pass
            return optuna.storages.JournalStorage(JournalFileBackend(file))
        with closing(sqlite3.connect(file)) as base:
            base.execute("BEGIN IMMEDIATE")
        return optuna.storages.RDBStorage(url)
    except OSError as error:
        raise InputError(f"--study: {shown(file)} cannot be written: {error.strerror or error}") from None
    except (sqlite3.Error, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"--study: {shown(file)} cannot be used as a study: {reason}; name another file") from None
