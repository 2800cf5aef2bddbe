"""Architectures of llama.cpp: the families that each is of, and its names of tensors in GGUF files.

`gguf_families` has what the metadata say of each family.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.models.checkpoints.forms.gguf_families import LOCAL_BASE, PATTERN, WINDOW, Meta, number
from jaxrl.models.config import DecoderConfig, Experts, RopeScaling

OUTSIDE = {
    "embed": "token_embd.weight",
    "norm/weight": "output_norm.weight",
    "head": "output.weight",
}
"""Our parameters outside the layers, and their tensors."""

LAYER = {
    "attention_norm/weight": "attn_norm.weight",
    "attention/q": "attn_q.weight",
    "attention/q_bias": "attn_q.bias",
    "attention/k": "attn_k.weight",
    "attention/k_bias": "attn_k.bias",
    "attention/v": "attn_v.weight",
    "attention/v_bias": "attn_v.bias",
    "attention/o": "attn_output.weight",
    "attention/o_bias": "attn_output.bias",
    "attention/sinks": "attn_sinks.weight",
    "attention/q_norm/weight": "attn_q_norm.weight",
    "attention/k_norm/weight": "attn_k_norm.weight",
    "attention_post_norm/weight": "post_attention_norm.weight",
    "mixer_norm/weight": "attn_norm.weight",
    "mlp_norm/weight": "ffn_norm.weight",
    "mlp/gate": "ffn_gate.weight",
    "mlp/gate_bias": "ffn_gate.bias",
    "mlp/up": "ffn_up.weight",
    "mlp/up_bias": "ffn_up.bias",
    "mlp/down": "ffn_down.weight",
    "mlp/down_bias": "ffn_down.bias",
    "mlp_post_norm/weight": "post_ffw_norm.weight",
}
"""Our parameters in a layer, and their tensors under `blk.{layer}.`."""

ROUTED = {
    "mlp/router": "ffn_gate_inp.weight",
    "mlp/router_bias": "ffn_gate_inp.bias",
    "mlp/correction": "exp_probs_b.bias",
    **{f"mlp/{part}": f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")},
    **{f"mlp/{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")},
    **{f"mlp/shared/{part}": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
}
"""Those that a layer with experts has or names otherwise."""

CONVOLUTION = {
    "mixer/bcx": "shortconv.in_proj.weight",
    "mixer/conv": "shortconv.conv.weight",
    "mixer/output": "shortconv.out_proj.weight",
}
MAMBA = {
    "mixer/zxbcdt": "ssm_in.weight",
    "mixer/conv": "ssm_conv1d.weight",
    "mixer/conv_bias": "ssm_conv1d.bias",
    "mixer/a_log": "ssm_a",
    "mixer/dt_bias": "ssm_dt.bias",
    "mixer/skip": "ssm_d",
    "mixer/norm/weight": "ssm_norm.weight",
    "mixer/output": "ssm_out.weight",
}
"""Those of a mixer."""

_PARTS = {**MAMBA, "mlp_norm/weight": "attn_norm.weight"}
_EMBEDDED_NORM = {"norm/weight": "token_embd_norm.weight"}
_SECOND_NORM = {"mlp_norm/weight": "post_attention_norm.weight"}
_FUSED = {
    **{f"attention/{part}": "attn_qkv.weight" for part in "qkv"},
    **{f"mlp/{part}": "ffn_up.weight" for part in ("gate", "up")},
}
"""Those of Phi-3, whose outputs lie in one tensor after another, in the order given here."""

OPTIONAL: Mapping[str, tuple[str, Any, Any]] = {
    "qkv_bias": ("blk.0.attn_q.bias", True, False),
    "o_bias": ("blk.0.attn_output.bias", True, False),
    "mlp_bias": ("blk.0.ffn_gate.bias", True, False),
    "qk_norm": ("blk.0.attn_q_norm.weight", "head", "none"),
}
"""Fields of `DecoderConfig` that a file tells by a tensor: that tensor, and the values of the field
where it is there and where it is not."""

_BIASES = ("qkv_bias", "o_bias", "mlp_bias")

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies, one for each: how Llama 3's scaling is kept."""

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
"""The same beyond the trained context, and within it: how longrope is kept."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    WINDOW: (0, "context_length or more"),
    PATTERN: (1, "no local layer"),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": ([0, 0, 0, 0],),
    LOCAL_BASE: ("the value of rope.freq_base",),
    "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Metadata that change what a decoder computes, and the values at which they do not. An
architecture that does not read one is refused with any other value."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What llama.cpp knows by an architecture's name."""

    name: str
    """`general.architecture`."""
    family: str
    """Of `families.FAMILIES`."""
    optional: tuple[str, ...] = ()
    """Which of the fields of `OPTIONAL` a file tells."""
    permuted: bool = False
    """Rows of queries and keys lie so that neighbouring features are rotated together."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors in a layer that differ from `LAYER`."""
    outside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors outside the layers that differ from `OUTSIDE`."""
    tables: tuple[str, ...] = (FREQUENCIES,)
    """Which tensors of divisors of the rotary frequencies a file may have."""
    routed: bool | None = None
    """Whether its decoders have experts, where that tells it from another; None: it does not."""
    windowed: bool | None = None
    """The same of a sliding window."""

    def describes(self, meta: Meta) -> bool:
        """Whether metadata of architecture `name` are of this family."""
        routed, windowed = bool(meta.get("expert_count")), bool(meta.get(WINDOW))
        return self.routed in (None, routed) and self.windowed in (None, windowed)


def scaling(meta: Meta, tables: Mapping[str, np.ndarray]) -> RopeScaling | None:
    """How the metadata scale RoPE.

    Args:
      meta: of the architecture.
      tables: float32 [rope_dim / 2] each, those of `Architecture.tables` that the file has.

    Raises:
      ValueError: a scaling that we do not read.
    """
    factor: Any = meta.get("rope.scaling.factor")
    kind: str = meta.get("rope.scaling.type", "none" if factor is None else "linear")
    if factor is not None and not 0 < factor < math.inf:
        raise ValueError(f"rope.scaling.factor={factor}: a finite number above 0 is needed")
    context = meta["context_length"]
    trained = meta.get("rope.scaling.original_context_length", 0) or context
    divisors = {name: tuple(number(f) for f in table) for name, table in tables.items()}
    if divisors.keys() == {LONG, SHORT} and factor is None and kind in ("none", "longrope"):
        return RopeScaling(
            "longrope", context / trained, trained,
            attention_factor=number(meta.get("rope.scaling.attn_factor", 1.0)),
            short_factors=divisors[SHORT], long_factors=divisors[LONG],
        )  # fmt: skip
    if divisors.keys() == {FREQUENCIES} and factor is None and kind == "none":
        return RopeScaling(
            "longrope", 1.0, context, attention_factor=1.0,
            short_factors=divisors[FREQUENCIES], long_factors=divisors[FREQUENCIES],
        )  # fmt: skip
    if not divisors and factor is None and kind in ("none", "linear", "yarn", "longrope"):
        return None
    if not divisors and kind == "linear":
        return RopeScaling("linear", number(factor))
    if not divisors and kind == "yarn":
        attention: Any = meta.get("rope.scaling.yarn_attn_factor")
        return RopeScaling(
            "yarn", number(factor), trained,
            beta_fast=number(meta.get("rope.scaling.yarn_beta_fast", 32.0)),
            beta_slow=number(meta.get("rope.scaling.yarn_beta_slow", 1.0)),
            attention_factor=None if attention is None else number(attention),
        )  # fmt: skip
    keys = [key for key in meta if key.startswith("rope.scaling.")]
    raise ValueError(
        f"{[*keys, *tables]} describe a scaled RoPE of type {kind!r}; linear, yarn, and tables of "
        "divisors without a factor are read"
    )


_GATES = {"softmax": (1, 3), "sigmoid": (2,)}
"""How llama.cpp numbers routers, by `Experts.scoring`: 3 is a softmax over the chosen experts
alone, which is a softmax over all whose weights are normalised."""


def check_router(meta: Meta, experts: Experts) -> None:
    """Refuse metadata of another router than the family's.

    Args:
      meta: of the architecture.
      experts: of its decoder.

    Raises:
      ValueError: `expert_gating_func` or `expert_weights_norm` is another.
    """
    gates, gate = _GATES[experts.scoring], meta.get("expert_gating_func", 0)
    if gate not in (0, *gates):
        kind = "sigmoids" if experts.scoring == "sigmoid" else "softmaxes"
        numbers = " or ".join(map(str, gates))
        raise ValueError(f"expert_gating_func={gate}: routers of {kind} ({numbers}) are read")
    if (norm := meta.get("expert_weights_norm", experts.normalize)) != experts.normalize:
        raise ValueError(
            f"expert_weights_norm={norm} is not read of this architecture; it is supported with "
            f"{experts.normalize}"
        )


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("llama", "llama", optional=_BIASES, permuted=True, routed=False),
    Architecture("llama", "mixtral", permuted=True, routed=True),
    Architecture("mistral3", "ministral3", permuted=True, tables=()),
    Architecture("smollm3", "smollm3", permuted=True),
    Architecture("qwen2", "qwen2", optional=("qkv_bias",)),
    Architecture("qwen3", "qwen3"),
    Architecture("qwen3moe", "qwen3_moe"),
    Architecture("gemma2", "gemma2"),
    Architecture("gemma3", "gemma3_text"),
    Architecture("phi3", "phi3", names=_FUSED, tables=(LONG, SHORT)),
    Architecture("olmo2", "olmo2", windowed=False),
    Architecture("olmo2", "olmo3", windowed=True),
    Architecture("gpt-oss", "gpt_oss", names=_SECOND_NORM),
    Architecture("seed_oss", "seed_oss", optional=("qkv_bias",), names=_SECOND_NORM),
    Architecture("ernie4_5", "ernie4_5"),
    Architecture("minimax-m2", "minimax_m2"),
    Architecture("glm4moe", "glm4_moe", optional=("qkv_bias", "qk_norm"), names=_SECOND_NORM),
    Architecture("granite", "granite", optional=_BIASES, permuted=True),
    Architecture("granitemoe", "granitemoe", permuted=True),
    Architecture("granitehybrid", "granitemoehybrid", permuted=True, names=MAMBA),
    Architecture("nemotron_h", "nemotron_h", names=_PARTS, routed=False),
    Architecture("nemotron_h_moe", "nemotron_h", names=_PARTS, routed=True),
    Architecture("lfm2", "lfm2", names=CONVOLUTION, outside=_EMBEDDED_NORM),
    Architecture("lfm2moe", "lfm2_moe", names=CONVOLUTION, outside=_EMBEDDED_NORM),
    Architecture("llama4", "llama4_text"),
)
"""One for each family that llama.cpp has by a name."""


def find(name: str, meta: Meta) -> Architecture:
    """The family that a file's metadata are of.

    Args:
      name: `general.architecture`.
      meta: of the architecture.

    Raises:
      ValueError: a name that is not read, or experts or windows that its families do not have.
    """
    candidates = [record for record in ARCHITECTURES if record.name == name]
    if not candidates:
        names = dict.fromkeys(record.name for record in ARCHITECTURES)
        raise ValueError(
            f"general.architecture={name!r} is not read; supported: {', '.join(names)}"
        )
    for record in candidates:
        if record.describes(meta):
            return record
    raise ValueError(
        f"general.architecture={name!r} is not read with expert_count="
        f"{meta.get('expert_count', 0)} and {WINDOW}={meta.get(WINDOW, 0)}"
    )


def find_written(config: DecoderConfig) -> Architecture:
    """The architecture that llama.cpp reads such a decoder as.

    Raises:
      ValueError: there is none, or none that is written here.
    """
    family = "llama" if config.family == "mistral" else config.family
    for record in ARCHITECTURES:
        if record.family == family and record.routed in (None, bool(config.experts)):
            return record
    names = ", ".join(dict.fromkeys(record.family for record in ARCHITECTURES))
    raise ValueError(
        f"family {config.family!r} is not written as GGUF (mistral, {names} are); export it with "
        "--to hf and convert that with llama.cpp's convert_hf_to_gguf.py"
    )
