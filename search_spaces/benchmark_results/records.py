"""What a benchmark tool measured, in one form for all: times in seconds, lengths in tokens, None where unknown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tool(StrEnum):
    """Whose result file it is."""

    VLLM = "vllm bench serve"
    SGLANG = "sglang bench_serving"
    AIPERF = "AIPerf"
    GENAI_PERF = "GenAI-Perf"
    GUIDELLM = "GuideLLM"
    INFERENCEX = "InferenceX"
    DYNAMO = "Dynamo self-benchmark"


@dataclass(frozen=True, slots=True)
class Latency:
    """A time over the requests of a run [s]: its mean and quantiles."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @property
    def typical(self) -> float | None:
        """The mean, which the model predicts, or else the median [s]."""
        return self.p50 if self.mean is None else self.mean


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers of a stated layout: tensor x pipeline x data ranks each, experts over `expert` ranks."""

    count: int
    tensor: int
    pipeline: int
    data: int
    expert: int


@dataclass(frozen=True, slots=True)
class Stated:
    """A deployment that the result file itself states (InferenceX).

    accelerator, precision: its words; decode: None where one kind of worker does both.
    """

    accelerator: str
    precision: str
    prefill: Workers
    decode: Workers | None


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run of a load generator.

    where: file, and line or index in it; model, engine: the file's words;
    isl, osl: mean lengths [token]; spread: 1 - shortest / longest prompt [1];
    concurrency: requests that the generator keeps in flight at most [1]; in_flight: their measured mean [1];
    request_rate: rate at which it sends [1/s], infinite where only the concurrency limits it;
    prompts: requests sent; completed: of these, finished; duration [s];
    tpot: (end - first token) / (OSL - 1);
    request_throughput: requests that end [1/s]; output_throughput: tokens generated [token/s];
    speculative: more than one token came from a step; cached: share of prompt tokens found in a prefix cache [1];
    stated: the deployment, where the file names it.
    """

    where: str
    tool: Tool
    isl: float
    osl: float
    ttft: Latency
    tpot: Latency
    model: str | None = None
    engine: str | None = None
    spread: float = 0.0
    concurrency: float | None = None
    in_flight: float | None = None
    request_rate: float | None = None
    prompts: int | None = None
    completed: int | None = None
    duration: float | None = None
    request_throughput: float | None = None
    output_throughput: float | None = None
    speculative: bool = False
    cached: float = 0.0
    stated: Stated | None = None

    @property
    def gaps(self) -> float:
        """Gaps between the tokens of a request: OSL - 1, at least one [1]."""
        return max(self.osl - 1.0, 1.0)

    @property
    def residence(self) -> float | None:
        """Time of a request from arrival to its last token [s]: TTFT + (OSL - 1) TPOT."""
        ttft, tpot = self.ttft.typical, self.tpot.typical
        return None if ttft is None or tpot is None else ttft + self.gaps * tpot

    @property
    def occupancy(self) -> float | None:
        """Mean requests in flight by Little's law: throughput x residence [1]."""
        rate, residence = self.request_throughput, self.residence
        return None if rate is None or residence is None else rate * residence


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One forward pass that an engine timed itself.

    prompts: in the step, with `new` tokens each after `past` cached ones; decodes: requests that decode, at a mean
    context of `context` tokens; seconds: wall time of the pass [s].
    """

    where: str
    tool: Tool
    prompts: float
    new: float
    past: float
    decodes: float
    context: float
    seconds: float


Record = BenchmarkRun | MeasuredStep
