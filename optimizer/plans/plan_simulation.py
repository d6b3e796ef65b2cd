"""What a simulation showed of a plan's fleet, as plan.json holds it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from costmodel.metric import Metric

from .plan_fields import Amount, Count, Degree, Measure, Quantiles, Record, Share, WithMetrics
from .plan_pools import EnginePool

Judged = Annotated[str, BeforeValidator(lambda outcome: "meets" if outcome == "holds" else outcome)]
"""The outcome of full runs: "meets" (in plans of older versions "holds"), "misses", or "undecided" where an interval
straddles its goal."""


class SimulatedLatencies(WithMetrics):
    """One SLO class in the simulation at one rate."""

    name: str
    attainment: Share
    """Share of its requests within all their SLOs."""
    ttft_s: Quantiles
    tpot_s: Quantiles
    metrics: dict[Metric, Quantiles] = Field(default_factory=dict)
    """Of every other metric that the class limits, but the end-to-end time [s]."""


class SimulatedClass(SimulatedLatencies):
    """One SLO class in the simulation at the rate of the plan, with its distributions."""

    attainment_goal: Share
    attainment_low: Share
    """Lower end of the 95 % confidence interval of `attainment`; at or above the goal in every plan that holds."""
    attainment_high: Share
    counted: Count
    """Requests of the class that were counted: all but the first tenth of each run."""
    by_formula: SimulatedLatencies
    """What the queueing formulas predict for the same fleet."""
    e2e_s: Quantiles | None = None
    """From arrival to last token; null in plans of older versions."""
    ttft_cdf_s: list[Measure]
    """TTFT at each of `Simulation.cdf_shares`; null where the request never got that far."""
    tpot_cdf_s: list[Measure]


class SimulatedRate(Record):
    """The fleet at one arrival rate, in one run."""

    rate_rps: Amount
    held: bool
    """Whether the lower end of every class's interval reached its goal and the fleet kept up; in plans of older
    versions, which have no `outcome`, whether every class's share did."""
    outcome: Judged | None = None
    """Null in plans of older versions."""
    overloaded: bool
    classes: list[SimulatedLatencies]

    @property
    def missed(self) -> bool:
        """Whether some goal was missed at the upper end of its interval, or the fleet fell behind."""
        return not self.held if self.outcome is None else self.outcome == "misses"


class JudgedFleet(Record):
    """A fleet that was simulated and is not the plan's, such as the plan's with one replica less."""

    what: str
    """How it differs, such as "decode-1: one replica less"."""
    pools: list[EnginePool]
    cost_usd_per_hour: Amount
    held: bool
    """Whether the lower end of every class's interval reached its goal and the fleet kept up."""
    outcome: Judged | None = None
    """Null in plans of older versions."""
    stuck: bool = False
    """Whether it kept its goals until a crowd filled its KV memory, and not any more after that."""
    replayed: bool = False
    """Whether it kept its goals for stretches of the recorded requests, and not for all of them in their order."""
    overloaded: bool
    attainment: dict[str, Share]
    """Simulated share of each SLO class within its SLOs."""
    latencies: list[SimulatedLatencies] = Field(default_factory=list)
    """Of each SLO class."""


class RecordedRun(Record):
    """The plan's fleet when the requests of a trace come in their own order."""

    source: str
    """Name of the trace."""
    requests: Count
    """Requests that were simulated."""
    of: Count
    """Requests of the trace; where it has more, stretches of it are."""
    stretch_s: Amount
    """Mean length of the stretches that the simulation's other runs draw from it, at the rate of the plan."""
    classes: list[SimulatedLatencies]
    """The first tenth of the requests, which find the fleet empty, is not counted."""


class TunedFleet(Record):
    """A fleet that tuning looked at in a short run, or one of the comparison that was judged beside these."""

    pools: list[EnginePool]
    cost_usd_per_hour: Amount
    tail: Measure
    """Largest latency, at the quantile of its goal, as a share of its limit; at most 1 where every goal is kept."""
    served: list[Share] = Field(default_factory=list)
    """Share of the requests that each pool serves."""
    outcome: Judged | None = None
    """Null where it was only looked at."""
    latencies: list[SimulatedLatencies] = Field(default_factory=list)
    """Of each SLO class: in full runs where there is an outcome, else in the short run."""


class Tuning(Record):
    """What `--effort thorough` or `--front` tried."""

    sampler: str
    objectives: list[str] = Field(default_factory=lambda: ["cost"])
    """"cost" alone, or "cost" and "tail", whose front is the answer then and is judged where it costs more."""
    looks: Count
    """Fleets that were simulated in a short run."""
    compared: Count = 0
    """Fleets of the comparison that were judged for the front, in full runs; 0 in plans of older versions."""
    improved: bool
    """Whether one of the looks was proven and is the plan's."""
    front: list[TunedFleet]
    """Fleets that keep their goals and that no other beats in both cost and tail by 0.01 limits, cheapest first; one
    that holds in full runs is beaten only by another that does."""


class Simulation(Record):
    """What serving the demand request by request showed."""

    requests: Count
    """Requests of all replications together, warm-up included."""
    replications: Degree
    seed: int
    """Of the first replication; nothing else in the simulation is random."""
    rate_rps: Amount
    parts: Degree = 1
    """Of a very large fleet one engine in so many was simulated, with as much of the demand."""
    held: bool
    """Whether the lower end of every class's interval reaches its goal and the fleet keeps up."""
    confirmation: Count = 0
    """Number of the confirmation that the fleet passed: the requests are ones that no choice was made by. 0: none was
    made, for want of time (or in an older version); then the fleet was chosen by the same requests."""
    attainment: Share
    """Share of all requests within all their SLOs."""
    classes: list[SimulatedClass]
    cdf_shares: list[Share]
    itl_max_p99_s: Measure
    """Longest gap between two tokens of a request, at its 99th percentile over requests."""
    preemptions_per_request: Amount
    rejected: Share
    """Share of the requests that no engine can hold."""
    unfinished: Share
    goodput_rps: Amount | None
    """Highest rate tried at which every class held at the lower end of its interval; null where the search for it was
    interrupted."""
    goodput_fails_rps: Amount | None
    """The next higher rate that was tried, at which one did not."""
    goodput_by_formula_rps: Measure
    curve: list[SimulatedRate]
    """Latency against rate, rising; runs as long as each other have the same requests, at other times."""
    curve_requests: Count
    """Requests of the run at each rate above the planned one, whose runs are those above; fewer at lower rates."""
    one_replica_less: list[JudgedFleet]
    """The plan's fleet with one replica less in one pool: none holds, or the plan would be cheaper."""
    fewest_requests: JudgedFleet | None = None
    """The plan's fleet behind a router that counts requests, not prompt tokens; null where that is the plan's own or
    chooses alike, where time ran out, and in plans of older versions."""
    recorded: RecordedRun | None = None
    """Null where no trace was given, and in plans of older versions."""
    others: list[JudgedFleet]
    """Other fleets that were simulated, in order: cheaper ones that missed, or best of their kind."""
    tuning: Tuning | None = None
    """None where it was not asked for."""
    judged: Count
    """Fleets that were simulated."""
    repairs: Count
    """Of them those made from a fleet that had missed."""
    interrupted: bool = False
    """Whether the search was stopped after a fleet had held: a cheaper one may hold too."""
