"""Converts arrays over tokens to arrays over turns and back, for credit functions of whole turns.

A batch has turns as arrays of tokens, [N, T]. A function that names `step_mask`, such as `gigpo` or
`turn_advantages` of `jaxrl.losses.advantages.credit`, is given one entry a turn, [N, S], and what
it returns goes to the tokens of each turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.data.environments import MOST_AGENTS
from jaxrl.losses.advantages import credit
from jaxrl.types import Array

TOKENS = ("turn", "turn_rewards", "turn_state", "agent")
"""Arrays that episodes add to a batch, see `jaxrl.rollout.experience.turns`."""

STEPS = ("step_rewards", "step_mask", "state_ids", "num_states", "agent_ids", "num_agents")
"""What `steps` makes of them."""


def steps(arrays: Mapping[str, Array], group_ids: Array, mask: Array) -> dict[str, Any]:
    """The turns of N episodes, with S = T: an episode has no more turns than tokens.

    Args:
      arrays: those of `TOKENS`, [N, T].
      group_ids: [N] int32.
      mask: [N, T] bool, the actions of valid episodes.

    Returns:
      step_rewards: [N, S] float32, of turn s + 1.
      step_mask: [N, S] bool, the turns that have actions.
      state_ids: [N, S] int32, equal where episodes of one group read the same before a turn.
      num_states: above all of them.
      agent_ids: [N, S] int32, who took each turn.
      num_agents: above all of them.
    """
    turn = jnp.where(mask, arrays["turn"], 0)
    count, length = turn.shape
    place = jnp.where(mask, turn - 1, length)

    def best(values: Array, least: Any) -> jax.Array:
        start = jnp.full((count, length), least, values.dtype)
        return start.at[jnp.arange(count)[:, None], place].max(values, mode="drop")

    rewards = jnp.zeros((count, length), jnp.float32)
    rewards = rewards.at[jnp.arange(count)[:, None], place].add(arrays["turn_rewards"], mode="drop")
    state = best(arrays["turn_state"], jnp.iinfo(jnp.int32).min)
    state_keys = state.astype(jnp.uint32) + group_ids[:, None].astype(jnp.uint32) * jnp.uint32(
        2654435761
    )
    _, ids = jnp.unique(state_keys.reshape(-1), return_inverse=True, size=count * length)
    return {
        "step_rewards": rewards,
        "step_mask": best(mask, False),
        "state_ids": ids.reshape(count, length).astype(jnp.int32),
        "num_states": count * length,
        "agent_ids": best(arrays["agent"], 0),
        "num_agents": MOST_AGENTS,
    }


def with_more(arrays: Mapping[str, Array], mask: Array, reward_change: Array) -> dict[str, Array]:
    """The same arrays, where `reward_change` [N] is added to the reward of agent 0's last turn.

    So the rewards of its turns still sum to the reward of the episode.

    Args:
      arrays: those of `TOKENS`, [N, T].
      mask: [N, T] bool, the actions of valid episodes.
      reward_change: what the reward of each episode has risen by.
    """
    agent_mask = mask & (arrays["agent"] == 0)
    last = agent_mask.shape[1] - 1 - jnp.argmax(agent_mask[:, ::-1], axis=1)
    added = jnp.where(jnp.any(agent_mask, axis=1), reward_change, 0.0)
    rewards = jnp.asarray(arrays["turn_rewards"]).at[jnp.arange(len(agent_mask)), last].add(added)
    return {**arrays, "turn_rewards": rewards}


def to_tokens(advantages: jax.Array, turn: Array, mask: jax.Array) -> jax.Array:
    """Advantages [N, S] of turns as [N, T], 0 where `mask` is False."""
    return credit.to_tokens(advantages, jnp.asarray(turn) - 1, mask=mask)
