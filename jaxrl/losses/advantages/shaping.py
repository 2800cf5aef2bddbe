"""What becomes of the rewards of a batch before any advantage is taken.

Rewards are `[N]`, one a sample; `expert` marks rows that the policy did not sample, such as the
reference answer to each prompt. Samples whose reward failed (`valid` 0) leave every statistic.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, clean_rewards, group_moments, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "shaping"


@checked
def par(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    expert: jax.Array,
    valid: jax.Array | None = None,
) -> jax.Array:
    """PAR: the probability that the sample is preferred to the reference answer of its prompt.

    Bounded, steep at the reference and flat far above it, where a reward model is least to be
    trusted.

    Formula: `sigmoid(r_i - mean_(references of g) r)`
    Paper: Fu et al. 2025, "Reward Shaping to Mitigate Reward Hacking in RLHF" (PAR)

    Args:
      rewards: `[N]`, a reward model's logits.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      expert: `[N]` bool, the reference answers; a group without one is measured against 0.
      valid: `[N]` bool.

    Returns:
      `[N]` in `[0, 1]`.
    """
    rewards, valid = clean_rewards(rewards, valid)
    weight = (valid & expert).astype(rewards.dtype)
    count = jax.ops.segment_sum(weight, group_ids, num_groups)
    total = jax.ops.segment_sum(weight * rewards, group_ids, num_groups)
    reference = total / jnp.maximum(count, 1.0)
    return where_valid(valid, jax.nn.sigmoid(rewards - reference[group_ids]))


@checked
def dual(
    rewards: jax.Array,
    reward_parts: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    parts: str = "helpful,refused",
    valid: jax.Array | None = None,
) -> jax.Array:
    """AlphaAlign: the reward for safety, and for answers how helpful they are within their group.

    A reward is that for safety, plus the helpfulness of an answer that is none of a refusal. Here
    the helpfulness is replaced by its z-score over the whole group, refusals included, where that
    is above 0. A group of equal helpfulness, such as that of a harmful prompt, keeps the reward for
    safety alone.

    Formula: `r_i - (1 - v_i) h_i + (1 - v_i) max(0, (h_i - mean_g h) / std_g h)`, h the
      helpfulness, v 1 for a refusal
    Paper: Zhang et al. 2025, "AlphaAlign: Incentivizing Safety Alignment with Extremely Simplified
      Reinforcement Learning" (equations 5 to 7)

    Args:
      rewards: `[N]`.
      reward_parts: `[N, K]`, h and v, and others that nothing is done with.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      parts: the names of h and v, of which h comes first in the alphabet; a run has these alone.
      valid: `[N]` bool.

    Returns:
      `[N]`.

    Raises:
      ValueError: `parts` are not two names, or the reward has no two parts.
    """
    if len([name for name in parts.split(",") if name]) != 2:
        raise ValueError(f"parts={parts!r}: name two parts of the reward, as in helpful,refused")
    if reward_parts.shape[1] < 2:
        raise ValueError(f"dual takes the parts {parts}, but the reward has fewer than two parts")
    rewards, valid = clean_rewards(rewards, valid)
    helpful, refused = as_float(reward_parts[:, 0]), as_float(reward_parts[:, 1])
    _, mean, deviation = group_moments(helpful, group_ids, num_groups, valid, 0)
    spread = deviation > 1e-6 * jnp.maximum(jnp.abs(mean), 1.0)  # else a rounding error counts
    score = jnp.where(spread, (helpful - mean) / jnp.where(spread, deviation, 1.0), 0.0)
    shaped = rewards + (1.0 - refused) * (jnp.maximum(score, 0.0) - helpful)
    return where_valid(valid, shaped)


@checked
def settled_label(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    expert: jax.Array,
    valid: jax.Array | None = None,
) -> jax.Array:
    """ViSurf's control of the label's reward: once samples are as good, it teaches nothing more.

    At the mean of the samples the label changes neither the group's mean nor, with advantages
    centred by the group, any parameter.

    Formula: `r_label := mean_(sampled j) r_j` where `max_(sampled j) r_j >= r_label`
    Paper: Liu et al. 2025, "ViSurf: Visual Supervised-and-Reinforcement Fine-Tuning" (as a
      review of it has the equations)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      expert: `[N]` bool, the labels.
      valid: `[N]` bool.

    Returns:
      `[N]`.
    """
    rewards, valid = clean_rewards(rewards, valid)
    sampled_mask = valid & ~jnp.asarray(expert, bool)
    weight = sampled_mask.astype(rewards.dtype)
    count = jax.ops.segment_sum(weight, group_ids, num_groups)
    mean = jax.ops.segment_sum(weight * rewards, group_ids, num_groups) / jnp.maximum(count, 1.0)
    best = jax.ops.segment_max(jnp.where(sampled_mask, rewards, -jnp.inf), group_ids, num_groups)
    settled_rows = valid & ~sampled_mask & (best[group_ids] >= rewards)
    return jnp.where(settled_rows, mean[group_ids], rewards)


@checked
def episodic(
    rewards: jax.Array,
    tokens: jax.Array,
    mask: jax.Array,
    *,
    age: jax.Array,
    valid: jax.Array | None = None,
    neighbours: int = 16,
    exploit: float = 0.5,
    explore: float = 0.1,
    threshold: float = 0.5,
    features: int = 256,
) -> jax.Array:
    """Memory-R+: be like what succeeded on such prompts and unlike what failed, and be new.

    The memory is what replay brings back to the batch (`age > 0`). A response is compared with the
    remembered ones of the most similar prompts. Texts are bags of words and of pairs of words,
    hashed into features, where the paper has a sentence encoder.

    Formula: `r_i + a (max_(passed j) s_ij - max_(failed j) s_ij) + b (1 - max_j s_ij)`, `s` cosines
      of responses, j among the remembered sequences whose prompts are nearest
    Paper: Le et al. 2025, "Reasoning Under 1 Billion: Memory-Augmented Reinforcement Learning for
      Large Language Models". Its equations 4 to 7 differ: the distance to the centre of what
      passed, the nearest of what failed alone, both scaled by their last 100 values, at weight 1

    Args:
      rewards: `[N]`.
      tokens: `[N, T]` int32.
      mask: `[N, T]` bool: the response; what comes before it is the prompt.
      age: `[N]`, updates since the sequence was sampled: 0 for this step's own.
      valid: `[N]` bool.
      neighbours: remembered sequences compared with, at most N.
      exploit: `a`.
      explore: `b`.
      threshold: least reward that passes.
      features: of an embedding.

    Returns:
      `[N]`; remembered rows keep their rewards, and an empty memory adds nothing.
    """
    rewards, valid = clean_rewards(rewards, valid)
    answered = jnp.cumsum(mask, axis=1) > 0
    prompts = _bags(tokens, ~answered, features)
    responses = _bags(tokens, mask, features)
    remembered = valid & (age > 0) & jnp.any(mask, axis=1)
    near = jnp.where(remembered[None, :], prompts @ prompts.T, -jnp.inf)
    near, mates = jax.lax.top_k(near, min(neighbours, len(rewards)))
    mate_mask = jnp.isfinite(near)
    alike = jnp.sum(responses[:, None, :] * responses[mates], axis=-1)
    passed = rewards[mates] >= threshold

    def closest(kind: jax.Array) -> jax.Array:
        return jnp.max(jnp.where(mate_mask & kind, alike, 0.0), axis=1)

    bonus = exploit * (closest(passed) - closest(~passed))
    bonus += explore * jnp.where(jnp.any(mate_mask, axis=1), 1.0 - closest(mate_mask), 0.0)
    return jnp.where(valid & (age == 0), rewards + bonus, rewards)


def _bags(tokens: jax.Array, mask: jax.Array, features: int) -> jax.Array:
    """Unit vectors [N, features] of the tokens [N, T] in the mask, and of pairs of neighbours."""
    rows = jnp.arange(len(tokens))[:, None]
    pairs = (tokens[:, :-1] * 31 + tokens[:, 1:] + 1) * 97
    bag = jnp.zeros((len(tokens), features))
    bag = bag.at[rows, tokens % features].add(mask)
    bag = bag.at[rows, pairs % features].add(mask[:, :-1] & mask[:, 1:])
    return bag / jnp.maximum(jnp.linalg.norm(bag, axis=1, keepdims=True), 1e-6)
