"""Practitioner's guide to agents: PPO on whole episodes, dense rewards, few demonstrations first.

Paper: Wang and Ammanabrolu 2025, "A Practitioner's Guide to Multi-turn Agentic Reinforcement
Learning"
Idea: what matters for agents, one factor at a time: environments of growing size, rewards of turns
or of episodes, biased and unbiased estimators, and how much of a budget goes to demonstrations.
Formula: PPO with `A_t = sum_l (gamma lambda)^l delta_(t+l)` over the agent's tokens of all turns,
rewards at the end of the turns that earn them, which sum to 1 in an episode that succeeds
Claim: rewards of turns speed training up, how stably depends on the algorithm; skills from small
environments carry over to larger ones; some demonstrations and then RL beat either alone.
Reading: the authors' PPO, with gamma and lambda of 1, clip 0.2 and a KL penalty of 0.01 in the
reward, in the worlds of `keydoor`, which stand for their TextWorld: rooms, an object, a way. A turn
is one letter. The two rewards of an episode are 1/2 each. `--task-args.credit 0` gives rewards of
episodes, `--objective.advantage rloo` without the critic the unbiased estimator, and
`--warm-start.steps 0` no demonstrations.
Source: pearls-lab/meow-tea-taro@a9c248c8b2e833ed9dab401712d485ca189f6db8
examples/textworld/run_ppo_qwen-0.5b.sh:39
Fidelity: partial: settings were compared, worlds are ours
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.02),
    extensions={
        "critic": CriticConfig(
            optimizer=OptimizerConfig(learning_rate=0.002),
            credit="turn_gae",
            mixing=1.0,
            kl_coef=0.01,
            bootstrap=False,
        )
    },
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task_args": {"level": 1, "turns": 12, "credit": 0.5},
        "warm_start": {"steps": 4, "batch_size": 16, "learning_rate": 0.002},
    },
    base="keydoor",
)
"""PPO with a reward for each turn, after a warm start on 64 demonstrations."""
