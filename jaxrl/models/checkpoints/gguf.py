"""Weights from GGUF files: dequantised, renamed and laid out as ours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from jaxrl.gguf_file import cached, header, open_file
from jaxrl.models.config import DecoderConfig, Experts, RopeScaling
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings, assemble, places, put

Meta = Mapping[str, Any]
"""Metadata of an architecture, its prefix removed."""

KEPT_BYTES = 2 << 30
"""Of the parameters of a model, as float32, up to which they are kept dequantised."""

OUTSIDE = {
    "embed": "token_embd.weight",
    "norm/weight": "output_norm.weight",
    "head": "output.weight",
}
"""Our parameters outside the layers, and their tensors."""

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies, one for each: how Llama 3's scaling is kept."""

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
    "attention/q_norm/weight": "attn_q_norm.weight",
    "attention/k_norm/weight": "attn_k_norm.weight",
    "attention_post_norm/weight": "post_attention_norm.weight",
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
    "mlp/gate": "ffn_gate_exps.weight",
    "mlp/up": "ffn_up_exps.weight",
    "mlp/down": "ffn_down_exps.weight",
}
"""Those that a layer with experts names otherwise."""

BIASES = {
    "qkv_bias": "blk.0.attn_q.bias",
    "o_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_gate.bias",
}
"""Fields of `DecoderConfig`, and a tensor that is there where they are set."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What llama.cpp knows by an architecture's name."""

    family: str
    """Of `families.FAMILIES`."""
    fields: Callable[[Meta], dict[str, Any]] = lambda meta: {}
    """The fields of `DecoderConfig` that the name decides, some by way of the metadata."""
    biases: tuple[str, ...] = ()
    """Which of the fields `qkv_bias`, `o_bias` and `mlp_bias` a file may have the tensors of."""
    permuted: bool = False
    """Rows of queries and keys lie so that neighbouring features are rotated together."""


def _gemma(meta: Meta, *, largest: int) -> dict[str, Any]:
    layers, size, heads = (
        meta[key] for key in ("block_count", "embedding_length", "attention.head_count")
    )
    head = size / heads if layers == largest else meta["attention.key_length"]
    return {
        "norm_offset": 1.0,
        "post_norm": True,
        "activation": "gelu_tanh",
        "embed_scale": size**0.5,
        "attention_scale": head**-0.5,  # the 27B alone scales by its width
        "sliding_window": meta["attention.sliding_window"],
    }


def _gemma2(meta: Meta) -> dict[str, Any]:
    return _gemma(meta, largest=46) | {
        "local_layers": tuple(i % 2 == 0 for i in range(meta["block_count"])),
        "attention_softcap": _float(meta["attn_logit_softcapping"]),
        "logit_softcap": _float(meta["final_logit_softcapping"]),
    }


def _gemma3(meta: Meta) -> dict[str, Any]:
    return _gemma(meta, largest=62) | {
        "qk_norm": "head",
        "local_layers": tuple(bool((i + 1) % 6) for i in range(meta["block_count"])),
        "local_rope_theta": 10_000.0,
    }


def _qwen3_moe(meta: Meta) -> dict[str, Any]:
    experts = Experts(
        num_experts=meta["expert_count"],
        per_token=meta["expert_used_count"],
        size=meta["expert_feed_forward_length"],
    )
    return {"qk_norm": "head", "experts": experts}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", biases=tuple(BIASES), permuted=True),
    "smollm3": Architecture(
        "smollm3",
        lambda meta: {
            "rope_layers": tuple(bool((i + 1) % 4) for i in range(meta["block_count"])),
        },
        permuted=True,
    ),
    "qwen2": Architecture("qwen2", biases=("qkv_bias",)),
    "qwen3": Architecture("qwen3", lambda meta: {"qk_norm": "head"}),
    "qwen3moe": Architecture("qwen3_moe", _qwen3_moe),
    "gemma2": Architecture("gemma2", _gemma2),
    "gemma3": Architecture("gemma3_text", _gemma3),
    "olmo2": Architecture(
        "olmo2", lambda meta: {"pre_norm": False, "post_norm": True, "qk_norm": "flat"}
    ),
}
"""By `general.architecture`."""


def read_config(path: str | Path) -> DecoderConfig:
    """The decoder that a file's metadata describes.

    Raises:
      ValueError: an unsound file, an architecture or a scaling of RoPE that we do not read.
    """
    head = header(path)
    arch = head.fields["general.architecture"]
    if arch not in ARCHITECTURES:
        raise ValueError(
            f"general.architecture={arch!r} is not read; supported: {', '.join(ARCHITECTURES)}"
        )
    meta = {
        key.removeprefix(f"{arch}."): value
        for key, value in head.fields.items()
        if key.startswith(f"{arch}.")
    }
    factors = None
    if FREQUENCIES in head.tensors:
        factors = next(t.data for t in open_file(path).tensors if t.name == FREQUENCIES)
    vocab_size = len(head.fields["tokenizer.ggml.tokens"])
    return describe(arch, meta, vocab_size, head.tensors, factors)


