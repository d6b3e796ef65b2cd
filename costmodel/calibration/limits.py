"""What no engine can beat: every weight is read once per step, every FLOP done at the data sheet's peak."""

from __future__ import annotations

from costmodel.engine import EngineConfig
from costmodel.engine_arrays import vendor_peak
from costmodel.host import NO_OVERHEAD
from costmodel.step import StepLoad, StepTime, step_time_one
from costmodel.transformer import Transformer

DENSE_SLACK = 0.95
"""Part of the counted work that surely must be done: kernels fuse, and a cache keeps a little [1]."""
EXPERTS_SLACK = 0.6
"""The same where routing decides which experts are read: skewed traffic reaches fewer of them [1]."""


def least_tpot(model: Transformer, config: EngineConfig, running: float, context: float) -> float:
    """Least time of a decode step of `running` requests at `context` tokens [s].

    Weights and KV once over the memory bus of one GPU: bytes / bandwidth, at the data sheet's bandwidth, less the
    slack above. Every pipeline stage holds its share of the requests.
    """
    batch = max(running / config.parallelism.pipeline, min(running, 1.0))
    step = _step(model, config, StepLoad.decode(batch, context))
    return slack(model) * float(step.traffic[0, 0]) / config.accelerator.bandwidth


def least_ttft(model: Transformer, config: EngineConfig, isl: float) -> float:
    """Least time of a prompt of `isl` tokens [s]: FLOP / peak of one GPU, all stages busy with chunks of it."""
    step = _step(model, config, StepLoad.prefill(isl))
    return slack(model) * float(step.flop[0, 0]) / (vendor_peak(config) * config.parallelism.pipeline)


def least_step(model: Transformer, config: EngineConfig, load: StepLoad) -> float:
    """Least time of any step of a single engine [s]: the longer of FLOP / peak and bytes / bandwidth."""
    step = _step(model, config, load)
    arithmetic = float(step.flop[0, 0]) / vendor_peak(config)
    return slack(model) * max(arithmetic, float(step.traffic[0, 0]) / config.accelerator.bandwidth)


def most_requests_per_second(model: Transformer, config: EngineConfig, isl: float) -> float:
    """Most prompts of `isl` tokens that an engine's FLOP/s can take in [1/s], all lanes and stages busy."""
    lanes = config.parallelism.pipeline * config.parallelism.data
    flop = float(_step(model, config, StepLoad.prefill(isl)).flop[0, 0])
    return lanes * vendor_peak(config) / (slack(model) * flop)


def slack(model: Transformer) -> float:
    """Part of the counted work that surely must be done [1]."""
    return EXPERTS_SLACK if model.is_moe else DENSE_SLACK


def _step(model: Transformer, config: EngineConfig, load: StepLoad) -> StepTime:
    return step_time_one(model, config, NO_OVERHEAD, load)
