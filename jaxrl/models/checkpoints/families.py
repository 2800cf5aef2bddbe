"""The families: how each names its fields and tensors in Hugging Face files.

A family is a record beside the one decoder. What it shares with Llama it leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from jaxrl.models.config import DecoderConfig, Experts

Raw = Mapping[str, Any]
"""The contents of a `config.json`."""


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Stack:
    """A tensor of a layer that holds a matrix [outputs, inputs] or vector of every expert."""

    tensor: str
    parts: tuple[str, ...]
    """Names of what it holds of an expert, as in `Family.routed`: the outputs of the first come
    first."""
    inputs_first: bool = False
    """Matrices lie in it as [inputs, outputs]."""
    interleaved: bool = False
    """The outputs of the parts take turns."""


PREFIX = "model."
"""Begins the names of tensors in transformers, but for the head's."""

EXPERT = "mlp.experts.{expert}"
"""Begins the names of what is of one expert."""


def expert_stack(
    tensor: str, parts: tuple[str, ...], *, suffix: str = "weight", **form: bool
) -> Stack:
    """A tensor of all experts.

    Args:
      tensor: its name.
      parts: projections of an expert that it holds, such as `gate_proj`.
      suffix: `weight`, or `bias`.
      form: see `Stack`.
    """
    return Stack(tensor, tuple(f"{EXPERT}.{part}.{suffix}" for part in parts), **form)


@dataclasses.dataclass(frozen=True)
class Family:
    """What sets a family apart from Llama in its files."""

    architecture: str
    """Name of the class in transformers."""
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further keys of config.json, and the fields of `DecoderConfig` that they are."""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `DecoderConfig` that the family decides and config.json does not tell."""
    defaults: Raw = dataclasses.field(default_factory=dict)
    """What a key that config.json leaves out stands for."""
    refused: Raw = dataclasses.field(default_factory=dict)
    """Keys that change the decoder in ways it does not have, and the one value it does have."""
    rope_kinds: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
    """Values of `rope_type`."""
    rope_keys: tuple[str, ...] = ()
    """Keys of a RoPE scaling that this family alone has, and that it must have."""
    rope_by_kind: bool = False
    """Local layers have a RoPE apart, unscaled, whose base is by default `rope_local_base_freq` of
    `defaults`."""
    local_theta_key: str | None = None
    """Key that tells the base of local layers beside `rope_theta`; None: there is none."""
    rope_optional: bool = False
    """A `rope_theta` that is null says that no layer knows positions."""
    partial_rope: bool = False
    """Heads are rotated in part, by `partial_rotary_factor`."""
    nullable: tuple[str, ...] = ()
    """Keys whose null is not what leaving them out is; `read` is given None."""
    activation_key: str = "hidden_act"
    window: Literal["typed", "all", "none"] = "typed"
    """Which layers have the sliding window: those that `layer_types` or `local` say, all, or none
    whatever config.json says. A family with a default of `use_sliding_window` heeds that key."""
    local: Callable[[Raw, int], bool] = lambda raw, layer: False
    """Whether a layer has the sliding window, where config.json lists no `layer_types`."""
    read: Callable[[Raw], dict[str, Any]] = _nothing
    """The fields of `DecoderConfig` that take more than renaming."""
    write: Callable[[DecoderConfig], dict[str, Any]] = _nothing
    """The keys of config.json that take more than renaming."""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Keys of config.json that stand for another, and win where both are there."""
    prefix: str = PREFIX
    """What the names of tensors begin with in files, but for the head's, in place of `PREFIX`."""
    outside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors outside the layers that differ from `OUTSIDE`."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors in a layer that differ from `LAYER`. Parameters that share a tensor lie in
    it one after the other, in the order given here."""
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other names that files have for tensors in a layer, and those of `names`."""
    joined: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Tensors in a layer that files may have in parts, one after the other, and those parts."""
    routed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors in a layer with experts that differ from `ROUTED`."""
    stacks: tuple[Stack, ...] = ()
    """Tensors that hold all experts of a layer, by the names of what they hold of one."""
    unadapted: tuple[str, ...] = ()
    """Ends of the paths of parameters whose modules PEFT refuses to adapt in this family, or that
    transformers calls otherwise than files do."""
    ignored: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)
    """Patterns of tensors that are not weights of the decoder; `{num_layers}` is filled in, and
    `{sharing}`, the numbers of `DecoderConfig.sharing` layers."""

    carried: str = ""
    """Pattern of tensors that are not computed with and that an export copies; empty: none."""
    carried_keys: tuple[str, ...] = ()
    """Keys of config.json that an export copies with them."""

    @property
    def tensors_outside(self) -> Mapping[str, str]:
        """Our parameters outside the layers, and their tensors in this family."""
        return {**OUTSIDE, **self.outside}


