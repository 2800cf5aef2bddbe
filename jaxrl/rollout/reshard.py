"""What the sampling devices hold: the weights, copied from the training devices and verified, and
a model that drafts.

By default both are the same devices, and the weights are resharded in place. `sampling.devices`
gives a number of devices, the last of each process, to a separate mesh for sampling.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxrl.config import Config, SamplingConfig
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf
from jaxrl.rollout import policy
from jaxrl.sampling.drafts import DraftModel
from jaxrl.sampling.requests import check_drafts
from jaxrl.sampling.work import SamplerConfig
from jaxrl.types import Params


def meshes(training: MeshConfig, sampling: SamplingConfig) -> tuple[Mesh, Mesh]:
    """The training mesh and the sampling mesh; by default they are the same.

    Raises:
      ValueError: the axes do not multiply to the number of devices, or these cannot be so divided.
    """
    devices, hosts = jax.devices(), jax.process_count()
    if not sampling.devices:
        both = mesh.make(training)
        return both, both
    share, rest = divmod(sampling.devices, hosts)
    host_devices = [[d for d in devices if d.process_index == host] for host in range(hosts)]
    if rest or not 0 < share < min(map(len, host_devices)):
        raise ValueError(
            f"sampling.devices={sampling.devices} of {len(devices)} devices in {hosts} processes: "
            "each process gives as many, and keeps at least one to train; use 0 to sample where "
            "the run trains"
        )
    if sampling.mesh.rules:
        raise ValueError(
            f"sampling.mesh.rules={sampling.mesh.rules}: mesh.rules hold on both meshes; use those"
        )
    train, sample = (
        [d for part in host_devices for d in part[span]]
        for span in (slice(-share), slice(-share, None))
    )
    return mesh.make(training, train), mesh.make(sampling.mesh, sample)


def sampler_weights(
    model: DecoderConfig, training: Mesh, sampling: Mesh, dtype: str, *, int8: bool = False
) -> Callable[[Params], Params]:
    """A function from the parameters of the train state to the sampler's form, on the sampling
    mesh.

    Args:
      model: the decoder's shape.
      training, sampling: from `meshes`.
      dtype: to sample in.
      int8: round the matrices of the layers to 8 bits.
    """
    convert = functools.partial(
        policy.sampling_params, dtype=dtype, rounded=model if int8 else None
    )
    if training == sampling:
        return convert
    place = functools.partial(_place, model, decoder.layout(model), sampling)
    return lambda params: transfer(convert(params), place)


def describe_draft(
    sampler: SamplerConfig, model: DecoderConfig, tokenizer: Tokenizer
) -> tuple[Config, DecoderConfig] | None:
    """The model that drafts for a policy: the config that opens it, and its shape.

    Args:
      sampler: accepted by `validate.check_drafts`.
      model: the policy's shape, whose dtype and rules the draft model takes.
      tokenizer: the policy's.

    Returns:
      None where none drafts.

    Raises:
      ValueError: its tokens are others than the policy's, it cannot be opened, or as many layers as
        the policy has are to draft for it.
    """
    name, layers = sampler.draft_model, sampler.draft_layers
    if not name:
        if sampler.most_drafted:
            check_drafts(model, sampler.drafts, layers, None, None)
        return None
    opened = policy.config_of(name)
    draft, its_tokenizer = policy.describe_writer(opened)
    if _spellings(its_tokenizer) != _spellings(tokenizer):
        raise ValueError(
            f"sampler.draft_model={name!r}: its tokenizer has other tokens than the policy's "
            f"({its_tokenizer.vocab_size} and {tokenizer.vocab_size}); name a model of the same "
            "tokenizer, or set sampler.drafts to 'layers' or 'lookup'"
        )
    return opened, dataclasses.replace(
        draft, dtype=model.dtype, rules=model.rules, attention=model.attention
    )


def _spellings(tokenizer: Tokenizer) -> list[str]:
    """Its tokens in order."""
    return [tokenizer.piece(i) or tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]


def open_draft(
    sampler: SamplerConfig, model: DecoderConfig, tokenizer: Tokenizer, sampling: Mesh
) -> DraftModel | None:
    """The model of `describe_draft` with its parameters, on the mesh that samples."""
    if (described := describe_draft(sampler, model, tokenizer)) is None:
        return None
    opened, draft = described
    with jax.set_mesh(sampling):
        params = policy.first_params(opened, draft, sampling)
        return DraftModel(draft, policy.sampling_params(params, draft.dtype))


def transfer(tree: Any, place: Callable[[tuple[Any, ...], jax.Array], NamedSharding]) -> Any:
    """Every leaf copied to where `place(path, leaf)` says, and all compared once they are there.

    In one process the host waits once, for the sums of all leaves: copies and sums are under way
    together. Between several a leaf goes by way of their hosts, each of which holds it whole.

    Raises:
      RuntimeError: a leaf arrived other than it was sent.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    if not leaves:
        return tree
    places = [place(path, leaf) for path, leaf in leaves]
    expected = checksums([leaf for _, leaf in leaves])
    if jax.process_count() == 1:
        copies = [jax.device_put(leaf, p) for (_, leaf), p in zip(leaves, places, strict=True)]
    else:
        copies = [
            mesh.put(mesh.fetch(leaf), p) for (_, leaf), p in zip(leaves, places, strict=True)
        ]
    target = places[0].mesh
    assert isinstance(target, Mesh)
    with jax.set_mesh(target):
        arrived = checksums(copies)
    expected, arrived = mesh.fetch((expected, arrived))
    for n in np.flatnonzero(expected != arrived)[:1]:
        raise RuntimeError(
            f"parameter {jax.tree_util.keystr(leaves[n][0])} arrived on the sampling devices other "
            "than it was sent; check the hardware, and continue from the last checkpoint"
        )
    return jax.tree.unflatten(structure, copies)


@jax.jit
def checksums(leaves: Sequence[jax.Array]) -> jax.Array:
    """[n] uint32, of each of n arrays on one mesh: the sum of all its bits, as unsigned integers.

    The same on any mesh.
    """

    def checksum(x: jax.Array) -> jax.Array:
        width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
        return jnp.sum(jax.lax.bitcast_convert_type(x, width).astype(jnp.uint32), dtype=jnp.uint32)

    return jnp.stack([checksum(x) for x in leaves])


def _place(
    model: DecoderConfig,
    layout: Mapping[tuple[str, ...], Leaf],
    where: Mesh,
    path: tuple[Any, ...],
    leaf: jax.Array,
) -> NamedSharding:
    """The sharding of a leaf of unstacked parameters, by the rules of the model."""
    names: tuple[Any, ...] = tuple(
        getattr(step, "key", getattr(step, "idx", None)) for step in path
    )
    stacked = names[0] == "layers"
    if stacked:
        names = (model.place(names[1])[0], *names[2:])
    entry = layout.get(names)
    axes = entry.axes[stacked:] if entry and len(entry.axes) - stacked == leaf.ndim else None
    if axes is None:
        return mesh.replicated(where)
    return NamedSharding(where, mesh.param_spec(model, names, axes, leaf.shape, where))
