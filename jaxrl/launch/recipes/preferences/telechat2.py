"""TeleChat2.5 and T1, their post-training in stages, at one length of thought: SFT, DPO, then RL.

Paper: Wang et al. 2025, "Technical Report of TeleChat2, TeleChat2.5 and T1"
Idea: a model is fine-tuned on demonstrations, then on preferences, then by RL on the mathematics
and code that a verifier can judge. Each stage starts from what the one before it has made.
Formula: `-log pi(y*)`; then `-log sigmoid(beta (d_w - d_l))`, `d = log(pi(y) / pi_SFT(y))`; then
GRPO
Claim: T1-115B, with long thoughts, is above o1-mini and GPT-4o; TeleChat2.5 answers at once.
Reading: the READMEs of TeleChat2.5 and T1 say that a rule rewards mathematics and code in the RL,
which then goes on over ten kinds of tasks, but not which RL it is: it is GRPO here. Pairs are the
best and the worst of the policy's own samples, by the verdict. Pre-training, continual pre-training
and the variant with long thoughts are left out. Stages of 20, 20 and 60 steps in the effect are
ours; its curve is read after each of the first two. The ablation has no DPO, and RL instead. A
course of stages from files of data is `jaxrl train FILE`, as in experiments/runs/smollm2-course.
Source: none found (the abstract, a note and READMEs of Tele-AI were read; none names the RL)
Fidelity: partial: which RL is used is not known; one kind of task
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

STAGE = 20
"""Steps of SFT, and of DPO."""

METHOD = Method(
    objective=ObjectiveConfig(
        "expert_sft", advantage="sampled_advantages", aggregation="seq-mean-token-mean"
    ),
    stages={
        STAGE: {"objective.policy": "online_dpo"},
        2 * STAGE: {"objective.policy": "ppo_clip"},
    },
    extensions={
        "guidance": GuidanceConfig("expert_rows"),
        "reference_refresh": RefreshConfig(every=STAGE),
    },
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart after SFT on right sums, and DPO."""
