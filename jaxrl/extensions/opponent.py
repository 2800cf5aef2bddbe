"""An opponent in matches of two agents: other adapters on the policy's frozen base."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from flax import struct

from jaxrl import json_file
from jaxrl.config import Config, stages
from jaxrl.mesh import mesh
from jaxrl.models import catalog, lora, lora_stack
from jaxrl.models.checkpoints import peft
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import Adapters, LoraConfig
from jaxrl.rollout import episodes, policy, tasks
from jaxrl.rollout.experience import Experience
from jaxrl.run.extension import Context, Extension
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, Params, TrainState, Trajectory


@struct.dataclass
class Opponent:
    """What a run carries of the opponent."""

    adapters: Adapters
    step: jax.Array
    """int32: after which step of the run these were the policy's; 0 for those of a directory."""


@dataclasses.dataclass(frozen=True)
class OpponentConfig:
    """Whose adapters play the other agent."""

    path: str = ""
    """Directory of PEFT's with adapters on the policy's base; empty: earlier ones of the policy."""
    every: int = 20
    """Steps after which the policy's adapters become the opponent's; 0: never."""
    above: float | None = None
    """They do so only if the mean reward of all matches against this opponent is above this. None:
    always."""


def opponent(settings: OpponentConfig) -> Extension:
    """In each group the policy plays one of two agents, and other adapters on its base the other.

    Both are sampled in one batch, each row with the adapters of its player. The opponent's tokens
    are observed: nothing is trained on them, and its turns are no turns of the episode. Until the
    first renewal the opponent is the policy as the run began, or the adapters of the directory.
    Evaluations are those of the task.

    Paper: Bansal et al. 2018, "Emergent Complexity via Multi-Agent Competition" (opponents are
    earlier parameters); Silver et al. 2017, "Mastering the Game of Go without Human Knowledge"
    (a new opponent has to win)
    """
    total, matches = 0.0, 0
    files: list[OpponentFiles] = []

    def check(config: Config) -> None:
        wrong = {
            f"every={settings.every}: must be 0 or more": settings.every < 0,
            f"path={settings.path!r} with every={settings.every}: adapters of a directory stay; "
            "add --opponent.every 0": settings.path and settings.every,
            f"above={settings.above} with every=0: nothing is renewed; leave it out": (
                settings.above is not None and not settings.every
            ),
            "lora.rank=0: players are adapters on one base; add --lora.rank 16": (
                not config.lora.rank
            ),
            "lora.dora=True: norms are of one adapter; turn it off": config.lora.dora,
            f"lora.base={config.lora.base!r}: it is rounded for one adapter; use plain": (
                config.lora.base != "plain"
            ),
            f"sampling.weights={config.sampling.weights!r}; use trained": (
                config.sampling.weights != "trained"
            ),
            f"rollout.in_flight={config.rollout.in_flight}: an episode has one opponent; use 1": (
                config.rollout.in_flight > 1
            ),
            f"asynchronous.staleness={config.asynchronous.staleness}; leave it out": (
                config.asynchronous.staleness is not None
            ),
            f"generators={config.generators}; use 0": config.generators > 0,
            "rollout.on_device=True: there agent 0 takes all turns; set it to False": (
                config.rollout.on_device
            ),
            f"sampling.devices={config.sampling.devices}: both players are sampled on the devices "
            "that train; use 0": config.sampling.devices > 0,
            "rollout.max_turns=1: turns of both players count, and the second would have none; use "
            "2 or more, or 0": any(c.rollout.max_turns == 1 for _, c in stages.all_of(config)),
        }
        for name in ("branching", "logged", "guidance", "nucleus", "sampler_refresh"):
            wrong[f"the extension {name}, which samples in its own way; leave it out"] = (
                name in config.extensions
            )
        if conflicts := [name for name, value in wrong.items() if value]:
            raise ValueError(f"opponent: {conflicts[0]}")
        if settings.path and not (Path(settings.path) / catalog.ADAPTERS).exists():
            raise ValueError(
                f"opponent.path={settings.path!r} holds no {catalog.ADAPTERS}; name a directory of "
                "PEFT's, such as `jaxrl export RUN --to peft` writes"
            )
        task = tasks.of_config(config)
        for part in task.parts.values() or [task]:
            agents = 0 if part.turns is None else part.turns.agents
            if agents != 2:
                raise ValueError(
                    f"opponent: task {part.name!r} has {agents or 'no'} agents that take turns, "
                    "and a match has 2; choose another, such as --task board_game "
                    "--task-args.opponent self"
                )

            if part.turns is not None and part.turns.reads is not None:
                raise ValueError(
                    f"opponent: task {part.name!r} reads the log-probabilities of turns, and those "
                    "of an opponent are not the policy's; choose another"
                )
        model, _ = policy.describe(config)
        if alien := lora.targets(model, config.lora).keys() - lora_stack.matrices(model).keys():
            raise ValueError(
                f"lora.targets={config.lora.targets} has {sorted('/'.join(p) for p in alien)}, "
                "which cannot differ from row to row; leave them out where an opponent plays"
            )
        if settings.path and not files:
            files.append(read(settings.path, model, config.model))

    def init(ctx: Context, state: TrainState) -> TrainState:
        source = files[0].adapters if files else ctx.part.split(state.params)[0]
        adapters = jax.tree.map(jnp.array, source)
        return state.with_extra(opponent=Opponent(adapters, jnp.int32(0)))

    def params(ctx: Context, state: TrainState, to_sampler: Callable[[Params], Params]) -> Params:
        learned, base = lora.detach(state.params)
        how = ctx.config.lora
        opposed = files[0].config if files else how
        return beside(_sampled(ctx), to_sampler(base), [
            (how, mesh.fetch(learned)), (opposed, mesh.fetch(state.extra["opponent"].adapters)),
        ])  # fmt: skip

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        nonlocal total, matches
        values = [score.value for score in experience.scores if score.value is not None]
        total, matches = total + sum(values), matches + len(values)
        return experience

    def after(ctx: Context, state: TrainState, step: int) -> TrainState:
        nonlocal total, matches
        if not settings.every or step % settings.every:
            return state
        if settings.above is not None and not (matches and total / matches > settings.above):
            return state
        total, matches = 0.0, 0
        adapters = jax.tree.map(jnp.copy, ctx.part.split(state.params)[0])
        return state.with_extra(opponent=Opponent(adapters, jnp.int32(step)))

    def update(ctx: Context, inner: Update) -> Update:
        def with_step(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            state, metrics = inner(state, batch, packed, ref_logp)
            step = state.extra["opponent"].step.astype(jnp.float32)
            return state, metrics | {"opponent/step": step}

        return with_step

    def get_state() -> dict[str, Any]:
        digest = files[0].digest if files else ""
        return {"total": total, "matches": matches, "digest": digest}

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal total, matches
        if files and saved["digest"] != files[0].digest:
            raise ValueError(
                f"opponent.path={settings.path!r} holds other adapters than when the run began; "
                "put those back, or start another run"
            )
        total, matches = saved["total"], saved["matches"]

    return Extension(
        check=check, init=init, program=lambda program: episodes.against, reward=reward,
        after=after, update=update, get_state=get_state, set_state=set_state,
        provides={"opposed_params": params, "plays_turns": True},
    )  # fmt: skip


class OpponentFiles(NamedTuple):
    """Adapters of a directory of PEFT's."""

    config: LoraConfig
    adapters: Adapters
    digest: str
    """Of its files."""


def read(path: str, model: DecoderConfig, base: str) -> OpponentFiles:
    """The adapters of `opponent.path`.

    Args:
      path: a directory of PEFT's.
      model: the policy's shape.
      base: the policy's model, by name; a warning says if the directory names another.

    Raises:
      ValueError: the directory has no adapters that fit, naming it.
    """
    remedy = "name a directory of PEFT's, such as `jaxrl export RUN --to peft` writes"
    if not (Path(path) / catalog.ADAPTERS).exists():
        raise ValueError(f"opponent.path={path!r} holds no {catalog.ADAPTERS}; {remedy}")
    try:
        config, adapters = peft.load(path, model)
        texts = [
            (Path(path) / name).read_bytes()
            for name in (catalog.ADAPTERS, "adapter_model.safetensors")
        ]
        recorded = json_file.read(Path(path) / catalog.ADAPTERS).get("base_model_name_or_path")
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"opponent.path={path!r}: {error}; {remedy}") from error
    if not config.targets:
        raise ValueError(f"opponent.path={path!r} has no adapters of this model; {remedy}")
    paths = lora.targets(model, config)
    if config.dora or (alien := paths.keys() - lora_stack.matrices(model).keys()):
        reason = "DoRA" if config.dora else f"adapters on {sorted('/'.join(p) for p in alien)}"
        raise ValueError(
            f"opponent.path={path!r} has {reason}, which cannot differ from row to row; train and "
            "export plain adapters of the layers' other matrices"
        )
    if recorded and recorded != base:
        warnings.warn(
            f"opponent.path={path!r} was trained on {recorded!r}, and the policy is {base!r}; they "
            "have the same shapes, and jaxrl cannot tell whether they have the same weights",
            stacklevel=2,
        )
    digest = hashlib.sha256(b"".join(texts)).hexdigest()
    return OpponentFiles(config, jax.tree.map(np.asarray, adapters), digest)


def _sampled(ctx: Context) -> DecoderConfig:
    """The decoder in the dtype that samples."""
    dtype = ctx.config.sampling.dtype or ctx.config.compute_dtype
    return dataclasses.replace(ctx.policy.model, dtype=dtype)


def beside(
    model: DecoderConfig, base: Params, players: list[tuple[LoraConfig, Adapters]]
) -> Params:
    """The sampler's parameters with the adapters of players in places from 1.

    Args:
      model: the decoder's shape, and the dtype that samples.
      base: as from `policy.sampling_params`, without adapters.
      players: how each is adapted, and its adapters.
    """
    configs = [config for config, _ in players]
    rank = max(config.rank for config in configs)
    paths = lora_stack.targets_of(model, configs)
    params = lora_stack.attach(model, base, paths, count=len(players), rank=rank)
    for place, (config, adapters) in enumerate(players, 1):
        params = lora_stack.put(model, params, place, adapters, config)
    return params
