"""How a run begins: afresh, from its own newest checkpoint, or from another run's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import optax

from data import stream
from data.types import Problem, Task
from jaxrl import (
    average,
    checkpoint,
    evaluate,
    guided,
    history,
    kl_control,
    objective,
    placement,
    policy,
    replay,
    selection,
    stages,
    storage,
    tasks,
    trainable,
)
from jaxrl import config as configs
from jaxrl.checkpoint import Saved
from jaxrl.config import Config
from jaxrl.placement import Complete
from jaxrl.policy import Policy
from jaxrl.trainable import Part
from jaxrl.types import Params, TrainState
from jaxrl.warm_start import discard, warm_start
from jaxrl.workshop import Workshop
from models import lora

Assess = Callable[[TrainState, int], dict[str, float]]
_ADAPTERS = 3  # folded into the run's key, for the first values of adapters


def check(config: Config) -> tuple[Task, list[Problem], Policy]:
    """Refuse what cannot work, before anything is compiled or written.

    Returns:
      The task, its held-out problems, and the policy, its parameters still to come.

    Raises:
      ValueError: a config that cannot work.
    """
    configs.check(config)
    stages.check(config)
    objective.check(config.objective)
    kl_control.check(config)
    replay.check(config.replay, config.rollout.prompts, config.updates_per_batch)
    model, tokenizer = policy.describe(config)
    trainable.part(model, config.lora, config.train)
    actor = Policy(model, {}, tokenizer)
    for staged in stages.all_of(config):
        check_prompts(staged, actor)
    task, keep = tasks.named(config), policy.keeps(tokenizer, config.rollout)
    held_out = evaluate.problems(task, config.eval.split, config.eval.problems, keep=keep)
    for problem in held_out:
        policy.encode_prompt(tokenizer, config.rollout, problem)
    if not held_out:
        raise ValueError(
            f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens} drops every held-out "
            "problem; raise it"
        )
    if config.reference.every and not keeps_reference(config):
        raise ValueError(
            f"reference.every={config.reference.every}, but this run keeps no reference policy to "
            "replace: adapters leave theirs as it is, an average follows by itself, and without a "
            "KL term there is none; set it to 0"
        )
    if config.fork:
        checkpoint.require(*fork_point(config.fork))
    return task, held_out, actor


def check_prompts(config: Config, actor: Policy) -> None:
    """Refuse what prompts a config asks for where they cannot be drawn, or not be answered.

    Raises:
      ValueError: naming the field.
    """
    selection.check(config)
    whole, keep = tasks.named(config), policy.keeps(actor.tokenizer, config.rollout)
    guided.check(config.guidance, whole)
    curricula = [domain.curriculum for domain in config.domains.values()] or [config.curriculum]
    for curriculum, task in zip(curricula, whole.parts.values() or [whole], strict=True):
        if curriculum.history:
            history.best(curriculum, task)
        batch = {"seed": config.seed, "batch_size": config.rollout.prompts}
        first = next(stream.prompts(task, split="train", **batch))
        if keep and not any(map(keep, first)):
            raise ValueError(
                f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens} drops the first "
                f"{len(first)} prompts of task {task.name!r}; raise it"
            )
        for problem in first if keep is None else filter(keep, first):
            policy.encode_prompt(actor.tokenizer, config.rollout, problem)
    settings = config.rollout
    total = settings.chunks.longest(
        settings.max_prompt_tokens, settings.max_prompt_tokens + settings.max_new_tokens
    )
    if total > actor.model.max_positions:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_new_tokens = {total} exceed the model's "
            f"{actor.model.max_positions} positions; lower one of them, or set rollout.chunks"
        )


def begin(
    shop: Workshop,
    optimize: optax.GradientTransformation,
    like: TrainState,
    assess: Assess,
    part: Part,
    complete: Complete,
) -> Saved:
    """The state to go on from; a first one is saved at once, so that nothing is done twice."""
    if shop.writer.step is not None:
        shop.watch.note(f"continuing {shop.directory} from step {shop.writer.step}")
        return checkpoint.restore(shop.directory, shop.writer.step, like)
    if shop.config.fork:
        saved = forked(shop, like)
    else:
        saved = fresh(shop, optimize, like, assess, part, complete)
    with shop.gate.closed():
        shop.writer.save(saved.step, saved.state, saved.host)
        shop.writer.wait()
    if shop.writer.step == saved.step:
        discard(shop.directory)
    return saved


def fresh(
    shop: Workshop,
    optimize: optax.GradientTransformation,
    like: TrainState,
    assess: Assess,
    part: Part,
    complete: Complete,
) -> Saved:
    """Step 0: the model's parameters after the warm start, adapters on, measured."""
    config = shop.config
    params = policy.first_params(config, shop.actor.model, jax.sharding.get_mesh())
    params = warm_start(shop, params)
    key = jax.random.fold_in(jax.random.key(config.seed), _ADAPTERS)
    params = trainable.attach(shop.actor.model, params, config.lora, key)
    state = placement.fresh_state(params, optimize, like, part, complete)
    if keeps_reference(config):
        checkpoint.save_reference(shop.directory, state.params)
    before = assess(state, 0)
    count = len(shop.held_out)
    shop.watch.note(f"before: pass@1 {before['pass@1']:.3f} on {count} held-out problems")
    host = {
        "step": 0,
        "before": before,
        "seconds": 0.0,
        "tokens": 0.0,
        "stream": None,
        "replay": [],
        "rollbacks": 0,
        "lineage": [],
    }
    return Saved(0, state, host)


