"""`pdplan simulate`: a plan under random requests, over a day, at fixed concurrency, or under a trace."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.accelerator import mean_power
from costmodel.arrays import FloatArray, IntArray
from costmodel.errors import InputError
from costmodel.simulator.fleet import Router
from costmodel.simulator.metrics import WARM_UP, Result, percentiles, run_span, steady
from costmodel.simulator.run import simulate
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import percentage, plural
from costmodel.workload import Pages
from optimizer.fleets.build_plan import fleet_of_plan, planned_volume
from optimizer.fleets.evaluate import Evaluation, evaluate
from optimizer.fleets.fleet import Fleet, FleetPool, boundary, pool_config
from optimizer.loads.effort import Progress, silent
from optimizer.loads.instance import Demand, Instance
from optimizer.plans.plan import Plan
from optimizer.plans.records import HALVING_RUNS, QUANTILES, TOLERANCE, Outcome, Quantiles
from search_spaces.bounds import SIMULATED_REQUESTS
from search_spaces.enumeration import block_tokens
from search_spaces.problem import Balancing
from search_spaces.trace_reader import NANOSECONDS
from search_spaces.trace_summary import read_trace, spread

from .bench import Bench, Slice, Verdict, run_length
from .demand import SEEDS, closed_demand, diurnal_demands, planned_profile, replayed_trace
from .judge import (
    MOST_RUNS,
    VOLUMES,
    Goodput,
    Judgement,
    RatePoint,
    Trials,
    counted,
    half_width,
    hit_share,
    in_time,
    judge_demands,
    judge_runs,
    pool_behind,
    pooled,
    until_decided,
)

GOODPUT_RUNS = math.ceil(-math.log2(TOLERANCE))
"""About how many rates a search for the goodput tries."""
DEFAULT_REQUESTS: Final = 20_000
"""Requests of a run where nobody states them, unless they do not fill the fleet."""
PER_USER: Final = round(1.0 / WARM_UP)
"""Requests for each one of a closed loop, so that those with which it starts are warm-up."""
MOST_UNTIL: Final = 2_000_000
"""Requests of all runs together, beyond which an interval is told as it is: 2 GB of their times."""
PLANNED: Final[tuple[float, ...]] = ()
"""Stands for the daily profile of the plan's own workload."""
EXCLUDED: Final = {
    "--trace": ("replays one recording", ("--replications", "--goodput", "--curve", "--diurnal")),
    "--concurrency": ("starts a request when another one ends", ("--rate", "--goodput", "--curve", "--diurnal")),
    "--diurnal": ("lets the rate change", ("--goodput", "--curve")),
    "--until": (
        "makes as many runs as it needs",
        ("--replications", "--trace", "--concurrency", "--diurnal", "--goodput", "--curve"),
    ),
}
"""Options that exclude others, with the reason."""


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Options of a simulation of a plan.

    requests: of each run, None for DEFAULT_REQUESTS or as many as the runs of a search have (`run_length`);
    rate: arrivals [1/s], None for the plan's own; profile: rate in each part of a day as multiples of it, `PLANNED` or
    None for one rate; concurrency: requests at once of a closed loop, None for an open one; balancing: None as planned;
    replications: runs, None for one, or up to HALVING_RUNS of random requests while a class is undecided; until: half
    width of every class's 95 % interval at which runs end [1], None for as many as `replications` says.
    """

    requests: int | None = None
    rate: float | None = None
    seed: int = 0
    replications: int | None = None
    trace: Path | None = None
    profile: tuple[float, ...] | None = None
    concurrency: int | None = None
    goodput: bool = False
    curve: bool = False
    balancing: str | None = None
    until: float | None = None

    @property
    def runs(self) -> int:
        """Runs that are made at least."""
        return self.replications or 1

    @property
    def run_requests(self) -> int:
        """Requests of each run."""
        return self.requests or max(DEFAULT_REQUESTS, PER_USER * (self.concurrency or 0))

    @property
    def work(self) -> int:
        """Requests of all runs together, about; the most that there may be where a precision was asked for."""
        if self.until is not None:
            return MOST_UNTIL
        runs = self.runs + (2 * len(LOADS) if self.curve else GOODPUT_RUNS * self.goodput)
        return self.run_requests * runs

    @property
    def is_steady(self) -> bool:
        """Whether requests come at one rate, as queueing formulas take them."""
        return self.trace is None and self.profile is None and not self.concurrency

    def check(self) -> None:
        """Raise InputError for options that exclude each other."""
        flags = {f"--{name}" for name in ("trace", "concurrency", "rate", "until") if getattr(self, name) is not None}
        flags |= {f"--{name}" for name in ("goodput", "curve") if getattr(self, name)}
        flags |= {"--diurnal"} if self.profile is not None else set()
        flags |= {"--replications"} if self.runs > 1 else set()
        for flag, (reason, rivals) in EXCLUDED.items():
            conflicts = [rival for rival in rivals if {flag, rival} <= flags]
            if conflicts:
                raise InputError(f"{flag} {reason}, so it does not go with {conflicts[0]}")
        if self.concurrency is not None and self.run_requests < PER_USER * self.concurrency:
            raise InputError(
                f"--concurrency {self.concurrency} needs --requests {PER_USER * self.concurrency} or more: the "
                f"first {self.concurrency} start together, and only a tenth is warm-up; found {self.run_requests}"
            )


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation of a plan, with the extras that were asked for.

    gaps: of each class; behind: the pool that falls behind, None where all keep up; remark: requests of a trace that
    are left out, in words; most: requests that a run can have; hits: share of the prompt tokens of a trace that prefix
    caches held [1], None where it does not tell; analytic: prediction at the simulated rate with expected step times,
    None where requests do not come at one rate; slots: of a day; goodput, curve: if asked for; cpu_seconds: of all runs
    [s].
    """

    plan: Plan
    request: SimulationRequest
    instance: Instance
    judgement: Judgement
    use: FleetUse
    gaps: tuple[ClassGaps, ...]
    behind: str | None
    remark: str
    most: int
    hits: float | None
    analytic: Evaluation | None
    strain: Verdict | None
    slots: tuple[DaySlot, ...]
    cpu_seconds: float
    goodput: Goodput | None = None
    curve: Curve | None = None

    def __repr__(self) -> str:
        """The rate and the outcome of every class, in angle brackets: the runs fill books."""
        judgement = self.judgement
        classes = [f"{item.name} {100.0 * item.attainment:.4g} % {item.outcome}" for item in judgement.classes]
        suffix = "" if self.outcome is judgement.outcome else f"; {self.outcome} under strain"
        return f"<Simulated {self.plan.name} at {judgement.rate:.4g} req/s: {'; '.join(classes)}{suffix}>"

    @property
    def outcome(self) -> Outcome:
        """Whether the fleet meets every goal in its runs and, if so, in the further tests of a plan."""
        return self.judgement.outcome if self.strain is None else self.strain.outcome

    @property
    def seeds(self) -> list[int]:
        """Seed of each run; none where its requests were recorded."""
        runs = range(len(self.judgement.runs)) if self.request.trace is None else ()
        return [self.request.seed + SEEDS * number for number in runs]

    @property
    def unfilled(self) -> tuple[float, float] | None:
        """Mean times of a request and of a run [s], if the warm-up is too short to fill the fleet; else None."""
        runs = self.judgement.runs
        if not self.request.is_steady or self.judgement.overloaded:
            return None
        times = pooled((run.result.e2e for run in runs), counted(self.instance, runs))
        residence = float(times[np.isfinite(times)].mean()) if np.isfinite(times).any() else 0.0
        span = float(np.mean([np.ptp(run.result.arrival) for run in runs]))
        return (residence, span) if residence > WARM_UP * span else None

    def timeline(self, window: float) -> tuple[Result, float]:
        """Steps of the first run in a window [s] that begins where the warm-up ends, and its beginning [s].

        The run is made again with a log.
        """
        first = self.judgement.runs[0]
        start = float(first.result.arrival[int(np.argmax(steady(first.result)))])
        trace, engines = first.demand.trace, self.judgement.engines
        return simulate(trace, engines, until=start + window, log_rows=first.result.events), start


