"""Router-R1: a policy that passes questions on to models, and pays for them.

Paper: Zhang et al. 2025, "Router-R1: Teaching LLMs Multi-Round Routing and Aggregation via
Reinforcement Learning"
Idea: the router is itself a policy: it asks models by name as often as it likes, reads what they
say, and answers. Models are known by descriptions, so others can be added later. The reward weighs
right answers against what was paid.
Formula: `R = -1` if malformed, `0` if wrong, else `(1 - alpha) + alpha c`, `c` falling from 1 to 0
with the square root of the price
Claim: better than routers that choose once, on seven sets of questions, at lower cost.
Reading: the reward is that of the authors' code, where `c` is scaled between the 5% and 95%
quantiles of the square roots of the last 1,000 prices, and clipped; here it is scaled by what an
episode can cost. PPO with a critic, as theirs, with gamma and lambda of 1 and a KL penalty of
0.001. The models are programs, the task `routing`: each can answer questions up to a level, and
charges by it. The policy does not think first. It begins from 40 steps of imitation, in place of a
language model that can already ask: from nothing it learned to guess without asking. With a price,
a right answer earns less than 1: read `correct` among the parts of the reward, not `pass@1`.
Source: ulab-uiuc/Router-R1@801a240e37701577907c32de27a548af4e6c4430 verl/trainer/main_ppo.py:37
Fidelity: partial: prices scaled by what an episode can cost
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.03),
    extensions={
        "critic": CriticConfig(
            optimizer=OptimizerConfig(learning_rate=0.002),
            mixing=1.0,
            kl_coef=0.001,
            bootstrap=False,
        )
    },
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task": "routing",
        "task_args": {"experts": 3, "calls": 2, "price": 0.5},
        "warm_start": {"steps": 40, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"max_prompt_tokens": 16},
    },
    base="retrieval",
)
"""Three experts, two calls, half of the reward for being cheap, after a warm start."""
