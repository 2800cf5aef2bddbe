"""transformers on the workloads of `tests.benchmarks.sampler`: static batches, or continuous ones.

A Llama of the same shape with random weights, fp32, scaled-dot-product attention, as many threads
as there are cores.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from timing import timed

Work = list[tuple[list[int], int]]
"""Prompts and response lengths."""


def llama(shape: dict[str, Any]) -> transformers.LlamaForCausalLM:
    """A model of our decoder's shape."""
    config = transformers.LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        head_dim=shape["head_dim"],
        max_position_embeddings=shape["max_positions"],
        tie_word_embeddings=shape["tie_embeddings"],
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    ).eval()


class Schedule(transformers.StoppingCriteria):
    """Ends each row at its scheduled length."""

    def __init__(self, ends: torch.Tensor) -> None:
        """`ends` [B], prompt included."""
        self.ends = ends

    def __call__(self, ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        """Which rows have ended."""
        return ids.shape[1] >= self.ends


def static(model: transformers.PreTrainedModel, work: Work, batch: int, cache: str | None) -> int:
    """`generate`, a batch at a time, rows padded on the left."""
    for first in range(0, len(work), batch):
        part = work[first : first + batch]
        width = max(len(prompt) for prompt, _ in part)
        ids = torch.zeros(len(part), width, dtype=torch.long)
        for row, (prompt, _) in enumerate(part):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
        ends = width + torch.tensor([n for _, n in part])
        model.generate(
            ids,
            attention_mask=(ids != 0).long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=int(ends.max()) - width,
            cache_implementation=cache,
            stopping_criteria=transformers.StoppingCriteriaList([Schedule(ends)]),
        )
    return sum(n for _, n in work)


def continuous(model: transformers.PreTrainedModel, work: Work, batch: int) -> int:
    """The continuous batching manager, with room for all of `batch` sequences."""
    longest = max(len(prompt) + n for prompt, n in work)
    page = 32
    settings = transformers.ContinuousBatchingConfig(
        page_size=page,
        num_blocks=batch * (longest // page + 2),
        max_batch_tokens=512,
        max_requests_per_batch=batch,
        allow_block_sharing=False,
    )
    generation = transformers.GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1)
    lengths = {str(i): n for i, (_, n) in enumerate(work)}
    total = 0
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=settings, block=True
    ) as manager:
        for i, (prompt, n) in enumerate(work):
            manager.add_request(prompt, request_id=str(i), max_new_tokens=n)
        ended = 0
        while ended < len(work):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("the manager's thread has ended before its requests")
            elif result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                assert len(result.generated_tokens) == lengths[result.request_id]
                ended += 1
                total += len(result.generated_tokens)
    return total


@torch.no_grad()
def main() -> None:
    """Time one system on every workload."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("asked", type=Path)
    parser.add_argument("batch", type=int)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    asked = json.loads(arguments.asked.read_text())
    model = llama(asked["model"])
    for kind, work in asked["work"].items():

        def run(work: Work = work) -> int:
            if arguments.system == "transformers-continuous":
                return continuous(model, work, arguments.batch)
            cache = "static" if arguments.system == "transformers-static-cache" else None
            return static(model, work, arguments.batch, cache)

        def warm_up(run: Any = run, work: Work = work) -> None:
            run([(prompt, min(n, 4)) for prompt, n in work[: arguments.batch]])

        timed(kind, warm_up, run, arguments.repeats, arguments.seconds)


if __name__ == "__main__":
    main()
