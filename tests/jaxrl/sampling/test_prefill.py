"""Prompts are read but for their last token, which decoding reads once."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig, Experts, Latent
from jaxrl.sampling import prefill

PLAIN = DecoderConfig(
    vocab_size=31, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=2,
    num_kv_heads=1, head_dim=8, max_positions=64,
)  # fmt: skip
CONFIGS = {
    "plain": PLAIN,
    "windows": dataclasses.replace(PLAIN, sliding_window=3, local_layers=(True, False)),
    "experts": dataclasses.replace(PLAIN, experts=Experts(4, 2, 12)),
    "latent": dataclasses.replace(
        PLAIN, num_kv_heads=2, latent=Latent(kv_rank=8, q_rank=6, nope_dim=6, rope_dim=2, v_dim=4)
    ),
}
LENGTHS = np.array([17, 1, 2, 30], np.int32)
WIDTH = 32


@pytest.mark.sample(2, broad=2)
@pytest.mark.exact("a last prompt token that is read once: caches and states to the last bit")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("piece", [8, WIDTH])
def test_the_last_token_is_read_once(name, piece):
    config = CONFIGS[name]
    params = decoder.unstack(decoder.init(config, jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(1, 31, (len(LENGTHS), WIDTH)).astype(np.int32)
    rows, last = np.arange(len(LENGTHS)), LENGTHS - 1

    def read(length):
        return prefill.prefill((config,), (params,), tokens, length, piece=piece)[0]

    once, twice = read(LENGTHS), read(LENGTHS + 1)
    for leaf in jax.tree.leaves(once):
        assert not np.asarray(leaf)[rows, :, last].any()
    for leaf in jax.tree.leaves(twice):
        assert np.asarray(leaf)[rows, :, last].any()

    @jax.jit
    def decode(cache):
        ids, positions = tokens[rows, last][:, None], jnp.asarray(last)[:, None]
        return decoder.extend(config, params, ids, positions, cache)

    jax.tree.map(np.testing.assert_array_equal, decode(once), decode(twice))
