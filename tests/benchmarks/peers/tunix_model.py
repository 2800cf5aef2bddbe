"""SmolLM2 as Tunix loads it; a process that imports this has Tunix installed."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.models.llama3 import params as llama_params


def mesh() -> jax.sharding.Mesh:
    """Of one device."""
    return jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def load(directory: str, on: jax.sharding.Mesh) -> nnx.Module:
    """A Llama of a directory, in float32."""
    shape = json.loads((Path(directory) / "config.json").read_text())
    config = llama.ModelConfig(
        num_layers=shape["num_hidden_layers"],
        vocab_size=shape["vocab_size"],
        embed_dim=shape["hidden_size"],
        hidden_dim=shape["intermediate_size"],
        num_heads=shape["num_attention_heads"],
        head_dim=shape["hidden_size"] // shape["num_attention_heads"],
        num_kv_heads=shape["num_key_value_heads"],
        rope_theta=int(shape["rope_theta"]),
        norm_eps=shape["rms_norm_eps"],
        weight_tying=shape["tie_word_embeddings"],
    )
    with on:
        return llama_params.create_model_from_safe_tensors(directory, config, on, dtype=jnp.float32)
