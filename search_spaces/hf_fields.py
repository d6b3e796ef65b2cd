"""Typed access to the fields of a Hugging Face `config.json`, and what a family of models leaves unsaid.

Whatever is missing or not understood is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.errors import ArchitectureError
from costmodel.quoting import shown


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

LARGEST = 10**8
"""No count in any config is larger; a typing slip is."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_width": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function"),
    "sliding_window": ("sliding_window", "sliding_window_size"),
}
"""Fields that families name differently; they must agree where several are given."""

SLIDING_HEADS = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
"""Heads of sliding layers, where they are not those of the layers that attend in full (MiMo)."""
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
OTHER_SECTIONS = ("vision_config", "visual", "audio_config")

_UNDERSTOOD = {alias for names in ALIASES.values() for alias in names} | {
    *("head_dim", "v_head_dim", "num_key_value_heads", "multi_head", "multi_query", "attn_output_gate"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"),
    *("index_topk", "index_n_heads", "index_head_dim", "indexer_types", "index_topk_freq", "index_skip_topk_offset"),
    *("layer_types", "hybrid_layer_pattern", "use_sliding_window", "max_window_layers", "sliding_window_pattern"),
    *(*SLIDING_HEADS, "sliding_kv_ratio"),
    *("windowed_everywhere", "attention_chunk_size", "full_attention_interval", "attn_type_list"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("linear_conv_kernel_dim", "moe_layers", "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"),
    *("mlp_layer_types", "mlp_only_layers", "first_k_dense_replace", "word_embed_proj_dim"),
}
_SHAPES = re.compile(
    r"attn|attention|expert|mamba|ssm|^linear_|recurrent|lru_|rwkv|(^|_)conv(_|$)|^index|indexer|sparse|head_dim|heads"
    r"|(^|_)kv_|state_size|layer_types|block_type|block_configs|layers_block|hybrid|encoder|compress_ratio|window|lora_rank"
    r"|(^|_)swa_|^hc_|per_layer_input|moe_layer|altup|new_decoder_architecture|cross_attention|latent|dense|hash_layers"
    r"|layer_group|use_output_gate|^expand$|_rank$|_blocks$|query_group|^[no]_groups$|moe_block"
)
_HARMLESS = re.compile(
    r"dropout|pdrop|bias|(?<!expert_)dtype|implementation|softcap|softmax|scal|temperature|norm|init|aux|coef|router|loss"
    r"|multiplier|rope|expert_group|decoder_start|no_repeat|backend|kernels|return_|output_att"
)


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One config: `values` as written, `defaults` of its family, `where` to begin error messages with."""

    where: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def error(self, text: str) -> ArchitectureError:
        """An error that says in which config it is."""
        return ArchitectureError(f"{self.where}: {text}")

    def missing(self, field: str, reason: str = "pdplan does not guess architectures") -> ArchitectureError:
        """The error for a field that is not there."""
        return self.error(f"config.json lacks {shown(field)}; {reason}")

    def get(self, field: str) -> Any:
        """Value of a field or of its alias; else the family's default; None where neither says anything."""
        names = ALIASES.get(field, (field,))
        given = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if len({repr(value) for value in given.values()}) > 1 and field != "hidden_act":
            pairs = ", ".join(f"{shown(name)} {shorten(value)}" for name, value in given.items())
            raise self.error(f"config.json gives {pairs}, which must agree")
        if given:
            return next(iter(given.values()))
        return None if field in self.values else self.defaults.get(field)  # a written null outweighs the default

    def optional(self, field: str, low: int = 0) -> int | None:
        """A whole number, or None where the config is silent."""
        value = self.get(field)
        return None if value is None else self._whole(self._spelling(field), value, low)

    def count(self, field: str, reason: str = "pdplan does not guess architectures") -> int:
        """A whole number of at least 1 that must be there."""
        value = self.optional(field, low=1)
        if value is None:
            raise self.missing(field, reason)
        return value

    def flag(self, field: str) -> bool | None:
        """A truth value, or None where the config is silent."""
        value = self.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{shown(field)} is {shorten(value)}, but must be true or false")
        return value

    def text(self, field: str) -> str | None:
        """A string, or None where the config is silent."""
        value = self.get(field)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{shown(self._spelling(field))} is {shorten(value)}, but must be a string")
        return value

    def labels(self, field: str, allowed: Sequence[str], length: int) -> tuple[str, ...] | None:
        """One of the `allowed` words per layer, or None where the config is silent."""
        values = self.sequence(field, length)
        if values is None:
            return None
        for layer, value in enumerate(values):
            if value not in allowed:
                choices = ", ".join(allowed)
                raise self.error(
                    f"{shown(field)} says {shorten(value)} for layer {layer}, which pdplan does not know ({choices})"
                )
        return tuple(values)

    def sequence(self, field: str, length: int) -> list[Any] | None:
        """A list of one value per layer, or None where the config is silent."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.error(f"{shown(field)} is {shorten(value)}, but must be a list")
        if len(value) != length:
            raise self.error(f"{shown(field)} has {len(value)} entries for {length} layers")
        return list(value)

    def switches(self, field: str, length: int) -> list[bool] | None:
        """One 0 or 1 per layer as truth values, or None where the config is silent."""
        values = self.sequence(field, length)
        if values is None:
            return None
        odd = next((value for value in values if value not in (0, 1)), None)
        if odd is not None:
            raise self.error(f"{field!r} contains {shorten(odd)}, but must have 0 or 1 for each layer")
        return [bool(value) for value in values]

    def layer_numbers(self, field: str, length: int) -> frozenset[int] | None:
        """A list of layer numbers from 0, or None where the config is silent."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.error(f"{shown(field)} is {shorten(value)}, but must be a list of layer numbers")
        return frozenset(self._whole(field, item, 0, length - 1) for item in value)

    def unknown(self) -> Iterator[str]:
        """Fields that shape attention or experts in a way that pdplan does not model."""
        for field, value in self.values.items():
            if value and field not in _UNDERSTOOD and _SHAPES.search(field) and not _HARMLESS.search(field):
                yield field

    def _spelling(self, field: str) -> str:
        """The alias under which the config writes the field."""
        names = ALIASES.get(field, (field,))
        return next((name for name in names if self.values.get(name) is not None), field)

    def _whole(self, field: str, value: object, low: int, high: int = LARGEST) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{shown(field)} is {shorten(value)}, but must be a whole number from {low} to {high}")
        return value


def open_config(config: Mapping[str, Any], name: str) -> ConfigFields:
    """The language model's fields of a config, whether at the top or nested beside a vision tower.

    Raises ArchitectureError where a field is not understood.
    """
    values = _language_model(config)
    model_type = values.get("model_type", config.get("model_type"))
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    fields = ConfigFields(name, values, family.defaults if family else {})
    unknown = next(fields.unknown(), None)
    if unknown is not None:
        raise fields.error(
            f"config.json has {shown(unknown)} = {shorten(values[unknown])}, which pdplan does not model"
        )
    return fields


def other_towers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Sections beside the language model that are left out."""
    return tuple(section for section in OTHER_SECTIONS if isinstance(config.get(section), Mapping))


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inherited = {
        field: config[field]
        for field in ("tie_word_embeddings", "quantization_config", "model_type")
        if field in config
    }
    for section in TEXT_SECTIONS:
        nested = config.get(section)
        if isinstance(nested, Mapping) and nested:
            return {**inherited, **nested}
    return config


def shorten(value: object) -> str:
    """A value as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
