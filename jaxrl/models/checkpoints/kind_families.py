"""Families whose local layers differ from others in more than their window; see `families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.models.checkpoints import families
from jaxrl.models.checkpoints.families import Family, Raw, expert_stack
from jaxrl.models.config import ChunkedLayers, DecoderConfig, Experts, LayerKinds

_TYPES = ("full_attention", "sliding_attention")

_ROPE = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
"""What transformers takes where config.json says nothing."""

_NAMES = {
    **families.POST_NORMS,
    "mlp_norm/weight": "pre_feedforward_layernorm.weight",
    "input/gate": "per_layer_input_gate.weight",
    "input/projection": "per_layer_projection.weight",
    "input/norm/weight": "post_per_layer_input_norm.weight",
    "layer_scale": "layer_scalar",
}
_ROUTED = {
    "mlp/router": "router.proj.weight",
    "mlp/router_scale": "router.scale",
    "mlp/expert_scale": "router.per_expert_scale",
    "mlp/expert_norm/weight": "pre_feedforward_layernorm_2.weight",
    "mlp/expert_post_norm/weight": "post_feedforward_layernorm_2.weight",
    "mlp/shared_post_norm/weight": "post_feedforward_layernorm_1.weight",
    "mlp/shared/gate": "mlp.gate_proj.weight",
    "mlp/shared/up": "mlp.up_proj.weight",
    "mlp/shared/down": "mlp.down_proj.weight",
}
_MLP = ("gate", "up", "down")
_UNUSED_KEYS = r"layers\.({sharing})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\."
"""Tensors of layers that read the keys and values of others. Released files have them."""


def _read(raw: Raw) -> dict[str, Any]:
    """The fields that differ by layer.

    Raises:
      ValueError: kinds of layers, sizes of heads or a RoPE that the family is not supported with.
    """
    total, window = raw["num_hidden_layers"], raw["sliding_window"]
    types = raw.get("layer_types") or [_TYPES[(i + 1) % 6 > 0] for i in range(total)]
    families.require_kinds(types, total, _TYPES)
    if raw.get("use_bidirectional_attention") not in (None, "vision"):
        raise ValueError(
            f"use_bidirectional_attention={raw['use_bidirectional_attention']!r}: this family is "
            "supported with None, or with 'vision', of which text knows nothing"
        )
    types = [*types[:-1], _TYPES[0]]  # as transformers forces it
    head_dim, kv_heads = _global_heads(raw, types)
    wide = 2 if raw["use_double_wide_mlp"] else 1
    kinds = LayerKinds(
        global_head_dim=head_dim,
        global_kv_heads=kv_heads,
        keys_are_values=raw["attention_k_eq_v"],
        sharing=raw["num_kv_shared_layers"],
        sharing_mlp_size=wide * raw["intermediate_size"] if raw["num_kv_shared_layers"] else 0,
        input_size=raw["hidden_size_per_layer_input"] or 0,
        input_vocab=raw["vocab_size_per_layer_input"],
    )
    local = tuple(kind == _TYPES[1] for kind in types)
    experts = raw["enable_moe_block"] and Experts(
        raw["num_experts"],
        raw["top_k_experts"],
        raw["moe_intermediate_size"],
        shared_size=raw["intermediate_size"],
        floor=0.0,
    )
    if experts and kinds.sharing and wide > 1:
        raise ValueError(
            "use_double_wide_mlp=True: experts beside an MLP are supported without it; set it to "
            "false"
        )
    return {
        **_read_rope(raw["rope_parameters"]),
        "embed_scale": raw["hidden_size"] ** 0.5,
        "sliding_window": window if any(local) else None,
        "local_layers": local if any(local) else (),
        "kinds": kinds,
        "experts": experts or None,
    }


def _global_heads(raw: Raw, types: list[str]) -> tuple[int, int]:
    """Size and number of the heads of keys in layers that see everything.

    transformers 5 writes them by layer, released files as keys of their own.
    """
    by_layer = raw.get("per_layer_config")
    if by_layer is None:
        count = raw.get("num_global_key_value_heads") if raw["attention_k_eq_v"] else None
        return raw["global_head_dim"], count or raw["num_key_value_heads"]
    usual = {key: raw[key] for key in ("head_dim", "num_key_value_heads")}
    changes = {int(key) if str(key).isdigit() else -1: by_layer[key] for key in by_layer}
    layers = [{**usual, **changes.pop(i, {})} for i in range(len(types))]
    chosen = layers[-1]
    for layer, kind in zip(layers, types, strict=True):
        if (
            changes
            or chosen.keys() != usual.keys()
            or layer != (chosen if kind == _TYPES[0] else usual)
        ):
            raise ValueError(
                f"per_layer_config={by_layer}: supported with head_dim and num_key_value_heads "
                "alone, the same in all layers of full_attention and in no other"
            )
    heads = chosen["num_key_value_heads"]
    if heads != usual["num_key_value_heads"] and not raw["attention_k_eq_v"]:
        raise ValueError(
            f"per_layer_config={by_layer}: another num_key_value_heads is supported with "
            "attention_k_eq_v=True alone"
        )
    return chosen["head_dim"], heads


def _read_rope(rope: Raw) -> dict[str, Any]:
    """The fields of two RoPEs, which must both be there with their kind and base."""
    for kind in _TYPES:
        if lacking := {"rope_type", "rope_theta"} - {*(rope.get(kind) or {})}:
            raise ValueError(f"rope_parameters.{kind} lacks {sorted(lacking)}; add them")
    is_whole = rope[_TYPES[0]]["rope_type"] == "default"
    fraction = 1.0 if is_whole else rope[_TYPES[0]].get("partial_rotary_factor", 1.0)
    return {"rope_fraction": fraction}


def _write(c: DecoderConfig) -> dict[str, Any]:
    kinds, e = c.kinds, c.experts
    flags = c.local_layers or (False,) * c.num_layers
    raw = {
        "sliding_window": c.sliding_window or 512,
        "layer_types": [_TYPES[local] for local in flags],
        "global_head_dim": kinds.global_head_dim,
        "num_global_key_value_heads": kinds.global_kv_heads,
        "attention_k_eq_v": kinds.keys_are_values,
        "num_kv_shared_layers": kinds.sharing,
        "use_double_wide_mlp": kinds.sharing_mlp_size > c.intermediate_size,
        "hidden_size_per_layer_input": kinds.input_size,
        "vocab_size_per_layer_input": kinds.input_vocab,
        "enable_moe_block": e is not None,
    }
    if e is None:
        return raw
    sizes = {"num_experts": e.num_experts, "top_k_experts": e.per_token}
    return {**raw, **sizes, "moe_intermediate_size": e.size}


def _rotated(raw: Raw) -> tuple[bool, ...]:
    """Which layers of Llama 4 know positions.

    Raises:
      ValueError: `no_rope_layers` says it of too few, or `layer_types` lists others as chunked.
    """
    total, interval = raw["num_hidden_layers"], raw["no_rope_layer_interval"]
    flags = raw.get("no_rope_layers") or [(i + 1) % interval for i in range(total)]
    if len(flags) < total:
        raise ValueError(f"no_rope_layers={flags}: give {total}, one for each layer, 1 for RoPE")
    rotated = tuple(map(bool, flags[:total]))  # which, despite the name, are those with RoPE
    chunked = raw["attention_chunk_size"] is not None
    types = [_CHUNKED[flag and chunked] for flag in rotated]
    if raw.get("layer_types", types) != types:
        raise ValueError(
            f"layer_types={raw['layer_types']}: this family is supported with {_CHUNKED[1]} in "
            f"layers with RoPE and {_CHUNKED[0]} in others; delete the key"
        )
    return rotated


def _read_llama4(raw: Raw) -> dict[str, Any]:
    """The fields of Llama 4.

    Raises:
      ValueError: as `_rotated`, or experts in layers that there are not.
    """
    total, step = raw["num_hidden_layers"], raw["interleave_moe_layer_step"]
    layers = raw.get("moe_layers")
    if layers is None:
        layers = [*range(step - 1, total, step)] if step > 0 else [-1]
    if not {*layers} <= {*range(total)}:
        raise ValueError(
            f"moe_layers={raw.get('moe_layers')}, interleave_moe_layer_step={step}: name layers "
            f"from 0 to {total - 1}, or every how many layers one has experts"
        )
    routed = tuple(i in layers for i in range(total))
    experts = Experts(
        raw["num_local_experts"],
        raw["num_experts_per_tok"],
        raw["intermediate_size"],
        shared_size=raw["intermediate_size"],
        scoring="sigmoid",
        normalize=False,
    ) if any(routed) else None  # fmt: skip
    return {
        "qkv_bias": raw["attention_bias"],
        "o_bias": raw["attention_bias"],
        "intermediate_size": raw["intermediate_size_mlp"],
        "rope_layers": _rotated(raw),
        "experts": experts,
        "chunks": ChunkedLayers(
            size=raw["attention_chunk_size"],
            routed=routed,
            normalize=raw["use_qk_norm"],
            temperature=raw["attn_scale"] if raw["attn_temperature_tuning"] else 0.0,
            interval=raw["floor_scale"],
        ),
    }


def _write_llama4(c: DecoderConfig) -> dict[str, Any]:
    chunks, e = c.chunks, c.experts
    return {
        "attention_bias": c.o_bias,
        "intermediate_size": e.size if e else c.intermediate_size,
        "intermediate_size_mlp": c.intermediate_size,
        "num_local_experts": e.num_experts if e else 1,
        "num_experts_per_tok": e.per_token if e else 1,
        "moe_layers": [i for i, flag in enumerate(chunks.routed) if flag],
        "no_rope_layers": [int(flag) for flag in c.rope_layers],
        "attention_chunk_size": chunks.size,
        "layer_types": [_CHUNKED[flag and chunks.size is not None] for flag in c.rope_layers],
        "use_qk_norm": chunks.normalize,
        "attn_temperature_tuning": chunks.temperature != 0,
        "attn_scale": chunks.temperature,
        "floor_scale": chunks.interval,
    }


_CHUNKED = ("full_attention", "chunked_attention")

KINDS: Mapping[str, Family] = {
    "gemma4_text": Family(
        "Gemma4ForCausalLM",
        fields={"final_logit_softcapping": "logit_softcap"},
        fixed={"post_norm": True, "qk_norm": "head", "attention_scale": 1.0},
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "global_head_dim": 512,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 512,
            "rope_parameters": _ROPE,
            "rope_local_base_freq": 1e4,
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262144,
            "enable_moe_block": False,
        },
        refused={"attention_bias": False, "rope_scaling": None},
        rope_kinds=("default", "proportional"),
        rope_by_kind=True,
        partial_rope=True,
        activation_key="hidden_activation",
        window="none",
        read=_read,
        write=_write,
        names=_NAMES,
        routed=_ROUTED,
        stacks=(
            expert_stack("experts.gate_up_proj", ("gate_proj", "up_proj")),
            expert_stack("experts.down_proj", ("down_proj",)),
        ),
        ignored=(r"rotary_emb\.inv_freq$", _UNUSED_KEYS),
    ),
    "llama4_text": Family(
        "Llama4ForCausalLM",
        fixed={"rope_interleaved": True},
        defaults={
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "attention_bias": False,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "use_qk_norm": True,
            "attn_temperature_tuning": True,
            "attn_scale": 0.1,
            "floor_scale": 8192,
        },
        window="none",
        nullable=("attention_chunk_size",),
        read=_read_llama4,
        write=_write_llama4,
        names={f"mlp/{name}": f"feed_forward.{name}_proj.weight" for name in _MLP},
        routed={
            "mlp/router": "feed_forward.router.weight",
            **{f"mlp/shared/{n}": f"feed_forward.shared_expert.{n}_proj.weight" for n in _MLP},
        },
        stacks=(
            expert_stack(
                "feed_forward.experts.gate_up_proj", ("gate_proj", "up_proj"), inputs_first=True
            ),
            expert_stack("feed_forward.experts.down_proj", ("down_proj",), inputs_first=True),
        ),
    ),
}
"""By the `model_type` of config.json."""
