"""The commands as functions: options of the command line are keywords, and results are objects.

A problem, a fleet or a plan is what a function returned, or the name of its file. A quantity is a number in its base
unit, or a text as the command line takes it, such as "20/s". Nothing is printed; `progress` is called with a label and
the share of the work that is done [1]. Values that cannot be used raise InputError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import InputError, shown, value_of
from costmodel.metric import METRICS
from costmodel.units import MIB
from costmodel.words import plural
from search_spaces import bounds
from search_spaces.files import read_file, shown_path

from .console import part_of

if TYPE_CHECKING:
    from optimizer.loads.effort import Brake, Level
    from optimizer.plans.plan import FleetEvaluation, Plan
    from optimizer.verification.simulated_plan import Simulated
    from optimizer.whatif.answer import Frontier, Row, ScenarioAnswer, ScenarioEffort
    from reports.deploy.deployment import Options
    from search_spaces.fleet_file import StatedFleet
    from search_spaces.problem import Problem
    from search_spaces.scenarios import SweepAxis

File = str | PathLike[str]
Progress = Callable[[str, float], None]
A_FLEET = "a plan or a fleet; give the name of its file, a Plan, or what load_fleet returned"
FOUND, FOUND_ALL = 0.9, 0.6
"""Shares of the work that are done once the fleet is found, before prices, or all levers, are moved."""


def optimize(
    problem: Problem | File,
    *,
    effort: Level | str = "standard",
    time_limit: float | str | None = None,
    sensitivity: bool = False,
    front: int | None = None,
    study: str | None = None,
    seed: int | None = None,
    target: str | None = None,
    confidence: float | str | None = None,
    prices: str | None = None,
    settings: Mapping[str, Any] | None = None,
    base: Path | None = None,
    brake: Brake | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find the cheapest fleet for a workload, as `pdplan optimize` does.

    effort: quick, standard or thorough; time_limit: of the whole search [s], None: no limit; sensitivity: also move
    every lever; front: fleets that are simulated to show cost against tail latency; study: where the tuning study is
    kept.
    seed, target, confidence, prices and settings (values by dotted path, as --set has them) override those of a file.
    base: folder of the files that the problem names, if not its own; brake: pulled to end the search once a fleet is
    proven.

    Raises BelowFloorError where physics forbids an SLO. A plan without a fleet says why (`Plan.status`).
    """
    from optimizer.loads.effort import Brake, Level, Wish
    from optimizer.recommend.explain import worths
    from optimizer.recommend.optimize import as_cut
    from optimizer.recommend.optimize import optimize as search
    from optimizer.verification.tune import open_storage
    from optimizer.whatif.sensitivity import sensitivity as cost_moves
    from search_spaces.fields import choice, quantity
    from search_spaces.quantities import Kind

    flags = {"seed": seed, "target": target, "confidence": confidence, "prices": prices}
    problem = _problem(problem, base, settings, flags)
    level: Level = _value("effort", choice(*Level), effort or "")
    duration = quantity(Kind.DURATION, bounds.TIME_LIMIT)
    seconds: float | None = _value("time_limit", duration, time_limit)
    if study is not None:
        if level is not Level.THOROUGH and front is None:
            raise InputError(f"--study: nothing is tuned with --effort {level}; allowed: --effort thorough, or --front")
        open_storage(study)
    tune = Wish(study=study) if study is not None else None
    tune = tune if front is None else Wish(front, front=True, study=study)
    complete, brake = sensitivity or level is Level.THOROUGH, brake or Brake()
    done = FOUND_ALL if complete else FOUND
    plan = search(
        problem, progress=part_of(progress, 0.0, done), time_limit=seconds, level=level, brake=brake, tune=tune
    )
    changes: dict[str, Any] = {}
    if plan.pools and level is Level.THOROUGH and not brake.stopped():
        changes["worth"] = worths(problem)
    if plan.pools and (complete or level is Level.STANDARD) and not brake.stopped():
        rest = part_of(progress, done, 1.0)
        changes["sensitivity"] = cost_moves(problem, complete=complete, plan=plan, brake=brake, progress=rest)
    return as_cut(plan.model_copy(update=changes), brake)


