"""Supervised fine-tuning on the task's own solutions, before the RL; checkpointed like it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from data import stream
from jaxrl import checkpoint, distributed, objective, optimizer, placement, policy, rollout, storage
from jaxrl.signals import Stop
from jaxrl.train_step import make_update
from jaxrl.types import Params
from jaxrl.workshop import Workshop

_OTHER_PROBLEMS = 2 << 32
"""Added to the seed: the warm start sees other problems than the RL will."""


def warm_start(shop: Workshop, params: Params) -> Params:
    """Imitate demonstrations: REINFORCE with every reward 1.

    Args:
      shop: its `config.warm_start` may ask for no steps.
      params: to start from; donated.

    Raises:
      ValueError: the task has no solutions to imitate.
    """
    config, warm = shop.config, shop.config.warm_start
    if not warm.steps:
        return params
    if shop.task.gold is None:
        raise ValueError(
            f"warm_start.steps={warm.steps}, but task {shop.task.name!r} has no solutions to "
            "imitate; set it to 0"
        )
    imitate = objective.ObjectiveConfig(
        policy="losses.policy:reinforce", advantage_args={"baseline": "none", "scale": "none"}
    )
    settings = dataclasses.replace(
        config.optimizer,
        learning_rate=warm.learning_rate,
        schedule="cosine",
        warmup_steps=max(1, warm.steps // 20),
    )
    optimize = optimizer.make(settings, warm.steps, shop.actor.model)
    like = placement.abstract_state(shop.actor.model, optimize)
    update = placement.settled(
        make_update(
            shop.actor.model,
            imitate,
            optimize,
            temperature=1.0,
            max_new_tokens=config.rollout.max_new_tokens,
            remat=config.remat,
        ),
        like,
    )
    batches = stream.prompts(
        shop.task,
        split="train",
        seed=config.seed + _OTHER_PROBLEMS,
        batch_size=warm.batch_size,
        keep=policy.keeps(shop.actor.tokenizer, config.rollout),
    )
    directory, note = _directory(shop.directory), shop.watch.note
    last = checkpoint.newest(directory, note)
    checkpoint.set_aside(directory, after=last)
    if last is None:
        step, state = 0, placement.fresh_state(params, optimize, like)
    else:
        step, state, host = checkpoint.restore(directory, last, like)
        batches.set_state(host["stream"])
        note(f"continuing the warm start from step {step}")
    with checkpoint.Writer(directory, config.checkpoint, note) as writer:
        try:
            while step < warm.steps:
                with shop.gate.closed():
                    batch = rollout.demonstrations(shop.actor, config, shop.task, next(batches))
                    state, _ = update(state, batch, placement.pack(batch, config)[0], None)
                    step += 1
                    if writer.due(step):
                        writer.save(step, state, {"stream": batches.get_state()})
                shop.heart.beat("warm start", step)
                shop.watch.stage("warm start", step, warm.steps)
        except Stop:
            if step:
                writer.save_now(step, state, {"stream": batches.get_state()})
            raise
    return state.params


def discard(directory: Path) -> None:
    """Remove the checkpoints of a run's warm start, whose outcome is saved by now."""
    if distributed.first():
        storage.remove(_directory(directory))


def _directory(directory: Path) -> Path:
    return directory / "warm_start"
