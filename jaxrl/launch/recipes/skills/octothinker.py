"""OctoThinker, its decay on chains of thought: mid-training at a constant rate, a branch, then RL.

Paper: Wang et al. 2025, "OctoThinker: Mid-training Incentivizes Reinforcement Learning Scaling"
Idea: what a base model has seen decides what RL makes of it. So train it on much text at a constant
rate. Then branch: let the rate decay on questions with chains of thought, short ones, long ones or
both. Each branch is the start of the same RL.
Formula: `-log pi(text)` for the stable steps, then `-log pi(branch)` at a rate that falls along
half a cosine, then GRPO
Claim: mid-training of Llama closes its gap to Qwen under the same RL; chains of thought raise what
RL reaches, and long ones make answers longer.
Reading: the hybrid branch is the method. Corpora are the task's own: equations of one step, then
sums of three terms that are worked out. The RL has the run's rate, and one budget of tokens; the
paper's grows. In the effect, chains of the hybrid write each step once or twice. The ablation
decays on as many questions with answers alone. Chains have four operations, or five.
Source: none found (GAIR-NLP/OctoThinker has no scripts of training; the abstract and an account of
the paper were read)
Fidelity: partial: sums in place of corpora; the cosine is from an account, its floor recalled
"""

from jaxrl.config import Domain
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import domain_plans
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

STABLE, DECAY = 20, 10
"""Steps of mid-training at the whole rate, and of its decay."""

METHOD = Method(
    objective=ObjectiveConfig(
        "annealed_expert_sft",
        {"stable_steps": STABLE, "decay_steps": DECAY},
        advantage="sampled_advantages",
    ),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    stages={STABLE + DECAY: {"objective.policy": "ppo_clip"}},
    by_domain=domain_plans.one_after_another((STABLE, STABLE + DECAY)),
    needs=(
        "solution",
        "domains",
    ),
)
EXAMPLE = Example(
    {
        "stages": {
            STABLE: {"domains.equations.weight": 0.0, "domains.thoughts.weight": 1.0},
            STABLE + DECAY: {
                "domains.thoughts.weight": 0.0,
                "domains.target.weight": 1.0,
                "objective.policy": "ppo_clip",
            },
        },
        "domains": {
            "equations": Domain("arithmetic", {"digits": 1, "operators": "+"}),
            "thoughts": Domain(
                "arithmetic", {"digits": 1, "terms": 3, "operators": "+", "worked": True}, 0.0
            ),
            "target": Domain(
                "arithmetic", {"digits": 1, "terms": 3, "operators": "+", "worked": True}, 0.0
            ),
        },
        "rollout": {"max_new_tokens": 12},
    }
)
"""The quickstart's sums, of three terms, after equations and worked solutions."""
