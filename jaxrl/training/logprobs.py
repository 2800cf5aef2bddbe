"""Log-probabilities, or scores, of the actions in packed rows, from a forward pass of the decoder.

Updates, reference policies and evaluations all use these functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.mesh import layouts, mesh
from jaxrl.models import decoder, head, reward
from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Routing
from jaxrl.models.remat import Remat
from jaxrl.sampling import support
from jaxrl.sampling.logits import Guide, Processor
from jaxrl.types import Packed, Params

_LOGIT_TOKENS = 1024
"""Tokens whose logits a device holds at a time."""


@struct.dataclass
class Teaching:
    """A teacher's states and output head at the packed actions, for a `Reading`."""

    states: jax.Array
    """[K, R, A, D] that the teacher would choose the actions in."""
    unembedding: jax.Array
    """[V, D]."""
    softcap: float | None = struct.field(pytree_node=False, default=None)
    """Of its logits."""


Reading = Callable[[jax.Array, jax.Array | None, jax.Array], jax.Array]
"""`(logits [..., V], the teacher's or None, targets [...]) -> [...]`: what is read of the policy's
logits in place of log-probabilities, beside a teacher's if there is one; the greater the better."""


@struct.dataclass
class Restriction:
    """Tokens that the policy may choose among, by what another policy finds likely."""

    params: Params
    """Of the other policy."""
    mask: Callable[..., jax.Array] = struct.field(pytree_node=False)
    """`(logits, the other's logits, targets, args) -> logits`, -inf outside, in training."""
    process: Processor = struct.field(pytree_node=False)
    """The same in sampling, see `jaxrl.sampling.logits`."""
    args: Any = struct.field(pytree_node=False, default=())
    """Of both."""


class Reads(TypedDict):
    """How log-probabilities are read, see `state_logprobs`."""

    temperature: float
    restriction: Restriction | None
    reading: Reading | None


def guide_of(
    model: DecoderConfig,
    restriction: Restriction,
    to_sampler: Callable[[Params], Params],
) -> Guide:
    """The guide that applies a restriction in the sampler.

    Args:
      model: the decoder's shape.
      restriction: of the state.
      to_sampler: parameters to the form that the sampler reads.
    """
    params = to_sampler(restriction.params)
    return Guide(restriction.process, restriction.args, (model,), (params,))


@struct.dataclass
class Noise:
    """NEFTune's noise on embeddings (Jain et al. 2023), drawn anew for each micro-batch."""

    key: jax.Array
    """Typed PRNG key of the update."""
    length: float = struct.field(pytree_node=False)
    """Divided by the square root of a sequence's tokens times the width."""

    def draw(
        self, index: jax.Array, positions: jax.Array, visible_until: jax.Array, width: int
    ) -> jax.Array:
        """Uniform noise [R, L, D] for the rows of micro-batch `index`.

        A prompt that several sequences share counts all their tokens.
        """
        starts = jnp.arange(positions.shape[1]) - positions
        tokens = jnp.maximum(visible_until - starts, 1)
        scale = self.length / jnp.sqrt(tokens * width)
        shape = (*positions.shape, width)
        key = jax.random.fold_in(self.key, index)
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * scale[..., None]


def micro_states(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    remat: Remat,
    noise: Noise | None = None,
) -> jax.Array:
    """States [R, A, D] that the actions of micro-batch `index` are chosen in."""
    hidden = decoder.hidden(model, params, **_inputs(model, packed, index, noise), remat=remat)
    return _predicting(model, packed, index, hidden)


def micro_routing(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    remat: Remat,
    noise: Noise | None = None,
) -> tuple[jax.Array, Routing]:
    """As `micro_states`, with what the routers did with all tokens of the micro-batch."""
    inputs = _inputs(model, packed, index, noise)
    hidden, routing = decoder.routed(model, params, **inputs, remat=remat)
    return _predicting(model, packed, index, hidden), routing