def forked(shop: Workshop, like: TrainState) -> Saved:
    """Another run's state, of which this run is the continuation under its own config.

    The reference policy is that run's, or its state where it keeps none.
    """
    source, step = fork_point(shop.config.fork)
    saved = checkpoint.restore(source, step, like)
    if keeps_reference(shop.config):
        reference = checkpoint.load_reference(source, like.params, step)
        checkpoint.save_reference(shop.directory, reference or saved.state.params, step)
    shop.watch.note(f"forked from step {step} of {source}")
    lineage = [*saved.host["lineage"], {"run": str(storage.absolute(source)), "step": step}]
    return saved._replace(host=saved.host | {"lineage": lineage})


def fork_point(fork: str) -> tuple[Path, int]:
    """The run and step that RUN or RUN@STEP names.

    Raises:
      ValueError: there is no such run, or it holds no checkpoint.
    """
    run, _, step = fork.rpartition("@") if fork.rpartition("@")[2].isdigit() else (fork, "", "")
    if not checkpoint.root(storage.locate(run)).is_dir():
        raise ValueError(f"fork={fork!r}: {run} holds no checkpoints; name a run directory")
    if step:
        return storage.locate(run), int(step)
    newest = checkpoint.newest(storage.locate(run), lambda _: None)
    if newest is None:
        raise ValueError(f"fork={fork!r}: {run} holds no checkpoint yet; wait for its first")
    return storage.locate(run), newest


def needs_reference(config: Config) -> bool:
    """Whether the run compares with a reference policy."""
    return objective.needs_reference(config.objective) or bool(config.critic.kl_coef)


def keeps_reference(config: Config) -> bool:
    """Whether the run keeps a copy of the policy as it was.

    Adapters leave theirs as it is, and an average is part of the state.
    """
    return needs_reference(config) and not config.lora.rank and not config.average.reference


def reference(
    shop: Workshop, like: TrainState, part: Part, step: int
) -> Callable[[TrainState], Params] | None:
    """The reference policy from `step` on given the state, where the run has one.

    Raises:
      ValueError: it is missing or damaged.
    """
    if not needs_reference(shop.config):
        return None
    if shop.config.average.reference:
        return functools.partial(average.params, part)
    if shop.config.lora.rank:
        return lambda state: lora.detach(state.params)[1]
    params = checkpoint.load_reference(shop.directory, like.params, step)
    if params is None:
        raise ValueError(
            f"the objective needs a reference policy, but {shop.directory}/references has none of "
            f"step {step} or before; restore it from a copy"
        )
    return lambda _: params
