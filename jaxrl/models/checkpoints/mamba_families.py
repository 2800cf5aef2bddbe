"""Families with layers of Mamba-2; see `families`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxrl.models.checkpoints import families, recent_families
from jaxrl.models.checkpoints.families import Family, Raw
from jaxrl.models.config import DecoderConfig, Experts, Mamba2, Part, SideBySide

_RECURRENT = ("linear_attention", "mamba")
_ATTENTION = ("full_attention", "attention")
"""How transformers 5 and 4 call the two kinds of layers."""

_UNBOUNDED = (0.0, math.inf)

_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "time_step_limit": _UNBOUNDED,
}
"""Of the mixer of Granite 4 and of Falcon-H1."""

_MIXER = {
    "zxbcdt": "in_proj.weight",
    "conv": "conv1d.weight",
    "conv_bias": "conv1d.bias",
    "a_log": "A_log",
    "dt_bias": "dt_bias",
    "skip": "D",
    "norm/weight": "norm.weight",
    "output": "out_proj.weight",
}
"""Parameters of the mixer, and their tensors."""


def _names(mixer: str) -> dict[str, str]:
    """Names of the mixer's tensors, by what stands before them."""
    return {f"mixer/{ours}": f"{mixer}.{theirs}" for ours, theirs in _MIXER.items()}


def _strides(limits: Any) -> tuple[float, float]:
    """Bounds of the strides, infinity as json has it or as transformers 5 writes it.

    Raises:
      ValueError: they are not two numbers, the lower first.
    """
    try:
        low, high = (float(v["__float__"] if isinstance(v, Mapping) else v) for v in limits)
    except (TypeError, ValueError, KeyError):
        low, high = math.nan, math.nan
    if not low <= high:
        raise ValueError(f"time_step_limit={limits!r:.60}: give two numbers, the lower first")
    return low, high


def _read_mamba(raw: Raw, size: int, form: str, **further: Any) -> Mamba2:
    """The mixer of Granite 4 and of Falcon-H1, whose size config.json tells in that form.

    Raises:
      ValueError: heads that do not fill the size, or bounds that are none.
    """
    heads = raw["mamba_n_heads"]
    head_dim = raw["mamba_d_head"] if raw["mamba_d_head"] != "auto" else size // heads
    if heads * head_dim != size:
        raise ValueError(
            f"mamba_n_heads={heads} of mamba_d_head={head_dim} are not {form} = {size} features; "
            "set mamba_d_head to 'auto'"
        )
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        groups=raw["mamba_n_groups"],
        state=raw["mamba_d_state"],
        taps=raw["mamba_d_conv"],
        conv_bias=raw["mamba_conv_bias"],
        strides=_strides(raw["time_step_limit"]),
        **further,
    )


def _write_mamba(m: Mamba2) -> dict[str, Any]:
    limits = {} if m.strides == _UNBOUNDED else {"time_step_limit": list(m.strides)}
    return {
        **limits,
        "mamba_n_heads": m.heads,
        "mamba_d_head": m.head_dim,
        "mamba_n_groups": m.groups,
        "mamba_d_state": m.state,
        "mamba_d_conv": m.taps,
        "mamba_conv_bias": m.conv_bias,
        "mamba_proj_bias": False,
    }