def simulate_plan(plan: Plan, request: SimulationRequest, progress: Progress | None) -> Simulated:
    """Simulate the plan as asked: its runs, then other rates."""
    tell = progress or silent
    instance, fleet = fleet_of_plan(plan)
    if request.balancing is not None:
        instance = replace(instance, problem=instance.problem.behind(Balancing(request.balancing)))
    tell("simulating", 0.0)
    demand_rate = instance.problem.workload.request_rate
    volume = planned_volume(plan) if request.rate is None else request.rate / demand_rate
    if request.requests is None and request.is_steady:
        enough = max(DEFAULT_REQUESTS, run_length(instance, volume))
        request = replace(request, requests=min(enough, MOST_UNTIL // HALVING_RUNS))
    profile = None if request.profile is None else _profile(instance, request.profile)
    start, whole = time.process_time(), Slice.whole(instance, fleet, request.run_requests, request.seed, volume)
    remark, most = "", int(SIMULATED_REQUESTS.high)
    if request.until is not None:
        judgement, most = _until_precise(whole, request.until, tell), MOST_UNTIL
    elif request.is_steady and request.replications is None:
        rule = until_decided(request.run_requests, most=min(HALVING_RUNS * request.run_requests, MOST_UNTIL))
        judgement = whole.judged(whole.requests, rule)
    else:
        if request.trace is not None:
            demand, remark, is_whole = replay(instance, fleet, request)
            demands, most = [demand], demand.trace.size if is_whole else most
        else:
            demands = _drawn(whole, request.runs, profile)
        if request.concurrency:
            demands = [closed_demand(demand, request.concurrency) for demand in demands]
        engines = whole.engines
        if demands[0].trace.pages:  # a router that knows what each engine has cached, as is deployed for prefixes
            aware = {Router.LENGTH_AWARE: Router.PREFIX_AFFINE}
            engines = tuple(replace(pool, router=aware.get(pool.router, pool.router)) for pool in engines)
        judgement = judge_demands(instance, engines, demands)
    behind, has_pages = pool_behind(judgement), judgement.runs[0].demand.trace.pages is not None
    simulation = Simulated(
        plan=plan,
        request=request,
        instance=instance,
        judgement=replace(judgement, rate=demand_rate * volume) if request.is_steady else judgement,
        use=fleet_use(instance, fleet, judgement),
        gaps=class_gaps(instance, judgement),
        behind=None if behind is None else fleet.pools[behind].name,
        remark=remark,
        most=most,
        hits=hit_share(instance, judgement) if request.trace is not None and has_pages else None,
        analytic=evaluate(instance, fleet, volume) if request.is_steady else None,
        strain=_under_strain(instance, fleet, request, volume, judgement) if request.is_steady else None,
        slots=() if profile is None else slots_of_day(instance, judgement, profile, volume),
        cpu_seconds=time.process_time() - start,
    )
    trials = seeded_trials(whole)
    if request.curve:
        tell("going through the rates", 0.5)
        curve = latency_curve(trials, whole.requests)
        return replace(simulation, curve=curve, goodput=curve.goodput)
    if request.goodput:
        tell("finding the goodput", 0.5)
        return replace(simulation, goodput=trials.goodput(TOLERANCE))
    return simulation


def _under_strain(
    instance: Instance, fleet: Fleet, request: SimulationRequest, volume: float, judgement: Judgement
) -> Verdict | None:
    """The verdict of the further tests of a plan on a fleet whose runs meet the goals; else None."""
    if not judgement.proven:
        return None
    bench = Bench(instance, request.seed, request.run_requests, volume)
    return bench.verdict_under_strain(fleet, bench.part(fleet), judgement, MOST_RUNS, held=True)


def _until_precise(whole: Slice, precision: float, tell: Progress) -> Judgement:
    """At least two runs, each long against the memory of the slowest queue, until the interval is narrow enough."""
    requests = whole.full

    def wanted(judgement: Judgement) -> int:
        """As many runs as make the widest interval +- precision, as far as MOST_UNTIL requests go."""
        count, width = len(judgement.runs), half_width(judgement)
        most = max(count * requests / MOST_UNTIL, min((precision / max(width, 1e-9)) ** 2, 1.0))
        tell(f"{count * requests:,} requests, ±{percentage(width, 2)}", most)
        if width <= precision:
            return count
        more = max(count + 1, math.ceil(count * min((width / precision) ** 2, 2.0)))
        return min(more, max(MOST_UNTIL // requests, count))

    return whole.judged(requests, wanted, first=2)


def _drawn(whole: Slice, runs: int, profile: FloatArray | None) -> list[Demand]:
    """Random requests of each run, at one rate or over a day."""
    if profile is None:
        return [whole.drawn(whole.requests, number) for number in range(runs)]
    settings = {"requests": whole.requests, "seed": whole.seed, "replications": runs}
    return diurnal_demands(whole.instance, whole.fleet, profile, volume=whole.volume, **settings)


def _profile(instance: Instance, profile: tuple[float, ...]) -> FloatArray:
    """Rates over the day as multiples."""
    if profile != PLANNED:
        return np.array(profile)
    plan_profile = planned_profile(instance)
    if plan_profile is None:
        raise InputError("--diurnal plan: the plan's workload has no diurnal profile; give multiples such as 0.4,1,0.8")
    return plan_profile


def replay(instance: Instance, fleet: Fleet, request: SimulationRequest) -> tuple[Demand, str, bool]:
    """The first requests of a trace; with a rate, their arrivals are stretched to it.

    Where the trace has hash blocks and the plan's engines cache prefixes, prompts find what their engine still has.
    Also what is to be said of requests that are left out as no engine can serve them, or as they are longer than the
    engines' max_model_len; and whether there are no more in the trace.
    """
    path, most = request.trace or Path(), instance.problem.workload.max_tokens
    summary = read_trace(
        path, limit=request.run_requests + 1, most_tokens=most
    )  # one more shows whether there are more
    rows, too_long = summary.rows.pick(np.arange(min(len(summary.rows), request.run_requests))), summary.too_long
    least = max(int(SIMULATED_REQUESTS.low), PER_USER * (request.concurrency or 0))
    if len(rows) < least:
        fit = f" of at most {most:,} tokens" if too_long else ""
        requests = f"{plural(len(rows), 'request')}{fit}"
        raise InputError(f"{path}: has {requests}; {least:,} are needed at least")
    arrival = spread((rows.nanoseconds - rows.nanoseconds[0]) / NANOSECONDS, summary.arrivals)
    span = float(arrival[-1])
    if span <= 0.0:
        raise InputError(f"{path}: all requests arrive at once")
    if request.rate is not None:
        arrival *= (len(rows) - 1) / span / request.rate
    remark = f", of which {summary.left_out}" if summary.dropped else ""
    if too_long:
        remark += f", less {too_long:,} of more than {most:,} tokens, which its engines do not take"
    demand = replayed_trace(instance, fleet, arrival, rows.isl, rows.osl, seed=request.seed)
    size = summary.block_tokens if instance.problem.workload.prefix_hit_share > 0.0 else None
    if size is not None and rows.hash_ids is not None and rows.hash_counts is not None:
        pages = Pages(rows.hash_ids, rows.hash_counts, size)
        pages = pages.in_blocks(block_tokens(instance.problem.engine, instance.problem.model))
        demand = replace(demand, trace=replace(demand.trace, cached=None, tier=None, pages=pages))
    return demand, remark, len(summary.rows) + summary.dropped + too_long <= request.run_requests


# --- what engines, classes and slots of a day did ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One pool over the runs, without its spare replicas.

    engines, gpus: of the pool; utilization: share of its engines' time in steps [1]; mfu, mbu: shares of the vendor's
    peak FLOP/s and HBM bandwidth that the steps need at least, over all of the time [1]; kv_occupancy, kv_peak: share
    of KV blocks in use, mean over time and most of any engine [1]; peak_running: most requests at once in one engine;
    preemption_rate: preemptions per request of the pool [1]; rejection_rate: share of its requests that no engine of it
    could ever hold (out of memory) [1]; power: mean of all its boards [W]; tdp: the most they may draw [W]; energy:
    over the runs [J].
    """

    name: str
    engines: int
    gpus: int
    utilization: float
    mfu: float
    mbu: float
    kv_occupancy: float
    kv_peak: float
    peak_running: int
    preemptions: int
    preemption_rate: float
    rejected: int
    rejection_rate: float
    power: float
    tdp: float
    energy: float


@dataclass(frozen=True, slots=True)
class FleetUse:
    """Pools of a fleet, and of all of it: energy [J], its mean power [W], energy per 1,000 output tokens [Wh]."""

    pools: tuple[PoolUse, ...]
    energy: float
    power: float
    wh_per_1000_tokens: float


@dataclass(frozen=True, slots=True)
class ClassGaps:
    """Longest gap between two tokens of a request, over a class, and the longest of all [s]."""

    quantiles: Quantiles
    longest: float


def fleet_use(instance: Instance, fleet: Fleet, judgement: Judgement) -> FleetUse:
    """Counters of all engines over all runs, from the first arrival to the last token."""
    pools = tuple(_pool_use(instance, pool, number, judgement) for number, pool in enumerate(fleet.pools))
    energy = sum(pool.energy for pool in pools)
    tokens = sum(float(run.result.trace.osl[run.result.finished].sum()) for run in judgement.runs)
    per_1000 = energy / SECONDS_PER_HOUR / (tokens / 1e3) if tokens > 0.0 else math.inf
    return FleetUse(pools, energy, sum(pool.power for pool in pools), per_1000)


def _pool_use(instance: Instance, pool: FleetPool, number: int, judgement: Judgement) -> PoolUse:
    config, simulated_pool = pool_config(instance, pool), judgement.engines[number]
    uses = [use for run in judgement.runs for use in run.result.engines if use.pool == number]
    spans = np.array([run_span(run.result) for run in judgement.runs])
    work = [  # of each engine in each run: utilization, MFU, MBU and KV occupancy
        np.array([use.shares(simulated_pool, span) for use in run.result.engines if use.pool == number])
        for run, span in zip(judgement.runs, spans.tolist(), strict=True)
    ]
    drawn = np.array([sum(mean_power(config.accelerator.tdp, *engine[:3]) for engine in run) for run in work])
    energy = float(config.gpus * drawn @ spans)
    busy, mfu, mbu, occupancy = np.mean(np.concatenate(work), axis=0).tolist()
    columns = (column for run in judgement.runs for column in (run.demand.trace.pool, run.demand.trace.decode_pool))
    requests = max(1, sum(int((column == number).sum()) for column in columns if column is not None))
    preemptions, rejections = (sum(getattr(use, name) for use in uses) for name in ("preemptions", "rejected"))
    return PoolUse(
        name=pool.name,
        engines=simulated_pool.replicas,
        gpus=simulated_pool.replicas * config.gpus,
        utilization=busy,
        mfu=mfu,
        mbu=mbu,
        kv_occupancy=occupancy,
        kv_peak=max(use.peak_blocks for use in uses) / simulated_pool.limits.kv_blocks,
        peak_running=max(use.peak_running for use in uses),
        preemptions=preemptions,
        preemption_rate=preemptions / requests,
        rejected=rejections,
        rejection_rate=rejections / requests,
        power=energy / max(float(spans.sum()), 1e-12),
        tdp=simulated_pool.replicas * config.gpus * config.accelerator.tdp,
        energy=energy,
    )


def class_gaps(instance: Instance, judgement: Judgement) -> tuple[ClassGaps, ...]:
    """Longest gaps of each class, warm-up left out; a request that never ended counts as an infinite one."""
    runs = judgement.runs
    longest = [np.where(run.result.finished, run.result.itl_max, np.inf) for run in runs]
    classes = range(len(instance.problem.slos))
    pools = [pooled(longest, counted(instance, runs, number, several=True)) for number in classes]
    return tuple(ClassGaps(Quantiles.of(percentiles(gaps, QUANTILES)), float(gaps.max(initial=0.0))) for gaps in pools)


@dataclass(frozen=True, slots=True)
class DaySlot:
    """One slot of a day: mean arrivals [1/s] and the share of each class within its SLO [1] (NaN: no request of it)."""

    rate: float
    attainment: tuple[float, ...]


def slots_of_day(instance: Instance, judgement: Judgement, profile: FloatArray, volume: float) -> tuple[DaySlot, ...]:
    """How each slot of the day went, all runs of `diurnal_demands` together; here nothing is left out as warm-up."""
    rates = instance.problem.workload.request_rate * volume * profile
    came = [_slots(run.demand.trace.arrival, rates) for run in judgement.runs]
    slot = np.concatenate(came)
    good = np.concatenate([in_time(instance, run) for run in judgement.runs])
    member = np.concatenate([instance.flows.slo[run.demand.flow] for run in judgement.runs])
    slots = []
    for number, rate in enumerate(rates.tolist()):
        outcomes = [good[(slot == number) & (member == k)] for k in range(len(instance.problem.slos))]
        slots.append(DaySlot(rate, tuple(float(share.mean()) if share.size else math.nan for share in outcomes)))
    return tuple(slots)


def _slots(arrival: FloatArray, rates: FloatArray) -> IntArray:
    """Number of the slot in which each request comes."""
    length = arrival.size / float(rates.sum())
    return np.minimum(np.floor(arrival / length), rates.size - 1.0).astype(np.int64)


# --- at other rates ---------------------------------------------------------------------------------------------------

LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.3, 1.6)
"""Rates of the curve as shares of the saturation point."""


def judge(
    instance: Instance,
    fleet: Fleet,
    *,
    requests: int,
    seed: int = 0,
    volume: float = 1.0,
    replications: int = 1,
) -> Judgement:
    """Simulate `requests` requests of the demand, times `volume`, through a fleet, as often as `replications` says."""
    whole = Slice.whole(instance, fleet, requests, seed, volume)
    judgement = judge_runs(instance, whole.engines, whole.runs(requests, 0, replications))
    return replace(judgement, rate=instance.problem.workload.request_rate * volume)


def seeded_trials(whole: Slice) -> Trials:
    """Trials of a fleet at any volume; runs are doubled while a goal lies within its interval."""
    rule = until_decided(whole.requests)
    return Trials(whole.instance, lambda volume: replace(whole, volume=volume).judged(whole.requests, rule))


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising rate, and the saturation and knee among them [1/s].

    saturation: highest rate that the fleet keeps up with, to a tolerance (0: none);
    knee: rate of the point at which requests served per second over their mean time in the system is highest.
    """

    points: tuple[RatePoint, ...]
    saturation: float
    knee: float
    goodput: Goodput


def latency_curve(trials: Trials, requests: int, tolerance: float = TOLERANCE) -> Curve:
    """Run a fleet at rates around its saturation point, with common random numbers; requests: of each run.

    The knee maximises Kleinrock's power, throughput / mean response time (Kleinrock 1979, Power and deterministic rules
    of thumb): beyond it the delay grows faster, in proportion, than what is served.
    """
    demand = trials.instance.problem.workload.request_rate
    saturation, _ = boundary(lambda volume: not trials.at(volume).overloaded, tolerance, ends=VOLUMES)
    if saturation >= VOLUMES[1]:
        raise InputError(
            f"{requests} requests are too few for a curve: the fleet falls behind at no rate up to "
            f"{demand * VOLUMES[1]:g} req/s; ask for more requests"
        )
    goodput = trials.goodput(tolerance)
    volumes = {volume for volume, point in trials.points.items() if point.rate in (goodput.rate, demand * saturation)}
    volumes |= {share * (saturation or VOLUMES[0]) for share in LOADS}
    points = tuple(trials.at(volume) for volume in sorted(volumes))
    knee = max(points, key=lambda point: point.served / point.e2e)
    return Curve(points, demand * saturation, knee.rate, goodput)
