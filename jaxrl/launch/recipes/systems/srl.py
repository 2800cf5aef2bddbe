"""SRL's dataflow on one machine: acting, inference and training go on side by side.

Paper: Mei et al. 2023, "SRL: Scaling Distributed Reinforcement Learning to Over Ten Thousand Cores"
Idea: workers that step environments, workers that run the policy and workers that train are
separate, and streams connect them. Inference is batched over all actors. An actor has a ring of
environments: while one waits for its action, another is stepped.
Formula: PPO with a critic; none of its own
Claim: up to 21 times the training throughput of earlier libraries; hide-and-seek as OpenAI solved
it, up to 5 times as fast; over 15,000 cores.
Reading: environments are stepped in worker processes (`score_workers`), the sampler is the batched
inference, and training has devices or a thread of its own. The ring is two batches of episodes in
progress, as is the released `ring_size`; an episode goes on under new weights, as there with a
ring. Not here: actors on other machines, several trainers, a server of parameters. Episodes are of
a language model in the world of the recipe `keydoor`; PPO takes a step of GAE a turn; theirs has a
dual clip at 3 by default. Lockstep makes the toy run deterministic; `live` is faster.
Source: openpsi-project/srl@636c5dab4a14dcddb318e07c8bf6721f56436940 api/config.py:369;
openpsi-project/srl@636c5dab4a14dcddb318e07c8bf6721f56436940 legacy/algorithm/ppo/mappo.py:187-202
Fidelity: partial: without actors on other machines, no dual clip
Shown: docs/asynchronous.md has the seconds of a step with slow environments in turns and side by
side, by `tests/benchmarks/overlap.py`
"""

from jaxrl.config import AsynchronousConfig
from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.02),
    extensions={
        "critic": CriticConfig(optimizer=OptimizerConfig(learning_rate=0.001), credit="turn_gae")
    },
    asynchronous=AsynchronousConfig(
        staleness=1, schedule="lockstep:2", order="finished", in_flight=32
    ),
    needs=("environment",),
)
EXAMPLE = Example({"score_workers": 2}, base="keydoor")
"""The recipe `keydoor` by PPO, asynchronous, with a ring of two batches."""
