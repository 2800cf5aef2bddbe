"""Which samples to keep for fine-tuning, by what one update on each would do to the output layer.

Arrays are `[N, ...]` over samples, or `[N, T]` samples by tokens.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "data pruning"


@checked
def output_gradient(
    hidden: jax.Array, logits: jax.Array, targets: jax.Array, *, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of each sample's gradient in the output layer, its product with the weights and its square.

    The gradient itself, a matrix of the weights' shape for each sample, is not made.

    Formula: `<W, G> = sum_t e_t . z_t`, `|G|^2 = sum_(t, u) (e_t . e_u) (h_t . h_u)`,
      `e_t = (softmax(z_t) - onehot(y_t)) / n`, `z_t = W h_t`
    Paper: Hu et al. 2025, "DONOD: Robust and Generalizable Instruction Fine-Tuning for LLMs via
      Model-Intrinsic Dataset Pruning" (whose norms these give; the sums are ours)

    Args:
      hidden: `[N, T, D]`, h: what the output layer reads.
      logits: `[N, T, V]`, z: what it gives, with no soft cap and at temperature 1.
      targets: `[N, T]` int32, y.
      mask: `[N, T]`, the n tokens of a sample whose mean loss it is.

    Returns:
      `<W, G>` and `|G|^2`, `[N]` each.
    """
    count = jnp.maximum(jnp.sum(mask, axis=1), 1)[:, None, None]
    error = jax.nn.softmax(as_float(logits), axis=-1) - jax.nn.one_hot(targets, logits.shape[-1])
    error = where_valid(mask[..., None], error / count)
    inner = jnp.sum(error * where_valid(mask[..., None], as_float(logits)), axis=(1, 2))
    read = where_valid(mask[..., None], as_float(hidden))
    alike = jnp.einsum("ntv,nuv->ntu", error, error) * jnp.einsum("ntd,nud->ntu", read, read)
    return inner, jnp.sum(alike, axis=(1, 2))


@checked
def donod(
    inner: jax.Array, square: jax.Array, weight_norm: jax.Array, *, rate: float = 1e-3
) -> jax.Array:
    """DONOD: samples whose update adds most to the weights' norm and moves the weights least.

    Both criteria weigh the same in TOPSIS, which divides each by its norm over all samples.

    Formula: `c = d_worst / (d_best + d_worst)`, distances to the best and the worst values of
      `DON = |W - r G| - |W|` (high is best) and `NOD = |r G|` (low is best)
    Paper: Hu et al. 2025, "DONOD: Robust and Generalizable Instruction Fine-Tuning for LLMs via
      Model-Intrinsic Dataset Pruning"; Hwang & Yoon 1981, "Multiple Attribute Decision Making"
      (TOPSIS)

    Args:
      inner, square: `[N]`, `<W, G>` and `|G|^2` of the samples, see `output_gradient`.
      weight_norm: scalar, `|W|`.
      rate: r, of the update.

    Returns:
      `[N]` in [0, 1], the higher the better; 1/2 where all samples are the same.
    """
    turned = rate**2 * square - 2 * rate * inner
    don = turned / (jnp.sqrt(jnp.maximum(weight_norm**2 + turned, 0.0)) + weight_norm)
    nod = rate * jnp.sqrt(jnp.maximum(square, 0.0))
    goods = jnp.stack([don, -nod])
    goods = goods / jnp.maximum(jnp.linalg.norm(goods, axis=1, keepdims=True), 1e-30)
    to_best = jnp.linalg.norm(goods - jnp.max(goods, axis=1, keepdims=True), axis=0)
    to_worst = jnp.linalg.norm(goods - jnp.min(goods, axis=1, keepdims=True), axis=0)
    both = to_best + to_worst
    return jnp.where(both > 0, to_worst / jnp.where(both > 0, both, 1.0), 0.5)
