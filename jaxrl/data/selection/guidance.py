"""Help on problems that the policy fails: hints to start from, solutions to learn from.

A guide is a function `(attempt, rewards, rng) -> hints`. It is asked first before anything is
sampled (attempt 0, rewards `None`), then again with the rewards [P, G] of what was sampled, until
it has no hint left to give. nan is a failed score. It may ask for `count` and `group_size`, P and
G, and for `tokens` and `entropies` of the responses so far, P lists of G arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Hint(NamedTuple):
    """How completion `row` of problem `problem` is sampled (anew)."""

    problem: int
    row: int
    given: float = 0.0
    """Share of the task's own solution that the response begins with; not trained on."""
    expert: bool = False
    """The whole solution is the response, and is trained on."""
    shown: bool = False
    """The policy sees the solution in its prompt, and is trained as if it had not."""
    begin: tuple[int, ...] = ()
    """Tokens that the response begins with, such as those of an earlier one; not trained on."""
    if_better: bool = False
    """It takes the place of what was there only if its reward is higher."""


def failed(rewards: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """[P] bool: problems without one reward [P, G] that reaches the threshold."""
    return ~np.any(np.nan_to_num(rewards, nan=-np.inf) >= threshold, axis=1)


def expert_rows(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    count: int,
    group_size: int,
    rows: int = 1,
) -> list[Hint]:
    """The last rows of every group are the solution itself.

    Paper: Yan et al. 2025, "Learning to Reason under Off-Policy Guidance" (LUFFY); CHORD, RL-PLUS
      and ViSurf put experts into the group likewise
    """
    if attempt:
        return []
    return [
        Hint(p, g, expert=True) for p in range(count) for g in range(group_size - rows, group_size)
    ]


def expert_on_failure(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    rows: int = 1,
    threshold: float = 0.5,
) -> list[Hint]:
    """The solution itself stands in for rows of the groups that have all failed.

    Paper: "Learning What Reinforcement Learning Can't: Interleaved Online Fine-Tuning for Hardest
      Questions" (ReLIFT)
    """
    if attempt != 1 or rewards is None:
        return []
    groups = np.flatnonzero(failed(rewards, threshold))
    return [Hint(int(p), g, expert=True) for p in groups for g in range(rows)]


def prefixes(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    count: int,
    group_size: int,
    share: float = 0.5,
    low: float = 0.2,
    high: float = 0.8,
) -> list[Hint]:
    """Some groups begin with a random share of the solution, all rows with the same.

    Paper: "Reuse your FLOPs: Scaling RL on Hard Problems by Conditioning on Very Off-Policy
      Prefixes" (PrefixRL)

    Args:
      attempt, rewards, rng: see the module.
      count, group_size: P and G.
      share: of the groups that get a prefix.
      low, high: bounds of its length, as shares of the solution.
    """
    if attempt:
        return []
    chosen = np.flatnonzero(rng.random(count) < share)
    prefix_shares = rng.uniform(low, high, count)
    return [
        Hint(int(p), g, given=float(prefix_shares[p])) for p in chosen for g in range(group_size)
    ]


def escalate(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    rows: int = 0,
    attempts: int = 3,
    help: float = 1.0,
    threshold: float = 0.5,
) -> list[Hint]:
    """Groups that have all failed try again with a quarter of the solution, then half, and so on.

    Paper: "GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning"; with some
      of the rows only, the shortest prefix that helps of "POPE: Learning to Reason on Hard Problems
      via Privileged On-Policy Exploration"

    Args:
      attempt, rewards, rng: see the module.
      rows: how many rows of a group try again; 0 for all.
      attempts: how often; the share given is `help * attempt / (attempts + 1)`.
      help: 0 gives nothing, which is sampling again.
      threshold: the reward that is no failure.
    """
    if rewards is None or not 1 <= attempt <= attempts:
        return []
    groups, size = np.flatnonzero(failed(rewards, threshold)), rewards.shape[1]
    solution_share = help * attempt / (attempts + 1)
    return [Hint(int(p), g, given=solution_share) for p in groups for g in range(rows or size)]


def inpaint(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    rows: int = 2,
    low: float = 0.2,
    high: float = 0.8,
    threshold: float = 0.5,
) -> list[Hint]:
    """In groups that have all failed, rows that start from part of the solution, where they pass.

    Paper: "Inpainting-Guided Policy Optimization for Diffusion Large Language Models" (IGPO), in
      its form for models that write from left to right
    """
    if attempt != 1 or rewards is None:
        return []
    groups = np.flatnonzero(failed(rewards, threshold))
    return [
        Hint(int(p), g, given=float(rng.uniform(low, high)), if_better=True)
        for p in groups
        for g in range(rows)
    ]


def explain(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    rows: int = 1,
    threshold: float = 0.5,
) -> list[Hint]:
    """In groups that have all failed, rows written by the policy with the solution before its eyes.

    Paper: "Learning Like Humans" (the expert-guided self-reformulation of ADCL); "ExPO: Unlocking
      Hard Reasoning with Self-Explanation-Guided Reinforcement Learning" trains such rows by a
      likelihood of their own, outside the group
    """
    if attempt != 1 or rewards is None:
        return []
    groups = np.flatnonzero(failed(rewards, threshold))
    return [Hint(int(p), g, shown=True, if_better=True) for p in groups for g in range(rows)]


def forks(
    attempt: int,
    rewards: np.ndarray | None,
    rng: np.random.Generator,
    *,
    tokens: list[list[np.ndarray]],
    entropies: list[list[np.ndarray]],
    group_size: int,
    top: int = 3,
) -> list[Hint]:
    """Row `g + G / 2` branches from row `g` before one of its `top` least certain tokens.

    The branch of an empty row begins anew.

    Paper: "CURE: Critical-Token-Guided Re-Concatenation for Entropy-Collapse Prevention"
    """
    if attempt != 1:
        return []
    half, hints = group_size // 2, []
    for p, (group_tokens, entropy) in enumerate(zip(tokens, entropies, strict=True)):
        for g in range(half):
            at = int(rng.choice(np.argsort(-entropy[g])[:top])) if len(entropy[g]) else 0
            beginning = tuple(int(t) for t in group_tokens[g][:at])
            hints.append(Hint(p, half + g, begin=beginning))
    return hints
