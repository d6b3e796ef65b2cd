"""Prefill workers of measured rows as the public recipes of these runs set them up, where the label says otherwise.

The recipes are those of srt-slurm for the InferenceX submission of early 2026: trtllm/h200/{1k1k,8k1k}/stp,
trtllm/b200-fp8/8k1k/stp and b200-fp8/8k1k-stp.yaml. They state `enable_attention_dp: false` for prefill of 8k prompts
on H200 and `true` for 1k ones, one group of experts for 8k prompts on B200, and `data-parallel-size: 1` for SGLang's
first runs there. Each such row has a twin of the right label with the same times, or completes as many prompts as other
rows of the right layout do. Fits follow the recipes; errors are those of the rows as labelled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from search_spaces.measurements import MeasuredRun, Row, Workers

Degrees = tuple[int, int, int]
"""Tensor, data and expert ranks of a prefill worker."""

LABELLED_MODELS = ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")
"""Names under which the measurements list this architecture."""
PRECISION = "fp8"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Disaggregated rows of an engine on a GPU with prompts of `isl` tokens: labelled, and run as.

    concurrency: of the one run that it is about, None for all others.
    """

    engine: str
    gpu: str
    isl: float
    labelled: Degrees
    ran: Degrees
    concurrency: float | None = None


RECIPES = (
    Recipe("trtllm", "h200", 8192, labelled=(1, 8, 8), ran=(8, 1, 8)),
    Recipe("trtllm", "h200", 1024, labelled=(8, 1, 8), ran=(1, 8, 8)),
    Recipe("trtllm", "b200", 8192, labelled=(1, 8, 8), ran=(8, 1, 1), concurrency=1),
    Recipe("trtllm", "b200", 8192, labelled=(1, 8, 8), ran=(1, 8, 1)),
    Recipe("sglang", "b200", 8192, labelled=(1, 8, 8), ran=(8, 1, 8)),
)
"""The first that fits a row counts."""


def as_run(row: Row) -> Row:
    """The row with the prefill layout that it was run with."""
    if not isinstance(row, MeasuredRun) or row.decode is None:
        return row
    if row.model not in LABELLED_MODELS or row.precision != PRECISION:
        return row
    run = (row.engine, gpu_of(row), row.isl, degrees(row.prefill))
    for each in RECIPES:
        same = (each.engine, each.gpu, each.isl, each.labelled) == run
        if same and each.concurrency in (None, row.concurrency):
            tensor, data, expert = each.ran
            split = replace(row.prefill.split, tensor=tensor, data=data, expert=expert)
            return replace(row, prefill=replace(row.prefill, split=split))
    return row


def gpu_of(row: MeasuredRun) -> str:
    """The GPU of a row, whichever system it is part of."""
    return row.accelerator.split("_")[0]


def degrees(workers: Workers) -> Degrees:
    """Tensor, data and expert ranks of workers."""
    return workers.split.tensor, workers.split.data, workers.split.expert
