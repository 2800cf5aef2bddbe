"""Extensions: what a method adds to the common loop, as a few optional functions.

An extension is made by a function of its settings, a frozen dataclass whose fields are flags:

    def entropy_target(settings: EntropyTarget) -> Extension: ...

`Config.extensions` names it, as `critic` for one of `jaxrl.extensions` or as `module:function` for
one of your own, with its settings. The functions run in the order in which extensions are listed.
State on the mesh is an entry of `TrainState.extra`, and state on the host comes from `get_state`;
both are saved, restored, resharded and forked without the loop knowing them. What only few
extensions give, such as the reference policy, they provide by role; `Provides` lists the roles.

`preparation` computes what a batch needs from the policy before the first update on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, get_origin, get_type_hints

import jax
import numpy as np

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config
from jaxrl.mesh import mesh
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Program
from jaxrl.run import placement
from jaxrl.run.placement import Complete
from jaxrl.sampling.logits import Guide
from jaxrl.training import objective, routers
from jaxrl.training.logprobs import Reading, Restriction, make_score
from jaxrl.training.train_step import Update
from jaxrl.training.trainable import Part
from jaxrl.types import Array, Packed, Params, TrainState, Trajectory


class Context(NamedTuple):
    """What extensions work with. It is the same for all steps of a stage."""

    config: Config
    """In force in this stage."""
    policy: Policy
    """The decoder's shape and the tokenizer; parameters are in the train state."""
    part: Part
    """Which parameters are trained."""
    directory: Path
    """Of the run."""
    score: Callable[..., jax.Array]
    """`(params, packed, restriction=None) -> logp [N, T]`, see `logprobs.make_score`."""
    reference: Callable[[TrainState], Params] | None
    """The reference policy, where the run has one."""
    renew_reference: Callable[[TrainState, int], None]
    """`(state, step)`: the current policy becomes the reference."""
    restriction: Callable[[TrainState], Restriction | None]
    """Which tokens the policy may choose among; None: all."""
    reading: Reading | None = None
    """What takes the place of log-probabilities in the objective; None: nothing does."""

    @property
    def updates(self) -> int:
        """Optimizer updates of the whole run."""
        return self.config.steps * self.config.updates_per_batch


def context(
    config: Config,
    policy: Policy,
    part: Part,
    extensions: Mapping[str, Extension],
    *,
    directory: Path = Path(),
    reference: Callable[[Context, TrainState], Params] | None = None,
    renew_reference: Callable[[TrainState, int], None] = lambda state, step: None,
) -> Context:
    """The context of a config.

    Args:
      config: in force.
      policy: its shape and tokenizer.
      part: which parameters are trained.
      extensions: of the run.
      directory: of the run.
      reference: gives the reference policy; None where the run has none.
      renew_reference: see `Context`.
    """
    restrict = provider(extensions, "restriction")
    ctx = Context(
        config,
        policy,
        part,
        directory,
        make_score(policy.model, temperature=config.rollout.temperature),
        None,
        renew_reference,
        lambda state: None,
        provider(extensions, "reading"),
    )
    if restrict is not None:
        ctx = ctx._replace(restriction=functools.partial(restrict, ctx))
    if reference is not None:
        ctx = ctx._replace(reference=functools.partial(reference, ctx))
    return ctx


def extension_state(ctx: Context, extensions: Mapping[str, Extension]) -> Complete:
    """Adds the state of all extensions to a train state at step 0."""

    def complete(state: TrainState) -> TrainState:
        for extension in extensions.values():
            state = extension.init(ctx, state)
        return state

    return complete


