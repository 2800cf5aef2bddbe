"""The tokens that a draw could have given, as bits: what truncation leaves of a vocabulary.

A token's support is a row of 32-bit words, bit `v % 32` of word `v // 32` for token v. It is the
set itself and no threshold, so that it is the same under weights that have changed since, and under
logits that differ in their last bits. A row of zeros is no truncation at all: what the policy did
not choose has it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_BITS = 32


def words(vocab_size: int) -> int:
    """Words of a support."""
    return -(-vocab_size // _BITS)


def to_words(mask: jax.Array) -> jax.Array:
    """Supports [..., W] uint32 of masks [..., V] bool, true where a token may be drawn."""
    vocab_size = mask.shape[-1]
    room = [(0, 0)] * (mask.ndim - 1) + [(0, -vocab_size % _BITS)]
    bits = jnp.pad(mask, room).reshape(*mask.shape[:-1], words(vocab_size), _BITS)
    values = jnp.uint32(1) << jnp.arange(_BITS, dtype=jnp.uint32)
    return jnp.sum(jnp.where(bits, values, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)


def of_words(support: jax.Array, vocab_size: int) -> jax.Array:
    """Masks [..., V] bool of supports [..., W] uint32; a row of zeros has all tokens.

    Tokens beyond the words, such as padding of the vocabulary, are in no other row.
    """
    shifts = jnp.arange(_BITS, dtype=jnp.uint32)
    bits = (support[..., None] >> shifts) & jnp.uint32(1)
    mask = bits.reshape(*support.shape[:-1], -1)[..., :vocab_size] > 0
    room = [(0, 0)] * (mask.ndim - 1) + [(0, vocab_size - mask.shape[-1])]
    unrestricted = jnp.all(support == 0, axis=-1, keepdims=True)
    return jnp.pad(mask, room) | unrestricted


def token_ids(support: np.ndarray) -> list[list[int]]:
    """The tokens of each of the supports [T, W] uint32, on the host; none for a row of zeros."""
    bits = np.ascontiguousarray(support).view(np.uint8)
    rows = np.unpackbits(bits, axis=-1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in rows]


def restrict(logits: jax.Array, support: jax.Array) -> jax.Array:
    """Logits [..., V] with -inf outside of supports [..., W]; their gradient there is 0."""
    return jnp.where(of_words(support, logits.shape[-1]), logits, -jnp.inf)
