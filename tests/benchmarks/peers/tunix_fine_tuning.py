"""Tunix's PeftTrainer or DPOTrainer on a benchmark's rows: `python tunix_fine_tuning.py JOB`."""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import clock

JOB = clock.read_job()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import transformers  # noqa: E402
import tunix_model  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.rl import common  # noqa: E402
from tunix.sft import peft_trainer  # noqa: E402
from tunix.sft.dpo import dpo_trainer  # noqa: E402


def padded(
    rows: list[list[int]], *, left: bool = False, least: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [N, T] int32 and their mask, T the longest row's length, or at least so many."""
    longest = max(least, *map(len, rows))
    tokens, mask = (np.zeros((len(rows), longest), np.int32) for _ in range(2))
    for n, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(len(row))
        tokens[n, place], mask[n, place] = row, 1
    return tokens, mask


def batch(tokenizer: Any) -> Any:
    """The rows of a step, as the trainer takes them; an answer ends with EOS, as TRL has it."""
    rows = [json.loads(line) for line in Path(JOB["data"]).read_text().splitlines()]

    def ids(name: str) -> list[list[int]]:
        end = [] if name == "prompt" else [tokenizer.eos_token_id]
        return [tokenizer(row[name], add_special_tokens=False)["input_ids"] + end for row in rows]

    if JOB["recipe"] == "dpo":
        sides = {name: ids(name) for name in ("prompt", "chosen", "rejected")}
        answer = max(len(row) for name in ("chosen", "rejected") for row in sides[name])
        fields = {}
        for name, side in sides.items():
            prompt = name == "prompt"
            tokens, mask = padded(side, left=prompt, least=0 if prompt else answer)
            fields |= {f"{name}_ids": tokens, f"{name}_mask": mask}
        return dpo_trainer.TrainingInput(**fields)
    prompts, answers = ids("prompt"), ids("completion")
    tokens, _ = padded([[*p, *a] for p, a in zip(prompts, answers, strict=True)])
    taught, _ = padded([[0] * len(p) + [1] * len(a) for p, a in zip(prompts, answers, strict=True)])
    return peft_trainer.TrainingInput(input_tokens=tokens, input_mask=taught)


def inputs(given: peft_trainer.TrainingInput) -> dict[str, jax.Array]:
    """What the model reads; 0 pads."""
    real = given.input_tokens != 0
    return {
        "input_tokens": given.input_tokens,
        "input_mask": given.input_mask,
        "positions": common.build_positions_from_mask(real),
        "attention_mask": common.make_causal_attn_mask(real),
    }


def main() -> None:
    """Train, and write down what each step took."""
    mesh = tunix_model.mesh()
    tokenizer = transformers.AutoTokenizer.from_pretrained(JOB["model"])
    assert tokenizer.pad_token_id == 0, tokenizer.pad_token_id
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(JOB["learning_rate"], b2=0.95, weight_decay=0.0),
    )
    settings = {"eval_every_n_steps": 10**6, "max_steps": JOB["steps"]}
    model = tunix_model.load(JOB["model"], mesh)
    if JOB["recipe"] == "dpo":
        config = dpo_trainer.DPOTrainingConfig(**settings, beta=0.1)
        reference = tunix_model.load(JOB["model"], mesh)
        trainer = dpo_trainer.DPOTrainer(model, reference, optimizer, config)
    else:
        config = peft_trainer.TrainingConfig(**settings)
        trainer = peft_trainer.PeftTrainer(model, optimizer, config)
        trainer = trainer.with_gen_model_input_fn(inputs)
    steps: list[dict[str, float]] = []
    first: list[float] = []
    square, multiply = jnp.ones((2048, 2048)), jax.jit(lambda a: a @ a)
    rate = clock.best_rate(lambda: multiply(square).block_until_ready(), 2 * 2048**3)
    marks = [time.perf_counter()]

    def settled(loss: jax.Array) -> None:
        jax.block_until_ready(nnx.state(trainer.model))
        marks.append(time.perf_counter())
        first.append(time.time() - JOB["started"])
        steps.append({"step": marks[-1] - marks[-2], "loss": float(loss)})
        version = f"tunix {importlib.metadata.version('google-tunix')}, jax {jax.__version__}"
        clock.report(JOB, steps, first_step=first[0], matmul=rate, version=version)

    trainer._throttler.add_computation = settled
    with mesh:
        trainer.train([batch(tokenizer)] * JOB["steps"])


if __name__ == "__main__":
    main()
