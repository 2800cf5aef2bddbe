"""DRIVE, two of its three phases: GRPO on everything, then many samples of the hardest.

Paper: Zhu et al. 2025, "DRIVE: Data Curation Best Practices for Reinforcement Learning with
Verifiable Reward in Competitive Code Generation"
Idea: a first stage on a large even set, 8 samples each, spreads the policy out; a second has 64
samples of each prompt of a small hard set, whose most difficult are retained again and again.
Formula: stage 2: `G = 64`; every 20 batches keep half, those of lowest pass rate, without solved
Claim: the best of its scale on weekly programming contests, from a 32B model.
Reading: the paper's stage 2 goes from the 72 hardest of 175 to 50 and 25, for 64, 32 and 32 steps,
with 64 samples in one section and 80 in another, and does not say that solved ones leave. Shares
and times are ours. The supervised phase and the longer window of stage 2 are left out. The ablation
stays in stage 1, at as many samples. A first look, with three hard prompts in ten, of which 8
samples found enough, gave -0.060 [-0.135, +0.014].
Source: paper, sections 3.2 and 4.1
Fidelity: partial: no supervised phase, shares and times are ours
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

UNIFORM = CurriculumConfig("jaxrl.data.selection.curriculum:uniform")

METHOD = Method(
    rollout={"prompts": 8},
    curriculum=UNIFORM,
    stages={
        7 / 11: {"rollout.group_size": 64, "curriculum.retain": 0.5, "curriculum.retain_every": 20}
    },
)
EXAMPLE = Example()
"""The quickstart in two stages."""
