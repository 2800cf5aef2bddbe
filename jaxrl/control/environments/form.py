"""A web form: put each field of an instruction into the element of its name, then send the form."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step


class Form(NamedTuple):
    """A page with K elements, and an instruction with K fields. All [K] int32."""

    elements: jax.Array
    """The name of each element."""
    fields: jax.Array
    """The name of each field of the instruction."""
    typed: jax.Array
    """The field whose value each element holds; K where it is empty."""


def make(fields: int = 5, prefill: float = 0.0, horizon: int = 0) -> Environment:
    """Forms whose elements and instruction are in an order of their own in each episode.

    Action `e K + j` types the value of field j into element e, and action `K K` sends the form,
    which ends the episode: 1 if every element holds the field of its name, else -1. Seen is, one
    hot and flat: the names of the elements [K, K], those of the fields [K, K], and what is typed
    [K, K + 1].

    Args:
      fields: K, 1 or more.
      prefill: probability that an element is filled in rightly from the start.
      horizon: steps; 0: three for each field.

    Raises:
      ValueError: a number out of range.
    """
    if fields < 1 or not 0 <= prefill <= 1:
        raise ValueError(
            f"fields={fields}, prefill={prefill}: need fields >= 1 and prefill from 0 to 1"
        )
    space = Space(3 * fields**2 + fields, fields**2 + 1, discrete=True)

    def reset(key: jax.Array) -> tuple[Form, jax.Array]:
        one, two, chance = jax.random.split(key, 3)
        elements, named = (jax.random.permutation(k, fields) for k in (one, two))
        right = jnp.argsort(named)[elements]
        filled = jax.random.bernoulli(chance, prefill, (fields,))
        form = Form(elements, named, jnp.where(filled, right, fields))
        return form, observed(form)

    def step(key: jax.Array, form: Form, action: jax.Array) -> Step:
        sent = action == fields**2
        element, field = action // fields, action % fields
        typed = jnp.where((jnp.arange(fields) == element) & ~sent, field, form.typed)
        form = form._replace(typed=typed)
        reward = jnp.where(sent, jnp.where(jnp.all(matching(form)), 1.0, -1.0), 0.0)
        return Step(form, observed(form), reward, sent)

    return Environment("form", space, horizon or 3 * fields, reset, step)


def matching(form: Form) -> jax.Array:
    """[K] bool: which elements hold the field of their name."""
    names = jnp.append(form.fields, -1)
    return names[form.typed] == form.elements


def observed(form: Form) -> jax.Array:
    """What is seen, [3 K K + K] float32."""
    count = len(form.elements)
    parts = (form.elements, count), (form.fields, count), (form.typed, count + 1)
    return jnp.concatenate([jax.nn.one_hot(x, size).ravel() for x, size in parts])


def parts(observation: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The three matrices that an observation [..., 3 K K + K] consists of."""
    count = round((((12 * observation.shape[-1] + 1) ** 0.5) - 1) / 6)
    sizes = (count, count, count + 1)
    cuts = [count * count, 2 * count * count]
    lead = observation.shape[:-1]
    pieces = jnp.split(observation, cuts, axis=-1)
    return tuple(x.reshape(*lead, count, n) for x, n in zip(pieces, sizes, strict=True))