def _read_granite(raw: Raw) -> dict[str, Any]:
    """The fields of Granite 4.

    Raises:
      ValueError: layers of another kind, or heads that do not fill the mixer.
    """
    total, types = raw["num_hidden_layers"], raw["layer_types"]
    families.require_kinds(types, total, (_ATTENTION[0], _RECURRENT[0]), (*_ATTENTION, *_RECURRENT))
    recurrent = tuple(kind in _RECURRENT for kind in types)
    size = raw["mamba_expand"] * raw["hidden_size"]
    shared = raw["shared_intermediate_size"]
    experts = Experts(
        num_experts=raw["num_local_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["intermediate_size"],
        shared_size=shared,
    ) if raw["num_local_experts"] else None  # fmt: skip
    return {
        **recent_families.read_granite(raw),
        "mlp_bias": False,
        "intermediate_size": raw["intermediate_size"] if experts else shared,
        "rope_layers": () if raw.get("position_embedding_type") == "rope" else (False,) * total,
        "recurrent_layers": recurrent if any(recurrent) else (),
        "mamba": _read_mamba(raw, size, "mamba_expand * hidden_size"),
        "experts": experts,
    }


def _write_granite(c: DecoderConfig) -> dict[str, Any]:
    m, e = c.mamba, c.experts
    kinds = c.recurrent_layers or (False,) * c.num_layers
    return {
        **recent_families.write_granite(c),
        **_write_mamba(m),
        "layer_types": [(_ATTENTION[1], _RECURRENT[1])[recurrent] for recurrent in kinds],
        "position_embedding_type": None if c.rope_layers else "rope",
        "intermediate_size": e.size if e else c.intermediate_size,
        "num_local_experts": e.num_experts if e else 0,
        "num_experts_per_tok": e.per_token if e else 0,
        "shared_intermediate_size": e.shared_size if e else c.intermediate_size,
        "mamba_expand": m.size // c.hidden_size,
    }


_BESIDE = {
    "attention_in_multiplier": "attention_in",
    "attention_out_multiplier": "attention_out",
    "key_multiplier": "keys",
    "ssm_in_multiplier": "mixer_in",
    "ssm_out_multiplier": "mixer_out",
}
"""Factors of Falcon-H1, and the fields of `SideBySide` that they are; each is 1 by default."""


def _read_falcon(raw: Raw) -> dict[str, Any]:
    """The fields of Falcon-H1.

    Raises:
      ValueError: heads that do not fill the mixer, or factors that cannot be.
    """
    size, logits = raw["mamba_d_ssm"], raw["lm_head_multiplier"]
    size = int(raw["mamba_expand"] * raw["hidden_size"]) if size is None else size
    if not logits:
        raise ValueError(f"lm_head_multiplier={logits}: logits would be 0; give another number")
    norm = "before_gate" if raw["mamba_norm_before_gate"] else "gated"
    norm = norm if raw["mamba_rms_norm"] else "none"
    gate, down = families.read_factors(raw, "mlp_multipliers", 2)
    columns = families.read_factors(raw, "ssm_multipliers", 5)
    factors = {ours: float(raw.get(theirs, 1.0)) for theirs, ours in _BESIDE.items()}
    return {
        **families.read_biases(raw),
        "embed_scale": float(raw["embedding_multiplier"]),
        "logit_divisor": 1 / logits,
        "recurrent_layers": (True,) * raw["num_hidden_layers"],
        "beside": SideBySide(**factors, gate=gate, down=down),
        "mamba": _read_mamba(raw, size, "mamba_d_ssm", norm=norm, factors=columns),
    }


def _write_falcon(c: DecoderConfig) -> dict[str, Any]:
    m, b = c.mamba, c.beside
    return {
        **families.write_biases(c),
        **_write_mamba(m),
        **{theirs: getattr(b, ours) for theirs, ours in _BESIDE.items()},
        "embedding_multiplier": c.embed_scale,
        "lm_head_multiplier": 1 / c.logit_divisor,
        "mlp_multipliers": [b.gate, b.down],
        "ssm_multipliers": list(m.factors),
        "mamba_d_ssm": m.size,
        "mamba_rms_norm": m.norm != "none",
        "mamba_norm_before_gate": m.norm == "before_gate",
    }


_FALCON_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    **_DEFAULTS,
    "mamba_d_ssm": 1024,
    "mamba_norm_before_gate": True,
    "mamba_rms_norm": False,
    "embedding_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
}

