"""The same GRPO step by TRL, or by plain torch and transformers where TRL is not there."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from tests.accelerator import grpo, models
from tests.accelerator.settings import Report, Settings, remaining

STEPS = 3


def measure(settings: Settings, report: Report) -> None:
    """TRL with weights as ours (fp32, computed in bf16), then wholly in bf16; or plain torch."""
    missing = [n for n in ("torch", "transformers") if importlib.util.find_spec(n) is None]
    if missing:
        report.skip("peer", f"{' and '.join(missing)} not installed")
        return
    folder = models.make(settings.work, "qwen3-0.6b", rehearse=settings.rehearse)
    if importlib.util.find_spec("trl") is None:
        report.skip("trl", "not installed; plain torch takes its place")
        with report.attempt("torch"):
            report.add("torch", plain(folder, settings))
        with report.attempt("generate"):
            report.add("generate", generation(folder, settings))
        return
    variants: dict[str, dict[str, Any]] = {
        "trl": {},
        "trl, no checkpointing": {"gradient_checkpointing": False},
        "trl, weights in bf16": {"model_init_kwargs": {"dtype": "bfloat16"}},
    }
    for name, options in variants.items():
        if remaining() < 20 or (settings.rehearse and name != "trl"):
            report.skip(name, settings.sized("the limit of this part is near", "rehearsal"))
            continue
        with report.attempt(name):
            report.add(name, trl_step(folder, settings, options))
        if name == "trl":
            with report.attempt("generate"):
                report.add("generate", generation(folder, settings))


def workload(settings: Settings) -> tuple[int, int, int, int]:
    """Tokens of prompt and completion, prompts, and completions of each, as `grpo` has them."""
    return settings.sized((grpo.PROMPT, grpo.NEW, grpo.PROMPTS, grpo.GROUP), grpo.SMALL)


def trl_step(folder: Path, settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """`GRPOTrainer` on random prompts; every completion has the full length."""
    import datasets
    import torch
    import transformers
    import trl

    prompt, new, prompts, group = workload(settings)
    cuda = torch.cuda.is_available()
    given = {
        "output_dir": str(settings.work / "trl"),
        "num_generations": group,
        "max_completion_length": new,
        "max_steps": STEPS,
        "learning_rate": 1e-6,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "bf16": cuda,
        "use_cpu": not cuda,
        "model_init_kwargs": {"dtype": "float32"},
        "generation_kwargs": {"min_new_tokens": new},
    }
    marks: list[float] = []

    class Marks(transformers.TrainerCallback):
        """Times of the ends of steps."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """The start."""
            marks.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """The end of a step, once the device has finished."""
            _wait()
            marks.append(time.perf_counter())

    # logits of all completions at once, [128, 256, vocabulary], would not fit
    micro = settings.sized(32, prompts * group)
    given |= {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": prompts * group // micro,
    }
    texts = models.texts(prompts * (STEPS + 1), prompt)
    start = time.perf_counter()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    trainer = trl.GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [len(t) % 7 / 7 for t in completions],
        args=trl.GRPOConfig(**given | options),
        train_dataset=datasets.Dataset.from_list([{"prompt": t} for t in texts]),
        callbacks=[Marks()],
    )
    sampled = _timed(trainer, "_generate")
    trainer.train()
    steps = [b - a for a, b in itertools.pairwise(marks)]
    sample = statistics.median(sampled[1:])
    step = statistics.median(steps[1:])
    tokens = prompts * group * new
    del trainer
    return {
        "versions": {"trl": trl.__version__, "torch": torch.__version__},
        "options": options,
        "first_step_seconds": marks[1] - start,
        "step_seconds": step,
        "sample_seconds": sample,
        "train_seconds": step - sample,
        "tokens_a_second_sampled": tokens / sample,
        "tokens_a_second_step": tokens / step,
        "peak_device_bytes": _peak(),
        "micro_batch": micro,
    }


def _timed(owner: Any, name: str) -> list[float]:
    """Replace a method by one whose seconds are listed, the device waited for."""
    method, spent = getattr(owner, name), list[float]()

    def measured(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            _wait()
            spent.append(time.perf_counter() - start)

    setattr(owner, name, measured)
    return spent


def _wait() -> None:
    """Wait for the device, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak() -> int:
    """Bytes that torch held at most since the last call."""
    import gc

    import torch

    gc.collect()
    if not torch.cuda.is_available():
        return 0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return peak


def _loaded(folder: Path, dtype: str) -> Any:
    """The model by transformers, on the device."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _generated(model: Any, settings: Settings) -> Any:
    """Completions of a step by `generate`, prompts before them."""
    import torch

    prompt, new, prompts, group = workload(settings)
    ids = torch.randint(0, 256, (prompts, prompt)).repeat_interleave(group, 0).to(model.device)
    with torch.no_grad():
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
            min_new_tokens=new, max_new_tokens=new,
        )  # fmt: skip


def generation(folder: Path, settings: Settings) -> dict[str, float]:
    """transformers' `generate` in bf16 on the prompts of a step."""
    _, new, prompts, group = workload(settings)
    model, times = _loaded(folder, "bfloat16"), []
    for _ in range(2):
        start = time.perf_counter()
        _generated(model, settings)
        _wait()
        times.append(time.perf_counter() - start)
    del model
    return {
        "first_seconds": times[0],
        "seconds": times[1],
        "tokens_a_second": prompts * group * new / times[1],
        "peak_device_bytes": _peak(),
    }


def plain(folder: Path, settings: Settings) -> dict[str, float]:
    """Generation and an update of the policy gradient, weights in fp32, computed in bf16."""
    import torch

    _, new, prompts, group = workload(settings)
    model = _loaded(folder, "float32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    kind, micro = model.device.type, settings.sized(16, 4)
    sample, train = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        with torch.autocast(kind, torch.bfloat16):
            tokens = _generated(model, settings)
        _wait()
        sample.append(time.perf_counter() - start)
        start = time.perf_counter()
        advantages = torch.randn(len(tokens), 1, device=model.device)
        for rows, advantage in zip(tokens.split(micro), advantages.split(micro), strict=True):
            with torch.autocast(kind, torch.bfloat16):
                logits = model(rows[:, :-1], logits_to_keep=new).logits
            logp = torch.log_softmax(logits.float(), -1)
            chosen = logp.gather(-1, rows[:, -new:, None])[..., 0]
            (-(chosen * advantage).mean() * len(rows) / len(tokens)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait()
        train.append(time.perf_counter() - start)
    count = prompts * group * new
    step = [a + b for a, b in zip(sample, train, strict=True)]
    return {
        "first_step_seconds": step[0],
        "step_seconds": statistics.median(step[1:]),
        "sample_seconds": statistics.median(sample[1:]),
        "train_seconds": statistics.median(train[1:]),
        "tokens_a_second_step": count / statistics.median(step[1:]),
        "peak_device_bytes": _peak(),
    }
