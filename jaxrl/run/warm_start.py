"""Supervised fine-tuning on the task's own solutions, before the RL; checkpointed like it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax

from jaxrl.config import Config
from jaxrl.data.sources import stream
from jaxrl.data.types import Task
from jaxrl.mesh import distributed
from jaxrl.models.lora import LoraConfig
from jaxrl.record import checkpoint, storage
from jaxrl.record.process import Stop
from jaxrl.record.writer import Writer
from jaxrl.rollout import demonstrations, policy
from jaxrl.run import placement
from jaxrl.run.context import RunContext
from jaxrl.training import objective, optimizer, trainable
from jaxrl.training.train_step import make_update
from jaxrl.types import Params

_OTHER_PROBLEMS = 2 << 32
_SHOWN = 20  # losses that are fetched for `Callbacks.imitated`
"""Added to the seed: the warm start sees other problems than the RL will."""


def check(config: Config, task: Task) -> None:
    """Refuse to imitate a task without solutions.

    Raises:
      ValueError: the task has none.
    """
    if config.warm_start.steps and not demonstrations.demonstrable(task):
        raise ValueError(
            f"warm_start.steps={config.warm_start.steps}, but task {task.name!r} has no solutions "
            "to imitate; set it to 0"
        )


def warm_start(run: RunContext, params: Params) -> Params:
    """Imitate demonstrations: REINFORCE with every reward 1.

    It trains the part that `config.train` names. Adapters, which are attached after it, have no
    part in it: all parameters of their base are trained, at one rate.

    Args:
      run: its `config.warm_start` may ask for no steps.
      params: to start from; donated.
    """
    config, warm = run.config, run.config.warm_start
    if not warm.steps:
        return params
    task = run.origin.task
    assert task is not None  # `validate` refuses a warm start without
    imitate = objective.ObjectiveConfig(
        policy="reinforce", advantage_args={"baseline": "none", "scale": "none"}
    )
    settings = dataclasses.replace(
        config.optimizer,
        learning_rate=warm.learning_rate,
        schedule="cosine",
        warmup_steps=max(1, warm.steps // 20),
        rates={} if config.lora.rank else config.optimizer.rates,  # which name adapters
    )
    part = trainable.part(run.policy.model, LoraConfig(rank=0), config.train, config.param_dtype)
    params = trainable.in_compute_dtype(run.policy.model, params, part)
    optimize = optimizer.make(settings, warm.steps, run.policy.model)
    like = placement.abstract_state(run.policy.model, optimize, part=part)
    update = placement.with_fixed_layout(
        make_update(
            run.policy.model,
            imitate,
            optimize,
            temperature=1.0,
            max_new_tokens=config.rollout.max_new_tokens,
            remat=config.remat,
            part=part,
            seed=config.seed,
        ),
        like,
    )
    batches = stream.prompts(
        task,
        split="train",
        seed=config.seed + _OTHER_PROBLEMS,
        batch_size=warm.batch_size,
        keep=policy.keeps(run.policy.tokenizer, config.rollout, task),
    )
    directory, note = _directory(run.directory), run.callbacks.note
    last = checkpoint.newest(directory, note)
    checkpoint.set_aside(directory, after=last)
    if last is None:
        step, state = 0, placement.fresh_state(params, optimize, like, part)
    else:
        step, state, host = checkpoint.restore(directory, last, like)
        with checkpoint.telling_damage(directory):
            batches.set_state(host["stream"])
        note(f"continuing the warm start from step {step}")
    with Writer(directory, config.checkpoint, note) as writer:
        try:
            while step < warm.steps:
                with run.gate.closed():
                    batch = demonstrations.demonstrations(run.policy, config, task, next(batches))
                    packed = placement.pack(batch, config)[0]
                    state, metrics = update(state, batch, packed, None)
                    step += 1
                    if writer.due(step):
                        writer.save(step, state, {"stream": batches.get_state()})
                run.heart.beat("warm start", step)
                if step % -(-warm.steps // _SHOWN) == 0:
                    run.callbacks.imitated(step, float(jax.device_get(metrics["loss"])))
                run.callbacks.stage("warm start", step, warm.steps)
        except Stop:
            if step:
                writer.save_now(step, state, {"stream": batches.get_state()})
            note(f"step {step} of the warm start is saved; the same command continues")
            raise
    return state.params


def discard(directory: Path) -> None:
    """Remove the checkpoints of a run's warm start, whose outcome is saved by now."""
    if distributed.first():
        storage.remove(_directory(directory))


def _directory(directory: Path) -> Path:
    return directory / "warm_start"
