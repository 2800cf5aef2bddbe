"""CodeV-R1's reward and RL on Boolean expressions: no Verilog, no synthesis of data, no teacher.

Paper: Zhu et al. 2025, "CodeV-R1: Reasoning-Enhanced Verilog Generation"
Idea: a circuit is right if it is equivalent to the reference, whatever its text, which a generated
test bench checks. After distillation comes DAPO, whose dynamic sampling throws away groups that
teach nothing; each round asks for as many as are missing, by the lowest share kept so far.
Formula: `B_gen = missing / min(min_t kept_t / sampled_t, min_r kept_r / sampled_r)` over the
batches t so far and the rounds r of this one; the first `B` groups whose rewards differ are trained
Claim: 68.6% on VerilogEval v2 and 72.9% on RTLLM v1.1, 12 to 20 points above the best before; with
adaptive rounds, training takes 1/1.25 of the time.
Reading: rounds, clips, token mean, no KL and two updates a batch are those of the authors' code.
There the number of rounds has no bound; here a batch ends with the budget of
`rollout.oversampling`. Modules are expressions in Verilog's operators, in the task `boolean`,
compared on all inputs in place of random ones. A warm start with slips in half of its solutions
stands for the distillation, and answers are too short for the penalty on long ones.
`--rollout.rounds fixed` asks for the batch again and again, as DAPO does.
Source: IPRC-DIP/CodeV-R1@277ac46e3b193aa238e7d9af5a150659e482c5e7
verl/verl/trainer/ppo/ray_trainer.py:1069
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="dapo"), rollout={"oversampling": 6.0, "rounds": "adaptive"}
)
EXAMPLE = Example(
    {
        "steps": 40,
        "task": "boolean",
        "task_args": {"variables": 3, "gates": 3, "slips": 0.5},
        "warm_start": {"steps": 250, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"max_prompt_tokens": 20, "turn_tokens": 0},
        "optimizer": {"learning_rate": 0.0005},
    },
    base="retrieval",
)
"""Expressions of up to three gates, after a warm start."""
