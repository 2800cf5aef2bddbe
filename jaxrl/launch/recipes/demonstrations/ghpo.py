"""GHPO: a prompt that a whole group fails is asked again with part of its solution.

Paper: Liu et al. 2025, "GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement
Learning"
Idea: the group itself tells a prompt that is too hard: all rewards are 0 and nothing is learnt.
Then the prompt is refined with a share of the solution, more of it until a sample passes, and GRPO
continues as usual.
Formula: `x := x + h_w` where all rewards of a group are 0, `w = 1/4, 1/2, 3/4`; else GRPO
Claim: 5% above on-policy RL and curricula on average over six benchmarks.
Reading: as in the authors' code, the share escalates within the step. There the hint ends the
prompt; here it stands at the beginning of the response and is not trained on. The ablation tries
again as often, without a hint.
Source: hkgc-1/GHPO@af0a7dd859eafca17531bd7b01c76ccb3e36e0c0 src/ghpo/ghpo_trainer.py:831
Fidelity: partial: the hint begins the response in place of ending the prompt
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(extensions={"guidance": GuidanceConfig("escalate")}, needs=("solution",))
EXAMPLE = Example()
"""The quickstart with hints for failed groups."""
