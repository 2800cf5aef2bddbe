"""Small models and scored batches, shared by the tests of the core."""

from __future__ import annotations

import numpy as np

from jaxrl.models.config import DecoderConfig
from jaxrl.training.packing import trajectory
from jaxrl.types import Completion, Request, Trajectory

MODEL = DecoderConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    tie_embeddings=False,
)


def batch(
    seed: int = 0,
    groups: int = 4,
    size: int = 4,
    longest: int = 9,
    failed: tuple[int, ...] = (),
    length: int = 24,
) -> Trajectory:
    """Groups of completions of random lengths, stale log-probabilities and 0/1 rewards.

    The last group has equal rewards; sequences `failed` have none.
    """
    rng = np.random.default_rng(seed)
    completions, rewards, ids = [], [], []
    for g in range(groups):
        prompt = tuple(rng.integers(1, 32, rng.integers(2, 8)).tolist())
        for i in range(size):
            tokens = rng.integers(1, 32, rng.integers(1, longest + 1)).astype(np.int32)
            logp = rng.normal(-3.4, 0.1, len(tokens)).astype(np.float32)
            version = np.zeros(len(tokens), np.int32)
            completions.append(
                Completion(Request(0, prompt, longest), tokens, logp, -logp, version, True)
            )
            rewards.append(1.0 if g == groups - 1 else float(rng.random() + i % 2))
            ids.append(g)
    scores = [None if n in failed else r for n, r in enumerate(rewards)]
    return trajectory(completions, scores, ids, length=length)
