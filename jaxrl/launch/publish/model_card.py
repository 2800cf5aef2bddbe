"""The README.md of an exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from jaxrl.config import Config, stages
from jaxrl.models import catalog
from jaxrl.record import metrics, rundir, storage

Format = Literal["hf", "peft", "gguf"]


def text(
    out: Path,
    to: Format,
    *,
    name: str,
    step: int | None,
    config: Config | None,
    dtype: str,
    scores: bool = False,
) -> str:
    """A model card in Markdown: how to load it, how it was trained, what was measured.

    Args:
      out: where the model will be.
      to: its format.
      name: of the run or model, as it was given; a run's figures are read from there.
      step: of the run's checkpoint.
      config: of the run; None: a model that was not trained here.
      dtype: of the matrices.
      scores: whether it is a reward model.
    """
    model = name if config is None else config.model
    head = {"library_name": {"hf": "transformers", "peft": "peft", "gguf": "gguf"}[to]}
    if model in catalog.PACKAGED:
        head["license"] = catalog.PACKAGED[model].licence.lower()
    elif catalog.is_hub(model):
        head["base_model"] = model
    tags = ["jaxrl", *(["reinforcement-learning"] if config and not config.data.kinds else [])]
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items())]
    lines += [f"tags: {json.dumps(tags)}", "---", "", f"# {out.name}", ""]
    lines += [
        _origin(to, model, step, config, dtype),
        "",
        "```python",
        *_usage(out, to, scores),
        "```",
    ]
    use = f"train grpo --reward {out} ..." if scores else f"sample {out} --prompt TEXT"
    lines += ["", f"In jaxrl: `jaxrl {use}`.", ""]
    if config is not None:
        lines += _training(config, step)
        lines += _figures(storage.locate(name), step, sampled=not config.data.kinds)
    revision = rundir.revision()
    lines.append(f"Written by jaxrl{f' (revision {revision})' if revision else ''}.")
    return "\n".join(lines) + "\n"


def _origin(to: Format, model: str, step: int | None, config: Config | None, dtype: str) -> str:
    what = {"hf": f"Weights in {dtype}", "peft": "Adapters", "gguf": f"GGUF weights in {dtype}"}[to]
    if config is None:
        return f"{what} of `{model}`, unchanged."
    start = "a randomly initialised model" if model == "fresh" else f"`{model}`"
    merged = "; its adapters are merged" if config.lora.rank and to != "peft" else ""
    return f"{what} of step {step} of a jaxrl run of {config.recipe!r} from {start}{merged}."


def _usage(out: Path, to: Format, scores: bool) -> list[str]:
    match to:
        case "hf":
            kind = f"AutoModelFor{'SequenceClassification' if scores else 'CausalLM'}"
            return [
                f"from transformers import {kind}, AutoTokenizer",
                "",
                f"model = {kind}.from_pretrained({str(out)!r})",
                f"tokenizer = AutoTokenizer.from_pretrained({str(out)!r})",
            ]
        case "peft":
            return [
                "from peft import AutoPeftModelForCausalLM",
                "from transformers import AutoTokenizer",
                "",
                f"model = AutoPeftModelForCausalLM.from_pretrained({str(out)!r})",
                f"tokenizer = AutoTokenizer.from_pretrained({str(out)!r})",
            ]
        case "gguf":
            return [
                "from llama_cpp import Llama",
                "",
                f"model = Llama(model_path={str(out / 'model.gguf')!r})",
            ]


def _training(config: Config, step: int | None) -> list[str]:
    if config.data.kinds:
        return _table(_of_file(config, step))
    objective = config.objective
    rows: dict[str, Any] = {
        "Task": config.task,
        "Step": f"{step} of {config.steps}",
        "Policy loss": _losses(config),
        "Advantage": objective.advantage,
        "Learning rate": config.optimizer.learning_rate,
        "Prompts a step": config.rollout.prompts,
        "Completions a prompt": config.rollout.group_size,
        "Longest completion": f"{config.rollout.max_new_tokens} tokens",
        "Temperature": config.rollout.temperature,
        **config.rollout.truncated,
        "Chat template": "applied" if config.rollout.chat else "not applied",
        "LoRA": f"rank {config.lora.rank}" if config.lora.rank else "none",
        "Seed": config.seed,
    }
    return _table(rows)


def _losses(config: Config) -> str:
    """The policy losses of all stages, in the order in which they begin."""
    return ", then ".join(
        dict.fromkeys(staged.objective.policy for _, staged in stages.all_of(config))
    )


def _of_file(config: Config, step: int | None) -> dict[str, Any]:
    """The settings of a run that learned from a file."""
    data = config.data
    return {
        "File": data.path,
        "Columns": ", ".join(f"{k}: {v}" for k, v in data.columns.items()) or "recognised",
        "Step": f"{step} of {config.steps}",
        "Epochs": data.epochs or "as many as the steps take",
        "Rows a step": data.batch_size,
        "Longest sequence": f"{data.max_tokens} tokens",
        "Policy loss": _losses(config),
        "Learning rate": config.optimizer.learning_rate,
        "Chat template": "applied to texts too" if config.rollout.chat else "of conversations",
        "LoRA": f"rank {config.lora.rank}" if config.lora.rank else "none",
        "Seed": config.seed,
    }


def _table(rows: dict[str, Any]) -> list[str]:
    table = ["| Setting | Value |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in rows.items())]
    return ["## Training", "", *table, ""]


def _figures(run: Path, step: int | None, *, sampled: bool) -> list[str]:
    """The evaluations before and at that step, and the training metrics of the step."""
    summary = run / "summary.json"
    saved = json.loads(summary.read_text()) if summary.exists() else {}
    row = next((row for row in metrics.read(run) if row["step"] == step), {})
    evaluated = {k.removeprefix("eval/"): v for k, v in row.items() if k.startswith("eval/")}
    if saved.get("steps") == step:
        evaluated = saved["eval"]["after"]
    lines = []
    if evaluated:
        before = saved.get("eval", {}).get("before") or {}
        lines += ["## Evaluation", "", "| Figure | Before | After |", "| --- | ---: | ---: |"]
        lines += [
            f"| {k} | {_number(before.get(k))} | {_number(v)} |" for k, v in evaluated.items()
        ]
        lines.append("")
    names = ("loss", "epoch")
    if sampled:
        names = ("reward/mean", "entropy", "completion_length", "truncated")
    if values := {name: row[name] for name in names if name in row}:
        lines += [f"## Step {step}", "", "| Metric | Value |", "| --- | ---: |"]
        lines += [f"| {name} | {_number(value)} |" for name, value in values.items()] + [""]
    return lines


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "" if value is None else str(value)
