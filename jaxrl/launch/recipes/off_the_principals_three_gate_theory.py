"""Three-gate theory, its diagnostics: what RL and supervised fine-tuning change in the weights.

Paper: Zhu et al. 2025, "The Path Not Taken: RLVR Provably Learns Off the Principals"
Idea: RL keeps close to its policy, so its updates avoid the directions in which the weights are
strongest: spectra hardly move, leading subspaces do not turn, and many weights stay the same when
rounded to bfloat16. Supervised fine-tuning goes for those very directions.
Formula: spectral shift `|sigma(W) - sigma(W_0)| / |sigma(W_0)|`; the largest angle between leading
singular subspaces; the share of weights equal in bfloat16
Claim: RL moves spectra less than supervised fine-tuning does, over runs, data and recipes.
Reading: `config()` is GRPO with a solution beside each group that it does not learn from, so that
both arms see the same batches. The ablation imitates the solutions. The spectral shift is the mean
over matrices, read beside the accuracy. Updates restricted to weak weights, and low-rank adapters,
which the paper studies too, are left out. `jaxrl weights BEFORE AFTER` gives these figures of runs.
"""

import dataclasses

import jax
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, cipher, held_out
from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.recipes import quickstart
from jaxrl.models import changes
from jaxrl.models.config import DecoderConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Params


def config() -> Config:
    """The quickstart's GRPO, beside solutions that it leaves aside."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="off_the_principals_three_gate_theory",
        extensions={"guidance": GuidanceConfig("expert_rows")},
        objective=ObjectiveConfig(advantage="sampled_advantages"),
    )


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
    method = arm(config(), steps=60)
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
