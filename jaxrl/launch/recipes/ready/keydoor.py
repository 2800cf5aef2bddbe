"""GRPO on episodes of several turns, from a random initialisation, in minutes on a laptop.

The task is `keydoor`: four rooms in a row, a key to fetch and a door to open. The policy writes one
letter a turn, l, r, t or o, and reads where it then is: `r0k2d3` is room 0, the key in room 2, the
door in room 3. An episode is one row of its group, and its reward the sum of its turns': 0.25 for
the key, 0.75 for the door. Credit goes to turns by GiGPO (Feng et al. 2025): a turn is compared
with those that the group took in the same state. The environment is compiled into the decode loop.
What it reached is in docs/environments.md.
"""

from jaxrl.config import CheckpointConfig, Config, EvalConfig, FreshModel, RolloutConfig
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The recipe."""
    return Config(
        recipe="keydoor",
        steps=150,
        model="fresh",
        fresh=FreshModel(
            hidden_size=64,
            intermediate_size=128,
            num_layers=2,
            num_heads=4,
            num_kv_heads=4,
            head_dim=16,
        ),
        task="keydoor",
        task_args={"level": 1, "turns": 12},
        rollout=RolloutConfig(
            prompts=16,
            group_size=8,
            max_prompt_tokens=32,
            max_new_tokens=132,
            turn_tokens=1,
            on_device=True,
        ),
        objective=ObjectiveConfig(
            advantage="gigpo", advantage_args={"discount": 0.9}, entropy_coef=0.02
        ),
        updates_per_batch=4,
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=5),
        sampler=SamplerConfig(slots=128, prefill_rows=64, bucket=64),
        packing=PackingConfig(micro_batch_tokens=4096, row_length=192),
        eval=EvalConfig(problems=64),
        checkpoint=CheckpointConfig(every=50),
        score_workers=0,
    )