class Single(TypedDict, total=False):
    """Roles that one extension of a run may have."""

    reference: Callable[[Context, TrainState], Params]
    """Gives the reference policy, in place of a stored copy."""
    eval_params: Callable[[Context, TrainState], Params]
    """Gives the parameters that evaluations measure, in place of the trained ones."""
    sampling_params: Callable[[Context, TrainState], tuple[Params, int]]
    """Gives the parameters that sample a step, and their version, in place of the trained ones."""
    opposed_params: Callable[[Context, TrainState, Callable[[Params], Params]], Params]
    """`(ctx, state, to_sampler)`: gives the sampler's parameters with the adapters of the policy
    and of an opponent beside them, where `episodes.against` has them play."""
    steering: Callable[..., Guide | None]
    """`(ctx, state, to_sampler)`: gives what steers the policy where it is evaluated, by models
    whose parameters `to_sampler` puts into the sampler's form; None: nothing steers it."""
    restriction: Callable[[Context, TrainState], Restriction]
    """Gives the tokens that the policy may choose among, in sampling and in training."""
    reading: Reading
    """What the objective learns from in place of log-probabilities, of what `teach` adds."""
    ascent: Callable[
        [Context, TrainState, Trajectory, Packed, Params], tuple[Params, dict[str, jax.Array]]
    ]
    """Moves the trained parameters to where an update takes its gradient, see
    `train_step.Ascent`."""
    router: routers.Terms
    """What an update does for the routers of a mixture of experts."""


class Provides(Single, total=False):
    """All roles: those of `Single`, and these, which any number of extensions may have."""

    teach: Callable[[Context, Packed], Packed]
    """Adds a teacher to packed rows on the mesh, before an update or an evaluation."""
    shapes: Callable[[Trajectory], Trajectory]
    """Adds what `prepare` adds, with any values, so that an update can be compiled ahead."""
    extra_arrays: tuple[str, ...]
    """Names of the arrays that it adds to `Trajectory.extra`."""
    extra_prompt_tokens: Callable[[Config], int]
    """Tokens that its program adds to prompts, at most."""
    plays_turns: bool
    """Whether its program plays the episodes of a task with turns; without this role, False."""
    needs_reference: bool
    """Whether it compares with the reference policy; without this role, False."""
    renews_reference: bool
    """Whether it replaces the stored reference policy; without this role, False."""


class Extension(NamedTuple):
    """The functions of an extension; each has a default that changes nothing."""

    check: Callable[[Config], None] = lambda config: None
    """Raises ValueError for a config that it cannot work with."""
    init: Callable[[Context, TrainState], TrainState] = lambda ctx, state: state
    """Adds its state to a train state at step 0; traced to find the shapes."""
    program: Callable[[Program], Program] = lambda program: program
    """Wraps the rollout program."""
    reward: Callable[[Context, TrainState, Experience], Experience] = lambda ctx, state, e: e
    """Changes the scores of a step's experience."""
    measure: Callable[[Context, TrainState, Experience], dict[str, float]] = lambda *_: {}
    """Further figures of the completions of an evaluation."""
    prepare: Callable[[Context, TrainState, Trajectory], Trajectory] = lambda ctx, state, b: b
    """Changes a step's batch, on the host, before its first update."""
    update: Callable[[Context, Update], Update] = lambda ctx, update: update
    """Wraps the update. It is traced inside one `jax.jit`."""
    after: Callable[[Context, TrainState, int], TrainState] = lambda ctx, state, step: state
    """Changes the state after a step that is kept."""
    get_state: Callable[[], Any] = lambda: None
    """State on the host: nested dicts and lists of JSON values and NumPy arrays."""
    set_state: Callable[[Any], None] = lambda state: None
    """Continues from what `get_state` returned."""
    provides: Provides = Provides()
    """What few extensions give, by role: see `Provides`."""


def open_extensions(config: Config) -> dict[str, Extension]:
    """The extensions of a config by name, in order.

    Raises:
      ValueError: no such extension, two of one name, one with the name of a field of the config, a
        role that is none or that two have, or settings that it cannot work with.
    """
    opened: dict[str, Extension] = {}
    for reference, settings in config.extensions.items():
        name = functions.extension_name(reference)
        if name in opened:
            raise ValueError(f"extensions has two of the name {name!r}; rename one of them")
        configs.check_name(reference)
        instance = functions.extension(reference)(configs.settings_of(reference, settings))
        opened[name] = instance
    for name, extension in opened.items():
        _check_roles(name, extension)
    for role in get_type_hints(Single):
        names = list(providers(opened, role))
        if len(names) > 1:
            raise ValueError(f"extensions {names} both give the run's {role}; keep one of them")
    check_extensions(config, opened)
    return opened


