"""KL-regularised RL is inference: its optimum is a posterior, and other roads lead there.

Paper: Korbak et al. 2022, "RL with KL penalties is better viewed as Bayesian inference"
Idea: without the KL term the optimum of RL is one best answer, all else forgotten. With it the
optimum is the prior times the exponential of the reward, and training is variational inference;
minimising the forward KL to the same target (distributional policy gradient) is no RL at all.
Formula: `pi* = pi_0 exp(r / beta) / Z`; `max E[r] - beta KL(pi, pi_0)` has the optimum `pi*`
Claim: the equivalence, and collapse without the KL.
Reading: `config()` is the RL form. The effect enumerates every answer of a small model, so the
distance to `pi*` is exact; the ablation leaves the KL term out. Many answers are best, or one.
Source: tomekkorbak/tomekkorbak.github.io@2c50cb5b5aeb17f952c1cb8d257ad1de74145fd8
_posts/2022-05-20-rl-with-kl-penalties-bayesian-inference.md:51-81
Fidelity: partial: compared with an author's post of the same title, not with the paper
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

BETA, LENGTH, SYMBOLS, WORDS = 0.5, 3, 6, 40

METHOD = Method(
    objective=ObjectiveConfig(
        policy="reinforce",
        advantage_args={"scale": "none"},
        aggregation="seq-mean-token-sum",
        kl_coef=BETA,
        kl="k2",
    )
)
EXAMPLE = Example()
"""The quickstart with the reward less its mean and the exact gradient of the KL."""