_PARTS: Mapping[str, Part] = {
    "linear_attention": "mixer",
    "mamba": "mixer",
    "full_attention": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "experts",
}
"""Kinds of Nemotron-H's layers, as transformers 5 and 4 call them."""

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""How released files write them."""


def _parts(raw: Raw) -> tuple[Part, ...]:
    """What each layer of Nemotron-H is.

    Raises:
      ValueError: a kind that the family does not have.
    """
    kinds = raw.get("layers_block_type")
    if kinds is None:
        pattern = raw["hybrid_override_pattern"]
        kinds = [_LETTERS.get(letter, letter) for letter in pattern]
    if not {*kinds} <= _PARTS.keys():
        raise ValueError(
            f"layers_block_type={kinds}: its entries must be of {sorted(_PARTS)}, or "
            f"hybrid_override_pattern a text of {''.join(_LETTERS)}"
        )
    return tuple(_PARTS[kind] for kind in kinds)


def _read_nemotron(raw: Raw) -> dict[str, Any]:
    parts = _parts(raw)
    experts = Experts(
        num_experts=raw["n_routed_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        shared_size=raw["moe_shared_expert_intermediate_size"],
        scoring="sigmoid",
        correction_bias=True,
        normalize=raw["norm_topk_prob"],
        scale=raw["routed_scaling_factor"],
        groups=raw["n_group"],
        groups_per_token=raw["topk_group"],
        group_top=2,
    ) if "experts" in parts else None  # fmt: skip
    mamba = Mamba2(
        heads=raw["mamba_num_heads"],
        head_dim=raw["mamba_head_dim"],
        groups=raw["n_groups"],
        state=raw["ssm_state_size"],
        taps=raw["conv_kernel"],
        conv_bias=raw["use_conv_bias"],
        strides=(float(raw["time_step_min"]), math.inf),
    )
    return {
        "num_layers": len(parts),
        "norm_eps": raw["layer_norm_epsilon"],
        "rope_layers": (False,) * len(parts),
        "recurrent_layers": tuple(part == "mixer" for part in parts),
        "parts": parts,
        "mamba": mamba,
        "experts": experts,
    }


def _write_nemotron(c: DecoderConfig) -> dict[str, Any]:
    m, e = c.mamba, c.experts
    kinds = {part: kind for kind, part in reversed(_PARTS.items())}
    letters = {_PARTS[kind]: letter for letter, kind in _LETTERS.items()}
    raw = {
        "layers_block_type": [kinds[part] for part in c.parts],
        "hybrid_override_pattern": "".join(letters[part] for part in c.parts),
        "layer_norm_epsilon": c.norm_eps,
        "mamba_num_heads": m.heads,
        "mamba_head_dim": m.head_dim,
        "n_groups": m.groups,
        "ssm_state_size": m.state,
        "conv_kernel": m.taps,
        "use_conv_bias": m.conv_bias,
        "time_step_min": m.strides[0],
    }
    if e is None:
        return raw
    return {
        **raw,
        "n_routed_experts": e.num_experts,
        "num_experts_per_tok": e.per_token,
        "moe_intermediate_size": e.size,
        "moe_shared_expert_intermediate_size": e.shared_size,
        "norm_topk_prob": e.normalize,
        "routed_scaling_factor": e.scale,
        "n_group": e.groups,
        "topk_group": e.groups_per_token,
    }


_NEMOTRON_DEFAULTS = {
    "num_hidden_layers": 4,  # the length of what lists the layers says it
    "hybrid_override_pattern": "ME*-",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 21504,
    "max_position_embeddings": 4096,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "time_step_min": 0.001,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
}

_EXPERT = "mixer.experts.{expert}"

_MLP = ("gate", "up", "down")

_SHARED = "shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"
_GRANITE_MOE = recent_families.RECENT["granitemoe"]

MAMBA: Mapping[str, Family] = {
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        defaults={
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 1024,
            "layer_types": (),
            **_DEFAULTS,
        },
        refused={"hidden_act": "silu", "mamba_proj_bias": False},
        window="none",
        read=_read_granite,
        write=_write_granite,
        aliases={"layers_block_type": "layer_types"},
        names={
            **_names("mamba"),
            "mixer_norm/weight": "input_layernorm.weight",
            "mlp/gate": _SHARED[0],
            "mlp/up": _SHARED[0],
            "mlp/down": _SHARED[1],
        },
        routed={
            **_GRANITE_MOE.routed,
            "mlp/shared/gate": _SHARED[0],
            "mlp/shared/up": _SHARED[0],
            "mlp/shared/down": _SHARED[1],
        },
        stacks=_GRANITE_MOE.stacks,
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        defaults=_FALCON_DEFAULTS,
        refused={"hidden_act": "silu", "mamba_proj_bias": False, "projectors_bias": False},
        window="none",
        nullable=("mamba_d_ssm",),
        read=_read_falcon,
        write=_write_falcon,
        outside={"norm/weight": "model.final_layernorm.weight"},
        names={
            **_names("mamba"),
            "mlp_norm/weight": "pre_ff_layernorm.weight",
            **{f"mlp/{name}": f"feed_forward.{name}_proj.weight" for name in _MLP},
            **{f"mlp/{name}_bias": f"feed_forward.{name}_proj.bias" for name in _MLP},
        },
        unadapted=("/mixer/output",),
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        fixed={"self_gated": True},
        defaults=_NEMOTRON_DEFAULTS,
        refused={
            "mamba_hidden_act": "silu",
            "use_bias": False,
            "mlp_bias": False,
            "moe_latent_size": None,
            "residual_in_fp32": False,
        },
        activation_key="mlp_hidden_act",
        window="none",
        read=_read_nemotron,
        write=_write_nemotron,
        aliases={
            "layer_types": "layers_block_type",
            "num_local_experts": "n_routed_experts",
            "mamba_n_groups": "n_groups",
            "mamba_d_conv": "conv_kernel",
            "mamba_dt_min": "time_step_min",
            "mamba_conv_bias": "use_conv_bias",
        },
        prefix="backbone.",
        outside={"embed": "model.embeddings.weight", "norm/weight": "model.norm_f.weight"},
        names={
            **_names("mixer"),
            **{f"attention/{name}": f"mixer.{name}_proj.weight" for name in "qkvo"},
            "mixer_norm/weight": "norm.weight",
            "attention_norm/weight": "norm.weight",
            "mlp_norm/weight": "norm.weight",
            "mlp/up": "mixer.up_proj.weight",
            "mlp/down": "mixer.down_proj.weight",
        },
        routed={
            "mlp/router": "mixer.gate.weight",
            "mlp/correction": "mixer.gate.e_score_correction_bias",
            "mlp/up": f"{_EXPERT}.up_proj.weight",
            "mlp/down": f"{_EXPERT}.down_proj.weight",
            "mlp/shared/up": "mixer.shared_experts.up_proj.weight",
            "mlp/shared/down": "mixer.shared_experts.down_proj.weight",
        },
        unadapted=("/mixer/output",),
        ignored=(r"rotary_emb\.inv_freq$", r"^mtp\."),
    ),
}
"""By the `model_type` of config.json. All kinds of layers call their first norm alike."""
