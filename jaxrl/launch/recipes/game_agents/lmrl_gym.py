"""LMRL-Gym's toolkit on a small game of questions: values of tokens from logged games.

Paper: Abdulhai et al. 2023, "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with
Language Models"
Idea: tasks of several turns come with logged games of mixed quality. A policy imitates all of them
(BC) or the successful ones (filtered BC); or values of tokens are learned from them and steer a
policy that imitates: regressed on what the games earned (MC returns), or by implicit Q-learning
(ILQL), which joins good parts of different games. PPO plays games of its own.
Formula: ILQL: `(Q(a) - r - gamma V')^2 / 2 + |tau - 1[u < 0]| u^2 / 2`, `u = min_h Qbar_h(a) - V`,
and `c (log sum exp Q - Q(a))`; tokens are drawn from `pi exp(beta min_h Qbar_h)`
Claim: eight tasks; values learned offline beat filtered BC on most of the text games, and PPO is
best in some and unstable in others.
Reading: losses, two heads with a slow copy that steers, and separate decoders of policy and values
are those of the authors' code; constants are ours. Policy and values begin from nothing, both on
the same batches, where theirs imitate first. In the place of their twenty questions: `diagnosis`,
where each new finding earns 1/8 and the right disease 1. The log has 4 games for each of 256
patients; `player` says who played them. `lmrl_gym_maze` is the same in mazes; the other six tasks
are not here. Returns are normalised as in the authors' code by
`jaxrl.data.offline.statistics.centred_score`. `--ilql.targets returns` is MC returns, `--ilql.beta
0` is BC, and with `--objective.policy expert_iteration --objective.policy-args.threshold 1`
filtered BC.
Source: abdulhaim/LMRL-Gym@911d726b5b3732b468acada46ca60fa3cbc2f847
LLM_RL/algorithms/ilql/base_interface.py:29
Fidelity: verified against code
"""

from collections.abc import Callable

import numpy as np

from jaxrl.config import CurriculumConfig
from jaxrl.data.environments.games import diagnosis
from jaxrl.extensions.ilql import IlqlConfig
from jaxrl.extensions.logged import LoggedConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

_QUESTIONS, _DISEASES = "abcdefgh", "UVWXYZ"
_IDLE = "fgh"
"""Questions whose answers say nothing."""
_REWARDS = {"baseline": "none", "scale": "none"}

METHOD = Method(
    objective=ObjectiveConfig(policy="sft", advantage_args=_REWARDS),
    extensions={
        "logged": LoggedConfig(f"{__name__}:player", games=4),
        "ilql": IlqlConfig(
            optimizer=OptimizerConfig(learning_rate=0.002, warmup_steps=5),
            tau=0.8,
            conservatism=0.1,
            rate=0.05,
        ),
    },
    updates_per_batch=4,
    curriculum=CurriculumConfig(choose="jaxrl.data.selection.curriculum:uniform", prompts=256),
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task": "diagnosis",
        "task_args": {"questions": 3, "importance": "uniform"},
        "rollout": {"prompts": 16, "max_new_tokens": 32},
    },
    base="retrieval",
)
"""ILQL on games of players, of whom few ask what matters."""


def player(rng: np.random.Generator, expert: float = 0.25) -> Callable[[str], str]:
    """A player of `diagnosis` for one game, who asks three times.

    With probability `expert` it asks what tells most of the diseases apart, and names the likeliest
    one. Else it asks what says nothing, and names any. One action in ten is drawn at random.

    Args:
      rng: of the game.
      expert: share of the players that know what to do.
    """
    knows = rng.random() < expert
    findings: dict[str, str] = {}
    actions: list[str] = []

    def act(observation: str) -> str:
        if not actions:
            findings.update(zip(observation[::2], observation[1::2], strict=False))
        elif observation in ("+", "-"):
            findings[actions[-1]] = observation
        last = len(actions) == 3
        actions.append(_chosen(findings, actions, last) if knows else _strolled(rng, actions, last))
        if rng.random() < 0.1:
            actions[-1] = str(rng.choice(list(_DISEASES if last else _QUESTIONS)))
        return actions[-1]

    return act


def _strolled(rng: np.random.Generator, actions: list[str], last: bool) -> str:
    return str(rng.choice(list(_DISEASES))) if last else _IDLE[len(actions) % len(_IDLE)]


def _chosen(findings: dict[str, str], actions: list[str], last: bool) -> str:
    """The likeliest disease, or the question whose answer leaves the least entropy to expect."""
    if last:
        return _DISEASES[int(np.argmax(_shares(findings)))]
    rest = [
        question for question in _QUESTIONS if question not in findings and question not in actions
    ]
    return min(rest, key=lambda question: _left(findings, question))


def _left(findings: dict[str, str], question: str) -> float:
    """Entropy of the disease to expect after a question, in nats, up to a constant factor."""
    total = 0.0
    for answer in "+-":
        shares = _shares({**findings, question: answer})
        total -= float(np.sum(shares * np.log(shares / shares.sum())))
    return total


def _shares(findings: dict[str, str]) -> np.ndarray:
    """Probability of the findings under each disease, [6]."""
    chances = diagnosis.chances()
    shares = np.ones(len(chances))
    for letter, answer in findings.items():
        positive_rates = chances[:, _QUESTIONS.index(letter)]
        shares = shares * (positive_rates if answer == "+" else 1 - positive_rates)
    return shares
