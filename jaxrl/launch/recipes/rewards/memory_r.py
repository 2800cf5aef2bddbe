"""Memory-R+ with a replay buffer as memory: likeness to successes and not to failures pays.

Paper: Le et al. 2025, "Reasoning Under 1 Billion: Memory-Augmented Reinforcement Learning for
Large Language Models"
Idea: a tiny model seldom succeeds, so outcome rewards are mostly silent. Remember responses by
their prompts; a new response earns by its likeness to what succeeded on similar prompts, less its
likeness to what failed, and by being new.
Formula: `r + a (max_succeeded s - max_failed s) + b (1 - max s)`, `s` the likeness to responses
remembered of the nearest prompts
Claim: models of up to 1B learn from fewer samples and generalise better on GSM8K and AI-MO.
Reading: the paper differs. It pays for closeness to the centre of what succeeded, `-|a - c|`, and
for being unlike what failed, `1 - max_failed s`, and not for being unlike what succeeded. Each is
scaled to 0 to 1 over the last 100, and both weigh 1; here a is 0.5 and b is 0.1. The memory is a
replay buffer of groups that had both, a part of which each step sees and does not train on;
embeddings are hashed bags of words and pairs. The ablation has the outcome reward alone.
Source: thaihungle/Memory-R@a193f4f6b9bf690ae2ae3fa20640d4daee5ff28c rewards/ir_knn_st.py:59-118;
paper, equations 4 to 8
Fidelity: partial: closest success in place of the centre, no scaling, hashed bags for an encoder
"""

from jaxrl.extensions.replay import ReplayConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(shaping="episodic", rows="fresh"),
    extensions={
        "replay": ReplayConfig(groups=16, size=256, keep="jaxrl.data.selection.replay:informative")
    },
)
EXAMPLE = Example()
"""The quickstart with an episodic memory."""
