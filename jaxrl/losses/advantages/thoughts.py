"""Credit for the thoughts of a response: runs of tokens over which its prospects rise, or fall.

Conventions as in `jaxrl.losses.advantages.groups`: arrays of the whole batch, invalid samples left
out of everything.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.advantages.groups import group_advantages
from jaxrl.losses.reduce.masking import clean_rewards, group_moments, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "advantage"


@checked
def prefix_values(
    rewards: jax.Array,
    group_ids: jax.Array,
    tokens: jax.Array,
    mask: jax.Array,
    *,
    valid: jax.Array | None = None,
) -> jax.Array:
    """What the samples of a group earn that begin alike: a value of each prefix, from no model.

    Prefixes are told apart by a hash of 32 bits.

    Formula: `V_t = mean r_j` over the samples j of the group with `y_j,<=t = y_i,<=t`
    Paper: Sullivan & Koller 2026, "GRPO is Secretly a Process Reward Model"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      tokens: `[N, T]` int32.
      mask: `[N, T]` bool: the response, whose prompt is that of its group.
      valid: `[N]` bool.

    Returns:
      `[N, T]`, of the prefix that ends with the token; 0 off the response and for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    mask = jnp.asarray(mask, bool) & valid[:, None]

    def read(name: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        token, acts = inputs
        longer = _mixed(name * jnp.uint32(31) + token.astype(jnp.uint32) + jnp.uint32(1))
        name = jnp.where(acts, longer, name)
        return name, name

    start = _mixed(group_ids.astype(jnp.uint32) + jnp.uint32(1))
    _, names = jax.lax.scan(read, start, (tokens.T, mask.T))
    size = tokens.size
    _, ids = jnp.unique(names.T.reshape(-1), return_inverse=True, size=size)
    weight = mask.astype(rewards.dtype).reshape(-1)
    earned = weight * jnp.repeat(rewards, tokens.shape[1])
    total = jax.ops.segment_sum(earned, ids, size)
    count = jax.ops.segment_sum(weight, ids, size)
    values = (total / jnp.maximum(count, 1.0))[ids].reshape(tokens.shape)
    return where_valid(mask, values)


@checked
def tp_grpo(
    rewards: jax.Array,
    group_ids: jax.Array,
    tokens: jax.Array,
    mask: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
    weight: float = 1.0,
    eps: float = 1e-4,
) -> jax.Array:
    """TP-GRPO: the outcome's advantage, and a reward for each thought, by how able the policy is.

    A thought is a run of tokens whose steps are all right, or all wrong. Its reward is what the
    value changes over it. While a prompt is failed, right thoughts count and wrong ones are free;
    once it is passed, wrong ones count. The paper's verdicts are those of a generative judge; here
    a step is right if it raises `prefix_values`, and wrong if it lowers them. The weights by the
    pass rate are our reading.

    Formula: `(r_i - mean_g r) / (std_g r + eps) + w D_k ((1 - p) 1[D_k > 0] + p 1[D_k < 0])`,
      `D_k` the change of V over the thought k of the token, `p = mean_g r`
    Paper: He et al. 2025, "Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning
      Model More Efficient Math Learner"

    Args:
      rewards: `[N]` in `[0, 1]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      tokens: `[N, T]` int32.
      mask: `[N, T]` bool: the response.
      num_groups: static; an upper bound will do.
      valid: `[N]` bool.
      weight: w.
      eps: added to the standard deviation.

    Returns:
      `[N, T]`, 0 off the response and for invalid samples. Tokens that change nothing are in no
      thought and have the outcome's advantage.
    """
    rewards, valid = clean_rewards(rewards, valid)
    outcome = group_advantages(rewards, group_ids, num_groups=num_groups, valid=valid, eps=eps)
    _, able, _ = group_moments(rewards, group_ids, num_groups, valid, 0)
    mask = jnp.asarray(mask, bool) & valid[:, None]
    values = prefix_values(rewards, group_ids, tokens, mask, valid=valid)

    def step(
        carry: tuple[jax.Array, jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        before, side, thought = carry
        value, acts = inputs
        change = jnp.where(acts & (jnp.abs(value - before) > 1e-6), value - before, 0.0)
        turns = acts & (jnp.sign(change) != side)
        side, thought = jnp.where(acts, jnp.sign(change), side), thought + turns
        return (jnp.where(acts, value, before), side, thought), (change, thought)

    start = (able, jnp.full_like(able, 2.0), jnp.zeros(able.shape, jnp.int32))
    _, (change, thought) = jax.lax.scan(step, start, (values.T, mask.T))
    change, thought = change.T, thought.T
    totals = jax.vmap(lambda x, k: jax.ops.segment_sum(x, k, x.shape[0] + 1)[k])(change, thought)
    share = jnp.where(totals > 0, 1.0 - able[:, None], able[:, None])
    return where_valid(mask, outcome[:, None] + weight * totals * share)


def _mixed(name: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3: equal names stay equal, others are spread."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        name = (name ^ (name >> shift)) * jnp.uint32(factor)
    return name ^ (name >> 16)
