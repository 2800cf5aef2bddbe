"""Distillation: a teacher's distribution over each token in place of the token itself.

What is learned are the tokens of a batch, rows of a file or what the policy sampled. The teacher
reads them on the mesh before each update, and its logits are made beside the policy's, in chunks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.losses.imitation import distillation
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.mesh import mesh
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import experience as experiences
from jaxrl.rollout import policy
from jaxrl.rollout.experience import Experience
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training.logprobs import Reading, Teaching, all_logprobs, micro_states
from jaxrl.types import Packed, Params, TrainState

_PROBE = "The 12 quick (brown) foxes:\n\tjump_over 3.5 lazy dogs' \u00e9tudes."
_PROBED = 4096
"""How many ids two tokenizers are compared on."""


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """A teacher and how far from it the policy is; `--teacher MODEL` sets the first field."""

    model: str = ""
    """Model or run whose tokenizer is the policy's."""
    divergence: Literal["forward", "reverse", "js"] = "forward"
    """`forward` covers what the teacher might say, `reverse` commits to what it finds likely; `js`
    is the generalised Jensen-Shannon divergence between them."""
    beta: float = 0.5
    """Of `js`: from 0, the forward KL, to 1, the reverse."""
    temperature: float = 1.0
    """Divides the logits of both."""
    likelihood: float = 0.0
    """Weight of the negative log-likelihood of the tokens themselves, which is added."""


class Opened(NamedTuple):
    """A teacher on the mesh."""

    model: DecoderConfig
    params: Params


def teacher(settings: TeacherConfig) -> Extension:
    """The objective learns from minus the divergence to the teacher at each token.

    So the objective `sft` minimises the divergence, on rows of a file or on the policy's samples.
    Evaluations of a run that samples report it as `divergence`.

    Paper: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network"; Agarwal et al. 2023,
    "On-Policy Distillation of Language Models" (GKD)
    """
    opened: list[Opened] = []
    states: Callable[[Params, Packed], Teaching] | None = None
    values: Callable[[Params, Packed], jax.Array] | None = None

    def check(config: Config) -> None:
        if not settings.model:
            raise ValueError(f"{config.recipe} needs a teacher: name it with --teacher MODEL")
        if not 0 <= settings.beta <= 1 or settings.temperature <= 0:
            raise ValueError(
                f"teacher.beta={settings.beta} with teacher.temperature={settings.temperature}: "
                "use a beta from 0 to 1 and a temperature above 0"
            )
        require_sft(config, "teacher")
        policy_tokenizer = policy.describe(config)[1]
        model, teacher_tokenizer = policy.describe(_named(config, settings.model))
        policy.require_text(model, settings.model)
        if why := difference(policy_tokenizer, teacher_tokenizer):
            raise ValueError(
                f"teacher.model={settings.model!r} has another tokenizer than the model to train "
                f"({why}); choose a teacher of its family: distributions over different tokens "
                "cannot be compared"
            )

    def open_teacher(config: Config) -> Opened:
        if not opened:
            teacher_config = _named(config, settings.model)
            model, _ = policy.describe(teacher_config)
            params = policy.first_params(teacher_config, model, jax.sharding.get_mesh())
            opened.append(Opened(model, decoder.cast(params, model.dtype)))
        return opened[0]

    def teach(ctx: Context, packed: Packed) -> Packed:
        nonlocal states
        model, params = open_teacher(ctx.config)
        states = states or jax.jit(functools.partial(read_states, model))
        return packed.replace(teacher=states(params, packed))

    reading: Reading = functools.partial(minus_divergence, settings)

    def measure(ctx: Context, state: TrainState, experience: Experience) -> dict[str, float]:
        nonlocal values
        values = values or jax.jit(
            lambda params, packed: all_logprobs(
                ctx.policy.model, params, packed, temperature=1.0, reading=reading
            )[0]
        )
        batch = experiences.to_trajectory(ctx.config)(experience)
        packed = teach(ctx, placement.pack(batch, ctx.config)[0])
        minus_divergences = mesh.fetch(values(state.params, packed))
        return {"divergence": -float(masked_mean(minus_divergences, batch.action_mask))}

    return Extension(check=check, measure=measure, provides={"reading": reading, "teach": teach})


def require_sft(config: Config, extension: str) -> None:
    """Refuse what would take an extension's figure for the log-probability of a sampled token.

    Args:
      config: in force.
      extension: name of one that provides a `reading`.

    Raises:
      ValueError: naming the field.
    """
    if config.labels or config.objective.policy != "sft":
        raise ValueError(
            f"{extension} with objective.policy={config.objective.policy!r}: it works with the "
            "objective sft alone; set it to sft, or remove the extension"
        )
    if config.objective.kl_coef:
        raise ValueError(
            f"{extension} with objective.kl_coef={config.objective.kl_coef}: the KL penalty "
            "compares log-probabilities, which it replaces; set it to 0"
        )
    if "nucleus" in config.extensions:
        raise ValueError(f"{extension} with nucleus: each reads the policy's logits; keep one")


def _named(config: Config, model: str) -> Config:
    return dataclasses.replace(
        policy.config_of(model),
        compute_dtype=config.compute_dtype,
        attention=config.attention,
        mesh=config.mesh,
    )


def read_states(model: DecoderConfig, params: Params, packed: Packed) -> Teaching:
    """The states that a teacher would choose packed actions in.

    Args:
      model, params: of the teacher.
      packed: K micro-batches.
    """

    def states_of(index: jax.Array) -> jax.Array:
        return micro_states(model, params, packed, index, "none")

    count = packed.tokens.shape[0]
    states = (
        states_of(jnp.int32(0))[None] if count == 1 else jax.lax.map(states_of, jnp.arange(count))
    )
    return Teaching(states, decoder.unembedding(params), model.logit_softcap)


def minus_divergence(
    settings: TeacherConfig, logits: jax.Array, theirs: jax.Array, targets: jax.Array
) -> jax.Array:
    """Minus the divergence of the policy from the teacher, and the weighed log-likelihood.

    Args:
      settings: which divergence.
      logits, theirs: [..., V], of the policy and of the teacher.
      targets: [...] int32.
    """
    heat = {"temperature": settings.temperature}
    if settings.divergence == "js":
        divergence = distillation.generalized_js(logits, theirs, beta=settings.beta, **heat)
    else:
        divergence = getattr(distillation, settings.divergence)(logits, theirs, **heat)
    if not settings.likelihood:
        return -divergence
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return settings.likelihood * logp - divergence


def difference(one: Tokenizer, two: Tokenizer) -> str:
    """What two tokenizers differ in; empty if they agree on a probe and on their ids' texts."""
    if one.vocab_size != two.vocab_size:
        return f"{two.vocab_size} ids, not {one.vocab_size}"
    if set(one.eos_ids) != set(two.eos_ids):
        return f"end-of-sequence ids {two.eos_ids}, not {one.eos_ids}"
    for token in range(0, one.vocab_size, max(1, one.vocab_size // _PROBED)):
        if one.decode([token]) != two.decode([token]):
            return f"id {token} is {two.decode([token])!r}, not {one.decode([token])!r}"
    return "" if _probed(one) == _probed(two) else "texts are cut into other tokens"


def _probed(tokenizer: Tokenizer) -> Any:
    try:
        return tokenizer.encode(_PROBE)
    except ValueError:  # characters outside an alphabet
        return None
