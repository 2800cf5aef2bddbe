"""Imitation, and RL on rewards learned from demonstrations or pairs, see PLAN.md in this folder.

PYTHONPATH=. python experiments/runs/learned-rewards/experiment.py RESULTS.json
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import (
    Arm,
    Effect,
    Sampled,
    Task,
    attempts,
    experiment,
    run_arm,
    split,
    statistics,
)
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, as_problems, of_seed
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.models.config import DecoderConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Params

STATES, HORIZON = 6, 4
"""States and inputs of the machine; steps of a problem."""
SHOWN, PROMPTS, PAIRS = 144, 512, 256
"""Demonstrations; prompts, of which RL trains on all; comparisons."""
CELLS = STATES**3
"""Triples of a state, an input and the next state."""
UNIT = 100
"""Of the scores in a problem's answer."""
SFT = {
    "objective": ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    "guidance": GuidanceConfig("expert_rows"),
}
WARM_STEPS, STEPS, RATE = 400, 100, 1e-3
Figures = dict[str, np.ndarray]


@functools.cache
def machine() -> Task:
    """Write the state after each input; an error is carried on.

    Domain 0 are the prompts with a demonstration, which are few; the others are domain 1. `answer`
    is the right states, the next state for each state and input, how often demonstrations have
    each cell, and the score of each cell by a model from pairs, in units of 1 / `UNIT`.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 28])
        table = np.stack([rng.permutation(STATES) for _ in range(STATES)], axis=1)

        def draw(size: int) -> np.ndarray:
            return rng.integers(STATES, size=(size, HORIZON + 1))

        def states(content: np.ndarray, right: float = 1.0) -> np.ndarray:
            now, out = content[:, 0], []
            for given in content[:, 1:].T:
                slips = rng.integers(STATES, size=len(now))
                now = np.where(rng.random(len(now)) < right, table[now, given], slips)
                out.append(now)
            return np.stack(out, axis=1)

        asked = split.distinct(draw, PROMPTS, held_out=False)
        counts = np.bincount(cells(asked[:SHOWN], states(asked[:SHOWN])).ravel(), minlength=CELLS)
        compared = split.repeated(draw, PAIRS)
        two = [states(compared, 0.5) for _ in range(2)]
        known = [*table.ravel(), *counts, *np.round(UNIT * preferred(rng, table, compared, *two))]

        def build(content: np.ndarray, domain: np.ndarray | None = None) -> Problems:
            said, end = states(content), np.full((len(content), 1), EOS)
            gold = np.concatenate([FIRST + said, end], axis=1)
            inputs = FIRST + STATES + content[:, 1:]
            prompt = np.concatenate([FIRST + content[:, :1], inputs, 0 * end + ASK], axis=1)
            answer = np.concatenate([said, np.tile(known, (len(content), 1))], axis=1)
            return as_problems(prompt, answer, gold, domain)

        train = build(asked, np.arange(PROMPTS) >= SHOWN)
        test = build(split.distinct(draw, split.HELD_OUT, held_out=True))
        return Splits(train, test, build(asked[:SHOWN]))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        right = completion[HORIZON - 1] == FIRST + answer[HORIZON - 1]
        return (right & (completion[HORIZON] == EOS)).astype(jnp.float32)

    return Task(FIRST + 2 * STATES, make, reward)


def cells(content: np.ndarray, said: np.ndarray) -> np.ndarray:
    """[M, H] cells of the states [M, H] that are written for contents [M, 1 + H]."""
    before = np.concatenate([content[:, :1], said[:, :-1]], axis=1)
    return (before * STATES + content[:, 1:]) * STATES + said


def preferred(
    rng: np.random.Generator,
    table: np.ndarray,
    content: np.ndarray,
    one: np.ndarray,
    two: np.ndarray,
) -> np.ndarray:
    """[CELLS] scores by Bradley-Terry, from which of two answers has more right steps, with noise.

    Formula: gradient descent on `-log sigmoid(r_w - r_l)` with weight decay
    """
    place = [cells(content, said) for said in (one, two)]
    right = [np.sum(table.ravel()[p // STATES] == p % STATES, axis=1) for p in place]
    won = rng.random(len(content)) < 1 / (1 + np.exp(right[1] - right[0]))
    better, worse = (np.where(w[:, None], *place) for w in (won, ~won))
    scores = np.zeros(CELLS)
    for _ in range(200):
        gap = scores[better].sum(axis=1) - scores[worse].sum(axis=1)
        error = np.repeat(1 / (1 + np.exp(gap))[:, None], better.shape[1], axis=1)
        scores *= 0.99
        np.add.at(scores, better, 0.1 * error)
        np.add.at(scores, worse, -0.1 * error)
    return scores


def said_cells(tokens: jax.Array, prompt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[N, H] cells of completions [N, 1 + H], and [N] whether they are states and then the end."""
    states = tokens[:, :HORIZON] - FIRST
    fits = jnp.all((states >= 0) & (states < STATES), axis=1) & (tokens[:, HORIZON] == EOS)
    states = jnp.clip(states, 0, STATES - 1)
    before = jnp.concatenate([prompt[:, :1] - FIRST, states[:, :-1]], axis=1)
    given = prompt[:, 1 : HORIZON + 1] - FIRST - STATES
    return (before * STATES + given) * STATES + states, fits


