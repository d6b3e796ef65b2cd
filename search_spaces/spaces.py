"""Presets and ranges -> the `SearchSpace`; and which degrees of parallelism a model allows.

A preset is a data file in `presets/`. Of its degrees, those that the model does not allow are left out;
degrees that the user writes are checked in `checks` and refused instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Annotated

from costmodel.engine import Role
from costmodel.transformer import SoftmaxAttention, Transformer

from .bounds import DEGREE, GPUS_PER_ENGINE
from .enumeration import attention_heads
from .fields import Section, count, member
from .problem import SearchSpace
from .schema import Chunks, Degrees, SearchSection, Seqs, Span
from .yaml_source import parse_source

SEQS_FACTOR = 2**0.5
TOKENS_FACTOR = 2.0
GRANULE = 8
"""Batch sizes from twice this on are multiples of it, as engines capture CUDA graphs for those."""


LARGE_MIXTURE = 200e9
"""Weights from which engines spread a mixture's experts beyond a node [1]: the least of the models for which vLLM,
SGLang and TensorRT-LLM publish recipes of wide expert parallelism (Qwen3-235B, GLM-4.5, DeepSeek, Kimi-K2)."""


class _Experts(Section):
    expert_parallel: Degrees
    data_parallel: Degrees
    max_gpus_per_engine: Annotated[int, count(GPUS_PER_ENGINE)] | None = None


class _Preset(Section):
    roles: list[Annotated[Role, member(Role)]]
    tensor_parallel: Degrees
    pipeline_parallel: Degrees
    dense: _Experts
    mixture_of_experts: _Experts
    large_mixture: _Experts | None = None
    max_num_seqs: Seqs
    max_num_batched_tokens: Chunks
    max_gpus_per_engine: Annotated[int, count(GPUS_PER_ENGINE)]


@cache
def _preset(name: str) -> _Preset:
    file = resources.files("search_spaces") / "presets" / f"{name}.yaml"
    source, _ = parse_source(file.read_text(encoding="utf-8"), file.name)
    return _Preset.model_validate(source.value)


def search_space(section: SearchSection, model: Transformer) -> SearchSpace:
    """Return the ranges of the section's preset, with those that the section states in their place."""
    preset = _preset(section.preset)
    experts = _experts(preset, model)
    roles = section.roles or preset.roles
    tensor = [degree for degree in preset.tensor_parallel if tensor_parallel_fits(model, degree)]
    pipeline = [degree for degree in preset.pipeline_parallel if degree <= model.num_layers]
    expert = [degree for degree in experts.expert_parallel if model.redundant_experts(degree) == 0]
    return SearchSpace(
        roles=tuple(role for role in Role if role in roles),
        tensor_parallel=tuple(section.tensor_parallel or tensor),
        pipeline_parallel=tuple(section.pipeline_parallel or pipeline),
        expert_parallel=tuple(section.expert_parallel or expert),
        data_parallel=tuple(section.data_parallel or experts.data_parallel),
        max_num_seqs=sizes(section.max_num_seqs or preset.max_num_seqs, SEQS_FACTOR),
        max_num_batched_tokens=sizes(section.max_num_batched_tokens or preset.max_num_batched_tokens, TOKENS_FACTOR),
        max_gpus_per_engine=section.max_gpus_per_engine or experts.max_gpus_per_engine or preset.max_gpus_per_engine,
        weight_dtype=tuple(section.weight_dtype or ()),
        kv_dtype=tuple(section.kv_dtype or ()),
    )


def _experts(preset: _Preset, model: Transformer) -> _Experts:
    """Degrees that spread experts: wide ones for a mixture that is worth more than a node."""
    if not model.is_moe:
        return preset.dense
    large = preset.large_mixture if model.parameters >= LARGE_MIXTURE else None
    return large or preset.mixture_of_experts


def sizes(stated: Sequence[int] | Span, factor: float) -> tuple[int, ...]:
    """Return the values as they are, or a span's: `from` times powers of `factor`, up to and with `to`.

    >>> sizes(Span(low=8, high=512), SEQS_FACTOR)
    (8, 16, 24, 32, 48, 64, 88, 128, 184, 256, 360, 512)
    """
    if not isinstance(stated, Span):
        return tuple(stated)
    values = {stated.low, stated.high}
    value = float(stated.low)
    while value < stated.high:
        values.add(_rounded(value))
        value *= factor
    return tuple(sorted(value for value in values if stated.low <= value <= stated.high))


def _rounded(value: float) -> int:
    """Whole, and above 8 a multiple of 8 (11.3 becomes 16 and 22.6 becomes 24, both by the nearest of 16, 24, ...)."""
    return round(value) if value <= GRANULE else max(2 * GRANULE, GRANULE * round(value / GRANULE))


def tensor_parallel_fits(model: Transformer, degree: int) -> bool:
    """Whether tensor parallelism of `degree` splits the query heads evenly, and splits or replicates the KV heads."""
    softmax = [group.attention for group in model.layers if isinstance(group.attention, SoftmaxAttention)]
    return all(heads % degree == 0 for heads in attention_heads(model)) and all(
        attention.kv_heads % degree == 0 or degree % attention.kv_heads == 0 for attention in softmax
    )


def allowed_degrees(model: Transformer) -> Mapping[str, tuple[int, ...]]:
    """Degrees that the model allows, by the key of the search section.

    Expert parallelism need not divide the experts: engines fill up with second copies (redundant experts). A preset
    has only degrees that divide them, as copies cost memory.
    """
    every = range(1, int(DEGREE.high) + 1)
    many = tuple(every) if model.is_moe else (1,)
    return {
        "tensor_parallel": tuple(degree for degree in every if tensor_parallel_fits(model, degree)),
        "pipeline_parallel": tuple(degree for degree in every if degree <= model.num_layers),
        "expert_parallel": many,
        "data_parallel": many,
    }
