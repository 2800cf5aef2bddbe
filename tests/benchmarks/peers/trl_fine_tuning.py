"""TRL's SFTTrainer or DPOTrainer on a benchmark's rows: `python trl_fine_tuning.py JOB`."""

from __future__ import annotations

import time
from typing import Any

import clock

JOB = clock.read_job()

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402


def main() -> None:
    """Train, and write down what each step took."""
    torch.set_num_threads(JOB["threads"])
    trainer_class, settings = {
        "sft": (trl.SFTTrainer, trl.SFTConfig),
        "dpo": (trl.DPOTrainer, trl.DPOConfig),
    }[JOB["recipe"]]
    config = settings(
        output_dir=JOB["run_dir"],
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=JOB["rows"],
        max_steps=JOB["steps"],
        learning_rate=JOB["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_length=1024,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **JOB["options"],
    )
    steps: list[dict[str, float]] = []
    marks: list[float] = []
    first: list[float] = []

    class Marks(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())
            first.append(time.time() - JOB["started"])

        def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, float], **___: Any) -> None:
            if "loss" not in logs:
                return
            steps.append({"step": marks[-1] - marks[-2], "loss": logs["loss"]})
            version = f"trl {trl.__version__}, torch {torch.__version__}"
            clock.report(JOB, steps, first_step=first[0], matmul=rate, version=version)

    square = torch.ones(2048, 2048)
    rate = clock.best_rate(lambda: square @ square, 2 * 2048**3)
    trainer = trainer_class(
        model=JOB["model"],
        args=config,
        train_dataset=datasets.load_dataset("json", data_files=JOB["data"], split="train"),
        callbacks=[Marks()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