def evaluate(
    fleet: StatedFleet | Plan | File,
    workload: File | None = None,
    *,
    effort: Level | str = "standard",
    confidence: float | str | None = None,
    prices: str | None = None,
    settings: Mapping[str, Any] | None = None,
    base: Path | None = None,
    progress: Progress | None = None,
) -> FleetEvaluation:
    """Say whether a fleet meets its SLOs, what is missing or to spare, and what the cheapest one costs.

    fleet: a fleet file, or a plan; workload: the one that a fleet file serves, default: the one that it names.
    effort: of the search for the cheapest fleet, "none" for no search. confidence, prices, settings: override those of
    the workload. base: folder of the files that a plan names.
    """
    from optimizer.plans.plan import Plan
    from optimizer.recommend.evaluate import evaluate_fleet
    from search_spaces.fleet_file import StatedFleet

    overrides = _stated(settings, {"confidence": confidence, "prices": prices})
    if not isinstance(fleet, StatedFleet | Plan):
        base = base or _path(fleet, A_FLEET).parent
        fleet = stated_fleet(
            _path(fleet, A_FLEET), None if workload is None else _path(workload, "a workload"), overrides
        )
    elif overrides or workload is not None:
        raise InputError("workload, settings, confidence and prices apply to a fleet file; pass its path")
    return evaluate_fleet(fleet, progress, level=None if effort == "none" else effort, base=base or Path())


def simulate(
    plan: Plan | StatedFleet | File,
    *,
    alternative: int = 1,
    rate: float | str | None = None,
    diurnal: str | Sequence[float] | None = None,
    concurrency: int | None = None,
    trace: File | None = None,
    requests: int | None = None,
    seed: int = 0,
    replications: int | None = None,
    until: float | str | None = None,
    balancing: str | None = None,
    goodput: bool = False,
    curve: bool = False,
    progress: Progress | None = None,
) -> Simulated:
    """Simulate the requests of a plan, or of a fleet file, one by one; options as `pdplan simulate` has them.

    rate: arrivals [1/s]; diurnal: "plan", or multiples of the rate over a day; until: half width of every class's 95 %
    interval at which runs end [1]. The result's `judgement` has the outcome of every class.
    """
    from costmodel.simulator.run import prepare
    from optimizer.verification.simulated_plan import PLANNED, SimulationRequest, simulate_plan
    from search_spaces.fields import Reader, choice, count, day_multiples, quantity, share
    from search_spaces.problem import Balancing
    from search_spaces.quantities import Kind

    profile = PLANNED if str(diurnal) == "plan" else _value("diurnal", Reader(day_multiples, {}), diurnal)
    request = SimulationRequest(
        rate=_value("rate", quantity(Kind.RATE, bounds.REQUEST_RATE), rate),
        requests=_value("requests", count(bounds.SIMULATED_REQUESTS), requests),
        seed=_value("seed", count(bounds.SEED), seed) or 0,
        replications=_value("replications", count(bounds.REPLICATIONS), replications),
        trace=None if trace is None else _path(trace, "a trace"),
        profile=profile,
        concurrency=_value("concurrency", count(bounds.CONCURRENCY), concurrency),
        goodput=goodput,
        curve=curve,
        balancing=_value("balancing", choice(*Balancing, same=bounds.ROUTER_SPELLINGS), balancing),
        until=_value("until", share(bounds.HALF_WIDTH), until),
    )
    request.check()
    chosen_plan = _plan(plan, alternative)
    prepare(None if progress is None else lambda text: progress(text, 0.0))
    return simulate_plan(chosen_plan, request, progress)


MOST_UNLOGGED = 10_000
"""More scenarios than that, minutes to hours of work, are solved only with a log to go on from."""