NEXT_LAYER = r"^model\.layers\.{num_layers}\."
"""Tensors of the layer past the last, which predicts further tokens for speculation."""

OUTSIDE = {
    "embed": "model.embed_tokens.weight",
    "norm/weight": "model.norm.weight",
    "head": "lm_head.weight",
    "score": "score.weight",
    "inputs/embed": "model.embed_tokens_per_layer.weight",
    "inputs/projection": "model.per_layer_model_projection.weight",
    "inputs/norm/weight": "model.per_layer_projection_norm.weight",
}
"""Our parameters outside the layers, and their tensors."""

INPUTS = ("inputs/embed", "inputs/projection", "inputs/norm/weight")
"""Those of them that make what enters each layer apart."""

LAYER = {
    "attention_norm/weight": "input_layernorm.weight",
    "attention/q": "self_attn.q_proj.weight",
    "attention/q_bias": "self_attn.q_proj.bias",
    "attention/k": "self_attn.k_proj.weight",
    "attention/k_bias": "self_attn.k_proj.bias",
    "attention/v": "self_attn.v_proj.weight",
    "attention/v_bias": "self_attn.v_proj.bias",
    "attention/o": "self_attn.o_proj.weight",
    "attention/o_bias": "self_attn.o_proj.bias",
    "attention/q_norm/weight": "self_attn.q_norm.weight",
    "attention/k_norm/weight": "self_attn.k_norm.weight",
    "mlp_norm/weight": "post_attention_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/gate_bias": "mlp.gate_proj.bias",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/up_bias": "mlp.up_proj.bias",
    "mlp/down": "mlp.down_proj.weight",
    "mlp/down_bias": "mlp.down_proj.bias",
}
"""Our parameters in a layer, and their tensors under `model.layers.{layer}.`."""

ROUTED = {
    "mlp/router": "mlp.gate.weight",
    "mlp/correction": "mlp.gate.e_score_correction_bias",
    "mlp/gate": "mlp.experts.{expert}.gate_proj.weight",
    "mlp/up": "mlp.experts.{expert}.up_proj.weight",
    "mlp/down": "mlp.experts.{expert}.down_proj.weight",
    "mlp/shared/gate": "mlp.shared_experts.gate_proj.weight",
    "mlp/shared/up": "mlp.shared_experts.up_proj.weight",
    "mlp/shared/down": "mlp.shared_experts.down_proj.weight",
}
"""Those that a layer with experts has or names otherwise."""

POST_NORMS = {
    "attention_post_norm/weight": "post_attention_layernorm.weight",
    "mlp_post_norm/weight": "post_feedforward_layernorm.weight",
}

_FUSED = {
    "attention/q": "self_attn.qkv_proj.weight",
    "attention/k": "self_attn.qkv_proj.weight",
    "attention/v": "self_attn.qkv_proj.weight",
    "mlp/gate": "mlp.gate_up_proj.weight",
    "mlp/up": "mlp.gate_up_proj.weight",
}


def _upper_window(raw: Raw, layer: int) -> bool:
    return layer >= raw["max_window_layers"]


def require_kinds(
    types: Sequence[str], total: int, kinds: Sequence[str], spellings: Sequence[str] = ()
) -> None:
    """Refuse `layer_types` that are not one of a family's kinds for each layer.

    Args:
      types: of config.json.
      total: layers of the model.
      kinds: of the family.
      spellings: all names that are accepted, where a kind has several; empty: `kinds`.

    Raises:
      ValueError: there are more or fewer, or one that the family does not have.
    """
    if len(types) != total or not {*types} <= {*(spellings or kinds)}:
        raise ValueError(
            f"layer_types={types}: give {total} of {' and '.join(kinds)}, one for each layer"
        )


def read_factors(raw: Raw, key: str, count: int) -> tuple[float, ...]:
    """A list of factors, all 1 where the key is not there.

    Raises:
      ValueError: there are not `count` numbers.
    """
    values = raw.get(key) or [1.0] * count
    if len(values) != count or not all(isinstance(value, int | float) for value in values):
        raise ValueError(f"{key}={values!r:.60}: give {count} numbers")
    return tuple(map(float, values))


def read_biases(raw: Raw) -> dict[str, Any]:
    """The fields of biases."""
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}


def write_biases(c: DecoderConfig) -> dict[str, Any]:
    """The keys of biases."""
    return {"attention_bias": c.o_bias, "mlp_bias": c.mlp_bias}


def _rotated(raw: Raw) -> tuple[bool, ...]:
    """Which layers of SmolLM3 know positions."""
    with_rope = raw.get("no_rope_layers")  # which, despite the name, is 1 where there is RoPE
    if with_rope is None:
        interval = raw["no_rope_layer_interval"]
        with_rope = [(i + 1) % interval for i in range(raw["num_hidden_layers"])]
    return tuple(bool(flag) for flag in with_rope)


