"""Model directories of published shapes with random weights, and a tokenizer of bytes."""

from __future__ import annotations

import itertools
import json
import math
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

TINY = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
"""What takes the place of every shape in a rehearsal."""
END = "<|endoftext|>"
_DEVIATION = 0.02


def shape(name: str, *, rehearse: bool, layers: int = 0) -> dict[str, Any]:
    """The config.json of a shape of `jaxrl.launch.planning.shapes`, or with fewer layers."""
    from jaxrl.launch.planning import shapes

    raw = dict(TINY if rehearse else shapes.SHAPES[name])
    raw |= {"num_hidden_layers": layers} if layers and not rehearse else {}
    end = raw["vocab_size"] - 1
    return raw | {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": end,
        "pad_token_id": end,
    }


def describe(folder: Path, raw: dict[str, Any]) -> Path:
    """Write config.json and a byte-level tokenizer: what a plan needs of a model.

    Texts are encoded as bytes; every other id of the vocabulary has four letters of its own, so
    that random completions have texts that differ.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    more = itertools.product(string.ascii_lowercase, repeat=4)
    pieces += map("".join, itertools.islice(more, raw["vocab_size"] - 1 - len(pieces)))
    fast = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([tokenizers.AddedToken(END, special=True)])
    fast.save(str(folder / "tokenizer.json"))
    special = {"eos_token": END, "pad_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special) + "\n")
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    return folder


def fill(folder: Path) -> Path:
    """Random bf16 weights for the config.json of a folder, unless it has some."""
    import ml_dtypes
    import safetensors.numpy

    from jaxrl.models.checkpoints import huggingface

    path = folder / "model.safetensors"
    if path.exists():
        return folder
    sizes: dict[str, tuple[int, ...]] = {}
    for piece in huggingface.pieces(huggingface.read_config(folder)):
        sizes[piece.tensor] = (piece.rows.stop, *piece.shape[1:])

    def draw(number: int, size: tuple[int, ...]) -> np.ndarray:
        if len(size) == 1:
            return np.ones(size, ml_dtypes.bfloat16)
        values = np.random.default_rng(number).standard_normal(math.prod(size), np.float32)
        values *= _DEVIATION
        return values.reshape(size).astype(ml_dtypes.bfloat16)

    with ThreadPoolExecutor() as pool:
        arrays = pool.map(draw, range(len(sizes)), sizes.values())
        tensors = dict(zip(sizes, arrays, strict=True))
    safetensors.numpy.save_file(tensors, path.with_suffix(".partial"), metadata={"format": "pt"})
    path.with_suffix(".partial").rename(path)
    return folder


def make(work: Path, name: str, *, rehearse: bool, layers: int = 0, weights: bool = True) -> Path:
    """The folder of a shape, made at first use."""
    folder = work / "models" / (f"{name}-{layers}" if layers else name)
    if not (folder / "config.json").exists():
        describe(folder, shape(name, rehearse=rehearse, layers=layers))
    return fill(folder) if weights else folder


def texts(count: int, size: int, seed: int = 0) -> list[str]:
    """Random lower-case texts of `size` bytes, each of which is a token of the tokenizer."""
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8)
    return [rng.choice(letters, size).tobytes().decode() for _ in range(count)]