def whatif(
    problem: Problem | File,
    vary: str | Sequence[str] | Mapping[str, object] = (),
    *,
    scenario: str | Sequence[str] = (),
    jobs: int = 1,
    prices: str | None = None,
    settings: Mapping[str, Any] | None = None,
    base: Path | None = None,
    full: bool = False,
    simulate: bool = False,
    gap: bool | None = None,
    verify: int = 4,
    resume: Path | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Solve a workload again for every combination of values: a row for each, which `pandas.DataFrame` takes.

    vary: KEY=SPEC as --vary has it, several of them, or a mapping such as {"price.H200": [2, 3], "rate": "5:80:16"};
    scenario: names of the file's `scenarios:`; jobs: processes; others as in `pdplan whatif`. Requests are random.
    """
    from optimizer.whatif.answer import sweep_rows
    from search_spaces.fields import count
    from search_spaces.loader import without_recording
    from search_spaces.scenarios import parse_axis

    problem = without_recording(_problem(problem, base, settings, {"prices": prices}))
    axes, names = [parse_axis(text) for text in _axes(vary)], [scenario] if isinstance(scenario, str) else scenario
    if not axes and not names:
        raise InputError("nothing is asked; state vary, such as {'rate': '5:80:16'}, or a scenario")
    jobs = _value("jobs", count(bounds.JOBS), jobs)
    _, answers = solved_sweep(
        problem,
        axes,
        names,
        full=full,
        simulate=simulate,
        gap=gap,
        verify=verify,
        jobs=jobs,
        resume=resume,
        address=address,
        progress=progress,
    )
    return sweep_rows(answers)


def solved_sweep(
    problem: Problem,
    axes: Sequence[SweepAxis],
    names: Sequence[str] = (),
    *,
    full: bool = False,
    simulate: bool = False,
    gap: bool | None = None,
    verify: int = 4,
    jobs: int | None = None,
    resume: Path | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> tuple[ScenarioEffort, list[ScenarioAnswer]]:
    """How the scenarios of a sweep are solved, and the answer to each; a sweep of many is solved simply, unless `full`.

    names: of scenarios; options as `pdplan whatif` has them; jobs: processes, None: one per core; address: of Dask's
    scheduler, None: this machine.
    """
    from optimizer.whatif.answer import ScenarioEffort
    from optimizer.whatif.solver import run_sweep, sweep_of
    from optimizer.whatif.workers import Journal, all_cores, dask_executor, local_executor
    from search_spaces.fields import count
    from search_spaces.scenarios import chosen_scenarios

    scenarios = chosen_scenarios(problem, names)
    number = math.prod(len(axis.values) for axis in axes) * max(len(scenarios), 1)
    if number > MOST_UNLOGGED and resume is None:
        raise InputError(
            f"the axes make {number:,} scenarios; more than {MOST_UNLOGGED:,} need resume (--resume LOG), a log of "
            "finished rows from which a stopped sweep continues"
        )
    effort = ScenarioEffort.SIMULATED if simulate else ScenarioEffort.FULL if full else None
    looks = 0 if simulate else _value("verify", count(bounds.LOOKS), verify)  # every fleet is simulated then
    sweep = sweep_of(problem, axes, scenarios, effort, gap, looks)
    log = None if resume is None else Journal(Path(resume), sweep.key)
    workers = min(jobs or all_cores(), len(sweep.scenarios))
    with ExitStack() as stack:
        if address is None:
            executor = stack.enter_context(local_executor(workers))
        else:
            executor, workers = stack.enter_context(dask_executor(address))
        return sweep.effort, run_sweep(sweep, executor, workers, log, progress)


def frontier(
    problem: Problem | File,
    over: str,
    *,
    between: str | tuple[float | str, float | str] | None = None,
    verify: int = 12,
    prices: str | None = None,
    settings: Mapping[str, Any] | None = None,
    base: Path | None = None,
    progress: Progress | None = None,
) -> Frontier:
    """Find the least cost against rate, the limit of a metric, attainment or budget, as `pdplan frontier` does.

    between: ends of the curve, such as (0.3, 2.0) or "300ms:2s" for a TTFT; verify: steps that are simulated.
    """
    from optimizer.whatif.curves import frontier as curve_over
    from search_spaces.fields import count
    from search_spaces.loader import without_recording

    problem = without_recording(_problem(problem, base, settings, {"prices": prices}))
    looks = _value("verify", count(bounds.LOOKS), verify)
    return curve_over(problem, over, curve_range(problem, over, between), looks=looks, progress=progress)


def curve_range(problem: Problem, over: str, between: object, option: str = "between") -> tuple[float, float] | None:
    """The ends of a curve, as `range_of` has them."""
    from optimizer.whatif.curves import ramp_of

    return range_of(over if over == "budget" else ramp_of(problem, over).key, between, option)


def deploy(
    plan: Plan | StatedFleet | File,
    directory: File,
    *,
    target: str | None = None,
    alternative: int = 1,
    force: bool = False,
    engine_version: str | None = None,
    unchecked: bool = False,
    model: str | None = None,
    image: str | None = None,
    device: str = "gpu",
    bytes_per_token: float | None = None,
    namespace: str = "default",
    rdma: str = "rdma/ib",
    claim: str | None = None,
    label: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the files that run a plan into a directory, new or empty, and return their paths.

    target: vllm, dynamo, llm-d, sglang or trtllm; None: the plan's, or the first that runs it. force: replaces an
    earlier deployment; label: node label of each GPU type; the rest as `pdplan deploy` has it.
    """
    from reports.deploy.files import write_deployment

    chosen_plan = _plan(plan, alternative)
    base = None if not isinstance(plan, str | PathLike) else Path(plan).parent
    settings = deployment_options(
        chosen_plan,
        target=target,
        engine_version=engine_version,
        unchecked=unchecked,
        model=model,
        image=image,
        device=device,
        bytes_per_token=bytes_per_token,
        namespace=namespace,
        rdma=rdma,
        claim=claim,
        label=label,
    )
    return write_deployment(chosen_plan, settings, Path(directory), force=force, base=base)


def deployment_options(
    plan: Plan,
    *,
    target: str | None = None,
    engine_version: str | None = None,
    unchecked: bool = False,
    device: str = "gpu",
    label: Mapping[str, str] | None = None,
    **choices: Any,
) -> Options:
    """What a plan does not say and `pdplan deploy` may; label: of nodes, by GPU type; choices: as of `Options`."""
    from reports.deploy.deployment import Device, Options, checked_version, versions_of
    from reports.deploy.files import deployable, planned_target, targets_of
    from search_spaces.fields import choice

    name = target or planned_target(plan)
    is_open = target is None and plan.provenance.inputs.get("target") in {None, bounds.NO_TARGET}
    if is_open and len(targets_of(plan)) > 1:
        name = deployable(plan).target or name  # the first that runs it; where none does, the refusal says why
    name = _value("target", choice(*bounds.TARGET_NAMES, same=bounds.TARGET_SPELLINGS), name)
    with value_of("--engine-version"):
        version = checked_version(name, engine_version, unchecked=unchecked)
    newer, on = version not in versions_of(name), _value("device", choice(*Device), device)
    return Options(name, version, labels=dict(label or {}), unchecked=newer, device=on, **choices)


def _problem(
    problem: Problem | File, base: Path | None, settings: Mapping[str, Any] | None, flags: Mapping[str, Any]
) -> Problem:
    """The problem; base: folder from which files that it names are looked up, if not that of its own file."""
    from search_spaces.loader import load_problem
    from search_spaces.problem import Problem

    overrides = _stated(settings, flags)
    if isinstance(problem, Problem):
        if overrides:
            raise InputError(f"{next(iter(overrides))}: overrides a value of a file; give it to load_problem instead")
    else:
        problem = load_problem(
            _path(problem, "a workload; give the name of its file, or what load_problem returned"), overrides
        )
    return problem if base is None else replace(problem, base=base)


def _plan(plan: Plan | StatedFleet | File, alternative: int) -> Plan:
    """The plan that is meant: a fleet's by formula, an alternative's by its number."""
    from optimizer.plans.plan import Plan
    from optimizer.recommend.evaluate import plan_of, subject_of
    from search_spaces.fields import count
    from search_spaces.fleet_file import StatedFleet

    number: int = _value("alternative", count(bounds.ALTERNATIVE), alternative)
    if isinstance(plan, StatedFleet):
        return plan_of(subject_of(plan))
    return numbered(plan, number, Path()) if isinstance(plan, Plan) else read_fleet(_path(plan, A_FLEET), number)


def _path(value: object, wanted: str) -> Path:
    """The path of a file; InputError for a value of another type; wanted: what it should have been, and the mend."""
    if isinstance(value, str | PathLike):
        return Path(value)
    raise InputError(f"a value of type {type(value).__name__} is not {wanted}")


def _stated(settings: Mapping[str, Any] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The values that override those of a file, by dotted path."""
    values = {} if settings is None else settings
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InputError('settings: give values by dotted path, such as {"workload.request_rate": "5/s"}')
    flags = {name: value for name, value in flags.items() if value is not None}
    return {name: _plain(value) for name, value in {**values, **flags}.items()}


def _plain(value: Any) -> Any:
    """A value as a file has it: numbers of numpy and pandas as Python's; arrays, ranges and tuples as lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value if isinstance(value, str) or not isinstance(value, Sequence) else [_plain(item) for item in value]


def _value(name: str, reader: Any, value: object) -> Any:
    """An option as the command line reads it, None if not stated; InputError, which names it, for what that refuses."""
    if value is None:
        return None
    with value_of(name):
        return reader.read(_plain(value))


_LIKE = {"rate": "5/s:40/s", "attainment": "50%:99%"} | {str(metric): row.span for metric, row in METRICS.items()}
"""Ranges of levers whose values have units."""


def range_of(key: str, between: object, option: str = "between") -> tuple[float, float] | None:
    """The ends of a range, LOW:HIGH or two values, in the base unit of a lever; None if not stated.

    option: its name in a refusal.

    >>> range_of("ttft", "300ms:2s"), range_of("attainment", ("50%", 0.99))
    ((0.3, 2.0), (0.5, 0.99))
    """
    from search_spaces.quantities import QuantityError
    from search_spaces.scenarios import number_of

    if between is None:
        return None
    ends = between.split(":") if isinstance(between, str) else _plain(between)
    text = between if isinstance(between, str) else str(ends)
    if not isinstance(ends, list) or len(ends) != 2 or "" in ends:
        raise InputError(f"{option} {shown(text)} is not LOW:HIGH, such as {_LIKE.get(key, '1:8')}")
    try:
        low, high = (number_of(key, str(end)) for end in ends)
    except QuantityError as error:
        raise InputError(f"{option} {shown(text)} is not LOW:HIGH in units of {key}: {error}") from None
    if not -math.inf < low < high < math.inf:
        raise InputError(f"{option} {shown(text)}: LOW must be below HIGH; both must be finite")
    return low, high


def _axes(vary: str | Sequence[str] | Mapping[str, object]) -> list[str]:
    """Levers with their values, as --vary has them."""
    if isinstance(vary, str):
        return [vary]
    if not isinstance(vary, Mapping):
        return list(vary)
    specs = {key: _plain(spec) for key, spec in vary.items()}
    return [f"{key}={','.join(map(str, spec)) if isinstance(spec, list) else spec}" for key, spec in specs.items()]


# --- files of plans and fleets ----------------------------------------------------------------------------------------

LARGEST_PLAN: Final = 32 * MIB
"""A plan file is some 100 kB; one larger than this [byte] is something else."""
PLAN_OR_FLEET: Final = "a plan.json or a fleet file (YAML)"


def read_plan(path: Path, alternative: int = 1, label: str = "a plan.json") -> Plan:
    """Read a plan file, or say in one sentence why it is none; alternative: see `numbered`; label: what it must be."""
    from optimizer.plans.plan import parse_plan
    from search_spaces.fleet_file import is_fleet_file

    data = read_file(path, LARGEST_PLAN, label)
    if not data.strip():
        raise InputError(f"{shown_path(path)}: is empty, but must be {label}")
    try:
        return numbered(parse_plan(data, shown_path(path)), alternative, path)
    except InputError as error:
        file = shown_path(path)
        if is_fleet_file(path):
            raise InputError(f"{file}: this is a fleet file, not a plan; pdplan evaluate {file} takes it") from error
        if b'"pdplan.evaluation/' in data:
            page = "open evaluation.html beside it, or give the plan.json that pdplan optimize -o DIR writes"
            raise InputError(f"{file}: this is an evaluation, not a plan; {page}") from error
        if path.suffix.lower() in {".yaml", ".yml"}:
            made = f"if it is a workload, pdplan optimize {file} -o DIR plans it"
            raise InputError(f"{file}: this is not a plan.json; {made}") from error
        raise


def numbered(plan: Plan, alternative: int, path: Path) -> Plan:
    """The plan of an alternative by its number in the report, from 1, the recommended one, which is the plan itself."""
    if alternative == 1:
        return plan
    from optimizer.recommend.evaluate import plan_of_alternative
    from reports.fleets import distinct_alternatives

    rows = distinct_alternatives(plan)
    if alternative > len(rows):
        where = "" if path == Path() else f"; pdplan report {shown_path(path)} -v numbers them"
        raise InputError(f"--alternative {alternative}: the plan has {plural(len(rows), 'fleet')}{where}")
    chosen = plan_of_alternative(plan, rows[alternative - 1], path.parent)
    return chosen.model_copy(update={"name": f"{plan.name} fleet {alternative}"})


def read_fleet(path: Path, alternative: int = 1) -> Plan:
    """Read a plan, or a fleet file (YAML) as the plan of the fleet that it states, by formula and not simulated."""
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if not is_fleet_file(path):
        return read_plan(path, alternative, PLAN_OR_FLEET)
    if alternative != 1:
        raise InputError(f"--alternative {alternative}: {shown_path(path)} is a fleet file, which states one fleet")
    from optimizer.recommend.evaluate import plan_of, subject_of

    return plan_of(subject_of(load_fleet(path)))


def stated_fleet(path: Path, workload: Path | None, overrides: dict[str, Any]) -> StatedFleet | Plan:
    """The fleet that is to be evaluated: of a fleet file, or of a plan; workload: what the fleet serves, if not stated.

    overrides: values of the workload by dotted path.
    """
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if workload is not None or is_fleet_file(path):
        return load_fleet(path, workload, overrides)
    if path.suffix.lower() in {".yaml", ".yml"}:
        raise InputError(
            f"{shown_path(path)}: states no pools, so it is not a fleet file (pdplan init --fleet writes one); if it "
            "is a workload, name the fleet with --fleet"
        )
    if overrides:
        raise InputError(
            "--set, --confidence and --prices change the workload of a fleet file; a plan is evaluated as it was made "
            "(pdplan init --fleet writes a fleet file to fill in)"
        )
    return read_plan(path, label=PLAN_OR_FLEET)
