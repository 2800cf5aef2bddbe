"""DreamGym with neighbours for a world model: RL in a model of the world, then a little in it.

Paper: Chen et al. 2025, "Scaling Agent Learning via Experience Synthesis"
Idea: real environments are slow and costly. An experience model, made of logged steps, says what an
action leads to and whether the task is solved, by reasoning over the most similar steps that it
retrieves; agents are trained in it, on tasks whose outcomes are the most uncertain, and then for a
few steps in the real world.
Formula: `(s', r) = M(s, a, top-k similar logged steps)`; tasks of greatest entropy of the reward;
GRPO or PPO in M, then in the world
Claim: on WebArena more than 30% above all others; as good as RL in the real world with synthetic
steps alone, and better when a little of it follows.
Reading: the model is a language model in the paper, which reasons; by a review, neighbours are
found by cosine of embeddings, and tasks are chosen by the variance of their rewards. The model is
here the majority of the three most similar logged steps with the same tool, so it can be wrong, and
nothing is trained but the policy. Tasks near a pass rate of 1/2 are preferred; they are not varied
into new ones, and fresh steps are not added to the logs. The world is `workshop`, logged for 1200
steps by an explorer; the last tenth of the training is in the world itself, and so are held-out
goals. `--stages.0 '{"task_args.experience": 0}'` trains in the world from the start.
Source: none found (no code is published; a review with equations was read)
Fidelity: own formula
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.03),
    curriculum=CurriculumConfig(choose="difficulty_targeted", prompts=512),
    stages={0: {"task_args.experience": 1200}, 0.9: {"task_args.experience": 0}},
    needs=("environment", "parameters"),
)
EXAMPLE = Example(
    {
        "task": "workshop",
        "task_args": {"neighbours": 3, "experience": 0},
        "rollout": {"max_prompt_tokens": 16, "max_new_tokens": 40},
    },
    base="retrieval",
)
"""GRPO for 90 steps in the model, and for 10 in the world."""
