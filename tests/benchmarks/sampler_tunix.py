"""Tunix's sampler on the workloads of `tests.benchmarks.sampler`, in an environment of its own.

A Llama of the same shape with random weights, fp32. A batch at a time; the number of steps is the
longest scheduled response of the batch, compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax
from flax import nnx
from timing import timed
from tunix.generate import sampler
from tunix.models.llama3 import model as llama3

Work = list[tuple[list[int], int]]
"""Prompts and response lengths."""


class Ids:
    """A tokenizer whose text is ids."""

    def encode(self, text: str, **_: object) -> list[int]:
        """Ids of "1 2 3"."""
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int], **_: object) -> str:
        """The reverse."""
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        """None: 0 adds no token."""
        return 0

    def eos_id(self) -> int:
        """None: lengths are scheduled."""
        return -1

    def pad_id(self) -> int:
        """Prompts have no 0."""
        return 0


def main() -> None:
    """Time every workload."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("asked", type=Path)
    parser.add_argument("batch", type=int)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    asked = json.loads(arguments.asked.read_text())
    shape, batch = asked["model"], arguments.batch
    config = llama3.ModelConfig(
        num_layers=shape["num_layers"],
        vocab_size=shape["vocab_size"],
        embed_dim=shape["hidden_size"],
        hidden_dim=shape["intermediate_size"],
        num_heads=shape["num_heads"],
        head_dim=shape["head_dim"],
        num_kv_heads=shape["num_kv_heads"],
        rope_theta=int(shape["rope_theta"]),
        norm_eps=shape["norm_eps"],
        weight_tying=shape["tie_embeddings"],
    )
    model = llama3.Llama3(config, rngs=nnx.Rngs(0))
    assert {str(a.dtype) for a in jax.tree.leaves(nnx.state(model, nnx.Param))} == {"float32"}
    for kind, work in asked["work"].items():
        width = max(len(prompt) for prompt, _ in work)
        cache = sampler.CacheConfig(
            cache_size=width + max(n for _, n in work),
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        engine = sampler.Sampler(model, Ids(), cache)

        def run(work: Work = work, width: int = width, engine: sampler.Sampler = engine) -> int:
            for first in range(0, len(work), batch):
                part = work[first : first + batch]
                engine(
                    [" ".join(map(str, prompt)) for prompt, _ in part],
                    max_generation_steps=max(n for _, n in part),
                    max_prompt_length=width,
                    temperature=1.0,
                    top_p=1.0,
                    eos_tokens=[-1],
                    seed=0,
                )
            return sum(n for _, n in work)

        timed(kind, run, run, arguments.repeats, arguments.seconds)


if __name__ == "__main__":
    main()
