"""Merges of three policies that RL has trained on different domains, see PLAN.md in this folder.

PYTHONPATH=. python experiments/runs/merging/experiment.py RESULTS.json
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.lab import Arm, Task, cipher, experiment, held_out, imitate, statistics
from experiments.lab.policy import shape
from experiments.lab.train import train
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.models import merge
from jaxrl.models.config import DecoderConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Params

DOMAINS, RATE, WARM_STEPS = 3, 1e-3, 150
CHANGED = 10 * RATE
"""Greatest move of an entry that does not count as changed."""
SFT = {
    "objective": ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    "guidance": GuidanceConfig("expert_rows"),
}
MERGES: dict[str, Callable[[Any, list], Any]] = {
    "mean": lambda base, models: merge.mean(models),
    "task arithmetic": merge.task_arithmetic,
    "TIES": merge.ties,
    "RAM": functools.partial(merge.ram, threshold=CHANGED),
    "RAM+": functools.partial(merge.ram, threshold=CHANGED, scale=1.2),
    "RAM, 1e-5": functools.partial(merge.ram, threshold=1e-5),
}
Found = dict[str, Any]
"""`pass@1` by arm, and `small` and `unchanged` by method; lists over seeds, of a list by domain."""


def domains() -> Task:
    """A cipher of three domains without a common symbol."""
    own = [tuple(3 * (d == k) for k in range(DOMAINS)) for d in range(DOMAINS)]
    return cipher(((12, 0.6),) * DOMAINS, tuple((counts, 1.0) for counts in own))


def trained(
    task: Task, model: DecoderConfig, base: Params, domain: int, steps: int, **fields: Any
) -> Params:
    """Policies [S, ...] that were trained on one domain."""
    weights = tuple(float(d == domain) for d in range(DOMAINS))
    arm = Arm(steps=steps, weights=weights, learning_rate=RATE, **fields)
    last: list[Params] = []

    def keep(params: Params, _: bool) -> dict[str, np.ndarray]:
        last.append(params)
        return {}

    train(task, model, base, arm, measure=keep)
    return jax.device_get(last[-1])


def of_seeds(
    merged: Callable[[Any, list], Any], base: Params, policies: list[Params], seeds: int
) -> Params:
    """A merge of each seed's policies; leaves [S, ...]."""
    made = [merged(*jax.tree.map(lambda a, s=s: a[s], (base, policies))) for s in range(seeds)]
    return jax.tree.map(lambda *a: np.stack(a), *made)


def moved(base: Params, policies: list[Params]) -> dict[str, list[list[float]]]:
    """Shares of the entries that moved by `CHANGED` at most, and that are equal in bfloat16."""
    figures: dict[str, list[list[float]]] = {"small": [], "unchanged": []}
    rounded = functools.partial(np.asarray, dtype=jax.numpy.bfloat16)
    for seed in range(len(jax.tree.leaves(base)[0])):
        flat = [
            np.concatenate([leaf[seed].ravel() for leaf in jax.tree.leaves(p)])
            for p in (base, *policies)
        ]
        first, others = flat[0], flat[1:]
        figures["small"].append([float(np.mean(np.abs(x - first) <= CHANGED)) for x in others])
        figures["unchanged"].append([float(np.mean(rounded(x) == rounded(first))) for x in others])
    return figures


def block(seeds: tuple[int, ...], steps: int) -> Found:
    """Figures of some seeds."""
    task = domains().over(seeds)
    model = shape(task.vocabulary, task.prompt_length + task.budget)
    base = imitate(task, model, min(WARM_STEPS, steps * 100))
    policies = [trained(task, model, base, d, steps) for d in range(DOMAINS)]
    readers = [trained(task, model, base, d, steps, **SFT) for d in range(DOMAINS)]
    first = jax.device_get(base)

    def passed(params: Params) -> list[list[float]]:
        figures = held_out(model, task, Arm(), params, base)
        return np.stack([figures[f"pass@1/{d}"] for d in range(DOMAINS)], axis=1).tolist()

    arms = {"base": passed(base)}
    arms |= {f"trained on {d}": passed(p) for d, p in enumerate(policies)}
    for name, merged in MERGES.items():
        arms[name] = passed(of_seeds(merged, first, policies, len(seeds)))
    return {"pass@1": arms, "RL": moved(first, policies), "SFT": moved(first, readers)}


def run(seeds: tuple[int, ...], steps: int) -> Found:
    """Figures of all seeds."""
    return experiment.in_blocks(block, seeds, steps)


def report(found: Found) -> str:
    """The tables of README.md."""
    passed = {name: np.array(values) for name, values in found["pass@1"].items()}
    lines = ["| policy | domain 0 | domain 1 | domain 2 | mean |", "|---|---|---|---|---|"]
    for name, values in passed.items():
        means = [*values.mean(axis=0), values.mean()]
        lines.append(f"| {name} | " + " | ".join(f"{x:.3f}" for x in means) + " |")
    mean = {name: values.mean(axis=1) for name, values in passed.items()}
    own = np.stack([passed[f"trained on {d}"][:, d] for d in range(DOMAINS)], axis=1)
    lines += ["", "| difference of the mean | |", "|---|---|"]
    pairs = [("RAM", "mean"), ("RAM", "task arithmetic"), ("RAM", "TIES"), ("RAM+", "RAM")]
    lines += [f"| {a} less {b} | {statistics.interval(mean[a] - mean[b])} |" for a, b in pairs]
    lines.append(
        f"| RAM less each domain's own | {statistics.interval(mean['RAM'] - own.mean(axis=1))} |"
    )
    small = {k: np.array(found[k]["small"]).mean(axis=1) for k in ("RL", "SFT")}
    moved = statistics.interval(small["RL"] - small["SFT"])
    lines.append(f"| share moved by 1e-2 at most, RL less SFT | {moved} |")
    lines += ["", "| changes | moved by 1e-2 at most | equal in bfloat16 |", "|---|---|---|"]
    for kind in ("RL", "SFT"):
        means = [np.mean(found[kind][name]) for name in ("small", "unchanged")]
        lines.append(f"| {kind} | " + " | ".join(f"{x:.3f}" for x in means) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    experiment.main(__doc__, run, report, seeds=12, steps=60)
