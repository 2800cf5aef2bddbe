"""The losses that a client of the Tinker API may name.

Each is a sum over tokens, not a mean, of what a token's log-probability and inputs give
(https://tinker-docs.thinkingmachines.ai/losses). They are objectives of `jaxrl.losses`: under the
API's own names with the API's settings, and under the names that `jaxrl train` knows with theirs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import functions
from jaxrl.losses.policy import objectives, sequence, surrogates
from jaxrl.losses.reduce.masking import constant, ratio, token_constant

Arrays = Mapping[str, jax.Array]
PerToken = Callable[[jax.Array, Arrays, Arrays], jax.Array]
"""`(logp [B, T], inputs [B, T] by name, settings by name) -> loss [B, T]`."""


class Loss(NamedTuple):
    """A loss that a client may name."""

    per_token: PerToken
    inputs: tuple[str, ...]
    """Names of the arrays that each datum has beside `target_tokens`."""
    settings: dict[str, float]
    """With their defaults."""
    optional: tuple[str, ...] = ()
    """Names of arrays that a datum may have besides."""


def _cross_entropy(logp: jax.Array, inputs: Arrays, settings: Arrays) -> jax.Array:
    return objectives.reinforce(logp, inputs["weights"])[0]


def _importance_sampling(logp: jax.Array, inputs: Arrays, settings: Arrays) -> jax.Array:
    return -ratio(logp, inputs["logprobs"]) * token_constant(inputs["advantages"], logp)


def _ppo(logp: jax.Array, inputs: Arrays, settings: Arrays) -> jax.Array:
    r = ratio(logp, inputs["logprobs"])
    return objectives.clipped_surrogate(r, inputs["advantages"], **_bounds(settings))[0]


def _cispo(logp: jax.Array, inputs: Arrays, settings: Arrays) -> jax.Array:
    clip = _bounds(settings)
    return surrogates.cispo(logp, inputs["logprobs"], inputs["advantages"], **clip)[0]


def _dro(logp: jax.Array, inputs: Arrays, settings: Arrays) -> jax.Array:
    """DRO: a square of the log-ratio holds the policy to the one that sampled.

    Formula: `-(A log pi - beta / 2 (log pi / q)^2)`
    Paper: Richemond et al. 2024, "Offline Regularised Reinforcement Learning for Large Language
    Models Alignment"
    """
    penalty = jnp.square(logp - constant(inputs["logprobs"]))
    objective = objectives.reinforce(logp, inputs["advantages"])[0]
    return objective + 0.5 * settings["beta"] * penalty


def _gspo(logp: jax.Array, inputs: Arrays, settings: Arrays) -> jax.Array:
    """GSPO-token: its ratio is that of a sequence's marked tokens together.

    Paper: Zheng et al. 2025, "Group Sequence Policy Optimization" (section 4.3)
    """
    advantages = inputs["advantages"]
    mask = inputs.get("sequence_ratio_mask", inputs.get("mask", advantages)) != 0
    bounds = _bounds(settings)
    return sequence.gspo_token(logp, inputs["logprobs"], advantages, mask=mask, **bounds)[0]


def _bounds(settings: Arrays) -> dict[str, jax.Array]:
    """The clients' bounds of the ratio as distances from 1."""
    return {
        "clip_low": 1.0 - settings["clip_low_threshold"],
        "clip_high": settings["clip_high_threshold"] - 1.0,
    }


_RL = ("logprobs", "advantages")
_OF_API: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy, ("weights",), {}),
    "importance_sampling": Loss(_importance_sampling, _RL, {}),
    "ppo": Loss(_ppo, _RL, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": Loss(_cispo, _RL, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": Loss(_dro, _RL, {"beta": 0.05}),
    "gspo": Loss(
        _gspo,
        _RL,
        {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
        ("sequence_ratio_mask", "mask"),
    ),
}
_OF_TRAIN = (
    "reinforce", "gpg", "ppo_clip", "ppo_dual_clip", "ppo_two_sided", "ppo_kl", "dr_grpo", "dapo",
    "opmd", "aipo", "opsm", "ppo_trajectory", "gspo_token", "topr",
    "sapo", "asymre", "red_weight", "dppo_tv", "dppo_kl",
)  # fmt: skip
"""Policy objectives of `jaxrl.losses.policy` whose arrays a datum has, with token advantages."""
NAMES = (*_OF_API, *_OF_TRAIN)


def find(name: str) -> Loss:
    """The loss of a name.

    Raises:
      ValueError: there is none of the name.
    """
    if name not in NAMES:
        raise ValueError(
            f"loss_fn={name[:60]!r} is not supported; choose one of {', '.join(NAMES)}"
        )
    return _OF_API[name] if name in _OF_API else _objective(name)


@functools.cache
def _objective(name: str) -> Loss:
    """A policy objective as a loss; its keyword arguments are the settings.

    A datum's `mask` is 1 at the tokens that the policy chose, for objectives that look at the whole
    sequence. Without it they are those whose advantage is not 0: where it is 0, as in prompts and
    in sequences that are as good as the others of their group, there is no gradient.
    """
    function = functions.lookup(name)
    parameters = inspect.signature(function).parameters
    settings = {n: float(p.default) for n, p in parameters.items() if p.default is not p.empty}

    def per_token(logp: jax.Array, inputs: Arrays, values: Arrays) -> jax.Array:
        mask = inputs["mask"] > 0 if "mask" in inputs else inputs["advantages"] != 0
        arrays: dict[str, Any] = {
            "logp": logp, "behavior_logp": inputs["logprobs"], "advantages": inputs["advantages"],
            "mask": mask,
        }  # fmt: skip
        used = {n: array for n, array in arrays.items() if n in parameters}
        return jnp.where(mask, function(**used, **values)[0], 0.0)

    return Loss(per_token, _RL, settings, ("mask",))
