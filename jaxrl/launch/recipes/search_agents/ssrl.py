"""SSRL without its analysis of pass@k: a policy that searches in what it knows itself, in symbols.

Paper: Fan et al. 2025, "SSRL: Self-Search Reinforcement Learning"
Idea: a language model knows much of what it would search for. So the policy is its own search
engine while it is trained: it writes queries, what a search for them finds, and the answer. What it
writes as found is left out of the loss. A real search engine that is plugged in afterwards writes
in the same places.
Formula: GRPO with `R = 0.9 correct + 0.1 format`, its advantage masked on what was found
Claim: as good as training with a search engine; with one plugged in better still. The mask helps.
Reading: reward, mask and the loss without an entropy bonus are those of the authors' code. Its KL
term has a weight of 0.001; here it is 0.02 and also on what was found, as a small model soon
forgets its facts. The world is `recall`: a warm start on questions about one fact teaches all facts
but a quarter, and one question in fifty needs two. RL is on questions of two facts, that quarter
included. `--objective.advantage-args.information 0` trains what was found too, which in training
with a real engine (`task_args.engine` in `--stages.0`) is no turn's start. A run is evaluated as
its own engine; `jaxrl eval RUN --task-args.engine tool` plugs the tool in. An environment of your
own has the parameter `engine`, too: with `self`, a turn, but the first, begins with `information`
tokens that the policy writes as found.
Source: TsinghuaC3I/SSRL@3009f2163497ec3f14508bb5e0c60e82536c13f6
verl/workers/reward_manager/naive.py:473
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage="ssrl", advantage_args={"information": 2}, kl_coef=0.02),
    updates_per_batch=1,
    stages={0: {"task_args.engine": "self"}},
    needs=("environment", "parameters"),
)
EXAMPLE = Example(
    {
        "steps": 40,
        "task": "recall",
        "task_args": {"engine": "self", "single": 0.98, "unknown": False, "reward": "ssrl"},
        "warm_start": {"steps": 150, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 32, "turn_tokens": 4},
        "optimizer": {"learning_rate": 0.0005},
    },
    base="retrieval",
    stages={0: {"task_args.single": 0.0, "task_args.unknown": True}},
)
"""Facts by heart, then GRPO on questions of two facts."""
