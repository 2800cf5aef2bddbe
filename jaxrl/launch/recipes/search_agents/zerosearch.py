"""ZeroSearch, with a simulated engine that is a program: searches grow noisier with the training.

Paper: Sun et al. 2025, "ZeroSearch: Incentivize the Search Capability of LLMs without Searching"
Idea: learn to search against a simulation of a search engine, whose documents are useful or noisy
as is asked of it; begin with useful ones, and let the share of noisy ones grow.
Formula: `p_i = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s)`, the probability of noise at step i of m
Claim: a simulated engine suffices to learn to use a real one, and the curriculum helps.
Reading: the authors' code has b = 4, p_s = 0 and p_e = 0.5, GRPO on the answer's F1 with a KL
penalty of 0.001, and no loss on what was found. The small run has an entropy bonus besides. Theirs
moves p at each step; here it moves ten times. The engine is that of the task `retrieval`, in which
noise is another fact than was asked for, and no language model writes documents. Answers are single
names, whose F1 is 0 or 1; half of the reward is for the facts found, without which a model from
nothing learns too slowly. Held-out questions are put to an engine without noise.
Source: Alibaba-NLP/ZeroSearch@2d4cdca033ee2c11b1fcfc7fc448b902d7cf8bf5 llm_agent/generation.py:542;
Alibaba-NLP/ZeroSearch@2d4cdca033ee2c11b1fcfc7fc448b902d7cf8bf5 train_grpo.sh:51
Fidelity: partial: half of the reward is for facts found, no model writes documents
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

BASE = 4.0
NOISE = (0.0, 0.5)
STAGES = 10


def noise(progress: float) -> float:
    """The probability that a search is noisy.

    Args:
      progress: share of the training that is done, from 0 to 1.
    """
    first, last = NOISE
    return first + (BASE**progress - 1) / (BASE - 1) * (last - first)


METHOD = Method(
    objective=ObjectiveConfig(kl_coef=0.001),
    stages={stage / STAGES: {"task_args.noise": noise(stage / STAGES)} for stage in range(STAGES)},
    needs=("environment", "parameters"),
)
EXAMPLE = Example({"objective": {"entropy_coef": 0.03}}, base="retrieval")
"""The recipe `retrieval`, with noise that grows from 0 to 1/2."""
