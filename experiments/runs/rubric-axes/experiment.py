"""A rubric of several axes over the checkpoints of a run, and as a reward, see PLAN.md.

PYTHONPATH=. python experiments/runs/rubric-axes/experiment.py RESULTS.json
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.lab import (
    Arm,
    Effect,
    Sampled,
    Task,
    attempts,
    cipher,
    experiment,
    run_arm,
    statistics,
)
from experiments.lab.tasks import EOS, FILLER
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, SLACK, STEPS = 3, 3, 80
"""Of a prompt, tokens beyond the shortest answer, and of training."""
NOISE = 0.75
"""Deviation of a judge's mark from 1 to 5, before it is rounded."""
AXES = ("accuracy", "relevance", "clarity", "conciseness")
Figures = dict[str, np.ndarray]


def axes(tokens: jax.Array, answers: jax.Array, share: jax.Array) -> jax.Array:
    """[..., AXES] from 0 to 1: right symbols; symbols that belong to the prompt's codes, in any
    order; tokens that are no filler; brevity, 1 for the shortest whole answer.

    Args:
      tokens: [..., T].
      answers: [..., A], the right codes first.
      share: [...] of right symbols.
    """
    said = (tokens > EOS) & (tokens != FILLER)
    ours = jnp.any(tokens[..., None] == answers[..., None, :SYMBOLS], axis=-1)
    filled, count = jnp.sum(tokens == FILLER, axis=-1), jnp.sum(said, axis=-1)
    length = jnp.sum(tokens > 0, axis=-1)
    return jnp.stack(
        [
            share,
            jnp.sum(said & ours, axis=-1) / jnp.maximum(count, 1),
            1 - filled / jnp.maximum(filled + count, 1),
            jnp.clip(1 - (length - SYMBOLS - 1) / SLACK, 0, 1),
        ],
        axis=-1,
    )


def marked(values: jax.Array, key: jax.Array) -> jax.Array:
    """Marks from 1 to 5 of values from 0 to 1, as a noisy judge gives them."""
    noise = NOISE * jax.random.normal(key, values.shape)
    return jnp.clip(jnp.round(1 + 4 * values + noise), 1, 5)


def by_rubric(batch: Sampled) -> jax.Array:
    """[N] the mean of the marks of all axes, from 0 to 1."""
    values = axes(batch.tokens, batch.problems.answer, batch.rewards)
    return jnp.mean((marked(values, batch.key) - 1) / 4, axis=1)


def by_accuracy(batch: Sampled) -> jax.Array:
    """[N] 1 for an answer that is right as a whole."""
    return (batch.rewards > 0.99).astype(jnp.float32)


def measured(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> Figures:
    """`pass@1`; the mean mark of each axis; and `answers`, the rank correlation of the mark of
    accuracy with being right, over answers; [S]."""
    written, share = attempts(model, task, arm, params, samples=1)
    values = axes(written.tokens[:, :, 0], task.test.answer, share[:, :, 0])
    marks = np.asarray(marked(values, jax.random.key(0)))
    right = share[:, :, 0] > 0.99
    within = [stats.spearmanr(m, r).statistic for m, r in zip(marks[..., 0], right, strict=True)]
    figures = {"pass@1": right.mean(axis=1), "answers": np.nan_to_num(np.array(within))}
    return figures | dict(zip(AXES, marks.mean(axis=1).T, strict=True))


def run(seeds: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Figures by arm: `before`, [S], `curves`, [marks, S], and `marks`."""
    task = cipher(((12, 0.6), (6, 0.3)), filler_rate=0.15, slack=SLACK, partial=True)
    found = {}
    for name, rewards in (("rubric", by_rubric), ("accuracy", by_accuracy)):
        arm = Arm(steps=steps, rewards=rewards)
        got = run_arm(Effect("", task, arm, arm, measure=measured), arm, seeds)
        found[name] = {k: got[k] for k in ("before", "curves", "marks")}
    return found


def report(found: dict[str, Any]) -> str:
    """The tables of README.md."""
    lines = ["| reward | step | pass@1 | " + " | ".join(AXES) + " | over answers |"]
    lines.append("|---" * 8 + "|")
    for name, got in found.items():
        rows = [(0, got["before"])]
        rows += [(m, {k: v[i] for k, v in got["curves"].items()})
                 for i, m in enumerate(got["marks"])]  # fmt: skip
        for mark, row in rows:
            means = [f"{np.mean(row[k]):.3f}" for k in ("pass@1", *AXES, "answers")]
            lines.append(f"| {name} | {mark} | " + " | ".join(means) + " |")
    lines += ["", "| reward | axis | Spearman | Pearson |", "|---|---|---|---|"]
    for name, got in found.items():
        truth = np.array(got["curves"]["pass@1"]).T
        for axis in AXES:
            pairs = list(zip(np.array(got["curves"][axis]).T, truth, strict=True))
            rank = np.array([stats.spearmanr(*pair).statistic for pair in pairs])
            linear = np.array([stats.pearsonr(*pair).statistic for pair in pairs])
            lines.append(
                f"| {name} | {axis} | {statistics.interval(rank)} | {statistics.interval(linear)} |"
            )
    last = {name: np.array(got["curves"]["pass@1"][-1]) for name, got in found.items()}
    gap = statistics.interval(last["rubric"] - last["accuracy"])
    return "\n".join([*lines, "", f"pass@1 at the end, rubric less accuracy: {gap}"])


if __name__ == "__main__":
    experiment.main(__doc__, run, report, seeds=6, steps=STEPS)
