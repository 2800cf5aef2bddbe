"""Every family against transformers: prefill, packing, padding, cached decoding, gradients."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, head, linear
from jaxrl.models.checkpoints import huggingface
from tests.models import tiny

pytestmark = pytest.mark.parity

T = 14
CUT = 6  # where the packed row changes segment
PAD = 4


def _slow(variant: str):
    return pytest.param(variant, marks=pytest.mark.slow)


def _rows() -> dict[str, np.ndarray]:
    """Four rows of T tokens: whole, two packed segments, padded left, padded right."""
    index = np.arange(T)
    tokens = np.random.default_rng(0).integers(3, 97, (4, T)).astype(np.int32)
    real = np.ones((4, T), bool)
    real[2, :PAD] = real[3, -PAD:] = False
    tokens[~real] = 0
    positions = np.stack([index, np.where(index < CUT, index, index - CUT), index - PAD, index])
    visible = np.full((4, T), T)
    visible[1, :CUT] = CUT
    visible[3] = T - PAD
    return {
        "tokens": tokens,
        "positions": np.maximum(positions, 0).astype(np.int32),
        "visible_until": np.where(real, visible, 0).astype(np.int32),
        "real": real,
    }


def _oracle(model, rows) -> np.ndarray:
    import torch

    def logits(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        with torch.no_grad():
            return model(
                torch.tensor(tokens, dtype=torch.long),
                attention_mask=torch.tensor(mask, dtype=torch.long),
                position_ids=torch.tensor(positions),
            ).logits.numpy()

    out = logits(rows["tokens"], rows["real"])
    if model.config.model_type.startswith("llama4"):  # the temperature counts padding there
        out[2, PAD:] = logits(rows["tokens"][2:3, PAD:], rows["real"][2:3, PAD:])
    for part in (slice(None, CUT), slice(CUT, None)):
        segment = rows["tokens"][1:2, part]
        out[1, part] = logits(segment, np.ones_like(segment))
    return out


def _logits(config, params, hidden):
    flat = hidden.reshape(-1, hidden.shape[-1])
    scores = head.logits(flat, decoder.unembedding(params), softcap=config.logit_softcap)
    return scores.reshape(*hidden.shape[:2], -1)


@pytest.mark.sample(24)
@pytest.mark.exact("logits of every family equal those of transformers to 1e-4")
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_logits(tiny_model, variant):
    """Prefill, packed segments, left and right padding, all in one batch."""
    model, _, config, params = tiny_model(variant)
    rows = _rows()

    @jax.jit
    def ours(params):
        hidden = decoder.hidden(
            config, params, rows["tokens"], rows["positions"], rows["visible_until"]
        )
        return _logits(config, params, hidden)

    expected = _oracle(model, rows)
    assert np.abs(expected[rows["real"]]).max() > 1
    np.testing.assert_allclose(
        ours(params)[rows["real"]], expected[rows["real"]], atol=1e-4, rtol=0
    )


@pytest.mark.sample(6)
@pytest.mark.exact("parameters cast for sampling give the states of those in fp32, bit for bit")
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_parameters_cast_for_sampling(tiny_model, variant):
    _, _, config, params = tiny_model(variant)
    config, rows = dataclasses.replace(config, dtype="bfloat16"), _rows()

    @jax.jit
    def states(params):
        return decoder.hidden(
            config, params, rows["tokens"], rows["positions"], rows["visible_until"]
        )

    cast = decoder.cast(params, "bfloat16")
    assert jnp.array_equal(states(cast), states(params))


@pytest.mark.sample(9)
@pytest.mark.exact(
    "log-probs of cached decoding of every family equal those of transformers to 1e-4"
)
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_cached_decoding(tiny_model, variant):
    """A padded prefill, then token by token, against transformers with its own cache."""
    import torch

    model, _, config, params = tiny_model(variant)
    tokens = _rows()["tokens"][:2]
    prompt = np.array([8, 5])  # rows differ in length; the second is padded to the first
    unstacked = linear.outputs_first(decoder.unstack(params))

    @jax.jit
    def step(tokens, positions, cache):
        hidden, cache = decoder.extend(config, unstacked, tokens, positions, cache, window=16)
        return _logits(config, unstacked, hidden), cache

    index = np.arange(8)
    positions = np.where(index < prompt[:, None], index, 16).astype(np.int32)
    first, cache = step(tokens[:, :8], positions, decoder.empty_cache(config, 2, 16))
    ours = [first[np.arange(2), prompt - 1]]
    for i in range(4):
        at = (prompt + i).astype(np.int32)
        logits, cache = step(tokens[np.arange(2), at][:, None], at[:, None], cache)
        ours.append(logits[:, 0])

    for row, length in enumerate(prompt):
        ids = torch.tensor(tokens[row : row + 1], dtype=torch.long)
        with torch.no_grad():
            out = model(ids[:, :length], use_cache=True)
            expected = [out.logits[0, -1]]
            for i in range(4):
                at = length + i
                out = model(
                    ids[:, at : at + 1], past_key_values=out.past_key_values, use_cache=True
                )
                expected.append(out.logits[0, -1])
        got = np.stack([logits[row] for logits in ours])
        np.testing.assert_allclose(got, np.stack(expected), atol=1e-4, rtol=0)


TREES = (
    "gemma4", "gemma4-moe", "llama4", "llama4-interleaved", "qwen3-next", "qwen3-5", "olmo-hybrid",
    "lfm2", "granite-hybrid", "nemotron-h", "falcon-h1", "kimi-linear",
)  # fmt: skip
"""Variants whose trees CI compares: local layers, chunks, and every kind of recurrent layer."""


@pytest.mark.exact(
    "a packed tree of any layers gives the logits of its rows in transformers to 1e-4"
)
@pytest.mark.sample(6)
@pytest.mark.parametrize("variant", [v if v in TREES else _slow(v) for v in tiny.VARIANTS])
def test_packed_tree(tiny_model, variant):
    """A prompt of 9 tokens and two completions of it; local layers see 5 tokens, or chunks of 5."""
    import torch

    model, _, config, params = tiny_model(variant)
    tokens = _rows()["tokens"][:1]
    positions = np.array([[*range(9), 9, 10, 11, 9, 10]], np.int32)
    visible = np.array([[T] * 9 + [12] * 3 + [T] * 2], np.int32)

    @jax.jit
    def logits(params):
        hidden = decoder.hidden(config, params, tokens, positions, visible, levels=2)
        return _logits(config, params, hidden)

    ours = np.asarray(logits(params))[0]
    for row in ([*range(12)], [*range(9), 12, 13]):
        with torch.no_grad():
            ids = torch.tensor(tokens[:, row], dtype=torch.long)
            expected = model(ids).logits[0].numpy()
        np.testing.assert_allclose(ours[row], expected, atol=1e-4, rtol=0)


def test_released_files_of_gemma4(tiny_model, tmp_path):
    """They name sizes of heads otherwise, and hold tensors that no layer reads."""
    from safetensors import numpy as files

    _, directory, config, params = tiny_model("gemma4")
    raw = json.loads((directory / "config.json").read_text())
    assert {"head_dim": 20} in raw.pop("per_layer_config").values()
    (tmp_path / "config.json").write_text(json.dumps({**raw, "global_head_dim": 20}))
    tensors = files.load_file(directory / "model.safetensors")
    unused = {
        f"model.layers.{layer}.self_attn.{name}.weight": np.zeros(3, np.float32)
        for layer in (4, 5, 6)
        for name in ("k_proj", "v_proj", "k_norm")
    }
    assert not unused.keys() & tensors.keys()
    files.save_file(tensors | unused, tmp_path / "model.safetensors")
    read_config, read = huggingface.load(tmp_path)
    assert read_config == config
    jax.tree.map(np.testing.assert_array_equal, read, params)
    below = {"model.layers.3.self_attn.k_proj.bias": np.zeros(3, np.float32)}
    files.save_file(tensors | below, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"unmapped tensors .*3\.self_attn\.k_proj\.bias"):
        huggingface.load(tmp_path)


GRADIENTS = (
    "llama", "qwen3", "gemma3", "qwen3-moe", "granite", "gpt-oss", "qwen3-next", "qwen3-5",
    "olmo-hybrid", "lfm2", "granite-hybrid", "nemotron-h", "falcon-h1", "llama4", "kimi-linear",
    "gemma4", "gemma4-moe",
)  # fmt: skip
"""The first variants of each mechanism."""


@pytest.mark.sample(4)
@pytest.mark.exact("gradients of every family equal those of transformers")
@pytest.mark.parametrize("variant", [v if v in GRADIENTS else _slow(v) for v in tiny.VARIANTS])
def test_gradients(tiny_model, variant, tmp_path):
    """Of the mean log-probability of the next token, every parameter within 1e-3 of torch's."""
    import torch

    model, _, config, params = tiny_model(variant)
    rows = _rows()
    tokens = rows["tokens"][:1]

    def ours(params):
        hidden = decoder.hidden(
            config, params, tokens, rows["positions"][:1], rows["visible_until"][:1], remat="full"
        )
        logp, _ = head.token_logprobs(
            hidden[0, :-1],
            decoder.unembedding(params),
            tokens[0, 1:],
            softcap=config.logit_softcap,
            chunk=5,
        )
        return -jnp.mean(logp)

    ids = torch.tensor(tokens, dtype=torch.long)
    loss = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    weights = [value.detach().clone() for value in model.parameters()]
    loss.backward()
    try:
        with torch.no_grad():  # gradients reach our layout as if they were weights
            for name, value in model.named_parameters():
                if value.grad is None:  # transformers chooses keys without gradients, as here
                    assert ".indexer." in name, name
                else:
                    value.copy_(value.grad)
        model.save_pretrained(tmp_path)
    finally:
        with torch.no_grad():
            for value, weight in zip(model.parameters(), weights, strict=True):
                value.copy_(weight)
                value.grad = None
    expected = huggingface.load(tmp_path)[1]
    got_loss, got = jax.jit(jax.value_and_grad(ours))(params)
    assert got_loss == pytest.approx(loss.item(), abs=1e-5)

    def close(path, a, b):
        if path[-1].key == "correction":  # a buffer of torch's, which has no gradient
            return
        scale = jnp.abs(b).max()
        if path[-1].key == "layer_scale":  # fixed, and no weight on either side
            assert not jnp.any(a)
            return
        assert scale > 0, path
        assert jnp.abs(a - b).max() < 1e-3 * scale, path

    jax.tree_util.tree_map_with_path(close, got, expected)
