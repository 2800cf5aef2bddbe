"""Pangu-Agent with one intrinsic function: think, then act; cloning of own successes, then PPO.

Paper: Christianos et al. 2023, "Pangu-Agent: A Fine-Tunable Generalist Agent with Structured
Reasoning"
Idea: before an agent acts on its environment it may call intrinsic functions, which act on its own
memory: think, plan, reflect, ask for advice. Such structure is composed by hand, and what is said
in it is learned like an action. An agent is fine-tuned on its own successful episodes first, and
by RL then.
Formula: `pi(a | s, m') pi_mu(m' | s, m)`; SFT on episodes with reward 1, then PPO
Claim: agents perform and adapt far better with organised reasoning and prior knowledge; fine-tuning
and RL raise success at each stage.
Reading: the text above is of the paper, its code for training was not found, and its numbers of
steps are ours. The world is `keydoor`. A thought is a letter, which stays in the memory as part of
the conversation; a few demonstrations, in the place of a pretrained model, think of what they go
for, the key or the door. Own successes of each batch are cloned for two fifths of the updates,
where the paper collects them once, and a critic is trained meanwhile. `--task-args.think false
--rollout.turn-tokens 1` acts at once. Of the other functions, plans, reflection and advice, none
is here.
Source: none found (code for training; of the paper, the abstract and summaries were read)
Fidelity: partial: cloning of each batch in place of once
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="pangu_agent", policy_args={"cloning_steps": 240}, entropy_coef=0.02
    ),
    extensions={
        "critic": CriticConfig(
            optimizer=OptimizerConfig(learning_rate=0.002), mixing=1.0, bootstrap=False
        )
    },
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task_args": {"level": 1, "turns": 12, "think": True},
        "warm_start": {"steps": 4, "batch_size": 16, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 144, "turn_tokens": 2},
    },
    base="keydoor",
)
"""A thought and an action in each turn; 240 updates of cloning, then 360 of PPO."""
