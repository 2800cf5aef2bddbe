"""SELF: at each step, train on the prompts that the policy's most likely answer does not solve.

Paper: Nguyen et al. 2025, "The Reasoning Boundary Paradox: How Reinforcement Learning Constrains
Language Models"
Idea: RL makes likely successes likelier and, by interference, unlikely ones less so: pass@k
shrinks. What the policy solves by its likeliest answer is left out of the batch; the rest, where
success is unlikely, is all that it learns from.
Formula: GRPO on the prompts whose greedy answer, under the current policy, earns other than 1
Claim: pass@k above standard RLVR's on mathematics.
Reading: as in the released code, which has no KL term. There, samples are drawn for the prompts
that are left; here for all of the batch, and those of the others are not trained on.
Source: mail-research/SELF-llm-interference@d17634bc058634549b2b5652fa1ca52099b7f4ae
verl/verl/trainer/ppo/ray_trainer.py:1116
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(rows="unsolved"))
EXAMPLE = Example()
"""The quickstart, of whose batches the prompts that are solved greedily are left out."""
