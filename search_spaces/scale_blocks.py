"""Which splits of quantised weights keep their blocks whole: a block that shares a scale cannot lie on two ranks.

An engine refuses to start where a rank's share of a split dimension is no multiple of the block. All three have the
same rule for what is judged here:

vLLM          outputs of a matrix split by columns and inputs of one split by rows (`validate_fp8_block_shape`), the
              width of an expert both ways (`Fp8MoEMethod.create_weights`; issues 17569 and 54178), inputs of AWQ, GPTQ
              and NVFP4 by the group ("The input size is not aligned with the quantized weight shape", issue 5675)
SGLang        the same (fp8.py), of shared experts with expert parallelism too (issue 10852)
TensorRT-LLM  the width of an expert (NVIDIA AIConfigurator refuses others for every engine); elsewhere it shards scales
              by whole blocks only (`load_weight_shard`)

Not judged: matrices that are stored side by side (QKV, gate and up), which vLLM takes with any heads (pull request
30836) and SGLang for MiMo, the only checkpoint whose heads are no multiple of 128; and experts in groups, for which
engines halve the group (`MoeWNA16Method`) or pad the expert (MXFP4).
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.engine import Parallelism
from costmodel.transformer import LayerGroup, Part, Sharding, Transformer, WeightScale

_WIDTHS = {
    Part.ATTENTION: "attention width",
    Part.FEED_FORWARD: "feed-forward width",
    Part.EXPERTS: "expert width",
}


def split_refused(model: Transformer, split: Parallelism, weight_dtype: str) -> str | None:
    """Why tensor ranks cannot share the checkpoint's blocks; None if they can, or if weights are in another dtype."""
    scale = model.weight_scale
    if scale is None or weight_dtype != model.native_weight_dtype:
        return None
    for group in model.layers:
        for part, width, ranks, block in _split_dimensions(group, split, scale):
            if ranks > 1 and model.part_dtype(part, weight_dtype) == weight_dtype and width % (ranks * block):
                return (
                    f"TP {ranks} cuts the {_WIDTHS[part]} {width:,} into {width // ranks:,}, no multiple of the "
                    f"{block} weights that share a scale"
                )
    return None


def _split_dimensions(
    group: LayerGroup, split: Parallelism, scale: WeightScale
) -> Iterator[tuple[Part, int, int, int]]:
    """Of every matrix that is split: its part, the width that is, over how many ranks, and the block along it."""
    for matrix in group.matrices:
        if matrix.sharding is Sharding.ROW:
            yield matrix.part, matrix.k, split.tensor, scale.inputs
        elif matrix.sharding is Sharding.COLUMN and not matrix.merged:
            yield matrix.part, matrix.n, split.tensor, scale.outputs
    block = group.feed_forward
    if block.experts and scale.outputs > 1:
        yield Part.EXPERTS, block.expert_intermediate, split.expert_ranks, scale.outputs
        yield Part.EXPERTS, block.expert_intermediate, split.expert_ranks, scale.inputs
