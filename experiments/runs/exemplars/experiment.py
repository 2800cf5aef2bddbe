"""Worked examples in the prompt of a policy that RL has trained without them, see PLAN.md.

PYTHONPATH=. python experiments/runs/exemplars/experiment.py RESULTS.json
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import (
    Arm,
    Problems,
    Splits,
    Task,
    attempts,
    experiment,
    imitate,
    split,
    statistics,
)
from experiments.lab.policy import shape
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, as_problems
from experiments.lab.train import train
from jaxrl.types import Params

SYMBOLS, STEPS, ROOM = 8, 3, 4
"""Symbols of each place; places of a question; exemplars that a prompt has room for."""
CODE = FIRST + SYMBOLS * STEPS
CHECK = CODE + SYMBOLS * STEPS
"""First tokens of codes and of checks. Each place has symbols, codes and a check of its own."""
BUDGET = 3 * STEPS + 1 + 2
PROMPT = ROOM * (STEPS + 1 + STEPS + 1 + 2) + STEPS + 1
"""Tokens; an exemplar has one check at most."""
RATE, DRAFTS, AGAIN = 0.7, (0.8, 0.3), 0.9
"""Of demonstrations: share of steps that are checked; chance that a step is right when it is first
written, for either half of the symbols; and when it is written again."""
SEEN = 0.5
"""Share of the exemplars that have a check, where a document checks."""
QUESTIONS, SAMPLES, WARM_STEPS, TRAINED = 192, 2, 200, 80
CONDITIONS = ((0, False), (1, False), (4, False), (1, True), (4, True))
"""Exemplars, and whether their document checks."""
NAMES = ("none", "1 concise", "4 concise", "1 checking", "4 checking")
FIGURES = ("pass@1", "length", "checks")


def solved(
    rng: np.random.Generator, code: np.ndarray, checked: np.ndarray, draft: np.ndarray, again: float
) -> np.ndarray:
    """[M, 3 STEPS + 1] tokens of worked solutions and their ends, -1 where there is no token.

    Args:
      rng: of the errors; a wrong code is always the next one of its place.
      code: [M, STEPS] right codes, from 0.
      checked: [M, STEPS] steps that are written again.
      draft: [M, STEPS] chance that a step is right when it is first written.
      again: the same after a check.
    """
    first = CODE + SYMBOLS * np.arange(STEPS)
    one, two = (
        first + (code + (rng.random(code.shape) >= skill)) % SYMBOLS for skill in (draft, again)
    )
    check = np.broadcast_to(CHECK + np.arange(STEPS), code.shape)
    parts = np.stack([one, np.where(checked, check, -1), np.where(checked, two, -1)], axis=2)
    return np.concatenate([parts.reshape(len(code), -1), np.full((len(code), 1), EOS)], axis=1)


def asked(content: np.ndarray) -> np.ndarray:
    """[M, STEPS + 1] tokens of questions."""
    said = FIRST + SYMBOLS * np.arange(STEPS) + content
    return np.concatenate([said, np.full((len(content), 1), ASK)], axis=1)


@functools.cache
def worked() -> Task:
    """Replace each symbol by its code, after up to `ROOM` worked examples.

    Domains are the places in `CONDITIONS`. RL trains on prompts without exemplars. Demonstrations
    check, but for those whose exemplars are of a concise document.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 31])
        table = np.stack([rng.permutation(SYMBOLS) for _ in range(STEPS)])
        skills = np.repeat(DRAFTS, SYMBOLS // 2)
        skill, places = np.stack([rng.permutation(skills) for _ in table]), np.arange(STEPS)

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, STEPS))

        def build(
            content: np.ndarray, shots: np.ndarray, checking: np.ndarray, gold: np.ndarray
        ) -> Problems:
            size = len(content)
            other = split.repeated(draw, size * ROOM)
            some = np.repeat(checking, ROOM) & (rng.random(len(other)) < SEEN)
            place = rng.integers(STEPS, size=(len(other), 1)) == places
            text = solved(rng, table[places, other], some[:, None] & place, np.ones(STEPS), 1.0)
            shown = np.concatenate([asked(other), text], axis=1).reshape(size, ROOM, -1)
            shown[np.arange(ROOM) < ROOM - shots[:, None]] = -1
            rows = np.concatenate([shown.reshape(size, -1), asked(content)], axis=1)
            order = np.argsort(rows >= 0, axis=1, kind="stable")[:, -PROMPT:]
            prompt = np.take_along_axis(rows, order, axis=1)
            said = np.pad(gold, ((0, 0), (0, BUDGET - gold.shape[1])), constant_values=-1)
            order = np.argsort(said < 0, axis=1, kind="stable")
            said = np.take_along_axis(said, order, axis=1)
            answer = CODE + SYMBOLS * places + table[places, content]
            domain = 2 * (shots > 1) + (shots == 1) + 2 * checking
            prompt, said = np.where(prompt < 0, FILLER, prompt), np.where(said < 0, PAD, said)
            return as_problems(prompt, answer, said, domain)

        def plain(content: np.ndarray, shots: np.ndarray, checking: np.ndarray) -> Problems:
            code = table[places, content]
            gold = solved(rng, code, code < 0, np.ones(STEPS), 1.0)
            return build(content, shots, checking, gold)

        none = np.zeros(QUESTIONS, int)
        train = plain(split.distinct(draw, len(none), held_out=False), none, none > 0)
        test = split.distinct(draw, QUESTIONS, held_out=True)
        each = np.repeat(CONDITIONS, QUESTIONS, axis=0)
        test = plain(np.tile(test, (len(CONDITIONS), 1)), each[:, 0], each[:, 1] > 0)
        content = split.repeated(draw, 8192)
        shots = rng.choice([0, 1, 4], len(content))
        checking = (shots > 0) & (rng.random(len(content)) < 0.5)
        often = (shots == 0) | checking
        checked = often[:, None] & (rng.random((len(content), STEPS)) < RATE)
        gold = solved(rng, table[places, content], checked, skill[places, content], AGAIN)
        return Splits(train, test, build(content, shots, checking, gold))

    return Task(CHECK + STEPS, make, reward)


