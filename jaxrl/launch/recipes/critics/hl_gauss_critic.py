"""HL-Gauss on PPO's critic, where the paper has mostly Q-functions: returns classified in bins.

Paper: Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification for
Scalable Deep RL"
Idea: squared error takes noisy, moving targets at their word. A distribution over bins, trained by
cross-entropy to a Gaussian histogram around the target, bounds what one target can do; its mean is
the value.
Formula: `p_i = (Phi((z_(i+1) - y) / s) - Phi((z_i - y) / s)) / Z`, `L = -sum_i p_i log q_i`,
`V = sum_i q_i c_i`
Claim: better and more scalable value-based RL on Atari, chess, robots and language agents; most of
the gain is in noisy and non-stationary targets.
Reading: the paper has targets of TD, mostly of Q-functions and once of IMPALA's critic; here the
head is PPO's critic, with the paper's 51 bins and its deviation of 0.75 of a bin. The effect adds
noise to the rewards. The ablation is the scalar head with plain squared error.
Source: paper, equations 3.1 and 3.3; paper, section A
Fidelity: partial: PPO's critic and its returns in place of TD targets
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.models.value import ValueConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    extensions={
        "critic": CriticConfig(
            optimizer=OptimizerConfig(learning_rate=0.001),
            head=ValueConfig(bins=51, low=-0.5, high=1.5),
        )
    }
)
EXAMPLE = Example()
"""The quickstart by PPO with a critic."""
