"""Cloning against online inverse RL by horizon, and PPO against Q-learning, see PLAN.md.

PYTHONPATH=. python experiments/runs/compounding/experiment.py RESULTS.json [SEED ...]
"""

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import road

from experiments.lab.statistics import interval

SEEDS = range(12)
HORIZONS, MIDDLE = (8, 16, 32, 64), 32
FEW = 128
"""Steps of demonstrations in all, whatever the horizon."""
RATE, ENTROPY = 3e-3, 0.01
"""Of PPO in inverse RL."""
BONUSES = (0.01, 0.1)
EXPLORATION = {"PPO": BONUSES, "PPO from the clone": BONUSES, "Q-learning": (0.1, 0.05)}
"""Weights of the entropy, and last values of epsilon."""
SETTINGS = [(rate, i) for rate in (1e-3, 3e-3, 1e-2) for i in range(2)]
"""Learning rates and exploration."""
LAST = 50
"""The iterations that count as last."""
WORLDS = {"": (FEW, True), ", no way back": (FEW, False), ", 512 steps shown": (road.MANY, True)}
Found = dict[str, Any]


def begun(key: jax.Array, steps: Any) -> tuple[jax.Array, ...]:
    """Right actions, shares of the demonstrations and a clone, of one seed."""
    keys = jax.random.split(key, 3)
    right = road.world(keys[0])
    expert = road.demonstrated(keys[1], right, steps)
    return right, expert, road.clone(road.net(keys[2], road.ACTIONS), expert)


def hits(probs: jax.Array, right: jax.Array) -> jax.Array:
    """Probability [2] of the right action, a mean over symbols: on the road and off it."""
    each = jnp.take_along_axis(probs, right[:, None], 1)[:, 0]
    return jnp.stack([each[: road.SYMBOLS].mean(), each[road.SYMBOLS :].mean()])


@functools.partial(jax.jit, static_argnames="horizon")
def imitated(seeds: jax.Array, steps: Any, back: Any, horizon: int) -> Found:
    """The clone's figures and those of inverse RL that begins with it, one a seed."""

    def one(seed: jax.Array) -> Found:
        key, learn = jax.random.split(jax.random.key(seed))
        right, expert, policy = begun(key, steps)
        way, logits = road.Road(right, back, horizon), road.table(policy)
        probs, curve = road.ppo(learn, policy, way, expert, None, RATE, ENTROPY)
        return {
            "clone": road.curve(logits, way)[0],
            "clone hits": hits(jax.nn.softmax(logits), right),
            "inverse RL": curve[0, -1],
            "inverse RL hits": hits(probs, right),
        }

    return jax.vmap(one)(seeds)


@jax.jit
def compared(seeds: jax.Array) -> Found:
    """Curves [S, settings, 2, I] of PPO and Q-learning from scratch on one frozen reward."""

    def one(seed: jax.Array) -> Found:
        key, *learn = jax.random.split(jax.random.key(seed), 5)
        right, expert, policy = begun(key, FEW)
        way = road.Road(right, True, MIDDLE)
        uniform = jnp.full((road.STATES, road.ACTIONS), 1 / road.ACTIONS)
        own = jnp.zeros_like(uniform)
        for k, probs in zip(learn[:2], (uniform, jax.nn.softmax(road.table(policy))), strict=True):
            states, actions = road.play(k, probs, way)
            own += road.shares(states[:, :-1], actions) / 2
        logits = jnp.zeros_like(uniform)
        logits, _ = road.discriminate(logits, road.ADAM.init(logits), expert, own, 500)
        reward = jnp.tanh(logits / 2)
        fresh = road.net(learn[2], road.ACTIONS)

        rates, which = (jnp.array(x) for x in zip(*SETTINGS, strict=True))
        weights, floors = (jnp.array(x)[which] for x in (BONUSES, EXPLORATION["Q-learning"]))

        def from_policy(start: road.Net, rate: jax.Array, weight: jax.Array) -> jax.Array:
            return road.ppo(learn[3], start, way, expert, reward, rate, weight)[1]

        def values(rate: jax.Array, floor: jax.Array) -> jax.Array:
            return road.q_learning(learn[3], way, reward, rate, floor)

        return {
            "PPO": jax.vmap(from_policy, (None, 0, 0))(fresh, rates, weights),
            "PPO from the clone": jax.vmap(from_policy, (None, 0, 0))(policy, rates, weights),
            "Q-learning": jax.vmap(values)(rates, floors),
        }

    return jax.vmap(one)(seeds)


