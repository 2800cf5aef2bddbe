"""Every key of a config.json deleted or changed, and keys added that other families have."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Raw = dict[str, Any]

SHAPES = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "model_type",
}
"""Keys that are not changed: the files would be of another model."""

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

VALUES: dict[str, list[Any]] = {
    "attention_bias": [True],
    "attention_out_bias": [True],
    "use_bias": [True],
    "mlp_bias": [True],
    "rope_scaling": [
        {"rope_type": "linear", "factor": 4.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        _LLAMA3,
    ],
    "partial_rotary_factor": [0.5],
    "rotary_dim": [4],
    "sliding_window": [5, None],
    "use_sliding_window": [True, False],
    "rope_theta": [100.0],
    "rope_local_base_freq": [50.0],
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["gelu", "silu"],
    "attn_logit_softcapping": [5.0, None],
    "final_logit_softcapping": [5.0, None],
    "tie_word_embeddings": [True, False],
    "rms_norm_eps": [1e-2],
    "layer_norm_eps": [1e-2],
    "use_bidirectional_attention": [True, "vision", "all"],
    "no_rope_layers": [[1, 1, 0, 1]],
    "max_position_embeddings": [32],
    "query_pre_attn_scalar": [64],
    "norm_topk_prob": [True, False],
    "decoder_sparse_step": [2],
    "mlp_only_layers": [[1]],
    "num_experts_per_tok": [1],
    "n_group": [2],
    "topk_group": [1],
    "routed_scaling_factor": [3.0],
    "scoring_func": ["softmax"],
    "topk_method": ["greedy", "noaux_tc"],
    "use_qk_norm": [True, False],
    "rope_interleave": [False],
    "aux_loss_alpha": [0.5],
    "moe_layer_freq": [2],
    "sliding_window_pattern": [2],
    "max_window_layers": [0, 1],
    "original_max_position_embeddings": [8],
    "cache_implementation": ["hybrid"],
    "pretraining_tp": [2],
    "llama_4_scaling_beta": [0.2],
    "embedding_multiplier": [3.0],
    "residual_multiplier": [0.5],
    "attention_multiplier": [0.3],
    "logits_scaling": [7.0],
    "attention_dropout": [0.5],
    "initializer_range": [0.5],
    "use_cache": [False],
}
"""What a key is changed to, or added with; other keys are doubled or negated."""


def mutations(raw: Raw) -> Iterator[tuple[str, Raw]]:
    """Every change of a config.json, with a name for it."""
    for key in raw.keys() - SHAPES:
        yield f"without {key}", {k: v for k, v in raw.items() if k != key}
        for value in _others(key, raw[key]):
            yield f"{key}={value}", raw | {key: value}
    for key in VALUES.keys() - raw.keys():
        for value in VALUES[key]:
            yield f"added {key}={value}", raw | {key: value}
    depth = raw.get("num_hidden_layers") or len(raw["layers_block_type"])
    typed = (["sliding_attention", "full_attention"] * depth)[:depth]
    yield "layer types", raw | {"layer_types": typed, "sliding_window": 5}
    yield from _ropes(raw)


def _others(key: str, value: Any) -> list[Any]:
    if key in VALUES:
        return [other for other in VALUES[key] if other != value]
    if isinstance(value, bool):
        return [not value]
    return [value * 2] if isinstance(value, int | float) else []


def _ropes(raw: Raw) -> Iterator[tuple[str, Raw]]:
    rope = raw.get("rope_parameters") or {}
    for path in [(key,) for key in rope] + [
        (kind, key) for kind, part in rope.items() if isinstance(part, dict) for key in part
    ]:
        for value in (None, *_others(path[-1], _at(rope, path))):
            changed = copy.deepcopy(raw)
            part = _at(changed["rope_parameters"], path[:-1])
            if value is None:
                del part[path[-1]]
            else:
                part[path[-1]] = value
            yield f"rope_parameters {'.'.join(path)}={value}", changed
    if rope and not any(isinstance(part, dict) for part in rope.values()):
        old = {key: value for key, value in raw.items() if key != "rope_parameters"}
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        if "partial_rotary_factor" in rest:
            old["partial_rotary_factor"] = rest.pop("partial_rotary_factor")
        if rest.get("rope_type") != "default":
            old["rope_scaling"] = rest
        yield "the old keys of RoPE", old | {"rope_theta": rope.get("rope_theta", 1e4)}


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
