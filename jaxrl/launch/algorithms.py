"""The named algorithms: each sets an objective and what belongs to it, on any model and data.

`jaxrl train NAME --model DIR --data FILE --reward REWARD` runs one. In Python, each is a function
of this module (`jaxrl.recipes.grpo(model=..., data=..., reward=...)`) that returns a `Config`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl.config import Config, RolloutConfig
from jaxrl.config.stages import PERIOD
from jaxrl.extensions.average import AverageConfig
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

_BASE = Config(
    model="",
    task="",
    rollout=RolloutConfig(
        prompts=16, group_size=8, max_prompt_tokens=512, max_new_tokens=512, long_prompts="drop"
    ),
    optimizer=OptimizerConfig(learning_rate=1e-6),
)
_SUM = "seq-mean-token-sum"
_PAIRS = ObjectiveConfig(
    policy="pair_dpo",
    policy_args={"beta": 0.1},
    advantage_args={"baseline": "none", "scale": "none"},
    aggregation="seq-mean-token-mean",
)
_BEST = ObjectiveConfig(
    policy="raft", advantage_args={"baseline": "none", "scale": "none"}, aggregation=_SUM
)
_BATCH = {"baseline": "batch", "scale": "batch"}


class Algorithm(NamedTuple):
    """What an algorithm changes of the defaults."""

    summary: str
    paper: str
    objective: ObjectiveConfig
    changes: Mapping[str, Any] = {}
    """Fields of the config, by name."""


ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Algorithm(
        "PPO clip; the advantage is the reward minus the group's mean, divided by the group's "
        "standard deviation; KL penalty in the loss",
        "Shao et al. 2024, DeepSeekMath",
        ObjectiveConfig(aggregation="seq-mean-token-mean", kl_coef=0.04),
    ),
    "ppo": Algorithm(
        "PPO clip with a critic and generalised advantage estimation; 4 updates a batch",
        "Schulman et al. 2017, Proximal Policy Optimization Algorithms",
        ObjectiveConfig(advantage_args=_BATCH),  # replaced by the critic's
        {
            "extensions": {"critic": CriticConfig()},
            "updates_per_batch": 4,
            "rollout": dataclasses.replace(_BASE.rollout, prompts=64, group_size=1),
        },
    ),
    "rloo": Algorithm(
        "REINFORCE with the mean of the group's other completions as baseline",
        "Ahmadian et al. 2024, Back to Basics",
        ObjectiveConfig(policy="reinforce", advantage="rloo", aggregation=_SUM),
    ),
    "reinforce_pp": Algorithm(
        "PPO clip, rewards normalised over the whole batch; neither groups nor a critic",
        "Hu et al. 2025, REINFORCE++",
        ObjectiveConfig(advantage="reinforce_pp"),
        {"rollout": dataclasses.replace(_BASE.rollout, prompts=128, group_size=1)},
    ),
    "reinforce_pp_baseline": Algorithm(
        "PPO clip, rewards centred by the group and normalised over the batch",
        "Hu et al. 2025, REINFORCE++",
        ObjectiveConfig(advantage="reinforce_pp_baseline"),
    ),
    "remax": Algorithm(
        "REINFORCE with the reward of the greedy completion as baseline",
        "Li et al. 2023, ReMax",
        ObjectiveConfig(policy="reinforce", advantage="remax", aggregation=_SUM),
        {"rollout": dataclasses.replace(_BASE.rollout, prompts=128, group_size=1)},
    ),
    "dapo": Algorithm(
        "GRPO with a higher upper clip, a token mean, no KL, groups without signal resampled",
        "Yu et al. 2025, DAPO",
        ObjectiveConfig(policy="dapo"),
        {"rollout": dataclasses.replace(_BASE.rollout, oversampling=3.0)},
    ),
    "dr_grpo": Algorithm(
        "GRPO without division by the group's standard deviation or the completion's length",
        "Liu et al. 2025, Understanding R1-Zero-Like Training",
        ObjectiveConfig(
            policy="dr_grpo",
            advantage_args={"scale": "none"},
            aggregation="seq-mean-token-sum-norm",
        ),
    ),
    "gspo": Algorithm(
        "clips the likelihood ratio of whole completions, normalised by length",
        "Zheng et al. 2025, Group Sequence Policy Optimization",
        ObjectiveConfig(policy="gspo", aggregation="seq-mean-token-mean"),
        {"updates_per_batch": 4},
    ),
    "gmpo": Algorithm(
        "geometric mean of clipped token ratios",
        "Zhao et al. 2025, Geometric-Mean Policy Optimization",
        ObjectiveConfig(policy="gmpo", aggregation="seq-mean-token-mean"),
        {"updates_per_batch": 4},
    ),
    "cispo": Algorithm(
        "clips the importance weight instead of the token, so every token keeps its gradient",
        "MiniMax 2025, MiniMax-M1",
        ObjectiveConfig(policy="cispo"),
        {"updates_per_batch": 4},
    ),
    "gpg": Algorithm(
        "policy gradient with group baseline, without clip and reference",
        "Chu et al. 2025, GPG",
        ObjectiveConfig(policy="gpg", advantage="gpg_advantages"),
    ),
    "opo": Algorithm(
        "REINFORCE with the length-weighted baseline that minimises variance",
        "Hao et al. 2025, On-Policy RL with Optimal Reward Baseline",
        ObjectiveConfig(policy="reinforce", advantage="opo", aggregation=_SUM),
    ),
    "online_dpo": Algorithm(
        "DPO on the best and the worst of each group of samples, by the reward",
        "Guo et al. 2024, Direct Language Model Alignment from Online AI Feedback",
        _PAIRS,
    ),
    "iterated_dpo": Algorithm(
        "DPO by rounds: pairs mined from a large batch, 4 updates on them, then a new reference",
        "Xiong et al. 2023, Iterative Preference Learning from Human Feedback",
        _PAIRS,
        {
            "extensions": {"reference_refresh": RefreshConfig(every=1)},
            "updates_per_batch": 4,
            "rollout": dataclasses.replace(_BASE.rollout, prompts=128),
        },
    ),
    "rejection_sampling": Algorithm(
        "fine-tuning on the best of each group of samples, by the reward",
        "Dong et al. 2023, RAFT",
        _BEST,
    ),
    "best_of_n": Algorithm(
        "distils best-of-n sampling: the best of each group, and a KL to an average that follows",
        "Sessa et al. 2024, BOND",
        dataclasses.replace(_BEST, kl_coef=0.1),
        {"extensions": {"average": AverageConfig(reference=True, evaluate=False)}},
    ),
    "reinforce": Algorithm(
        "REINFORCE with the batch's mean reward as baseline",
        "Williams 1992, Simple Statistical Gradient-Following Algorithms",
        ObjectiveConfig(
            policy="reinforce",
            advantage_args={"baseline": "batch", "scale": "none"},
            aggregation=_SUM,
        ),
    ),
}
"""By name; `dr-grpo` is `dr_grpo`, and `reinforce++` is `reinforce_pp`."""


def names() -> list[str]:
    """All algorithms, sorted."""
    return sorted(ALGORITHMS)


def canonical(name: str) -> str:
    """The name of an algorithm or recipe as it is spelled here."""
    return name.lower().replace("++", "_pp").replace("-", "_")


def load(name: str) -> Config:
    """The config of an algorithm; its model and its data are still to be named.

    Raises:
      KeyError: no such algorithm.
    """
    algorithm = ALGORITHMS[name]
    return dataclasses.replace(
        _BASE, recipe=name, objective=algorithm.objective, **algorithm.changes
    )


def without_toy(config: Config, toy: Config) -> Config:
    """A method whose recipe trains a toy, to be put on another model and data.

    The toy's model, task, warm start, lengths, batch, optimizer and memory layout give way to those
    of the algorithms. What the method itself sets stays: it differs from the toy.

    Args:
      config: of a recipe that changes `toy`.
      toy: the recipe that it changes.
    """
    lengths = ("max_prompt_tokens", "max_new_tokens", "long_prompts", "turn_tokens")
    own = {
        field.name: value
        for field in dataclasses.fields(RolloutConfig)
        if (value := getattr(config.rollout, field.name)) != getattr(toy.rollout, field.name)
        and field.name not in lengths
    }
    if "chunks" in own:  # as large a share of the completion as before
        times = _BASE.rollout.max_new_tokens // config.rollout.max_new_tokens
        size, carry = own["chunks"].size * times, own["chunks"].carry * times
        own["chunks"] = dataclasses.replace(own["chunks"], size=size, carry=carry)
    groups = (
        "model", "task", "task_args", "domains", "fresh", "warm_start", "optimizer", "packing",
        "sampler", "eval", "score_workers",
    )  # fmt: skip
    stages = {
        start: fields
        for start, changes in config.stages.items()
        if (fields := {k: v for k, v in changes.items() if k.rpartition(".")[2] not in lengths})
        and fields.keys() != {PERIOD}
    }
    curriculum = [
        name
        for fields in stages.values()
        for name in fields
        if name != PERIOD and not name.startswith("objective.")
    ]
    planned = bool(curriculum) or max(stages, default=0) >= _BASE.steps
    return dataclasses.replace(
        config,
        rollout=dataclasses.replace(_BASE.rollout, **own),
        stages=stages,
        steps=config.steps if planned else _BASE.steps,
        **{name: getattr(_BASE, name) for name in groups},
    )


def rows() -> list[dict[str, str]]:
    """One object an algorithm: `name`, `summary`, `paper`, `command`."""
    return [
        {
            "name": name,
            "summary": algorithm.summary,
            "paper": algorithm.paper,
            "command": f"jaxrl train {name} --model DIR --data FILE --reward REWARD",
        }
        for name, algorithm in ALGORITHMS.items()
    ]


def __getattr__(name: str) -> Callable[..., Config]:
    """`NAME(model=..., data=..., reward=..., **fields)`, see `jaxrl.launch.api.recipe`."""
    if name.startswith("_"):
        raise AttributeError(name)
    from jaxrl.launch import api, recipes

    if canonical(name) not in ALGORITHMS and name not in recipes.names():
        raise AttributeError(f"no recipe {name!r}; {recipes.hint(name)}")
    return functools.partial(api.recipe, canonical(name))
