"""Pairwise-RL: PPO on the probability of beating an anchor; a pair model of one's own is named.

Paper: Xu et al. 2025, "A Unified Pairwise Framework for RLHF: Bridging Generative Reward Modeling
and Policy Optimization"
Idea: a Bradley-Terry model learns from pairs and is then asked for scores of single answers. Its
training leaves a constant of each prompt open, and PPO compares answers to different prompts. Let a
language model read two answers and say which is better, and let the policy's reward be how probable
it is to beat an anchor, the ground truth.
Formula: `r = (p(A | x, y, y_ref) + p(B | x, y_ref, y)) / 2`, p a softmax over the tokens `A` and
`B`, trained by `-log p` of the right one in both orders
Claim: above RLHF with a scalar model on internal sets and on public benchmarks.
Reading: the abstract and a review of the paper have the generative model, the ground truth as the
anchor and PPO; the mean over both orders as the reward is ours. `jaxrl train pairwise_reward` makes
a pair model, which `--judge.model RUN` names. Without one, the toy's policy compares, which it has
not learned, beside the task's own reward. In the effect, both models learn from the same
comparisons and begin with the same random constant of each prompt, which only comparisons in both
orders unlearn. The ablation is PPO on the scalar model's scores. In the control, there are
no constants.
Source: none found (repositories by title and name; the abstract and two reviews were read)
Fidelity: partial: the mean over both orders is ours, equations were not read
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.judge import JudgeConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    extensions={
        "critic": CriticConfig(optimizer=OptimizerConfig(learning_rate=0.001)),
        "judge": JudgeConfig(pairwise=True, anchor="gold", task_weight=1.0),
    },
    rollout={"prompts": 16},
)
EXAMPLE = Example(
    {
        "task": "fractions",
        "task_args": {"slips": 0.5},
        "rollout": {"max_prompt_tokens": 32, "max_new_tokens": 16},
    }
)
"""The quickstart by PPO on sums of fractions, whose solutions are the anchors."""