def describe(
    arch: str,
    meta: Meta,
    vocab_size: int,
    names: Mapping[str, Any],
    factors: np.ndarray | None = None,
) -> DecoderConfig:
    """The decoder of an architecture.

    Args:
      arch: key of `ARCHITECTURES`.
      meta: its metadata.
      vocab_size: number of tokens.
      names: of the file's tensors.
      factors: float32 [rope_dim / 2], the tensor `FREQUENCIES`.

    Raises:
      ValueError: a scaling of RoPE that we do not read.
    """
    heads = meta["attention.head_count"]
    record = ARCHITECTURES[arch]
    common = {
        "vocab_size": vocab_size,
        "hidden_size": meta["embedding_length"],
        "intermediate_size": meta["feed_forward_length"],
        "num_layers": meta["block_count"],
        "num_heads": heads,
        "num_kv_heads": meta.get("attention.head_count_kv", heads),
        "head_dim": meta.get("attention.key_length", meta["embedding_length"] // heads),
        "family": record.family,
        "max_positions": meta["context_length"],
        "rope_theta": _float(meta.get("rope.freq_base", 10_000.0)),
        "rope_scaling": _scaling(meta, factors),
        "norm_eps": _float(meta["attention.layer_norm_rms_epsilon"]),
        "tie_embeddings": OUTSIDE["head"] not in names,
    }
    common |= {name: BIASES[name] in names for name in record.biases}
    if rotated := meta.get("rope.dimension_count"):
        common["rope_fraction"] = rotated / common["head_dim"]
    return DecoderConfig(**(common | record.fields(meta)))


def _float(value: float) -> float:
    """The shortest number that is kept as this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _scaling(meta: Meta, factors: np.ndarray | None) -> RopeScaling | None:
    kind, factor = meta.get("rope.scaling.type", "none"), meta.get("rope.scaling.factor")
    if factors is not None and kind == "none" and factor is None:
        divisors = tuple(float(f) for f in factors)
        return RopeScaling(
            "longrope", 1.0, meta["context_length"], attention_factor=1.0,
            short_factors=divisors, long_factors=divisors,
        )  # fmt: skip
    scaled = [key for key in meta if key.startswith("rope.scaling.")]
    if not scaled or scaled == ["rope.scaling.type"]:
        return None
    if kind == "linear" and factors is None:
        return RopeScaling("linear", _float(factor))
    if kind == "yarn" and factors is None:
        return RopeScaling("yarn", _float(factor), meta["rope.scaling.original_context_length"])
    raise ValueError(f"{scaled} describe a scaled RoPE of type {kind!r}; linear and yarn are read")


def tensors(config: DecoderConfig) -> dict[str, list[str]]:
    """Our parameters by path, and the tensor of each layer, or of the whole."""
    names = LAYER | (ROUTED if config.experts else {})
    tensor_names = {}
    for path, leaf in layout(config).items():
        ours = "/".join(path)
        if not leaf.batch:
            tensor_names[ours] = [OUTSIDE[ours]]
        elif (inner := ours.removeprefix("layers/")) in names:
            tensor_names[ours] = [f"blk.{i}.{names[inner]}" for i in range(config.num_layers)]
        else:
            raise ValueError(f"GGUF has no tensor for {ours} of a {config.family} decoder")
    return tensor_names


def to_ours(config: DecoderConfig, path: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """One layer of a parameter from its tensor in the file.

    Args:
      config: the decoder.
      path: of our parameter.
      leaf: the parameter.
      value: [outputs, inputs], [experts, outputs, inputs] or [size].
    """
    if path.endswith("norm/weight"):
        return (value - config.norm_offset).reshape(_shape(leaf))  # the file adds it beforehand
    if _is_permuted(config, path):
        # llama.cpp rotates neighbouring pairs and permutes rows to suit; we rotate halves
        heads, size = _heads(leaf)
        turned = value.reshape(heads, size // 2, 2, -1).swapaxes(1, 2)
        value = turned.reshape(heads * size, *value.shape[1:])
    if not leaf.inputs:
        return value.reshape(_shape(leaf))
    return value.swapaxes(-1, -2).reshape(_shape(leaf))


def to_file(config: DecoderConfig, path: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """What `to_ours` undoes: the tensor in the file from one layer of a parameter, as float32."""
    value = np.asarray(value, np.float32)
    if path.endswith("norm/weight"):
        return (value + np.float32(config.norm_offset)).reshape(-1)
    if leaf.inputs:
        experts = leaf.shape[1 : leaf.batch]
        inner = leaf.shape[leaf.batch :]
        input_size = int(np.prod(inner[: leaf.inputs]))
        value = value.reshape(*experts, input_size, -1).swapaxes(-1, -2)
    elif "vocab" not in leaf.axes:
        value = value.reshape(-1)
    if _is_permuted(config, path):
        heads, size = _heads(leaf)
        turned = value.reshape(heads, 2, size // 2, -1).swapaxes(1, 2)
        value = turned.reshape(heads * size, *value.shape[1:])
    return np.ascontiguousarray(value)


def _is_permuted(config: DecoderConfig, path: str) -> bool:
    permuted = any(a.permuted and a.family == config.family for a in ARCHITECTURES.values())
    return permuted and path.startswith(("layers/attention/q", "layers/attention/k"))


def _heads(leaf: Leaf) -> tuple[int, int]:
    """Heads and their size, the last two axes of queries and keys."""
    return leaf.shape[-2:]


def _shape(leaf: Leaf) -> tuple[int, ...]:
    """Of one layer."""
    return leaf.shape[1:] if leaf.batch else leaf.shape


def load(
    path: str | Path,
    *,
    shardings: Shardings | None = None,
    dtype: str = "float32",
    quantized: Kind | None = None,
) -> tuple[DecoderConfig, Params]:
    """Config and parameters of a GGUF file of any quantisation `gguf` can undo.

    Beside the parameters, the host holds one tensor of one layer at a time. A model that takes at
    most `KEPT_BYTES` in float32 is dequantised once, into the cache of `gguf_file.cached`, and held
    whole while that is written.

    Args:
      path: of the file.
      shardings: where the parameters go; None: the default device.
      dtype: of the matrices that are not quantised; vectors and routers are float32.
      quantized: quantise the matrices of the layers anew, as `quantize.quantize` does.

    Raises:
      ValueError: tensors are missing or have no place; the message lists them.
    """
    config = read_config(path)
    leaves = layout(config)
    _check_names(path, config)
    where = places(config, shardings)
    cache_path = None
    if 4 * sum(math.prod(leaf.shape) for leaf in leaves.values()) <= KEPT_BYTES:
        cache_path = cached(
            path, "float32.safetensors", lambda partial: _keep(path, config, partial)
        )
    if cache_path is None:
        layers = _layers(path, config)
        flat = {
            ours: assemble(leaf, layers("/".join(ours)), where[ours], dtype, quantized)
            for ours, leaf in leaves.items()
        }
    else:
        with safetensors.safe_open(cache_path, framework="numpy") as file:
            flat = {
                ours: put(leaf, file.get_tensor("/".join(ours)), where[ours], dtype, quantized)
                for ours, leaf in leaves.items()
            }
    return config, nnx.traversals.unflatten_mapping(flat)


def _check_names(path: str | Path, config: DecoderConfig) -> None:
    """Refuse a file whose tensors are not those of the decoder."""
    expected = {name for group in tensors(config).values() for name in group}
    present = header(path).tensors.keys() - {FREQUENCIES}
    missing, unmapped = sorted(expected - present), sorted(present - expected)
    if missing or unmapped:
        raise ValueError(f"{path}: missing tensors {missing}; tensors with no place {unmapped}")


def _layers(path: str | Path, config: DecoderConfig) -> Callable[[str], Iterator[np.ndarray]]:
    """What yields the layers of one of our parameters, dequantised, as float32."""
    present = {tensor.name: tensor for tensor in open_file(path).tensors}
    leaves = {"/".join(ours): leaf for ours, leaf in layout(config).items()}
    names = tensors(config)

    def read(ours: str) -> Iterator[np.ndarray]:
        for name in names[ours]:
            value = gguf.quants.dequantize(present[name].data, present[name].tensor_type)
            yield to_ours(config, ours, leaves[ours], value)

    return read


def _keep(path: str | Path, config: DecoderConfig, partial: Path) -> None:
    """Write all parameters as float32, by our names."""
    layers, arrays = _layers(path, config), dict[str, np.ndarray]()
    for ours, leaf in layout(config).items():
        value = np.empty(leaf.shape, np.float32)
        for row, layer in enumerate(layers("/".join(ours))):
            value[row if leaf.batch else ...] = layer
        arrays["/".join(ours)] = value
    try:
        safetensors.numpy.save_file(arrays, partial)
    except safetensors.SafetensorError as error:  # of a full disk, say
        raise OSError(str(error)) from error
