"""OpenVLThinker on texts, fine-tuning on from where it is: RL and its own right answers, in turns.

Paper: Deng et al. 2025, "OpenVLThinker: An Early Exploration to Complex Vision-Language Reasoning
via Iterative Self-Improvement"
Idea: supervised fine-tuning moves a policy to good answers quickly, RL sharpens and explores.
Sample the RL policy, keep what is right, fine-tune on it, and do RL again.
Formula: `L_GRPO`, then for some steps `-1[r = 1] log pi(y)`; again and again
Claim: MathVista rises from iteration to iteration; it, MathVerse and MathVision end 1 to 2 points
above the base model.
Reading: fine-tuning goes on from the policy, where the paper begins each time at the base model,
and the right answers are those of the same step. Its GRPO has a KL term of weight 0.01. The first
stage, from a text model's captions, is left out. Every 20 steps, 5 are imitation. The ablation is
GRPO alone, of as many updates.
Source: paper, equation 1; paper, section 4.4;
yihedeng9/OpenVLThinker@6997b477510ba4417a2da3f15634fa05547f857b
train/easyr1/examples/config.yaml:23
Fidelity: partial: fine-tuning goes on from the policy, no KL term
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(
    stages={
        20: {"objective.policy": "expert_iteration", "period": 20},
        25: {"objective.policy": "ppo_clip", "period": 20},
    }
)
EXAMPLE = Example()
"""The quickstart with five steps of imitation in every 20."""
