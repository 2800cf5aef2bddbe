"""IcePop and C3PO++ of Ring-1T: tokens on which sampler and trainer disagree are left out.

Paper: Ling Team 2025, "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale
Thinking Model"
Idea: an engine that samples in other numerics than the trainer's is another policy. Where the two
differ by too much on a token, its gradient is noise, and the noise grows over a run: drop it, and
weigh what is left by the ratio. C3PO++ cuts long rollouts off by a budget and continues them under
later weights, so that no step waits for them.
Formula: `-M(k) min(u A, clip(u) A)`, `k = pi_prox / pi_b`, `M(k) = k` in [0.5, 5] else 0
Claim: a mixture of a trillion parameters trains stably where GRPO collapses (recalled).
Reading: the mismatch is real: rollouts are sampled with weights rounded to 8 bits. Mask and weight
are those of slime's `icepop_function`, where dropped tokens also stay in the mean's denominator;
its script has [0.5, 2]. The paper takes means by answer and adds a KL term; here the mean is over
tokens and there is none. The budget of C3PO++ is one in groups (`rollout.in_flight`) and not in
tokens, and nothing limits how many steps a rollout may take; ASystem is not here. The lab has no
second engine: data 16 steps old make the mismatch. The ablation keeps all tokens, under the same
weight.
Source: THUDM/slime@624b824a898ab0ec1fcb4d373004c7f3852bf515
slime/backends/megatron_utils/loss.py:908
Fidelity: verified against code
"""

from jaxrl.config import SamplingConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="icepop"),
    rollout={"in_flight": 1.5},
    sampling=SamplingConfig(weights="int8"),
)
EXAMPLE = Example()
"""The quickstart with IcePop, a sampler of 8 bits and partial rollouts."""
