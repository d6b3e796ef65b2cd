"""Bounds of every number that a user may write: least and greatest value, and unit.

A number outside them is a slip (a unit, a column, a power of ten), and would overflow or stall the search. The ranges
are wider than any fleet in use by orders of magnitude, so that they refuse nothing but slips. The names of deployment
targets and of curves are here too, as the command line needs them without slow imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costmodel.metric import METRICS, Metric
from costmodel.units import DAY, GIB, GIGA, MEGA, MICRO, TERA, TIB


@dataclass(frozen=True, slots=True)
class Bounds:
    """A closed range and the unit of its ends; the unit of a share is none."""

    low: float
    high: float
    unit: str = ""

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the range."""
        return self.low <= value <= self.high

    def in_units(self, size: float, unit: str) -> Bounds:
        """The same range in another unit, of `size` [this one's].

        >>> Bounds(1e9, 1e12, "B/s").in_units(1e9, "GB/s")
        Bounds(low=1.0, high=1000.0, unit='GB/s')
        """
        return Bounds(self.low / size, self.high / size, unit)

    def sentence(self, value: float = 0.0) -> str:
        """The range in words, for a value that is not in it; 2**53, which nobody reaches, only where that is exceeded.

        >>> Bounds(1, 2**24, "tokens").sentence(), Bounds(0, 2**53).sentence(-3)
        ('must be at least 1 and at most 16,777,216 tokens', 'must be at least 0')
        """
        unit = f" {self.unit}" if self.unit else ""
        most = f" and at most {plain(self.high)}" if self.high < 2**53 or value > self.high else ""
        return f"must be at least {plain(self.low)}{most}{unit}"


def plain(value: float) -> str:
    """A number as it reads best: whole ones with their thousands set apart, others in the shortest form.

    >>> plain(2.0**20), plain(0.001), plain(1e300)
    ('1,048,576', '0.001', '1e+300')
    """
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e16 else f"{value:g}"


OVER: Final = ("rate", *map(str, Metric), "attainment", "budget")
"""Levers of `pdplan frontier`."""


# The demand.
REQUEST_RATE: Final = Bounds(MICRO, MEGA, "/s")
"""One request in eleven days .. a million a second."""
HOURLY_RATE: Final = Bounds(0, MEGA, "/s")
HOURS_PERCENTILE: Final = Bounds(1, 100, "%")
BURSTINESS: Final = Bounds(0, 1000)
"""The burstiest public trace has a coefficient of variation below 100."""
RECORDED: Final = Bounds(1, 2**53, "requests")
LEFT_OUT: Final = Bounds(0, 2**53, "requests")
SPAN: Final = Bounds(1e-3, 1e10, "s")
"""Three centuries of a trace."""
PREFIX_HIT_SHARE: Final = Bounds(0, 0.999999)
"""Some part of every prompt is new."""
PAUSE: Final = Bounds(1e-3, 30 * DAY, "s")
"""From a tool that answers at once to a user who comes back after weeks."""
SYSTEM_PROMPT: Final = Bounds(0, 2**24, "tokens")
TURNS: Final = Bounds(1, 10_000, "turns")
TOKENS: Final = Bounds(1, 2**24, "tokens")
"""As in traces: the longest context on the market has 10 million tokens."""
MAX_TOKENS: Final = Bounds(2, 2**25, "tokens")
"""The longest input and the longest output together."""
SHARE: Final = Bounds(0, 1)
PART: Final = Bounds(1e-6, 0.999999)
"""Above 0 and below 1."""
CLASS_SHARE: Final = Bounds(1e-6, 1)
"""A class without requests cannot be measured; it is left out of the file."""
BUCKETS: Final = Bounds(1, 400, "buckets")
"""A search over 400 takes seconds and 1 GB; the figures of a plan no longer change from some 50 on."""

# The service levels.
LATENCIES: Final = {metric: Bounds(MICRO, row.most, "s") for metric, row in METRICS.items()}
TTFT: Final = LATENCIES[Metric.TTFT]
TPOT: Final = LATENCIES[Metric.TPOT]
RECOVERY: Final = Bounds(MICRO, 7 * DAY, "s")
ATTAINMENT: Final = Bounds(0.01, 0.999999)
"""Six nines of requests is beyond what any trace can show; below 1 % a limit limits nothing."""

