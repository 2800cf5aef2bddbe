"""Kimi k1.5: mirror descent, and a reward for being brief, which alone is measured.

Paper: Kimi Team 2025, "Kimi k1.5: Scaling Reinforcement Learning with LLMs"
Idea: each iteration regresses the reward above its mean on the log-ratio to the iteration's
sampler, so no ratio, clip or critic is needed. Among a prompt's samples the shorter earn more if
right, and the longer less, right or wrong.
Formula: `(r - mean r - tau log(pi / pi_b))^2`; `r' = r + w u` if right, `r + w min(0, u)` else,
`u = 1/2 - (n - n_min) / (n_max - n_min)`
Claim: 77.5 on AIME, 96.2 on MATH-500 without search, value function or process reward.
Reading: `w` is 0.2, which the paper leaves open, and has no warm-up; the optimizer is not reset.
With one update a batch, as in `config()`, the log-ratio is 0. Not here are the curriculum, the
partial rollouts or the long-to-short stage; `curriculum`, `rollout.in_flight` and
`jaxrl.losses.preference.direct` have those. The effect is of the length reward alone: its ablation
has mirror descent too. It is a second look: at the end of the run the length was not shorter, by
-0.036 [-0.102, 0.030].
Source: paper, equation 3; paper, section 2.3.3
Fidelity: partial: no warm-up of the length reward, no reset of the optimizer
"""

import jax

from jaxrl.launch.method import Example, Method
from jaxrl.losses.regularizers import relative_length_reward
from jaxrl.training.objective import ObjectiveConfig


def brief(
    rewards: jax.Array,
    lengths: jax.Array,
    group_ids: jax.Array,
    num_groups: int,
    valid: jax.Array | None = None,
    weight: float = 0.2,
) -> jax.Array:
    """Rewards [N] with the length reward added."""
    bonus = relative_length_reward(rewards, lengths, group_ids, num_groups=num_groups, valid=valid)
    return rewards + weight * bonus


METHOD = Method(
    objective=ObjectiveConfig(
        policy="kimi_opmd",
        shaping="jaxrl.launch.recipes.length.kimi_k1_5:brief",
        advantage_args={"scale": "none"},
        aggregation="seq-mean-token-mean",
    )
)
EXAMPLE = Example()
"""The quickstart with mirror descent and the length reward."""
