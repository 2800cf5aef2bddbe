"""LlamaRL's objective, AIPO: the policy gradient under an importance weight cut off from above.

Paper: Wu et al. 2025, "LlamaRL: A Distributed Asynchronous Reinforcement Learning Framework for
Efficient Large-scale LLM Training"
Idea: generators and trainer run side by side, and weights go between them from device to device.
The data are then a step or more off-policy. One weight per token corrects for it, bounded above
alone; nothing is clipped in the manner of PPO.
Formula: `-sg(min(pi / pi_b, rho)) A log pi`, `rho` from 2 to 10
Claim: 10.7 times the speed of a synchronous system in the manner of DeepSpeed-Chat at 405B.
Reading: one step of age, in lockstep, so that the toy run is deterministic; `rho` is 2. The
authors' code is not public, and the paper was read in a note that transcribes its formulas. There
the baseline is the mean reward, here also divided by the deviation. AIPO of cosmos-rl has the same
bound, but no gradient above it: it clamps the ratio that it differentiates. The speed is that of
their system and is not measured here. The ablation is the same gradient without the weight, on data
16 steps old, which is older than theirs: at the lab's size a step of age costs nothing.
Source: nvidia-cosmos/cosmos-rl@89f2e5b5c817d99a240f1194ce37239ceb6f058a
cosmos_rl/policy/trainer/llm_trainer/grpo_trainer.py:212
Fidelity: partial: cosmos-rl has no gradient above the bound, here it is rho A; rewards are scaled
"""

from jaxrl.config import AsynchronousConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="aipo"),
    updates_per_batch=2,
    asynchronous=AsynchronousConfig(staleness=1, schedule="lockstep:2"),
)
EXAMPLE = Example()
"""The quickstart with AIPO on data of up to one step of age, two updates on each batch."""
