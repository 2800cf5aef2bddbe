"""The sharding of batches and of the training state."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from jaxrl.config import Config
from jaxrl.mesh import mesh
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.training import low_precision, packing, trainable
from jaxrl.training.logprobs import Restriction
from jaxrl.training.low_precision import BlockCodes
from jaxrl.training.train_step import init_state
from jaxrl.training.trainable import WHOLE, Part
from jaxrl.types import Array, Packed, Params, TrainState, Trajectory

Tree = TypeVar("Tree", Trajectory, Array)

_HOST = "pinned_host"
Complete = Callable[[TrainState], TrainState]
"""Adds the state of extensions, such as a critic or an average, to a state at step 0."""


def transfers() -> contextlib.AbstractContextManager[None]:
    """Allows implicit copies between host and devices, in this thread."""
    return jax.transfer_guard("allow")


def pack(
    batch: Trajectory, config: Config, keep: Array | None = None
) -> tuple[Packed, dict[str, float]]:
    """Packed micro-batches on the mesh, rows split over its batch axes, and what packing cost.

    Args:
      batch: N sequences.
      config: of the run.
      keep: [N] bool, the sequences to compute; None computes all.
    """
    packed, cost = on_host(batch, config, keep)
    return mesh.put(packed, of_packed(config, packed)), cost


def batch_score(
    score: Callable[..., jax.Array],
    config: Config,
    restriction: Callable[[TrainState], Restriction | None] | None,
) -> Callable[[TrainState, Trajectory], jax.Array]:
    """A function from a state and N sequences to log-probabilities [N, T] under its parameters.

    Args:
      score: see `logprobs.make_score`.
      config: of the run.
      restriction: which tokens there are to choose from in a state; None: all in any.
    """

    def logp(state: TrainState, batch: Trajectory) -> jax.Array:
        allowed = restriction(state) if restriction else None
        return score(state.params, pack(batch, config)[0], allowed)

    return logp


def pack_scored(batch: Trajectory, config: Config) -> Packed:
    """Packed micro-batches of sequences that are scored and not trained on, of any length.

    Args:
      batch: N sequences.
      config: of the run; where its `packing.row_length` is too short, rows are as long as needed.
    """
    used = np.asarray(batch.action_mask).any(axis=0)
    longest = int(np.max(np.flatnonzero(used), initial=0)) + 1
    if 0 < config.packing.row_length < longest:
        shards = jax.sharding.get_mesh().size
        tokens = max(config.packing.micro_batch_tokens, 2 * longest * shards)
        roomy = dataclasses.replace(config.packing, row_length=0, micro_batch_tokens=tokens)
        config = dataclasses.replace(config, packing=roomy)
    return pack(batch, config)[0]


def on_host(
    batch: Trajectory, config: Config, keep: Array | None = None
) -> tuple[Packed, dict[str, float]]:
    """What `pack` puts on the mesh."""
    shards = mesh.batch_shards(jax.sharding.get_mesh(), tuple(config.mesh.rules.items()))
    chunks = config.rollout.chunks
    return packing.pack(batch, config.packing, row_multiple=shards, keep=keep, chunks=chunks)


def of_packed(config: Config, packed: Packed) -> Packed:
    """The shardings of packed micro-batches."""
    the_mesh = jax.sharding.get_mesh()
    everywhere = mesh.replicated(the_mesh)
    split = mesh.rows(the_mesh, tuple(config.mesh.rules.items()))
    where = jax.tree.map(lambda a: split if np.ndim(a) == 3 else everywhere, packed)
    return where if packed.support is None else where.replace(support=split)


def of_batch(batch: Tree) -> Tree:
    """The shardings of a batch during an update: split over sequences, if divisible."""
    the_mesh = jax.sharding.get_mesh()

    def where(x: Any) -> NamedSharding:
        axes = ("batch", *[None] * (x.ndim - 1))
        return NamedSharding(the_mesh, mesh.spec(axes, x.shape, the_mesh))

    return jax.tree.map(where, batch)


def abstract_state(
    model: DecoderConfig,
    optimize: optax.GradientTransformation,
    adapters: LoraConfig = LoraConfig(rank=0),
    part: Part = WHOLE,
    complete: Complete = lambda state: state,
    *,
    offload: bool = False,
) -> TrainState:
    """Shapes and shardings of the train state: moments are sharded as their parameters.

    With `offload` they are in host memory.

    Raises:
      ValueError: there is no such memory.
    """
    params = trainable.in_compute_dtype(model, trainable.abstract(model, adapters), part)
    shapes = jax.eval_shape(lambda p: complete(init_state(p, optimize, part)), params)
    everywhere = mesh.replicated(jax.sharding.get_mesh())
    flat = jax.tree_util.tree_leaves_with_path((params, part.split(params)[0]))
    by_name = {_names(path[1:]): leaf for path, leaf in flat}

    def place(path: tuple[Any, ...], shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        field = path[-1].name if isinstance(path[-1], jax.tree_util.GetAttrKey) else ""
        names = _names(path[:-1] if field in BlockCodes._fields else path)
        suffixes = (names[i:] for i in range(len(names)))
        like = next((by_name[suffix] for suffix in suffixes if suffix in by_name), None)
        if like and field == "scales":
            where = low_precision.scale_sharding(like.sharding, like.shape)
        else:  # a factored moment has fewer axes than its parameter, and is small
            where = like.sharding if like and like.shape == shape.shape else everywhere
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where)

    rest = jax.tree_util.tree_map_with_path(place, shapes.replace(params=None))
    if offload:
        rest = rest.replace(opt_state=_in_memory(_HOST, rest.opt_state))
    return rest.replace(params=params)


def _in_memory(kind: str, like: Any) -> Any:
    """Sharded shapes, or arrays' places, in another memory of their devices."""
    kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
    if kind not in kinds:
        raise ValueError(f"optimizer.offload needs memory {kind!r}, and devices have {kinds}")

    def move(leaf: Any) -> jax.ShapeDtypeStruct:
        where = leaf.sharding.with_memory_kind(kind)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree.map(move, like)


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Keys and fields of a path: the parts of an adapter are named alike on and off."""
    return tuple(jax.tree_util.keystr((step,), simple=True) for step in path)


def shardings(like: Any) -> Any:
    """The shardings of a tree of sharded shapes."""
    return jax.tree.map(lambda leaf: leaf.sharding, like)


def fresh_state(
    params: Params,
    optimize: optax.GradientTransformation,
    like: TrainState,
    part: Part = WHOLE,
    complete: Complete = lambda state: state,
) -> TrainState:
    """A state at step 0, laid out as `like`: a run and its continuation compile one program."""
    return jax.device_put(complete(init_state(params, optimize, part)), shardings(like))


def with_fixed_layout(update: Callable[..., Any], like: TrainState) -> Callable[..., Any]:
    """`update`, with its new state laid out as `like` again; moments on the host are fetched.

    The batch is put on the mesh as `of_batch` says: no device holds all of it.
    """
    where = shardings(like)
    away = any(leaf.sharding.memory_kind == _HOST for leaf in jax.tree.leaves(like.opt_state))

    def settle(state: TrainState, *args: Any) -> tuple[TrainState, Any]:
        if args:
            batch = args[0].replace(support=None)  # the packed input has it
            args = (mesh.put(batch, of_batch(batch)), *args[1:])
        if away:
            device_shardings = shardings(_in_memory("device", like.opt_state))
            state = state.replace(opt_state=jax.device_put(state.opt_state, device_shardings))
        state, metrics = update(state, *args)
        return jax.device_put(state, where), metrics

    return settle


class Numbers(NamedTuple):
    """What runs that share a program may have of their own: arguments of it, not constants."""

    seed: jax.Array
    """Scalar int32, of what an update draws."""
    learning_rate: jax.Array
    """Scalar float32."""
    weight_decay: jax.Array
    """Scalar float32."""


class Sharing(NamedTuple):
    """What runs of one process hold together, each of which trains adapters of the same base."""

    frozen: Callable[[Params], Params]
    """The base that all hold, given the equal one that a run has loaded."""
    programs: dict[int, Callable[..., Any]]
    """Those of updates, by the first step of their stage."""


def sharing() -> Sharing:
    """A sharing of runs, none of which has begun."""
    bases: list[Params] = []

    def frozen(params: Params) -> Params:
        if not bases:
            bases.append(params)
        if not equal_params(bases[0], params):
            raise ValueError(
                "together: this run's base differs from that of the first one, so they cannot hold "
                "it together; leave --together out, which trains them one after another"
            )
        return bases[0]

    return Sharing(frozen, {})


def equal_params(params: Params, reference: Params) -> bool:
    """Whether trees on the mesh have the same names, shapes and values, in the types of `params`.

    The same arrays are not read.
    """
    leaves, others = (jax.tree_util.tree_leaves_with_path(tree) for tree in (params, reference))
    if [(path, x.shape) for path, x in leaves] != [(path, x.shape) for path, x in others]:
        return False
    pairs = [(x, y) for (_, x), (_, y) in zip(leaves, others, strict=True)]
    with transfers():
        return all(x is y for x, y in pairs) or bool(_equal(pairs))


@jax.jit
def _equal(pairs: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
    return jnp.stack([jnp.all(a == b.astype(a.dtype)) for a, b in pairs]).all()


def numbers_of(config: Config) -> Numbers:
    """The numbers of a run, on the mesh in use."""
    settings = config.optimizer
    seed = np.int64(config.seed).astype(np.int32)  # as `jax.random.key` cuts it
    values = (seed, np.float32(settings.learning_rate), np.float32(settings.weight_decay))
    everywhere = mesh.replicated(jax.sharding.get_mesh())
    return Numbers(*mesh.put(values, (everywhere,) * len(values)))


def shared_update(
    shared: Sharing,
    first: int,
    make: Callable[[Numbers], Callable[..., Any]],
    numbers: Numbers,
    part: Part,
    like: TrainState,
) -> Callable[..., Any]:
    """An update as from `with_fixed_layout`, whose base and program are those of several runs.

    The base goes through no update, and is not donated: each state after one has the same arrays.

    Args:
      shared: by the runs.
      first: names the program.
      make: the update for numbers, which are traced.
      numbers: of this run.
      part: which parameters are trained; the others are the base.
      like: shapes and shardings of the train state.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def update(
        small: TrainState,
        batch: Trajectory,
        packed: Packed,
        ref_logp: jax.Array | None,
        frozen: Params,
        numbers: Numbers,
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        state = small.replace(params=part.join(small.params, frozen))
        state, metrics = make(numbers)(state, batch, packed, ref_logp)
        return state.replace(params=part.split(state.params)[0]), metrics

    program = shared.programs.setdefault(first, update)
    fixed_update = with_fixed_layout(program, like.replace(params=part.split(like.params)[0]))

    def of_run(state: TrainState, *batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        trained, frozen = part.split(state.params)
        frozen = shared.frozen(frozen)
        small, metrics = fixed_update(state.replace(params=trained), *batch, frozen, numbers)
        return small.replace(params=part.join(small.params, frozen)), metrics

    return of_run
