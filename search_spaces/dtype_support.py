"""Which precisions an engine can run on an accelerator: what is refused here, no engine of that name starts with.

Matrix units of the weights' own kind are always used (`costmodel.engine_arrays.compute_dtype`). Without them an engine
needs kernels that expand narrow weights to 16 bit on the way (W8A16, W4A16):

vLLM, SGLang   on NVIDIA from Ampere on Marlin's, for FP8, INT8, INT4 and FP4 (vLLM pull requests 5975 and 17687); on
               AMD for INT4 and FP4 only, as Marlin is CUDA (vLLM, Supported hardware, 0.14)
TensorRT-LLM   for INT4 (AWQ, GPTQ) and for the experts of MXFP4 checkpoints; FP8 starts with Ada, FP4 with Blackwell
               (Model Optimizer, Support matrix); there is no build but NVIDIA's

A KV cache in FP8 is expanded while attention reads it, so ordinary attention needs no FP8 units for it (vLLM issues
3965 and 24577). Without them vLLM has a single kernel for latents, Triton's, which reads 16 bit (vLLM, Attention
backends).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from costmodel.accelerator import Accelerator
from costmodel.engine_arrays import ACTIVATION_DTYPE, compute_dtype
from costmodel.transformer import Transformer

NVIDIA = "nvidia"
AMD = "amd"

WEIGHT_ONLY: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "vllm": {NVIDIA: frozenset({"fp8", "int8", "int4", "fp4", "mxfp4"}), AMD: frozenset({"int4", "fp4", "mxfp4"})},
        "sglang": {
            NVIDIA: frozenset({"fp8", "int8", "int4", "fp4", "mxfp4"}),
            AMD: frozenset({"int4", "fp4", "mxfp4"}),
        },
        "trtllm": {NVIDIA: frozenset({"int4", "mxfp4"})},
    }
)
"""Formats that an engine runs on a vendor's GPUs without units of their kind; a vendor not named is not judged."""

ONE_VENDOR: Mapping[str, str] = MappingProxyType({"trtllm": NVIDIA})
"""Engines that run on the GPUs of one vendor alone."""

SIXTEEN_BIT_LATENTS = frozenset({"vllm"})
"""Engines whose only kernel for latent attention on every GPU reads a 16-bit cache."""


def engine_refused(engine: str, accelerator: Accelerator) -> str | None:
    """Why an engine runs on no GPU of this vendor at all; None if it does."""
    vendor = ONE_VENDOR.get(engine, accelerator.vendor)
    return None if vendor == accelerator.vendor else f"{engine} runs on {vendor} GPUs only"


def weights_refused(engine: str, accelerator: Accelerator, model: Transformer, weight_dtype: str) -> str | None:
    """Why an engine has no kernels for weights of a dtype on an accelerator; None if it has."""
    native = compute_dtype(weight_dtype, accelerator) != ACTIVATION_DTYPE
    dtypes = WEIGHT_ONLY[engine].get(accelerator.vendor)
    if native or dtypes is None or weight_dtype == ACTIVATION_DTYPE:
        return None
    stored = "mxfp4" if model.is_mxfp4(weight_dtype) else weight_dtype
    if stored in dtypes:
        return None
    return f"{accelerator.name} has no {weight_dtype} units, and {engine} no kernels that expand {stored} weights there"


def kv_refused(engine: str, accelerator: Accelerator, model: Transformer, kv_dtype: str) -> str | None:
    """Why an engine has no attention kernel for a KV cache of a dtype on an accelerator; None if it has."""
    if kv_dtype == ACTIVATION_DTYPE or kv_dtype in accelerator.peak_flops:
        return None
    if model.is_latent and engine in SIXTEEN_BIT_LATENTS:
        return f"{accelerator.name} has no {kv_dtype} units, and {engine} reads latents there in 16 bit only"
    return None
