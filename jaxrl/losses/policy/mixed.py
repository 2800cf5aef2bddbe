"""Mixtures of supervised terms and policy objectives: expert rows beside sampled rows.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`. `expert [B]` is
nonzero on rows that an expert wrote; their `behavior_logp` may hold anything finite where a
function does not use it.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.imitation.supervised import sft
from jaxrl.losses.policy.objectives import Objective, clipped_surrogate, ppo_clip
from jaxrl.losses.reduce.masking import as_float, bounded_exp, constant, row_mean, token_constant
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "supervised"


@checked
def chord(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    mu: float | jax.Array = 0.1,
    phi: bool = False,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """CHORD: GRPO on sampled rows, supervised on expert rows, in the proportion mu.

    Both terms share one aggregation here; to give each its own denominator, aggregate twice with
    the rows of one source masked.

    Formula: `(1 - mu) ppo_clip` on sampled rows, `-mu w_t log pi_t` on expert rows, `w` = 1 or phi
    Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts" (CHORD)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      expert: `[B]` bool.
      mu: weight of imitation: constant for CHORD-phi (0.1 is the authors'), from `chord_mu` for
        CHORD-mu.
      phi: weight expert tokens by `p (1 - p)`, as in `chord_phi`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    imitation, _ = chord_phi(logp) if phi else sft(logp)
    expert = jnp.asarray(expert, bool)[:, None]
    return jnp.where(expert, mu * imitation, (1.0 - mu) * policy), metrics


@checked
def chord_phi(logp: jax.Array) -> Objective:
    """CHORD's token weight: learn most from expert tokens the policy finds plausible but not sure.

    Formula: `-sg(p_t (1 - p_t)) log pi_t`
    Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts" (CHORD-phi)

    Args:
      logp: `[B, T]`.

    Returns:
      Loss `[B, T]`; metric `weight` `[B, T]`.
    """
    p = jnp.exp(jnp.minimum(constant(logp), 0.0))
    weight = p * (1.0 - p)
    return -weight * as_float(logp), {"weight": weight}


def chord_mu(
    step: jax.Array,
    *,
    peak: float = 0.9,
    valley: float = 0.05,
    warmup_steps: int = 0,
    decay_steps: int = 200,
) -> jax.Array:
    """CHORD's schedule of mu: a linear warm-up to the peak, then half a cosine down to the valley.

    The defaults are the authors' for CHORD-mu. CHORD-phi has a constant mu, see `chord`.

    Formula: `peak step / warmup_steps`, then `valley + (peak - valley) (1 + cos(pi u)) / 2`,
      `u = min((step - warmup_steps) / decay_steps, 1)`
    Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts" (CHORD-mu)

    Args:
      step: scalar int, the optimizer step.
      peak, valley: mu after the warm-up, and after the decay.
      warmup_steps, decay_steps: their lengths.

    Returns:
      A scalar.
    """
    u = jnp.clip((step - warmup_steps) / max(decay_steps, 1), 0.0, 1.0)
    decayed = valley + (peak - valley) * 0.5 * (1.0 + jnp.cos(jnp.pi * u))
    return jnp.where(step < warmup_steps, peak * step / max(warmup_steps, 1), decayed)


@checked
def chord_annealed(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    step: jax.Array,
    peak: float = 0.9,
    valley: float = 0.05,
    warmup_steps: int = 0,
    decay_steps: int = 200,
) -> Objective:
    """CHORD-mu: from imitation to exploration, by the schedule of mu.

    Formula: `chord(mu = chord_mu(step))`
    Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts" (CHORD-mu)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      expert: `[B]` bool.
      step: scalar int, the optimizer step.
      peak, valley, warmup_steps, decay_steps: as in `chord_mu`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    mu = chord_mu(
        step, peak=peak, valley=valley, warmup_steps=warmup_steps, decay_steps=decay_steps
    )
    return chord(logp, behavior_logp, advantages, expert=expert, mu=mu)


@checked
def sasr(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    batch_mask: jax.Array,
    step: jax.Array,
    key: jax.Array,
    imitate: jax.Array | None = None,
    warmup_steps: int = 20,
    warm_gradient: float = 0.5,
    gamma: float = 1.0,
) -> Objective:
    """SASR: each step imitates or explores, by chance; imitation while its gradient is still large.

    The paper compares two norms of the imitation gradient at the parameters: of the last imitation
    step, and of the end of the warm-up. An objective has neither, so an extension of the run draws
    (`jaxrl.launch.recipes.demonstrations.sasr`), and `imitate` is its outcome. Without one, their
    place is taken by the mean over the batch's expert tokens of `1 - pi`, which is half the L1
    norm of the gradient at the logits, and by the constant `warm_gradient`.

    Formula: `-log pi_t` on expert rows with probability p, else `ppo_clip` on sampled rows;
      `p = g / (g + gamma g_warm)`, `g = mean_expert (1 - pi_t)`; `p = 1` while warming up
    Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and
      Reinforcement Learning for Task-Specific LLMs" (SASR, recalled)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      expert: `[B]` bool.
      batch_mask: `[B, T]`, action tokens of the whole batch.
      step: scalar int, the optimizer step.
      key: PRNG key of this update.
      imitate: `[B]` bool, the same everywhere: whether this step imitates; None draws it.
      warmup_steps: of imitation alone.
      warm_gradient: g when they are over.
      gamma: how much of g p compares itself with.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `imitation` `[B, T]`, which is p, or the outcome
      where `imitate` is given.
    """
    policy, metrics = ppo_clip(logp, behavior_logp, advantages)
    expert = jnp.asarray(expert, bool)[:, None]
    expert_mask = expert & jnp.asarray(batch_mask, bool)
    wrong = jnp.where(expert_mask, 1.0 - jnp.exp(jnp.minimum(constant(logp), 0.0)), 0.0)
    g = jnp.sum(wrong) / jnp.maximum(jnp.sum(expert_mask), 1)
    p = jnp.where(step < warmup_steps, 1.0, g / (g + gamma * warm_gradient))
    imitates = jax.random.uniform(key, dtype=jnp.float32) < p
    if imitate is not None:
        imitates = jnp.asarray(imitate, bool)[:, None]
        p = imitates.astype(jnp.float32)
    loss = jnp.where(expert == imitates, jnp.where(expert, -as_float(logp), policy), 0.0)
    return loss, metrics | {"imitation": jnp.broadcast_to(p, logp.shape)}


@checked
def grao(
    logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    mask: jax.Array,
    group_ids: jax.Array,
    imitation: float = 0.5,
    alignment: float = 0.6,
) -> Objective:
    """GRAO: explore by the samples, imitate the reference, and contrast the two.

    All three terms are linear in the log-probabilities, so a reference row gathers what its samples
    put on it. Written as G times the paper's objective; reduce with `seq-mean-token-mean`, as log
    pi of an answer is there the mean over its tokens.

    Formula: `J = mean_i A_i log pi(o_i) + beta A_y log pi(y) + lambda mean_i A_i (log pi(o_i) -
      log pi(y))`, over the G samples `o_i` of a prompt and its reference `y`, `log pi(o)` the mean
      over the tokens of o
    Paper: Wang et al. 2025, "Learning to Align, Aligning to Learn: A Unified Approach for
      Self-Optimized Alignment" (GRAO, equation 3; lambda is 0.6)

    Args:
      logp: `[B, T]`; the rows of a group must be in the same call.
      advantages: `[B, 1]`, of samples and references alike.
      expert: `[B]` bool, the references.
      mask: `[B, T]`; rows without action tokens do not count.
      group_ids: `[B]` int32 in `[0, B)`.
      imitation, alignment: beta and lambda.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    a = row_mean(mask, jnp.broadcast_to(token_constant(advantages, logp), logp.shape))
    expert = jnp.asarray(expert, bool)
    sampled_mask = ~expert & jnp.any(jnp.asarray(mask, bool), axis=-1)
    size = jax.ops.segment_sum(sampled_mask.astype(a.dtype), group_ids, len(a))[group_ids]
    total = jax.ops.segment_sum(jnp.where(sampled_mask, a, 0.0), group_ids, len(a))[group_ids]
    reference = imitation * size * a - alignment * total
    weight = jnp.where(expert, reference, (1.0 + alignment) * a)
    return -weight[:, None] * as_float(logp), {}


@checked
def rl_plus(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    uniform: float = 1.0,
    gamma: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """RL-PLUS: clipped RL on sampled rows, multiple importance sampling on expert rows.

    The expert's unknown policy is estimated by the mean of the old policy and a uniform one. The
    advantage is larger where the policy finds the expert's token unlikely. The defaults are those
    of the released code, which takes 1 for the uniform policy's probability; the paper has `1 / V`,
    with a vocabulary of V tokens. The released script trains sampled rows without the clip.

    Formula: `-r A (1 - sg(pi_t))^gamma` on expert rows, `r = 2 pi / (pi_w + pi_old)`,
      `pi_w = (pi_old + uniform) / 2`
    Paper: Dong et al. 2025, "RL-PLUS: Countering Capability Boundary Collapse of LLMs"

    Args:
      logp: `[B, T]`.
      behavior_logp: `[B, T]`; on expert rows the old policy's log-probability of the token.
      advantages: `[B, T]` or `[B, 1]`.
      expert: `[B]` bool.
      uniform: probability that stands for the uniform policy.
      gamma: exponent of the exploration weight.
      clip_low, clip_high: widths as in `ppo_clip`, on sampled rows only.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    policy, metrics = clipped_surrogate(
        importance_ratio(logp, behavior_logp), advantages, clip_low=clip_low, clip_high=clip_high
    )
    old = jnp.exp(constant(behavior_logp))
    # Divided in log space: the mixture is at least uniform / 4, which bounds the ratio.
    log_mixture = jnp.log(0.5 * (1.5 * old + 0.5 * uniform))
    r = bounded_exp(as_float(logp) - log_mixture)
    exploration = jnp.power(1.0 - jnp.exp(jnp.minimum(constant(logp), 0.0)), gamma)
    external = -r * exploration * constant(advantages)
    return jnp.where(jnp.asarray(expert, bool)[:, None], external, policy), metrics


@checked
def dph(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    lag: jax.Array,
    step: jax.Array,
    presample_steps: int,
    coefficient: float = 0.01,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """DPH-RL: PPO on fresh samples, a forward KL on stored samples of the initial policy.

    During the first steps nothing is learned: the learning rate is multiplied by 0, and all samples
    are the initial policy's. A replay buffer keeps those of prompts that it solves, and brings them
    back in later steps, where the divergence holds the policy to their recorded log-probabilities.

    Formula: `coefficient (pi / pi_0 - 1 - log(pi / pi_0))` on tokens sampled before
      `presample_steps`, `ppo_clip` on the others
    Paper: Li et al. 2025, "The Choice of Divergence: A Neglected Key to Mitigating Diversity
      Collapse in Reinforcement Learning with Verifiable Reward" (DPH-F)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      lag: `[B, T]` int32, updates since each token was sampled.
      step: scalar int, the optimizer step.
      presample_steps: updates of the first phase.
      coefficient: weight of the divergence, 0.01 to 0.05 in the released scripts.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`, `rehearsal` `[B, T]` (the divergence) and
      `lr_scale`, a scalar.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    d = as_float(logp) - constant(behavior_logp)
    divergence = bounded_exp(d) - 1.0 - d
    stored = step - lag < presample_steps
    learning = step >= presample_steps
    return jnp.where(stored, coefficient * divergence, policy), metrics | {
        "rehearsal": jnp.where(stored, constant(divergence), 0.0),
        "lr_scale": jnp.where(learning, 1.0, 0.0),
    }


@checked
def nlpo_logits(logits: jax.Array, masking_logits: jax.Array, *, top_p: float = 0.9) -> jax.Array:
    """NLPO's action mask: only tokens in the nucleus of a lagged masking policy stay possible.

    Apply it when sampling and when recomputing log-probabilities alike; PPO does the rest.

    Formula: `z_v` if `v` in the top-p set of `softmax(masking_logits)`, `-inf` elsewhere
    Paper: Ramamurthy et al. 2023, "Is Reinforcement Learning (Not) for NLP?" (NLPO)

    Args:
      logits: `[..., V]` of the policy.
      masking_logits: `[..., V]` of its copy, refreshed every few updates.
      top_p: mass of the nucleus; its most likely token always stays, and ties stay together.

    Returns:
      `[..., V]` of the dtype of `logits`.
    """
    probs = jax.nn.softmax(constant(masking_logits), axis=-1)
    descending = -jnp.sort(-probs, axis=-1)
    inside = jnp.cumsum(descending, axis=-1) - descending < top_p
    least = jnp.min(jnp.where(inside, descending, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(probs >= least, logits, -jnp.inf).astype(logits.dtype)
