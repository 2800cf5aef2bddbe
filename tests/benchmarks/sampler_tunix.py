"""Tunix's sampler on the workloads of `tests.benchmarks.sampler`, in an environment of its own.

A Llama of the same shape with random weights, fp32. A batch at a time, compiled once for the
workload's longest response; EOS is sampled where a response is scheduled to end and nowhere else,
and a batch ends with its longest row.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from timing import timed
from tunix.generate import sampler
from tunix.models.llama3 import model as llama3

Work = list[tuple[list[int], int]]
"""Prompts and response lengths."""
EOS = 1


class Scheduled(sampler.Sampler):
    """Tunix's sampler, whose rows end at `lengths` [B], set before a call."""

    lengths: jax.Array

    def init_sample_state(self, *args: Any, **kwargs: Any) -> Any:
        """The lengths ride beside the random seed, which every step passes on."""
        state = super().init_sample_state(*args, **kwargs)
        return dataclasses.replace(state, seed=(state.seed, self.lengths))

    def _sample(self, logits: jax.Array, eos: jax.Array, cache: Any, sampler_state: Any) -> Any:
        seed, lengths = sampler_state.seed
        made = sampler_state.decoding_step + 2 - sampler_state.num_input_tokens
        forced = jnp.where(made >= lengths, 1e9, -1e9)[:, None, None]
        logits = logits[:, -1:].at[:, :, eos].set(forced)
        plain = dataclasses.replace(sampler_state, seed=seed)
        state = super()._sample(logits, eos, cache, plain)
        return dataclasses.replace(state, seed=(seed, lengths))


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
        """Where a response is scheduled to end."""
        return EOS

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
        width, longest = max(len(prompt) for prompt, _ in work), max(n for _, n in work)
        cache = sampler.CacheConfig(
            cache_size=width + longest,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        engine = Scheduled(model, Ids(), cache)

        def run(
            work: Work = work,
            width: int = width,
            longest: int = longest,
            engine: Scheduled = engine,
        ) -> int:
            made = 0
            for first in range(0, len(work), batch):
                part = work[first : first + batch]
                engine.lengths = jnp.array([n for _, n in part])
                out = engine(
                    [" ".join(map(str, prompt)) for prompt, _ in part],
                    max_generation_steps=longest,
                    max_prompt_length=width,
                    temperature=1.0,
                    top_p=1.0,
                    eos_tokens=[EOS],
                    seed=0,
                )
                made += sum(len(tokens) + 1 for tokens in out.tokens)  # and EOS
            assert made == sum(n for _, n in work), made
            return made

        def warm_up(run: Any = run, work: Work = work) -> None:
            run([(prompt, min(n, 4)) for prompt, n in work[:batch]])

        timed(kind, warm_up, run, arguments.repeats, arguments.seconds)


if __name__ == "__main__":
    main()