def known(answer: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Next states, counts of demonstrations and scores from pairs, of answers [..., A]."""
    parts = answer[..., -(STATES**2 + 2 * CELLS) :]
    table, counts, scores = jnp.split(parts, [STATES**2, STATES**2 + CELLS], axis=-1)
    return table, counts, scores / UNIT


def by_demonstrations(batch: Sampled) -> jax.Array:
    """[N] online inverse RL: the best discriminator of the batch from the demonstrations, by cell.

    Formula: `r = mean_t log((p_demo(c_t) + a) / (p_batch(c_t) + a))`, frequencies smoothed by half
    a count; -2 out of form
    """
    place, fits = said_cells(batch.tokens, batch.problems.prompt)
    counts = known(batch.problems.answer[0])[1]
    own = jnp.zeros(CELLS).at[place].add(jnp.where(fits, 1.0, 0.0)[:, None])
    odds = [jnp.log((n + 0.5) / (jnp.sum(n) + 0.5 * CELLS)) for n in (counts, own)]
    return jnp.where(fits, jnp.mean((odds[0] - odds[1])[place], axis=1), -2.0)


def by_pairs(batch: Sampled) -> jax.Array:
    """[N] the mean score of cells, by the model from pairs; -2 out of form."""
    place, fits = said_cells(batch.tokens, batch.problems.prompt)
    scores = known(batch.problems.answer[0])[2]
    return jnp.where(fits, jnp.mean(scores[place], axis=1), -2.0)


def measured(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> Figures:
    """`pass@1`, the last state is right; `form`, all are states and then the end; and of these,
    `steps`, the share of right steps after what was written, `pairs`, the mean score by the model
    from pairs, and `demonstrations`, the log-frequency among demonstrations; [S]."""
    written, rewards = attempts(model, task, arm, params, samples=1)
    figures = {"pass@1": rewards.mean(axis=(1, 2))}
    each = []
    for place, tokens in enumerate(written.tokens[:, :, 0]):
        problems = of_seed(task.test, place)
        cell, fits = said_cells(jnp.asarray(tokens), jnp.asarray(problems.prompt))
        table, shown, scores = known(jnp.asarray(problems.answer[0]))
        odds = jnp.log((shown + 0.5) / (jnp.sum(shown) + 0.5 * CELLS))
        right = table[cell // STATES] == cell % STATES
        means = [jnp.mean(part, axis=1) for part in (right, scores[cell], odds[cell])]
        some = [float(jnp.sum(jnp.where(fits, m, 0.0)) / jnp.sum(fits)) for m in means]
        each.append([float(jnp.mean(fits)), *some])
    names = ("form", "steps", "pairs", "demonstrations")
    return figures | dict(zip(names, np.array(each).T, strict=True))


def arms() -> dict[str, Arm]:
    """What is done after the warm start, which imitates the demonstrations, by name."""
    share = SHOWN / PROMPTS
    plain = Arm(steps=STEPS, learning_rate=RATE, weights=(share, 1 - share))
    return {
        "imitation": dataclasses.replace(plain, weights=(1.0, 0.0), **SFT),
        "RL on demonstrations": dataclasses.replace(plain, rewards=by_demonstrations),
        "RL on pairs": dataclasses.replace(plain, rewards=by_pairs),
    }


def run(seeds: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Figures by arm: `before`, [S], `curves`, [marks, S], and `marks`."""
    found: dict[str, Any] = {}
    for name, arm in arms().items():
        effect = Effect("", machine(), arm, arm, warm_steps=WARM_STEPS, measure=measured)
        got = run_arm(effect, arm, seeds, steps=steps)
        found[name] = {k: got[k] for k in ("before", "curves", "marks")}
    return found


def report(found: dict[str, Any]) -> str:
    """The tables of README.md."""

    figures = ("pass@1", "form", "steps", "pairs", "demonstrations")
    lines = ["| steps | policy | pass@1 | in form | right steps | pairs | demonstrations |"]
    lines.append("|---" * 7 + "|")
    for name, got in found.items():
        rows = [(mark, {k: v[i] for k, v in got["curves"].items()})
                for i, mark in enumerate(got["marks"])]  # fmt: skip
        for mark, row in [(0, got["before"]), *rows] if name == "imitation" else rows:
            means = " | ".join(f"{np.mean(row[f]):.3f}" for f in figures)
            lines.append(f"| {mark} | {name if mark else 'warm start'} | {means} |")

    def change(name: str, figure: str) -> np.ndarray:
        got = found[name]
        return np.array(got["curves"][figure][-1]) - np.array(got["before"][figure])

    one, two, three = "RL on demonstrations", "RL on pairs", "imitation"
    lines += ["", "| difference | |", "|---|---|"]
    for a, b in ((one, two), (one, three), (two, three)):
        gap = change(a, "pass@1") - change(b, "pass@1")
        lines.append(f"| pass@1, {a} less {b} | {statistics.interval(gap)} |")
    for name, own in ((one, "demonstrations"), (two, "pairs")):
        lines.append(
            f"| {name}, score by {own}, end less start | {statistics.interval(change(name, own))} |"
        )
        right = statistics.interval(change(name, "steps"))
        lines.append(f"| {name}, right steps, end less start | {right} |")
    return "\n".join(lines)


if __name__ == "__main__":
    experiment.main(__doc__, run, report, seeds=6, steps=STEPS)
