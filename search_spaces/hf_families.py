"""What a model family leaves unsaid in its `config.json`, as data: a config omits the defaults of its own class.

A default is used only where the config is silent. Besides Hugging Face's own fields there are seven of ours, which a
hand-written config may use too:

is_gated_act: feed-forward with gate and up projections; multi_head: KV heads equal query heads;
ffn_ratio: feed-forward width over hidden size; learned_position_offset: rows that a learned position table has beyond
max_position_embeddings; windowed_everywhere: `sliding_window` holds for every layer; context_is_scaled:
max_position_embeddings is the length that `rope_scaling` extends to; sliding_kv_ratio: KV heads of a sliding layer over
those of a full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of one `model_type`, and where they stand."""

    defaults: Mapping[str, Any]
    reason: str


_GATED = {"is_gated_act": True, "tie_word_embeddings": False}
_PLAIN_MULTI_HEAD = {"is_gated_act": False, "multi_head": True}

_HYBRID = Family(
    {**_GATED, "attn_output_gate": True, "full_attention_interval": 4},
    "Qwen3NextAttention doubles q_proj for its output gate; every fourth layer attends in full",
)
_QWEN = Family(
    {**_GATED, "use_sliding_window": False}, "Qwen2Config and Qwen3Config: sliding_window counts only if switched on"
)
_WINDOWED = Family(
    {**_GATED, "windowed_everywhere": True},
    "MistralConfig and Phi3Config: sliding_window, if set, applies to all layers",
)
_UNTIED = Family(_GATED, "SwiGLU feed-forward and an output head of its own, as in the class's defaults")

FAMILIES: Mapping[str, Family] = {
    "opt": Family(
        {**_PLAIN_MULTI_HEAD, "tie_word_embeddings": True, "learned_position_offset": 2},
        "OPTDecoderLayer has fc1 and fc2 only; OPTLearnedPositionalEmbedding adds two rows",
    ),
    "gpt2": Family(
        {**_PLAIN_MULTI_HEAD, "tie_word_embeddings": True, "learned_position_offset": 0, "ffn_ratio": 4},
        "GPT2Config: n_inner null means 4 n_embd; learned positions",
    ),
    "bloom": Family(
        {**_PLAIN_MULTI_HEAD, "tie_word_embeddings": True, "ffn_ratio": 4, "max_position_embeddings": 2048},
        "BloomMLP is 4 hidden wide; ALiBi has no table, and training used 2048 tokens",
    ),
    "gpt_neox": Family(
        {**_PLAIN_MULTI_HEAD, "tie_word_embeddings": False, "use_parallel_residual": True},
        "GPTNeoXConfig: two-matrix feed-forward, parallel residual",
    ),
    "gptj": Family(
        {**_PLAIN_MULTI_HEAD, "tie_word_embeddings": False, "ffn_ratio": 4, "use_parallel_residual": True},
        "GPTJBlock adds attention and feed-forward; n_inner null means 4 n_embd",
    ),
    "phi": Family(
        {**_PLAIN_MULTI_HEAD, "tie_word_embeddings": False, "use_parallel_residual": True},
        "PhiDecoderLayer adds attention and a two-matrix feed-forward",
    ),
    "starcoder2": Family(
        {"is_gated_act": False, "tie_word_embeddings": True, "windowed_everywhere": True},
        "Starcoder2MLP has c_fc and c_proj only",
    ),
    "llama": Family({**_GATED, "multi_head": True}, "LlamaConfig: num_key_value_heads defaults to num_attention_heads"),
    "llama4_text": Family(
        {**_GATED, "no_rope_layer_interval": 4}, "Llama4TextConfig: every fourth layer has no RoPE and attends in full"
    ),
    "mistral": _WINDOWED,
    "ministral": _WINDOWED,
    "mixtral": _WINDOWED,
    "phi3": _WINDOWED,
    "phimoe": _WINDOWED,
    "qwen2": _QWEN,
    "qwen2_moe": _QWEN,
    "qwen3": _QWEN,
    "qwen3_moe": _QWEN,
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "gemma": Family({"is_gated_act": True, "tie_word_embeddings": True}, "GemmaMLP is GeGLU; head tied"),
    "gemma2": Family(
        {"is_gated_act": True, "tie_word_embeddings": True, "sliding_window_pattern": 2},
        "Gemma2Config: every second layer attends in full",
    ),
    "gemma3_text": Family(
        {
            "is_gated_act": True,
            "tie_word_embeddings": True,
            "sliding_window_pattern": 6,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "context_is_scaled": True,
        },
        "Gemma3TextConfig: every sixth layer attends in full, max_position_embeddings includes the linear scaling; "
        "published configs omit what equals the class",
    ),
    "deepseek_v2": _UNTIED,
    "deepseek_v3": _UNTIED,
    "deepseek_v32": _UNTIED,
    "kimi_k2": _UNTIED,
    "glm4_moe": _UNTIED,
    "glm_moe_dsa": _UNTIED,
    "mimo_v2_flash": Family(
        {**_GATED, "sliding_kv_ratio": 2},
        "MiMoV2FlashAttention of transformers 5 doubles the KV heads of sliding layers; the published one states them",
    ),
    "minimax_m2": _UNTIED,
    "gpt_oss": _UNTIED,
}
