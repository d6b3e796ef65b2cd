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
_TIED = Family({"is_gated_act": True, "tie_word_embeddings": True}, "SwiGLU feed-forward; head tied, as in the class")
_COHERE = Family(
    {"is_gated_act": True, "tie_word_embeddings": True, "use_parallel_residual": True},
    "CohereDecoderLayer adds attention and feed-forward to one residual; head tied",
)
_NEMOTRON = Family(
    {"is_gated_act": False, "tie_word_embeddings": False},
    "NemotronHMLP and its experts have up_proj and down_proj only",
)

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
    "falcon": Family(
        {"is_gated_act": False, "tie_word_embeddings": True, "ffn_ratio": 4, "use_parallel_residual": True},
        "FalconMLP is 4 hidden wide and not gated; parallel_attn by default",
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
    "gemma4_text": Family(
        {"is_gated_act": True, "tie_word_embeddings": True, "sliding_window_pattern": 6},
        "Gemma4TextConfig: GeGLU, head tied; layers that attend in full have head sizes of their own",
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
    "zamba2": Family(
        {"is_gated_act": True, "tie_word_embeddings": True},
        "Zamba2MLP splits gate_up_proj; Zamba2Config ties embeddings",
    ),
    "deepseek_v2": Family(
        {**_GATED, "experts_per_token": 6},
        "DeepseekV2Config leaves num_experts_per_tok open; DeepSeek-V2 and V2-Lite, all that is published, take 6",
    ),
    "deepseek_v3": _UNTIED,
    "deepseek_v32": _UNTIED,
    "kimi_k2": _UNTIED,
    "glm4_moe": Family({**_GATED, "floored_head_dim": True}, "Glm4MoeConfig: SwiGLU; hidden_size // heads rounds down"),
    "glm4_moe_lite": _UNTIED,
    "glm_moe_dsa": _UNTIED,
    "mimo_v2_flash": Family(
        {**_GATED, "sliding_kv_ratio": 2},
        "MiMoV2FlashAttention of transformers 5 doubles the KV heads of sliding layers; the published one states them",
    ),
    "deepseek_v4": _UNTIED,
    "kimi_linear": _UNTIED,
    "longcat_flash": _UNTIED,
    "step3p5": _UNTIED,
    "step3p7": _UNTIED,
    "minimax_text_01": Family({**_GATED, "lightning_attention": True}, "as MiniMaxConfig of transformers"),
    "minimax": Family({**_GATED, "lightning_attention": True}, "MiniMaxLightningAttention: q, k, v and an output gate"),
    "minimax_m2": _UNTIED,
    "minimax_m3": _UNTIED,
    "gpt_oss": _UNTIED,
    "olmoe": Family({**_GATED, "intermediate_is_experts": True}, "OlmoeConfig: intermediate_size is an expert's"),
    "afmoe": Family({**_GATED, "attn_output_gate": True}, "AfmoeAttention has gate_proj as wide as its heads"),
    "ernie4_5_moe": _TIED,
    "hunyuan_v1_moe": _TIED,
    "hunyuan_v1_dense": _TIED,
    "cohere": _COHERE,
    "cohere2": Family({**_COHERE.defaults, "sliding_window_pattern": 4}, "Cohere2Config: every fourth layer in full"),
    "cohere2_moe": Family({**_COHERE.defaults, "sliding_window_pattern": 4}, "as Cohere2Config"),
    "apertus": Family(
        {"is_gated_act": False, "tie_word_embeddings": False}, "ApertusMLP has up_proj and down_proj only"
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron-nas": _UNTIED,
    "bamba": _UNTIED,
    "falcon_h1": Family(
        {**_GATED, "parallel_mixers": True}, "FalconH1DecoderLayer has Mamba-2 and attention side by side"
    ),
    "granitemoehybrid": _TIED,
    "falcon_mamba": Family(
        {"no_feed_forward": True, "max_position_embeddings": 2**20, "is_gated_act": True},
        "FalconMambaBlock has a mixer alone, whose state knows no positions",
    ),
    "jamba": Family({**_GATED, "intermediate_is_experts": True}, "JambaConfig: intermediate_size is an expert's too"),
}

LARGEST = 10**8
"""No count in any config is larger; a typing slip is."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "experts_per_token": (
        *("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_k", "moe_topk"),
    ),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_width": (
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"),
        "share_expert_dim",
    ),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "expert_latent": ("moe_latent_size", "routed_expert_hidden_size"),
    "first_k_dense_replace": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation", "mlp_hidden_act"),
    "sliding_window": ("sliding_window", "sliding_window_size"),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"),
    "layer_types": ("layer_types", "layers_block_type"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "use_parallel_residual": ("use_parallel_residual", "parallel_attn"),
    "attn_output_gate": ("attn_output_gate", "attention_output_gate", "mla_use_output_gate", "use_output_gate"),
    "mamba_heads": ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
    "mamba_state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "mamba_rank": ("time_step_rank", "mamba_dt_rank"),
    "mamba_groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    "mamba_conv": ("conv_kernel", "mamba_d_conv"),
    "mamba_expand": ("expand", "mamba_expand"),
}
"""Fields that families name differently; they must agree where several are given."""

SLIDING_HEADS = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
"""Heads of sliding layers, where they are not those of the layers that attend in full (MiMo)."""
MOST_NAMED = 3
"""Fields that a refusal names."""
WAY_OUT = "`pdplan models CONFIG -o FILE` writes what is understood, to be completed"
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
OTHER_SECTIONS = ("vision_config", "visual", "audio_config")

_OF_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "nemotron_h mamba": ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "expand"),
    "bamba falcon_h1 granitemoehybrid jamba mamba": (
        *("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_expand"),
        *(
            "mamba_d_ssm",
            "mamba_chunk_size",
            "mamba_dt_rank",
            "mamba_use_mlp",
            "attn_layer_indices",
            "attn_layer_period",
        ),
        *("attn_layer_offset", "expert_layer_period", "expert_layer_offset"),
    ),
    "falcon_mamba mamba": ("state_size", "time_step_rank", "conv_kernel", "expand"),
    "zamba2": (
        *("mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv", "mamba_expand", "n_mamba_heads"),
        *("layers_block_type", "hybrid_layer_ids", "num_mem_blocks", "attention_hidden_size", "adapter_rank"),
        *("num_query_groups", "kv_channels", "use_mamba_kernels"),
    ),
    "nemotron_h": ("hybrid_override_pattern", "layers_block_type", "moe_latent_size"),
    "nemotron-nas": ("block_configs",),
    "kimi_linear": ("linear_attn_config", "routed_expert_hidden_size", "mla_use_output_gate", "attn_res_block_size"),
    "deepseek_v4": (
        *("compress_ratios", "compress_rates", "o_groups", "o_lora_rank", "expert_dtype", "num_hash_layers"),
        *("hc_mult", "hc_eps", "hc_sinkhorn_iters"),
    ),
    "gemma4_text": (
        *("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "enable_moe_block"),
        *("vocab_size_per_layer_input", "use_bidirectional_attention"),
    ),
    "gemma3_text": ("_sliding_window_pattern",),
    "minimax_m3": ("dense_intermediate_size", "sparse_attention_config"),
    "minimax minimax_text_01": (
        *("full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor"),
    ),
    "olmo_hybrid": (
        *("linear_a_log_max", "linear_a_log_min", "linear_allow_neg_eigval", "linear_dt_init_floor", "linear_dt_max"),
        *("linear_dt_min",),
    ),
    "afmoe": ("num_dense_layers", "global_attn_every_n_layers"),
    "falcon": ("new_decoder_architecture", "num_kv_heads", "num_ln_in_parallel_attn"),
    "ernie4_5_moe": ("moe_layer_start_index", "moe_layer_interval", "moe_layer_end_index"),
    "longcat_flash": ("zero_expert_num", "zero_expert_type", "attention_method"),
    "step3p5 step3p7": ("share_expert_dim",),
}
"""Fields that are understood in configs of some families alone, where their classes say what they do."""

_UNDERSTOOD = (
    {alias for names in ALIASES.values() for alias in names}
    | {
        *("head_dim", "v_head_dim", "num_key_value_heads", "multi_head", "multi_query", "attn_output_gate"),
        *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"),
        *("index_topk", "index_n_heads", "index_head_dim", "indexer_types", "index_topk_freq"),
        *("index_skip_topk_offset", "layer_types", "hybrid_layer_pattern", "use_sliding_window", "max_window_layers"),
        *("sliding_window_pattern", *SLIDING_HEADS, "sliding_kv_ratio"),
        *("windowed_everywhere", "attention_chunk_size", "full_attention_interval", "attn_type_list"),
        *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
        *("linear_conv_kernel_dim", "moe_layers", "moe_layer_freq", "decoder_sparse_step"),
        *("interleave_moe_layer_step", "mlp_layer_types", "mlp_only_layers", "word_embed_proj_dim"),
    }
) - {field for fields in _OF_FAMILIES.values() for field in fields}
_SHAPES = re.compile(
    r"attn|attention|expert|mamba|ssm|^linear_|recurrent|lru_|rwkv|(^|_)conv(_|$)|^index|indexer|sparse|head_dim|heads"
    r"|(^|_)kv_|state_size|layer_types|block_type|block_configs|layers_block|hybrid|encoder|compress_ratio|window|lora_rank"
    r"|(^|_)swa_|^hc_|per_layer_input|moe_layer|altup|new_decoder_architecture|cross_attention|latent|dense|hash_layers"
    r"|layer_group|use_output_gate|^expand$|_rank$|_blocks$|query_group|^[no]_groups$|moe_block"
)
_HARMLESS = re.compile(
    r"mtp|nextn|hidden_act|rotary|dropout|pdrop|bias|(?<!expert_)dtype|implementation|softcap|softmax|scal|temperature|norm|init"
    r"|aux|coef|router|loss|multiplier|rope|expert_group|decoder_start|no_repeat|backend|kernels|return_|output_att"
)
_LISTED = frozenset({"moe_topk", "moe_intermediate_size", "num_shared_expert"})
"""Counts that some configs write once for every layer (Hunyuan)."""


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One config: `values` as written, `defaults` of its family, `where` to begin error messages with.

    understood: fields that mean something in this family alone.
    """

    where: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    understood: frozenset[str] = frozenset()

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
            if (
                value
                and field not in _UNDERSTOOD | self.understood
                and _SHAPES.search(field)
                and not _HARMLESS.search(field)
            ):
                yield field

    def _spelling(self, field: str) -> str:
        """The alias under which the config writes the field."""
        names = ALIASES.get(field, (field,))
        return next((name for name in names if self.values.get(name) is not None), field)

    def _whole(self, field: str, value: object, low: int, high: int = LARGEST) -> int:
        if field in _LISTED and isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{shown(field)} is {shorten(value)}, but must be a whole number from {low} to {high}")
        return value


def open_config(config: Mapping[str, Any], name: str, *, lenient: bool = False) -> ConfigFields:
    """The language model's fields of a config, whether at the top or nested beside a vision tower.

    Raises ArchitectureError where a field is not understood, unless lenient.
    """
    values = _language_model(config)
    model_type = values.get("model_type", config.get("model_type"))
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    fields = ConfigFields(name, values, family.defaults if family else {}, _fields_of(model_type))
    gaps = not_understood(fields)
    if gaps and not lenient:
        more = len(gaps) - MOST_NAMED
        listed = ", ".join(gaps[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise fields.error(f"config.json has {listed}, which pdplan does not model; {WAY_OUT}")
    return fields


def not_understood(fields: ConfigFields) -> tuple[str, ...]:
    """The fields that shape the model in a way that is not modeled, each with its value."""
    return tuple(f"{shown(field)} = {shorten(fields.values[field])}" for field in fields.unknown())


def _fields_of(model_type: object) -> frozenset[str]:
    """The fields that are understood in this family alone."""
    groups = (fields for families, fields in _OF_FAMILIES.items() if model_type in families.split())
    return frozenset(field for fields in groups for field in fields)


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
