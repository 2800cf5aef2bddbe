"""Group-relative credit for the steps and turns of multi-step episodes, without a critic.

Arrays are `[N, S]`: N episodes of up to S steps (turns), `step_mask` nonzero on real ones. An
advantage of a step is given to all tokens of that step (`to_tokens`). Invalid rewards are the
caller's to mask out.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.advantages.groups import group_advantages
from jaxrl.losses.reduce.masking import constant, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "advantage"


@checked
def discounted_returns(
    step_rewards: jax.Array, *, step_mask: jax.Array, discount: float = 1.0
) -> jax.Array:
    """Reward to go of every step.

    Formula: `G_k = r_k + gamma G_(k+1)`
    Paper: Sutton & Barto 2018, "Reinforcement Learning: An Introduction"

    Args:
      step_rewards: `[N, S]`.
      step_mask: `[N, S]`, a prefix of each row.
      discount: gamma between steps.

    Returns:
      `[N, S]`, 0 at masked steps.
    """
    rewards = where_valid(step_mask, constant(step_rewards))

    def step(following: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = reward + discount * following
        return total, total

    _, returns = jax.lax.scan(step, jnp.zeros_like(rewards[:, 0]), rewards.T, reverse=True)
    return where_valid(step_mask, returns.T)


@checked
def gigpo(
    rewards: jax.Array,
    group_ids: jax.Array,
    step_rewards: jax.Array,
    state_ids: jax.Array,
    *,
    num_groups: int,
    num_states: int,
    step_mask: jax.Array,
    valid: jax.Array | None = None,
    discount: float = 0.95,
    weight: float = 1.0,
    scale: str = "group",
    eps: float = 1e-4,
) -> jax.Array:
    """GiGPO: the episode's advantage in its group, plus the step's among steps from the same state.

    Formula: `A_E + w A_S`, `A_E` of the episode's reward over the prompt's group, `A_S` of the
      discounted return over all steps of the group that start from the same anchor state
    Paper: Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training"

    Args:
      rewards: `[N]` of episodes.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      step_rewards: `[N, S]`.
      state_ids: `[N, S]` int32 in `[0, num_states)`: equal for equal states *of the same group*.
      num_groups, num_states: static.
      step_mask: `[N, S]`.
      valid: `[N]` bool, False where the episode's reward is an error; None: all are valid.
      discount: gamma between steps.
      weight: of the step's advantage.
      scale: `group` divides both by the standard deviation of their group, `none` does not.
      eps: added to the standard deviation.

    Returns:
      `[N, S]`, 0 at masked steps; a state visited once has no step advantage.
    """
    episode = group_advantages(
        rewards, group_ids, num_groups=num_groups, scale=scale, valid=valid, eps=eps
    )
    returns = discounted_returns(step_rewards, step_mask=step_mask, discount=discount)
    step = _among_states(returns, state_ids, step_mask, num_states, scale=scale, eps=eps)
    return where_valid(step_mask, episode[:, None] + weight * step)


@checked
def thor(
    group_ids: jax.Array,
    step_rewards: jax.Array,
    state_ids: jax.Array,
    *,
    num_groups: int,
    num_states: int,
    step_mask: jax.Array,
    valid: jax.Array | None = None,
    weight: float = 1.0,
    eps: float = 1e-4,
) -> jax.Array:
    """THOR: the outcome compared in its group, each call of a tool with calls from the same state.

    Every turn but the last is a call, whose reward says whether it ran; the last turn's reward is
    the outcome. So an episode must end by itself, and not with its budget of tokens.

    Formula: `A_E + w A_S`, `A_E = (R_i - mean_g R) / (std_g R + eps)` of the outcomes `R`, and
      `A_S = (c_ik - mean_s c) / (std_s c + eps)` of the calls `c` that the group took in the state
      s; `A_S = 0` on last turns
    Paper: Chang et al. 2025, "THOR: Tool-Integrated Hierarchical Optimization via RL for
      Mathematical Reasoning"

    Args:
      group_ids: `[N]` int32 in `[0, num_groups)`.
      step_rewards: `[N, S]`.
      state_ids: `[N, S]` int32 in `[0, num_states)`: equal for equal states *of the same group*.
      num_groups, num_states: static.
      step_mask: `[N, S]`, a prefix of each row.
      valid: `[N]` bool, False where the episode's reward is an error; None: all are valid.
      weight: of the calls' advantage.
      eps: added to the standard deviation.

    Returns:
      `[N, S]`, 0 at masked steps; a call alone in its state has no advantage of its own.
    """
    mask = jnp.asarray(step_mask, bool)
    last = mask & ~jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
    outcome = jnp.sum(where_valid(last, constant(step_rewards)), axis=1)
    episode = group_advantages(outcome, group_ids, num_groups=num_groups, valid=valid, eps=eps)
    call = _among_states(step_rewards, state_ids, mask & ~last, num_states, eps=eps)
    return where_valid(mask, episode[:, None] + weight * call)


def _among_states(
    values: jax.Array,
    state_ids: jax.Array,
    mask: jax.Array,
    num_states: int,
    *,
    scale: str = "group",
    eps: float,
) -> jax.Array:
    """Values of steps [N, S] compared with those of the steps from the same state."""
    return group_advantages(
        values.reshape(-1),
        state_ids.reshape(-1),
        num_groups=num_states,
        scale=scale,
        valid=jnp.asarray(mask, bool).reshape(-1),
        eps=eps,
    ).reshape(values.shape)


@checked
def turn_advantages(
    step_rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    step_mask: jax.Array,
    discount: float = 1.0,
    scale: str = "group",
    eps: float = 1e-4,
) -> jax.Array:
    """Turn-level group credit: each turn's reward normalised among the group's, then summed to go.

    With two turns this is MT-GRPO: `A_1 = A_turn + gamma A_outcome`, `A_2 = A_outcome`; the sum
    over more turns is our reading.

    Formula: `sum_(j >= k) gamma^(j - k) (r_ij - mean_g r_j) / (std_g r_j + eps)`
    Paper: Zeng et al. 2025, "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit
      Assignment"

    Args:
      step_rewards: `[N, S]`, the outcome on the last turn of the row.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static.
      step_mask: `[N, S]`; a turn is compared with the group's episodes that reached it.
      discount: gamma between turns.
      scale: `group` or `none`.
      eps: added to the standard deviation.

    Returns:
      `[N, S]`, 0 at masked steps.
    """

    def normalise(rewards: jax.Array, valid: jax.Array) -> jax.Array:
        return group_advantages(
            rewards, group_ids, num_groups=num_groups, scale=scale, valid=valid, eps=eps
        )

    per_turn = jax.vmap(normalise, in_axes=1, out_axes=1)(
        step_rewards, jnp.asarray(step_mask, bool)
    )
    return discounted_returns(per_turn, step_mask=step_mask, discount=discount)


@checked
def agent_advantages(
    step_rewards: jax.Array,
    group_ids: jax.Array,
    agent_ids: jax.Array,
    *,
    num_groups: int,
    num_agents: int,
    step_mask: jax.Array,
    valid: jax.Array | None = None,
    scale: str = "group",
    eps: float = 1e-4,
) -> jax.Array:
    """Each agent of an episode compared with the same agent in the group's other episodes.

    In a game of two sides that the policy plays against itself, one side wins what the other loses,
    and the sides have different chances; so each has a baseline of its own (role-conditioned
    advantages). The paper's baseline is a running average of the role's returns, and its advantages
    are not scaled.

    Formula: `A_ia = (R_ia - mean_g R_a) / (std_g R_a + eps)` for all turns of agent a in episode i,
      `R_ia` the sum of their rewards
    Paper: Liu et al. 2025, "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via
      Multi-Agent Multi-Turn Reinforcement Learning" (recalled)

    Args:
      step_rewards: `[N, S]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      agent_ids: `[N, S]` int32 in `[0, num_agents)`, who took each turn.
      num_groups, num_agents: static.
      step_mask: `[N, S]`.
      valid: `[N]` bool, False where the episode's reward is an error; None: all are valid.
      scale: `group` divides by the standard deviation, `none` does not.
      eps: added to the standard deviation.

    Returns:
      `[N, S]`, 0 at masked steps; an agent is compared with the episodes in which it took a turn.
    """
    mask = jnp.asarray(step_mask, bool)
    agent_mask = mask[..., None] & (agent_ids[..., None] == jnp.arange(num_agents))
    returns = jnp.sum(jnp.where(agent_mask, constant(step_rewards)[..., None], 0.0), axis=1)
    took = jnp.any(agent_mask, axis=1)
    took &= True if valid is None else jnp.asarray(valid, bool)[:, None]

    def compare(values: jax.Array, valid: jax.Array) -> jax.Array:
        return group_advantages(
            values, group_ids, num_groups=num_groups, scale=scale, valid=valid, eps=eps
        )

    by_agent = jax.vmap(compare, in_axes=1, out_axes=1)(returns, took)
    return where_valid(mask, jnp.take_along_axis(by_agent, agent_ids, axis=1))


@checked
def promed(
    step_rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    step_mask: jax.Array,
    process: float = 1.0,
    outcome: float = 1.0,
    answer: float = 3.0,
    scale: str = "group",
    eps: float = 1e-4,
) -> jax.Array:
    """ProMed's distribution of the reward over turns: questions by their gain, and by the answer.

    The authors' code compares the reward of each token with the mean over all tokens of the group,
    without what follows. Here a turn is compared, with what follows it, to the group's turns of
    the same number: otherwise to answer at once would be better than any question.

    Formula: `r_k = process g_k + outcome g_k c` for a question, `answer c` for the last turn;
      `A_k = (G_k - mean_g G_k) / (std_g G_k + eps)`, `G_k = sum_(j >= k) r_j`
    Paper: Ding et al. 2025, "ProMed: Shapley Information Gain Guided Reinforcement Learning for
      Proactive Medical LLMs"

    Args:
      step_rewards: `[N, S]`: the gain of a question, below 1; of the last turn 1 where the answer
        is right.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static.
      step_mask: `[N, S]`, a prefix of each row.
      process: weight of a gain.
      outcome: weight of a gain that a right answer followed.
      answer: weight of a right answer.
      scale: `group` or `none`.
      eps: added to the standard deviation.

    Returns:
      `[N, S]`, 0 at masked steps.
    """
    mask = jnp.asarray(step_mask, bool)
    rewards = where_valid(mask, constant(step_rewards))
    later = jnp.cumsum(mask[:, ::-1], axis=1)[:, ::-1] - mask
    last = mask & (later == 0)
    right = jnp.any(last & (rewards >= 1.0), axis=1, keepdims=True)
    earned = jnp.where(last, answer * right, (process + outcome * right) * rewards)
    going = discounted_returns(earned, step_mask=mask)

    def compare(returns: jax.Array, valid: jax.Array) -> jax.Array:
        return group_advantages(
            returns, group_ids, num_groups=num_groups, scale=scale, valid=valid, eps=eps
        )

    return where_valid(mask, jax.vmap(compare, in_axes=1, out_axes=1)(going, mask))


@checked
def m_grpo(
    rewards: jax.Array,
    group_ids: jax.Array,
    turn: jax.Array,
    *,
    num_groups: int,
    mask: jax.Array,
    valid: jax.Array | None = None,
    eps: float = 1e-4,
) -> jax.Array:
    """M-GRPO: the episode's advantage in its group; each turn of an episode weighs the same.

    Use it with the aggregation `seq-mean-token-mean`: the mean over an episode's tokens is then the
    mean over its turns of the mean over a turn's tokens. A KL or entropy term is no multiple of the
    advantage, and stays a mean over tokens.

    Formula: `A_i |tau_i| / (turns_i |a_ij|)`, `A_i = (R_i - mean R) / (std R + eps)`
    Paper: Wei et al. 2025, "WebAgent-R1: Training Web Agents via End-to-End Multi-Turn
      Reinforcement Learning"

    Args:
      rewards: `[N]` of episodes.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      turn: `[N, T]` int32, the turn of each token, from 1.
      num_groups: static.
      mask: `[N, T]`, the agent's tokens.
      valid: `[N]` bool, False where the episode's reward is an error; None: all are valid.
      eps: added to the standard deviation.

    Returns:
      `[N, T]`, 0 at masked tokens.
    """
    mask = jnp.asarray(mask, bool)
    episode = group_advantages(rewards, group_ids, num_groups=num_groups, valid=valid, eps=eps)
    place = jnp.where(mask, turn, 0)
    sizes = jax.vmap(lambda row: jnp.bincount(row, length=mask.shape[1] + 1))(place)
    turns = jnp.sum(sizes[:, 1:] > 0, axis=1, keepdims=True)
    turn_sizes = jnp.take_along_axis(sizes, place, axis=1)
    share = jnp.sum(mask, axis=1, keepdims=True) / jnp.maximum(turns * turn_sizes, 1)
    return where_valid(mask, episode[:, None] * share)


@checked
def ssrl(
    rewards: jax.Array,
    group_ids: jax.Array,
    turn: jax.Array,
    *,
    num_groups: int,
    mask: jax.Array,
    valid: jax.Array | None = None,
    information: int = 2,
    scale: str = "group",
    eps: float = 1e-4,
) -> jax.Array:
    """SSRL: the episode's advantage, but not for what the policy wrote as found by its search.

    A turn, but the first, begins with what the search of the turn before it has found. A KL or
    entropy term is no multiple of the advantage, and is not masked.

    Formula: `A_it = 1[t is not information] (R_i - mean_g R) / (std_g R + eps)`
    Paper: Fan et al. 2025, "SSRL: Self-Search Reinforcement Learning"

    Args:
      rewards: `[N]` of episodes.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      turn: `[N, T]` int32, the turn of each token, from 1.
      num_groups: static.
      mask: `[N, T]`, the agent's tokens.
      valid: `[N]` bool, False where the episode's reward is an error; None: all are valid.
      information: tokens at the start of each turn but the first that are information; 0: none.
      scale: `group` or `none`.
      eps: added to the standard deviation.

    Returns:
      `[N, T]`, 0 at masked tokens and at information.
    """
    mask = jnp.asarray(mask, bool)
    episode = group_advantages(
        rewards, group_ids, num_groups=num_groups, scale=scale, valid=valid, eps=eps
    )
    place = jnp.where(mask, turn, 0)
    sizes = jax.vmap(lambda row: jnp.bincount(row, length=mask.shape[1] + 1))(place)
    before = jnp.cumsum(sizes.at[:, 0].set(0), axis=1) - sizes  # own tokens in earlier turns
    within = jnp.cumsum(mask, axis=1) - 1 - jnp.take_along_axis(before, place, axis=1)
    information_mask = (place > 1) & (within < information)
    return where_valid(mask & ~information_mask, jnp.broadcast_to(episode[:, None], mask.shape))


@checked
def to_tokens(step_advantages: jax.Array, step_ids: jax.Array, *, mask: jax.Array) -> jax.Array:
    """Gives every action token the advantage of its step.

    Formula: `A_t = A_(step of t)`
    Paper: (a gather)

    Args:
      step_advantages: `[N, S]`.
      step_ids: `[N, T]` int32 in `[0, S)`.
      mask: `[N, T]`.

    Returns:
      `[N, T]`, 0 at masked tokens.
    """
    index = jnp.where(jnp.asarray(mask, bool), step_ids, 0)
    return where_valid(mask, jnp.take_along_axis(step_advantages, index, axis=1))