def check_extensions(config: Config, extensions: Mapping[str, Extension]) -> None:
    """Refuse settings that an extension cannot work with.

    Raises:
      ValueError: naming the extension.
    """
    for name, extension in extensions.items():
        try:
            extension.check(config)
        except ValueError as error:
            if name in str(error):
                raise
            raise ValueError(f"{name}: {error}") from error


def _check_roles(name: str, extension: Extension) -> None:
    """Refuse a role that `Provides` does not have, and a value of another kind than the role's."""
    kinds = get_type_hints(Provides)
    for role, value in extension.provides.items():
        if role not in kinds:
            hint = functions.nearest(role, list(kinds))
            raise ValueError(f"extension {name!r} provides {role!r}, which is no role; {hint}")
        if not isinstance(value, get_origin(kinds[role]) or kinds[role]):
            raise ValueError(
                f"extension {name!r} provides {role}={value!r}; give it {kinds[role]}, or leave "
                "the role out"
            )


def teacher(ctx: Context, extensions: Mapping[str, Extension]) -> Callable[[Packed], Packed] | None:
    """Adds the teachers of extensions to packed rows; None where no extension has one."""
    teachers = providers(extensions, "teach").values()

    def teach(packed: Packed) -> Packed:
        for add_teacher in teachers:
            packed = add_teacher(ctx, packed)
        return packed

    return teach if teachers else None


def providers(extensions: Mapping[str, Extension], role: str) -> dict[str, Any]:
    """What extensions have in a role of `Provides`, by their names, in order."""
    return {n: e.provides.get(role) for n, e in extensions.items() if role in e.provides}


def provider(extensions: Mapping[str, Extension], role: str) -> Any:
    """What the one extension with a role of `Single` has in it; None where none has the role."""
    return next(iter(providers(extensions, role).values()), None)


def preparation(
    ctx: Context, extensions: Mapping[str, Extension]
) -> Callable[[TrainState, Trajectory], Trajectory] | None:
    """Adds to a batch what its updates, or a measurement of it, need from before them.

    Args:
      ctx: as in `with_expert_logp`.
      extensions: of the run, in order.

    Returns:
      A function of `state` and `batch` as in `with_expert_logp`; None where nothing is added: what
      experts wrote comes from the programs of extensions and from files.
    """
    proximal = objective.needs_proximal(ctx.config.objective)

    def prepare(state: TrainState, batch: Trajectory) -> Trajectory:
        batch = with_expert_logp(ctx, state, batch)
        for extension in extensions.values():
            batch = extension.prepare(ctx, state, batch)
        return with_proximal_logp(ctx, state, batch) if proximal else batch

    return prepare if extensions or proximal or ctx.config.data.kinds else None


def with_expert_logp(
    ctx: Context, state: TrainState, batch: Trajectory, rows: Array | None = None
) -> Trajectory:
    """Experts' tokens with the log-probabilities and the version of the policy; others as they are.

    A batch that experts wrote alone has the version alone where the objective does not ask for
    log-probabilities.

    Args:
      ctx: of the stage.
      state: before the updates.
      batch: N sequences on the host.
      rows: [N] bool, the experts' sequences; None: `batch.expert`.
    """
    rows = batch.expert if rows is None else rows
    if rows is None or not np.any(rows):
        return batch
    wrote = rows[:, None] & batch.action_mask
    version = np.where(wrote, np.int32(state.step), batch.policy_version)
    batch = batch.replace(policy_version=version)
    if np.all(rows) and not objective.needs_behavior(ctx.config.objective):
        return batch
    packed, _ = placement.pack(batch, ctx.config, rows)
    logp = mesh.fetch(ctx.score(state.params, packed, ctx.restriction(state)))
    return batch.replace(behavior_logp=np.where(rows[:, None], logp, batch.behavior_logp))


def with_proximal_logp(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
    """The batch with the log-probabilities before the updates.

    Args:
      ctx, state, batch: as in `with_expert_logp`.
    """
    packed, _ = placement.pack(batch, ctx.config, batch.trained)
    logp = ctx.score(state.params, packed, ctx.restriction(state))
    return batch.replace(proximal_logp=mesh.fetch(logp))