def _smollm3(raw: Raw) -> dict[str, Any]:
    return {**read_biases(raw), "rope_layers": _rotated(raw)}


def _write_smollm3(c: DecoderConfig) -> dict[str, Any]:
    flags = c.rope_layers or (True,) * c.num_layers
    return {**write_biases(c), "no_rope_layers": [int(flag) for flag in flags]}


def _gemma(raw: Raw) -> dict[str, Any]:
    return {
        **read_biases(raw),
        "embed_scale": raw["hidden_size"] ** 0.5,
        "attention_scale": raw["query_pre_attn_scalar"] ** -0.5,
    }


def _write_gemma(c: DecoderConfig) -> dict[str, Any]:
    scalar = c.attention_scale**-2
    integer = round(scalar)
    scalar = integer if abs(scalar - integer) < 1e-6 * scalar else scalar
    return {"attention_bias": c.o_bias, "query_pre_attn_scalar": scalar}


def _qwen3_moe(raw: Raw) -> dict[str, Any]:
    dense = sorted(raw.get("mlp_only_layers") or ())
    if raw.get("decoder_sparse_step", 1) != 1 or dense != list(range(len(dense))):
        raise ValueError(
            f"decoder_sparse_step={raw.get('decoder_sparse_step')}, mlp_only_layers={dense}: "
            "dense layers are supported at the bottom only"
        )
    experts = Experts(
        num_experts=raw.get("num_local_experts") or raw["num_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        dense_layers=len(dense),
        normalize=raw["norm_topk_prob"],
    )
    return {**read_biases(raw), "experts": experts}


def _write_qwen3_moe(c: DecoderConfig) -> dict[str, Any]:
    e = c.experts
    return {
        **write_biases(c),
        "num_experts": e.num_experts,
        "num_experts_per_tok": e.per_token,
        "moe_intermediate_size": e.size,
        "norm_topk_prob": e.normalize,
        "mlp_only_layers": list(range(e.dense_layers)),
        "decoder_sparse_step": 1,
    }


_GEMMA = {
    "norm_offset": 1.0,
    "post_norm": True,
}
_GEMMA_NAMES = {**POST_NORMS, "mlp_norm/weight": "pre_feedforward_layernorm.weight"}
_GEMMA_FIELDS = {
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "logit_softcap",
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", window="none", read=read_biases, write=write_biases),
    "mistral": Family("MistralForCausalLM", local=lambda raw, layer: True),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        defaults={
            "tie_word_embeddings": True,
            "rope_theta": 2e6,
            "no_rope_layer_interval": 4,
        },
        local=lambda raw, layer: bool(raw.get("use_sliding_window")) and not _rotated(raw)[layer],
        read=_smollm3,
        write=_write_smollm3,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        fixed={"qkv_bias": True},
        defaults={
            "max_window_layers": 28,
            "use_sliding_window": False,
            "sliding_window": 4096,
        },
        local=_upper_window,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        fixed={"qk_norm": "head"},
        defaults={
            "max_window_layers": 28,
            "head_dim": 128,
            "use_sliding_window": False,
            "sliding_window": 4096,
        },
        local=_upper_window,
        read=read_biases,
        write=write_biases,
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        fixed={"qk_norm": "head"},
        defaults={
            "norm_topk_prob": False,
            "use_sliding_window": False,
            "sliding_window": 4096,
        },
        window="all",
        read=_qwen3_moe,
        write=_write_qwen3_moe,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        fields=_GEMMA_FIELDS,
        fixed=_GEMMA,
        defaults={
            "tie_word_embeddings": True,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 4096,
        },
        refused={"use_bidirectional_attention": False},
        activation_key="hidden_activation",
        local=lambda raw, layer: layer % 2 == 0,
        read=_gemma,
        write=_write_gemma,
        names=_GEMMA_NAMES,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        fields={"final_logit_softcapping": "logit_softcap"},
        fixed={**_GEMMA, "qk_norm": "head"},
        defaults={
            "tie_word_embeddings": True,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
            "sliding_window": 4096,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        refused={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
        rope_by_kind=True,
        local_theta_key="rope_local_base_freq",
        activation_key="hidden_activation",
        local=lambda raw, layer: bool((layer + 1) % raw["sliding_window_pattern"]),
        read=_gemma,
        write=_write_gemma,
        names=_GEMMA_NAMES,
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        fixed={"pre_norm": False, "post_norm": True, "qk_norm": "flat"},
        defaults={"rms_norm_eps": 1e-5},
        window="none",
        read=read_biases,
        write=write_biases,
        names=POST_NORMS,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        rope_kinds=("default", "longrope"),
        partial_rope=True,
        window="all",
        names=_FUSED,
    ),
}
"""By the `model_type` of config.json; `hf_config.FAMILIES` has those of other modules too. SmolLM2,
Qwen2.5 and Phi-4 call themselves llama, qwen2 and phi3."""
