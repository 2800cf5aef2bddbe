"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.chains import walk
from jaxrl.launch import recipes
from jaxrl.training.tries import WHOLE, Chunks


def effect() -> Effect:
    """Chunks against whole contexts, on problems that take longer than any of training."""
    chunks = Chunks(size=6, carry=2)
    method = arm(
        recipes.load("delethink"),
        sizes={"chunks.size": 6, "chunks.carry": 2},
        steps=80,
        max_new_tokens=10,
    )
    whole = walk(chunks, whole=True)
    return Effect(
        claim="thinking in chunks goes on where training stopped",
        task=walk(chunks),
        method=method,
        ablation=dataclasses.replace(method, chunks=WHOLE),
        warm_steps=500,
    ).also("whole demonstrations", task=whole)
