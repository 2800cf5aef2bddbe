"""PAR: the reward is the probability of being preferred to a reference answer.

Paper: Fu et al. 2025, "Reward Shaping to Mitigate Reward Hacking in RLHF"
Idea: a reward model is least to be trusted far above what it has seen, and an unbounded reward
pulls the policy just there. A sigmoid of the reward centred at a reference answer is bounded, rises
fast at first and flattens above.
Formula: `r = sigmoid(r_RM(x, y) - r_RM(x, y_ref))`
Claim: at least 5 points of AlpacaEval win rate above other shapings; no hacking after two epochs.
Reading: the task's own solution is the one reference; it is scored in the group and not trained on.
Advantages are centred by the group and not scaled, so that the reward's bound is the advantage's.
The ablation trains on the reward model's own score. The paper's other shapings stand beside it:
scores clipped to a standard deviation around their mean, put between their least and largest, and
standardised. The authors take these figures over the run, and here they are those of the batch.
Source: PorUna-byte/PAR@b8caf406aa1699c788f0ca6e44a1769452c317db trainers/reward_shaper.py:81
Fidelity: partial: one reference, advantages of the group
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        shaping="par",
        advantage="sampled_advantages",
        advantage_args={"scale": "none"},
        rows="jaxrl.losses.advantages.rows:sampled",
        kl_coef=0.05,
    ),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with rewards measured against the solution."""