def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
    """1 where the last code of each place is right and the completion has ended."""
    own = (completion - CODE) // SYMBOLS == jnp.arange(STEPS)[:, None]
    last = completion.shape[0] - 1 - jnp.argmax(own[:, ::-1], axis=1)
    right = jnp.all(completion[last] == answer) & jnp.any(completion == EOS)
    return right.astype(jnp.float32)


def run(seeds: tuple[int, ...], steps: int) -> dict[str, Any]:
    """`before` and `after` RL: figures [S, CONDITIONS] of some seeds, as lists."""
    task = worked().over(seeds)
    model = shape(task.vocabulary, task.prompt_length + task.budget)
    base = imitate(task, model, WARM_STEPS)

    def measured(params: Params, _: bool = True) -> dict[str, np.ndarray]:
        written, rewards = attempts(model, task, Arm(), params, samples=SAMPLES)
        tokens = written.tokens
        each = (rewards, (tokens != PAD).sum(axis=3), (tokens >= CHECK).sum(axis=3))
        means = [a.reshape(len(seeds), len(CONDITIONS), -1).mean(axis=2) for a in each]
        return dict(zip(FIGURES, means, strict=True))

    before = measured(base)
    after = train(task, model, base, Arm(steps=steps, prompts=8), measure=measured)
    return {
        "before": {k: before[k].tolist() for k in FIGURES},
        "after": {k: after[k][-1].tolist() for k in FIGURES},
    }


def report(found: dict[str, Any]) -> str:
    """The tables of README.md."""
    lines = ["| RL | exemplars | pass@1 | length | checks |", "|---" * 5 + "|"]
    arrays = {w: [np.array(figures[f]) for f in FIGURES] for w, figures in found.items()}
    for when, own in arrays.items():
        for name, *row in zip(NAMES, *(a.mean(axis=0) for a in own), strict=True):
            lines.append(f"| {when} | {name} | " + " | ".join(f"{x:.3f}" for x in row) + " |")
    lines += ["", "| RL | difference | pass@1 | length | checks |", "|---" * 5 + "|"]
    for when, own in arrays.items():
        for a, b in ((1, 0), (2, 0), (1, 2), (3, 0), (4, 0)):
            gaps = " | ".join(statistics.interval(x[:, a] - x[:, b]) for x in own)
            lines.append(f"| {when} | {NAMES[a]} less {NAMES[b]} | {gaps} |")
    pairs = list(zip(arrays["after"], arrays["before"], strict=True))
    for place, name in enumerate(NAMES):
        gaps = " | ".join(statistics.interval((a - b)[:, place]) for a, b in pairs)
        lines.append(f"| after less before | {name} | {gaps} |")
    lines += ["", "| share of the checks that exemplars cut | before | after | after less before |"]
    lines.append("|---" * 4 + "|")
    for place in (1, 2):
        cuts = [1 - own[-1][:, place] / own[-1][:, 0] for own in arrays.values()]
        gaps = " | ".join(statistics.interval(c) for c in (*cuts, cuts[1] - cuts[0]))
        lines.append(f"| {NAMES[place]} | {gaps} |")
    return "\n".join(lines)


if __name__ == "__main__":
    experiment.main(__doc__, run, report, seeds=6, steps=TRAINED)