def run(seeds: list[int]) -> Found:
    """Everything, as lists with the seeds first."""
    at = jnp.asarray(seeds)
    found: Found = {"seeds": seeds, "imitated": {}}
    for horizon in HORIZONS:
        for name, given in WORLDS.items():
            if not name or horizon == HORIZONS[-1]:
                found["imitated"][f"{horizon}{name}"] = imitated(at, *given, horizon)
    found["compared"] = {k: steadiness(np.asarray(v)) for k, v in compared(at).items()}
    return jax.tree.map(
        lambda a: np.round(np.asarray(a, float), 4).tolist() if hasattr(a, "shape") else a, found
    )


def steadiness(curves: np.ndarray) -> Found:
    """Figures [S, settings] of curves [S, settings, 2, I], and greedy returns."""
    greedy = curves[:, :, 1]
    last = greedy[..., -LAST:]
    return {
        "final": greedy[..., -1],
        "last": last.mean(-1),
        "unsteady": last.std(-1),
        "worst": last.min(-1),
        "curve": greedy[..., ::10],
    }


def arrays(found: Found, names: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """The figures of some rows, in order."""
    return {k: {n: np.array(v) for n, v in found[k].items()} for k in names}


def horizons(found: Found) -> list[str]:
    """The table of clones and inverse RL, and the differences."""
    learners = ("clone", "inverse RL")
    names = [str(h) for h in HORIZONS] + [f"{HORIZONS[-1]}{name}" for name in WORLDS if name]
    rows = arrays(found["imitated"], names)
    lines = ["| horizon | learner | off the road | regret | right on the road | right off it |"]
    lines.append("|---" * 6 + "|")
    for name, row in rows.items():
        for k in learners:
            lost, right = 1 - row[k].mean(), row[f"{k} hits"].mean(0)
            cells = f"{lost:.3f} | {int(name.split(',')[0]) * lost:.2f} | "
            lines.append(f"| {name} | {k} | {cells}{right[0]:.3f} | {right[1]:.3f} |")
    short, long = rows[names[0]], rows[str(HORIZONS[-1])]
    growth = [short[k] - long[k] for k in learners]
    gaps = {f"off the road, 64 less 8, {k}": g for k, g in zip(learners, growth, strict=True)}
    gaps["the clone's less that of inverse RL"] = growth[0] - growth[1]
    gaps |= {f"on the road, {k}: inverse RL less clone": r[learners[1]] - r[learners[0]]
             for k, r in rows.items()}  # fmt: skip
    return lines + differences(gaps)


def algorithms(found: Found) -> list[str]:
    """The table of PPO and Q-learning, and the differences."""
    rows = arrays(found["compared"], list(EXPLORATION))
    lines = ["| | rate | exploration | final | SD over seeds | last 50: mean | SD | least |"]
    lines.append("|---" * 8 + "|")
    for name, row in rows.items():
        for i, (rate, which) in enumerate(SETTINGS):
            cells = [row["final"][:, i].mean(), row["final"][:, i].std(ddof=1)]
            cells += [row[k][:, i].mean() for k in ("last", "unsteady", "worst")]
            shown = " | ".join(f"{x:.3f}" for x in cells)
            lines.append(f"| {name} | {rate} | {EXPLORATION[name][which]} | {shown} |")
    *ours, other = rows.items()
    gaps = {}
    for name, one in ours:
        for k in ("final", "last", "unsteady", "worst"):
            gaps[f"{name} less {other[0]}: {k}"] = (one[k] - other[1][k]).mean(1)
        spread = np.ptp(one["final"], 1) - np.ptp(other[1]["final"], 1)
        gaps[f"{name} less {other[0]}: spread of final over the settings"] = spread
    return lines + differences(gaps)


def differences(gaps: dict[str, np.ndarray]) -> list[str]:
    """A table of paired differences, with 95% t intervals."""
    return [
        "",
        "| difference | |",
        "|---|---|",
        *(f"| {k} | {interval(v)} |" for k, v in gaps.items()),
        "",
    ]


def report(found: Found) -> str:
    """The tables of README.md."""
    return "\n".join(horizons(found) + algorithms(found))


def main() -> None:
    """Measure, unless the results are there, and print the tables."""
    path, began = Path(sys.argv[1]), time.process_time()
    if not path.exists():
        found = run([int(x) for x in sys.argv[2:]] or list(SEEDS))
        path.write_text(json.dumps(found, indent=1))
        print(f"{(time.process_time() - began) / 60:.1f} minutes of processor time")
    print(report(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
