"""A fleet file -> `StatedFleet`: the pools that run today, checked by the rules of the search, and their problem."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError, UnknownNameError, shown

from . import bounds
from .catalog import AcceleratorCatalog, load_catalog
from .engines import ENGINES
from .enumeration import Shape, end_of, engine_config, memory_refused, refusal, refused_pair
from .fields import FileSection, OneOrMore, Reader, Text, checked_together, choice, count, quantity, sections_of, share
from .files import Fault, Keys, Source, check_name, read_text, shown_path
from .loader import load_problem, overridden, problem_of, stated_problem, whole_echo
from .problem import Goal, Problem
from .quantities import Kind
from .search_space import DTYPES, RANGES, Degree, DraftedTokens, KvDtype, WeightDtype
from .sources import MAX_BYTES, empty_error, read_source

FLEET_SCHEMA: Literal["pdplan.fleet/1"] = "pdplan.fleet/1"


def _workload(value: object) -> object:
    if isinstance(value, str | Mapping):
        return value
    raise InputError("must be the path of a workload.yaml, or what stands in one")


class IslRange(FileSection):
    """Input lengths of the requests that a pool gets: from <= ISL < to."""

    low: Annotated[int, count(bounds.Bounds(0, bounds.TOKENS.high, "tokens"))] | None = Field(None, alias="from")
    """Shortest input [token]; default: any."""
    high: Annotated[int, count(bounds.TOKENS)] | None = Field(None, alias="to")
    """Input length that is too long already [token]; default: none is."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise InputError(f"from {self.low} to {self.high} contains no length; 'to' must be above 'from'")
        return self


class StatedPool(FileSection):
    """Equal engines in one role; in a fleet its defaults are filled in."""

    accelerator: Annotated[Text, Field(alias="gpu")]
    """Name of the GPU type in the catalog (`pdplan gpus` lists them)."""
    role: Annotated[Role, choice(*Role)] = Role.COLOCATED
    """prefill, decode, or colocated, which does both."""
    replicas: Annotated[int, count(bounds.Bounds(1, bounds.MAX_GPUS.high, "replicas"))]
    """Engines of this pool that run."""
    tensor_parallel: Degree = 1
    """TP of one engine."""
    pipeline_parallel: Degree = 1
    """PP of one engine."""
    data_parallel: Degree = 1
    """DP within one engine, of a mixture of experts."""
    expert_parallel: Degree = 1
    """EP of one engine, TP x DP where it is above 1."""
    weight_dtype: WeightDtype | None = None
    """Precision of the weights; default: the workload's."""
    kv_dtype: KvDtype | None = None
    """Precision of the KV cache; default: the workload's."""
    speculative_tokens: DraftedTokens = 0
    """Tokens drafted for each request and step, by the workload's model.speculation."""
    max_num_seqs: Annotated[int, count(bounds.MAX_NUM_SEQS)]
    """Most requests that run in one engine at once."""
    max_num_batched_tokens: Annotated[int, count(bounds.MAX_NUM_BATCHED_TOKENS)]
    """Token budget of one engine step: the chunk of chunked prefill."""
    price: Annotated[float, quantity(Kind.PRICE, bounds.PRICE)] | None = None
    """Price of one GPU [$/h]; default: the workload's."""
    slo_classes: list[Text] | None = None
    """SLO classes whose requests this pool gets; default: all."""
    isl: IslRange = IslRange()
    """Input lengths of the requests that this pool gets; default: all."""

    @property
    def parallelism(self) -> Parallelism:
        """How one engine splits the model."""
        return Parallelism(self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.data_parallel)


def _role_faults(pools: Any) -> Iterator[tuple[Keys, str]]:
    """There is at least one pool, and prefill and decode pools only occur together.

    Of an unknown role its own fault is enough: it may be the partner that seems to be missing.
    """
    if not pools:
        yield (), "is empty, but a fleet has one pool at least"
    roles = {str(pool.get("role") or "").lower() for pool in pools if isinstance(pool, Mapping)}
    for role, partner in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if roles <= {"", *Role} and role in roles and partner not in roles:
            yield (), f"has {role} pools but no {partner} pool, without which they serve nothing"


