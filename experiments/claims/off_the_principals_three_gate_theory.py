"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, cipher, held_out
from jaxrl.launch import recipes
from jaxrl.models import changes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params


def drift(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`spectral_shift`, `angle` in degrees and `unchanged`, means over matrices, and `pass@1`; [S].

    `unchanged` is the share of all entries that are equal in bfloat16.
    """
    before, after = jax.device_get((start, params))
    figures = {"spectral_shift": [], "angle": [], "unchanged": []}
    for seed in range(len(jax.tree.leaves(after)[0])):
        pair = (jax.tree.map(lambda a, s=seed: a[s], side) for side in (before, after))
        found = changes.changes(model, *pair)
        for name in ("spectral_shift", "angle"):
            values = [getattr(change, name) for change in found]
            figures[name].append(np.mean([v for v in values if v is not None]))
        sizes = [change.size for change in found]
        figures["unchanged"].append(np.average([c.unchanged for c in found], weights=sizes))
    passed = held_out(model, task, arm, params, start, samples=samples)["pass@1"]
    return {name: np.array(values) for name, values in figures.items()} | {"pass@1": passed}


def effect() -> Effect:
    """GRPO against imitation on the same prompts."""
    method = arm(recipes.load("three_gate_theory"), steps=60)
    imitating = dataclasses.replace(method.objective, policy="chord", policy_args={"mu": 1.0})
    return Effect(
        claim="at no lower accuracy, RL moves the spectra of the weights less than imitation",
        task=cipher(((12, 0.8), (6, 0.3)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=imitating),
        statistic="spectral_shift",
        better="lower",
        minimum=0.01,
        measure=drift,
        portable=True,
    )
