"""TRL's GRPOTrainer on a benchmark's workload: `python trl_grpo.py JOB`, with TRL installed."""

from __future__ import annotations

import time
from typing import Any

import clock

JOB = clock.read_job()

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402


class Schedule(transformers.LogitsProcessor):
    """Each row ends, by EOS, exactly where the schedule says."""

    def __init__(self, prompt_width: int, eos: int) -> None:
        """Remember where completions start."""
        self.width, self.eos = prompt_width, eos
        self.lengths = torch.tensor(JOB["lengths"])

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [B, V] of the next token."""
        due = input_ids.shape[1] - self.width + 1 >= self.lengths
        scores[:, self.eos] = -torch.inf
        scores[due] = -torch.inf
        scores[due, self.eos] = 0.0
        return scores


def main() -> None:
    """Train, and write down what each step took."""
    torch.set_num_threads(JOB["threads"])
    rows = len(JOB["lengths"])
    config = trl.GRPOConfig(
        output_dir=JOB["run_dir"],
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=rows,
        num_generations=JOB["group_size"],
        max_completion_length=max(JOB["lengths"]),
        max_steps=JOB["steps"],
        learning_rate=1e-6,
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **JOB["options"],
    )
    rewards = lambda completions, **_: [len(text) % 7 / 7 for text in completions]  # noqa: E731
    steps: list[dict[str, float]] = []
    seconds: dict[str, float] = {}
    marks: list[float] = []

    class Marks(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())
            if not steps:
                first.append(time.time() - JOB["started"])
            whole = marks[-1] - marks[-2]
            steps.append({**seconds, "step": whole, "train": whole - sum(seconds.values())})
            seconds.clear()
            version = f"trl {trl.__version__}, torch {torch.__version__}"
            clock.report(JOB, steps, first_step=first[0], matmul=rate, version=version)

    first: list[float] = []
    trainer = trl.GRPOTrainer(
        model=JOB["model"],
        reward_funcs=rewards,
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": p} for p in JOB["prompts"]]),
        callbacks=[Marks()],
    )
    generate = trainer.model.generate
    lengths: list[list[int]] = []

    def scheduled(**inputs: Any) -> torch.Tensor:
        width = inputs["input_ids"].shape[1]
        made = Schedule(width, trainer.processing_class.eos_token_id)
        out = generate(**inputs, logits_processor=transformers.LogitsProcessorList([made]))
        lengths.append((out[:, width:] == made.eos).int().argmax(1).add(1).tolist())
        return out

    trainer.model.generate = scheduled
    clock.timed(trainer, "_generate", "sample", seconds)
    clock.timed(trainer, "_calculate_rewards", "score", seconds)
    square = torch.ones(2048, 2048)
    rate = clock.best_rate(lambda: square @ square, 2 * 2048**3)
    trainer.train()
    assert lengths[0] == JOB["lengths"], lengths[0]


if __name__ == "__main__":
    main()