def _inputs(
    model: DecoderConfig, packed: Packed, index: jax.Array, noise: Noise | None
) -> dict[str, Any]:
    """What `decoder.hidden` takes of a micro-batch, and where it lies on the mesh."""
    tokens, positions, visible_until = (
        jax.lax.dynamic_index_in_dim(a, index, keepdims=False)
        for a in (packed.tokens, packed.positions, packed.visible_until)
    )
    embedding_noise = None
    if noise is not None:
        embedding_noise = noise.draw(index, positions, visible_until, model.hidden_size)
    return {
        "tokens": tokens,
        "positions": positions,
        "visible_until": visible_until,
        "levels": packed.levels,
        "layout": layouts.layout(model),
        "noise": embedding_noise,
    }


def _predicting(
    model: DecoderConfig, packed: Packed, index: jax.Array, hidden: jax.Array
) -> jax.Array:
    """Of the states of a micro-batch, those that its actions are chosen in."""
    predictor = jax.lax.dynamic_index_in_dim(packed.predictor, index, keepdims=False)
    hidden = mesh.constrain(hidden, "batch", None, None, rules=model.rules)
    return jnp.take_along_axis(hidden, predictor[..., None], axis=1)


def places(packed: Packed, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sequence and time of the actions of micro-batch `index`, [R * A] each; -1 where none is."""
    sequence, time = (
        jax.lax.dynamic_index_in_dim(a, index, keepdims=False).reshape(-1)
        for a in (packed.sequence, packed.time)
    )
    return sequence, time


def spread(
    packed: Packed, index: jax.Array, *arrays: jax.Array, rules: mesh.Rules = ()
) -> tuple[jax.Array, ...]:
    """Arrays [R * A, ...] of micro-batch `index` as [N, T, ...], zero elsewhere, and its mask.

    On a mesh they are split over N, where that divides.
    """
    sequence, time = places(packed, index)
    count = len(packed.computed)
    row = jnp.where(sequence < 0, count, sequence)  # beyond the array: dropped

    def lay(x: jax.Array) -> jax.Array:
        zeros = jnp.zeros((count, packed.length, *x.shape[1:]), x.dtype)
        laid = zeros.at[row, time].add(x, mode="drop")
        return mesh.constrain(laid, "batch", *[None] * (laid.ndim - 1), rules=rules)

    return *(lay(x) for x in arrays), lay(jnp.ones_like(row)) > 0


def micro_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    *,
    temperature: float,
    remat: Remat,
    restriction: Restriction | None = None,
    reading: Reading | None = None,
    noise: Noise | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of the actions of micro-batch `index`, among the tokens of a restriction,
    if any, or what a reading makes of them and of `packed.teacher`.

    Of a reward model it is the scores of the states that actions follow, and entropies of 0.

    Returns:
      logp and entropy, each [R * A].
    """
    states = micro_states(model, params, packed, index, remat, noise)
    reads: Reads = {"temperature": temperature, "restriction": restriction, "reading": reading}
    return state_logprobs(model, params, packed, index, states, **reads)


def state_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    states: jax.Array,
    *,
    temperature: float,
    restriction: Restriction | None = None,
    reading: Reading | None = None,
) -> tuple[jax.Array, jax.Array]:
    """As `micro_logprobs`, of the states [R, A, D] that the actions are chosen in.

    Raises:
      ValueError: actions drawn from a truncated support, and a restriction or a reading as well.
    """
    if model.labels:
        scores = reward.score(params, states)[..., 0].reshape(-1)
        return scores, jnp.zeros_like(scores)
    if packed.support is not None and (restriction is not None or reading is not None):
        raise ValueError(
            "the batch has the support that its tokens were drawn from, which goes neither with a "
            "restriction nor with a reading; leave rollout.top_k, top_p and min_p out"
        )
    target = jax.lax.dynamic_index_in_dim(packed.target, index, keepdims=False)
    teaching = packed.teacher if reading is not None else None
    beside: tuple[jax.Array, ...] = ()
    if restriction is not None:
        beside = (target, micro_states(model, restriction.params, packed, index, "none"))
    elif teaching is not None:
        beside = (jax.lax.dynamic_index_in_dim(teaching.states, index, keepdims=False),)
    elif packed.support is not None:
        beside = (jax.lax.dynamic_index_in_dim(packed.support, index, keepdims=False),)

    def unembedding(params: Params) -> jax.Array:
        tables: Params = {name: params[name] for name in ("embed", "head") if name in params}
        return decoder.unembedding(layouts.layout(model).weights(tables, ""))

    def logprobs(
        weights: Sequence[jax.Array], states: jax.Array, target: jax.Array, *beside: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def process(logits: jax.Array, *beside: jax.Array) -> jax.Array:
            if restriction is not None:
                chosen, restriction_states = beside
                likely = head.logits(
                    restriction_states,
                    weights[1],
                    softcap=model.logit_softcap,
                    spelled=model.spelled,
                )
                logits = restriction.mask(logits, likely, chosen, restriction.args)
            elif packed.support is not None:
                (action_support,) = beside
                logits = support.restrict(logits, action_support)
            # a teacher is compared with at one temperature, which is the reading's own
            return logits if reading is not None else logits / temperature

        def read(logits: jax.Array, target: jax.Array, *beside: jax.Array) -> jax.Array:
            assert reading is not None
            if teaching is None:
                return reading(logits, None, target)
            (teacher_states,) = beside
            vocab_size = min(logits.shape[-1], weights[1].shape[0])  # rows beyond are no tokens
            likely = head.logits(teacher_states, weights[1][:vocab_size], softcap=teaching.softcap)
            return reading(logits[..., :vocab_size], likely, target)

        return head.token_logprobs(
            states,
            weights[0],
            target,
            softcap=model.logit_softcap,
            spelled=model.spelled,
            process=process,
            read=None if reading is None else read,
            beside=beside,
            chunk=_LOGIT_TOKENS,
        )

    readers = [params] if restriction is None else [params, restriction.params]
    weights = [unembedding(p) for p in readers]
    if teaching is not None:
        weights.append(teaching.unembedding)
    logp, entropy = layouts.by_rows(logprobs, rules=model.rules)(weights, states, target, *beside)
    return logp.reshape(-1), entropy.reshape(-1)


def make_score(model: DecoderConfig, *, temperature: float) -> Callable[..., jax.Array]:
    """A jitted `(params, packed, restriction=None) -> logp [N, T]`, e.g. for the reference policy.

    Functions of one model and temperature have one program.
    """
    return functools.partial(_score, model, temperature)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _score(
    model: DecoderConfig,
    temperature: float,
    params: Params,
    packed: Packed,
    restriction: Restriction | None = None,
) -> jax.Array:
    return all_logprobs(model, params, packed, temperature=temperature, restriction=restriction)[0]


def all_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    *,
    temperature: float,
    restriction: Restriction | None = None,
    reading: Reading | None = None,
    noise: Noise | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of all actions and entropies, each [N, T], without their gradients.

    With a reading, its values take the place of the log-probabilities.
    """

    def body(index: jax.Array, total: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        scored = micro_logprobs(
            model,
            params,
            packed,
            index,
            temperature=temperature,
            remat="none",
            restriction=restriction,
            reading=reading,
            noise=noise,
        )
        logp, entropy, _ = spread(packed, index, *scored, rules=model.rules)
        return total[0] + logp, total[1] + entropy

    zero = jnp.zeros((len(packed.computed), packed.length), jnp.float32)
    zero = mesh.constrain(zero, "batch", None, rules=model.rules)
    if packed.tokens.shape[0] == 1:
        return body(jnp.int32(0), (zero, zero))
    return jax.lax.fori_loop(0, packed.micro_batches, body, (zero, zero))