class FleetFile(FileSection):
    """A fleet that runs today, for `pdplan evaluate`."""

    schema_: Annotated[str, choice(FLEET_SCHEMA)] = Field(FLEET_SCHEMA, alias="schema")
    """Format of this file."""
    name: Text | None = None
    """Name of the fleet; default: the file's."""
    workload: Annotated[Any, Reader(_workload, {"type": ["string", "object"]})] = None
    """What it serves: path of a workload.yaml, relative to this file, or its content; --fleet names it otherwise."""
    engine: Annotated[str, choice(*ENGINES)] | None = None
    """Serving engine of all pools; default: the workload's."""
    memory_fraction: Annotated[float, share(bounds.MEMORY_FRACTION)] | None = None
    """The engines' own memory fraction [1], as in a workload; default: the workload's."""
    pools: Annotated[list[StatedPool], checked_together(_role_faults), OneOrMore(int(bounds.MAX_POOLS.high), "pools")]
    """The pools that run."""


TOKENS_COVER_REQUESTS = "tokens_cover_requests"
"""Name of the rule that a step has room for one token of every running request; deployment files are held to it too."""


_FLEET = re.compile(r"^(pools\s*:|schema\s*:\s*pdplan\.fleet/)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StatedFleet:
    """A fleet that runs today; its pools by their ids, such as decode-1, in the order prefill, decode, colocated.

    problem: its demand and goals, without limits on what may be bought, with a search space that has its settings;
    wanted: the same demand as the workload states it, at the fleet's prices, for the search of the cheapest fleet.
    """

    source: Source
    name: str
    problem: Problem
    wanted: Problem
    pools: Mapping[str, StatedPool]


def is_fleet_file(path: Path) -> bool:
    """Whether a YAML file states a fleet: it names the schema, or has pools. InputError for one with no text."""
    if path.suffix.lower() not in {".yaml", ".yml"}:
        return False
    text = read_text(path, MAX_BYTES)
    if not text.strip():
        raise empty_error(shown_path(path), "fleet")
    return _FLEET.search(text) is not None


def load_fleet(
    path: Path | str, workload: Path | str | None = None, overrides: Mapping[str, Any] | None = None
) -> StatedFleet:
    """Return the fleet that a fleet file states.

    workload: workload.yaml that it serves; default: the one that the file names or holds; overrides: values of it by
    dotted path, as `load_problem` takes them. InputError with all faults of the file, each with line and column; of a
    pool that cannot start, with the rule.
    """
    path = Path(path)
    check_name(path)
    source = read_source(path, "fleet", FLEET_SCHEMA)
    file = sections_of(source, FleetFile)
    settings = {key: value for key in ("engine", "memory_fraction") if (value := getattr(file, key)) is not None}
    changes = {"objective": Goal.MIN_COST.value, **(overrides or {}), **settings}
    problem, base = _problem_served(source, path, file, None if workload is None else Path(workload), changes)
    overlay = problem.inputs["catalog"]
    catalog = load_catalog(None if overlay is None else base / overlay)
    return _Reading(source, file, problem, base, catalog).fleet(file.name or path.stem)


def _problem_served(
    source: Source, path: Path, file: FleetFile, workload: Path | None, changes: Mapping[str, Any]
) -> tuple[Problem, Path]:
    """The problem that the fleet serves, and the folder from which files that it names are looked up."""
    if workload is None and file.workload is None:
        raise InputError(
            f"{source.name}: names no workload; add workload: workload.yaml, or run pdplan evaluate workload.yaml "
            f"--fleet {path.name}"
        )
    if workload is None and isinstance(file.workload, Mapping):
        values, keys = (  # with their lines and columns
            {place[1:]: position for place, position in places.items() if place[:1] == ("workload",)}
            for places in (source.values, source.keys)
        )
        section = replace(source, value=source.value["workload"], values=values, keys=keys)
        inner = overridden(section, changes, path.parent)
        return stated_problem(inner, path.parent, file.name or path.stem), path.parent
    place = workload or path.parent / str(file.workload)
    if workload is None and not place.exists():
        fault = f"there is no {shown(file.workload)}; name a workload file, or write one: pdplan init {file.workload}"
        raise source.error(fault, ("workload",))
    return load_problem(place, overrides=changes), place.parent


@dataclass(frozen=True, slots=True)
class _Reading:
    """A fleet file with the problem that it serves; base: folder of the files that the problem names; its catalog."""

    source: Source
    file: FleetFile
    problem: Problem
    base: Path
    catalog: AcceleratorCatalog

    def fleet(self, name: str) -> StatedFleet:
        """The fleet, its pools held to the rules of the search."""
        self.source.check(self._gpu_faults())
        problem_at_prices = self._at_its_prices()
        pools = [
            pool.model_copy(
                update={key: getattr(pool, key) or getattr(problem_at_prices, key) for key in DTYPES}
                | {"accelerator": self._gpu(pool)}
            )
            for pool in self.file.pools
        ]
        self.source.check([*self._class_faults(), *self._start_faults(problem_at_prices, pools)])
        by_role = {role: [pool for pool in pools if pool.role is role] for role in Role}
        ids = {f"{role}-{number}": pool for role in Role for number, pool in enumerate(by_role[role], 1)}
        return StatedFleet(self.source, name, self._with_its_settings(problem_at_prices, pools), problem_at_prices, ids)

    def _gpu_faults(self) -> Iterator[Fault]:
        """GPU types are known, and each has one price."""
        prices = dict[str, float | None]()
        for index, pool in enumerate(self.file.pools):
            try:
                gpu = self._gpu(pool)
            except InputError as error:
                yield Fault(("pools", index, "gpu"), str(error).removeprefix("accelerator "))
                continue
            if prices.setdefault(gpu, pool.price) != pool.price:
                yield Fault(("pools", index, "price"), f"another pool states another price of {gpu}; a GPU has one")

    def _class_faults(self) -> Iterator[Fault]:
        """SLO classes are known."""
        classes = [slo.name for slo in self.problem.slos]
        for index, pool in enumerate(self.file.pools):
            for place, class_name in enumerate(pool.slo_classes or ()):
                if class_name not in classes:
                    unknown = UnknownNameError("SLO class", class_name, classes)
                    yield Fault(("pools", index, "slo_classes", place), str(unknown))

    def _gpu(self, pool: StatedPool) -> str:
        """Name of the pool's GPU type among the offers, owned ones too, or else in the catalog."""
        names = {offer.accelerator.name for offer in self.problem.offers}
        return pool.accelerator if pool.accelerator in names else self.catalog.accelerator(pool.accelerator).name

    def _at_its_prices(self) -> Problem:
        """The problem with the GPU types of the fleet among its accelerators, at the prices that the fleet states."""
        inputs = whole_echo(self.problem)
        entries = {entry["name"]: entry for entry in inputs["accelerators"]}
        names = {offer.accelerator.name for offer in self.problem.offers}
        for pool in self.file.pools:
            gpu = self._gpu(pool)
            entry = dict(entries.get(gpu, {"name": gpu}))
            if pool.price is not None:
                entry = {key: value for key, value in entry.items() if key != "catalog_price"} | {"price": pool.price}
            if pool.price is not None or gpu not in names:
                entries[gpu] = entry
        return problem_of(inputs | {"accelerators": list(entries.values())}, self.source.name, self.base)

    def _start_faults(self, problem: Problem, pools: Sequence[StatedPool]) -> Iterator[Fault]:
        """Pools whose engines cannot start, with the rule; where all can, those that cannot hand over."""
        names = [offer.accelerator.name for offer in problem.offers]
        shapes = [
            Shape(
                names.index(pool.accelerator),
                pool.parallelism,
                str(pool.weight_dtype),
                str(pool.kv_dtype),
                pool.speculative_tokens,
            )
            for pool in pools
        ]
        rulings = [start_refusal(problem, pool, shape) for pool, shape in zip(pools, shapes, strict=True)]
        refusals = {index: ruling for index, ruling in enumerate(rulings) if ruling is not None}
        for index, (rule, reason) in refusals.items():
            yield Fault(("pools", index), f"cannot start: {reason} (rule {rule})")
        ends = [end_of(problem, shape) for shape in shapes]
        decode_ends = [end for pool, end in zip(pools, ends, strict=True) if pool.role is Role.DECODE]
        for index, pool in enumerate(() if refusals else pools):
            if pool.role is not Role.PREFILL:
                continue
            talks = [refused_pair(problem, ends[index], decode_end) for decode_end in decode_ends]
            if None not in talks and talks[0] is not None:
                rule, reason = talks[0]
                yield Fault(("pools", index), f"cannot hand over to a decode pool: {reason} (rule {rule})")

    def _with_its_settings(self, problem: Problem, pools: Sequence[StatedPool]) -> Problem:
        """The problem without limits on what may be bought, with a search space that has the settings of the pools.

        Its own space where that has them all, so that the fleet of a plan is evaluated as the plan was; else one of
        exactly these settings.
        """
        inputs = whole_echo(problem)
        offers = [entry | {"inventory": None} for entry in inputs["accelerators"]]
        limits = inputs["constraints"] | dict.fromkeys(("budget", "power", "max_gpus", "max_pools"))
        space, most_gpus = problem.full_space, max(pool.parallelism.gpus for pool in pools)
        settings = {key: sorted({getattr(pool, key) for pool in pools}) for key in RANGES}
        has_all = all(set(values) <= set(getattr(space, key)) for key, values in settings.items())
        has_all = has_all and most_gpus <= space.max_gpus_per_engine
        own = {"weight_dtype": [problem.weight_dtype], "kv_dtype": [problem.kv_dtype], "speculative_tokens": [0]}
        exact = {  # precisions only where they are not the workload's
            "roles": sorted({pool.role.value for pool in pools}),
            "max_gpus_per_engine": most_gpus,
            **{key: values for key, values in settings.items() if own.get(key) != values},
        }
        search = inputs["search"] if has_all else exact
        sections = {"accelerators": offers, "constraints": limits, "search": search}
        return problem_of(inputs | sections, self.source.name, self.base)


def start_refusal(problem: Problem, pool: StatedPool, shape: Shape) -> tuple[str, str] | None:
    """First rule by which the engines of a pool cannot start, as (rule name, reason); None if they can.

    The rules are those of the search, without limits on what may be bought.
    """
    smallest = (int(bounds.MAX_NUM_BATCHED_TOKENS.low),)  # what does not fit beside the stated one is told below
    space = replace(problem.space, max_gpus_per_engine=shape.parallelism.gpus, max_num_batched_tokens=smallest)
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    bare = replace(problem, space=space, offers=offers, constraints=problem.constraints.lifted)
    ruling = refusal(bare, shape)
    if ruling is not None:
        return ruling
    seqs, chunk = pool.max_num_seqs, pool.max_num_batched_tokens
    if chunk < seqs:
        return TOKENS_COVER_REQUESTS, f"max_num_batched_tokens {chunk:,} is below max_num_seqs {seqs:,}"
    if pool.speculative_tokens and problem.speculation is None:
        return "drafts_are_stated", "its engines draft tokens; state the workload's model.speculation"
    reason = memory_refused(problem.model, engine_config(bare, shape, Role.COLOCATED, seqs, chunk))
    sentence = f"with max_num_seqs {seqs:,} and max_num_batched_tokens {chunk:,}, {reason}"
    return None if reason is None else ("model_and_one_request_fit", sentence)
