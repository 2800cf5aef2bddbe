"""CAMPO: answers may grow longer in two stages, and loops, by our own definition, cost.

Paper: MiroMind 2025, "MiroMind-M1: An Open-Source Advancement in Mathematical Reasoning via
Context-Aware Multi-Stage Policy Optimization"
Idea: train with a short budget first and raise it in stages; subtract a penalty from the reward of
responses that loop, the more the earlier the loop begins.
Formula: `r' = r - w (1 - onset / |o|)` where the response loops
Claim: best or among the best open 7B and 32B models on AIME, with fewer tokens.
Reading: in the paper w is 1 and the score the share of the response that lies inside a loop; how
loops are found is ours (`regularizers.loop_onset`): a block of up to four tokens, three times,
anywhere. The authors' code takes the same amount from each truncated response that ends in a loop.
There are two stages, the second from a fixed step; the paper's begins when lengths stop growing.
The ablation has the full budget from the start and no penalty. In the control, demonstrations have
no fillers, so that nothing loops.
The effect is a second look: the final length was not shorter, by -0.32 [-0.73, 0.10], and pass@1
had fallen with it, to 0.45 from 0.62.
Source: paper, equation 6; paper, section 4.3
Fidelity: partial: half the weight, and our definition of a loop
"""

import jax

from jaxrl.launch.method import Example, Method
from jaxrl.losses.regularizers import loop_onset
from jaxrl.training.objective import ObjectiveConfig


def penalised(
    rewards: jax.Array, tokens: jax.Array, mask: jax.Array, weight: float = 0.5
) -> jax.Array:
    """Rewards [N] less the penalty on loops."""
    return rewards - weight * loop_onset(tokens, mask)


METHOD = Method(objective=ObjectiveConfig(shaping="jaxrl.launch.recipes.length.campo:penalised"))
EXAMPLE = Example(
    {"stages": {110: {"rollout.max_new_tokens": 8}}, "rollout": {"max_new_tokens": 6}}
)
"""The quickstart with the penalty, and with room for longer answers from the middle on."""
