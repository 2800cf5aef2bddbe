"""MaskSearch by RL alone: search for what is masked in facts, first one, then more; then questions.

Paper: Wu et al. 2025, "MaskSearch: A Universal Pre-Training Framework to Enhance Agentic Search
Capability"
Idea: any corpus gives tasks for a search agent: mask spans of a text, and have the agent find them
(RAMP, retrieval-augmented mask prediction). Pre-train on these, with more masks from stage to
stage, and then on questions.
Formula: DAPO with `R` = the answers' reward plus one for the form, `k` masks in stage `k`
Claim: clearly better search agents in and out of domain; more masks later beats a mixture.
Reading: no training code was published. Texts are facts of the task `retrieval` whose objects are
masked; one, two and three masks for 20 steps each, then questions of two hops, on which alone the
policy is evaluated. Supervised pre-training on traces of several agents is not here, nor a model
that judges answers: each mask is right or wrong. Of DAPO the wider upper clip and the mean over
tokens are used. Half of the reward is for the facts found, without which a model from nothing
learns too slowly. `--stages.0`, `--stages.20` and `--stages.40` give other orders.
Source: none found (Alibaba-NLP/MaskSearch has no code for training; the abstract was read)
Fidelity: partial: masks judged by rule, half of the reward for facts found, no supervised part
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

SHARE = 1 / 8
"""Of the run, for each number of masks."""
MASKS = (1, 2, 3)

METHOD = Method(
    objective=ObjectiveConfig(
        policy_args={"clip_high": 0.28}, advantage="turn_advantages", entropy_coef=0.03
    ),
    stages={SHARE * i: {"task_args.masks": masks} for i, masks in enumerate((*MASKS, 0))},
    needs=("environment", "parameters"),
)
EXAMPLE = Example({"steps": 160, "rollout": {"max_new_tokens": 32}}, base="retrieval")
"""The recipe `retrieval`, after 60 steps on masked facts."""