# The hardware and its market.
PRICE: Final = Bounds(1e-4, 1e4, "$/h")
"""Of one GPU."""
INVENTORY: Final = Bounds(0, 1e7, "GPUs")
NODE_SIZE: Final = Bounds(1, 1024, "GPUs")
BANDWIDTH: Final = Bounds(MEGA, 1000 * TERA, "B/s")
LATENCY: Final = Bounds(0, 1, "s")
MEMORY: Final = Bounds(GIB, 1024 * TIB, "B")
PEAK_FLOPS: Final = Bounds(GIGA, 1e21, "FLOP/s")
BOARD_POWER: Final = Bounds(1, MEGA, "W")
CONFIDENCE: Final = Bounds(-0.98, 0.98)
"""0 plans on the expected times, below it on quick ones; beyond 0.98 the residuals of a thousand rows say nothing."""
QUICK: Final = "for quick GPUs"
"""What a negative confidence is for."""
MEMORY_FRACTION: Final = Bounds(0.1, 1)
TIER_CAPACITY: Final = Bounds(0, 1000 * TIB, "bytes")
"""Of the KV cache tier, for each GPU; 0 is none."""
TIER_PRICE: Final = Bounds(0, 100, "$/h")
"""Of one GiB of the KV cache tier."""
EFFICIENCY: Final = Bounds(1e-6, 1)
"""Of the roofline; a kernel that is a million times slower than the hardware is a slip."""
RELATIVE_ERROR: Final = Bounds(0, 100)
NOT_NEGATIVE: Final = Bounds(0, 1e18)

# The months to come.
MONTHS: Final = Bounds(1, 120, "months")
DELIVERY: Final = Bounds(0, 120, "months")
GROWTH: Final = Bounds(-0.9, 1)
"""Per month; twice as much in a month and one tenth in a month."""

# The search.
WHOLE: Final = Bounds(1, 2**53)
"""Up to here a float holds every whole number, so that JSON and YAML agree on it."""
DEGREE: Final = Bounds(1, 1024, "GPUs")
MAX_NUM_SEQS: Final = Bounds(1, 2**16, "requests")
MAX_NUM_BATCHED_TOKENS: Final = Bounds(16, 2**20, "tokens")
"""From one block of the KV cache on; beyond a million, a step would take minutes."""
SPECULATIVE_TOKENS: Final = Bounds(0, 16, "tokens")
ACCEPTANCE: Final = Bounds(0.0, 1.0, "")
GPUS_PER_ENGINE: Final = Bounds(1, 4096, "GPUs")
VOLUME: Final = Bounds(1e-3, 1e3)
SEED: Final = Bounds(0, 2**53)
TIME_LIMIT: Final = Bounds(0, DAY, "s")
"""Of the search, on the clock."""
RUN_REQUESTS: Final = Bounds(100, 1_000_000, "requests")
"""Of a run that simulates one loss, or one hour."""
SIMULATED_REQUESTS: Final = Bounds(100, 5_000_000, "requests")
"""Of a run of `pdplan simulate`: fewer tell nothing of a tail; more do not fit in memory beside their times."""
REPLICATIONS: Final = Bounds(1, 100, "replications")
CONCURRENCY: Final = Bounds(1, 100_000, "requests")
HALF_WIDTH: Final = Bounds(1e-4, 0.25)
"""Of an interval that may be asked for [1]."""
JOBS: Final = Bounds(1, 4096, "jobs")
LOOKS: Final = Bounds(0, 10_000)
"""Fleets that a sweep simulates."""
ALTERNATIVE: Final = Bounds(1, 1000)
"""Number of a fleet of a plan's comparison."""
DAY_PARTS: Final = Bounds(2, 1440, "parts of a day")

# The limits on the fleet.
BUDGET: Final = Bounds(1e-4, GIGA, "$/h")
POWER: Final = Bounds(1, 100 * GIGA, "W")
MAX_GPUS: Final = Bounds(1, 1e7, "GPUs")
MAX_POOLS: Final = Bounds(1, 1000, "pools")
SPARE_REPLICAS: Final = Bounds(0, 1000, "replicas")

# How many of a thing one file may hold.
MAX_CLASSES: Final = 16
MAX_ACCELERATORS: Final = 64
MAX_VALUES: Final = 1000
"""Values of one list of the search section."""
MAX_HISTOGRAM_ROWS: Final = 100_000
"""Rows of a histogram; more belong in a trace."""
MAX_SPLITS: Final = 200_000
"""Ways to split a model over GPUs, all accelerators together; the widest preset over the whole catalog has 164,000."""
MAX_SETTINGS: Final = 350_000
"""Engine shapes x max_num_seqs x max_num_batched_tokens: some 7 GB and two minutes; the widest preset over two thirds
of the catalog has 333,000."""
MAX_CELLS: Final = 12_000_000
"""The same x buckets x classes: each of these is priced."""


TARGET_NAMES: Final = ("vllm", "dynamo", "llm-d", "sglang", "trtllm")
"""Names of targets, in the order in which they are listed; `targets.yaml` says what each can do."""
TARGET_SPELLINGS: Final = {"llmd": "llm-d"}
"""Other ways to write a target's name, as users and older plans do."""
ROUTERS: Final = ("least-tokens", "least-requests")
"""Values of `problem.Balancing`."""
ROUTER_SPELLINGS: Final = {"fewest_tokens": "least-tokens", "fewest_requests": "least-requests"}
"""Their names in older plans."""
NO_TARGET: Final = "none"
"""In place of a target: also allows fleets that no target runs."""
