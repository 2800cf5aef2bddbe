"""Functions of several phases compute what the recipes' stages of the objective compute."""

import inspect

import jax
import numpy as np
import pytest

from experiments.lab import phases
from jaxrl import functions
from jaxrl.config import stages
from jaxrl.launch import recipes
from tests.losses.cases import draw


@pytest.mark.sample(2, broad=2)
@pytest.mark.exact("stages of the objective compute what one function of several phases computes")
@pytest.mark.parametrize("name", sorted(phases.JOINED))
def test_a_recipe_in_stages_is_the_function_that_was_measured(name):
    config = recipes.load(name)
    joined = phases.joined(config)
    edges = {edge + shift for edge in stages.starts(config) for shift in (-1, 0)} - {-1}
    assert len(edges) > 2 and not any(
        field.startswith("objective.") or field == stages.PERIOD
        for changes in joined.stages.values()
        for field in changes
    )
    for step in sorted(edges):
        d = draw(step)
        d.expert = d.first if "guidance" in config.extensions else np.zeros_like(d.first)
        d.advantages = np.where(d.expert[:, None], 0.0, d.advantages)  # as `sampled_advantages` are
        losses = [
            gradients(made, d, step)
            for made in (stages.at(config, step).objective, joined.objective)
        ]
        for staged, measured in zip(*losses, strict=True):
            np.testing.assert_array_equal(*(np.where(d.mask, x, 0.0) for x in (staged, measured)))


def test_other_recipes_stay_as_they_are():
    for name in ("grpo", "drive_pre_grpo"):
        assert phases.joined(recipes.load(name)) == recipes.load(name)


def gradients(objective, d, step):
    """Losses of an objective's policy term, and their gradient."""
    function = functions.lookup(objective.policy)
    names = inspect.signature(function).parameters
    arrays = {n: getattr(d, n) for n in names if hasattr(d, n)} | {"step": step}
    given = {n: x for n, x in arrays.items() if n in names and n != "weights"}

    def total(logp):
        loss = function(**(given | {"logp": logp}), **objective.policy_args)[0]
        return np.where(d.mask, 1.0, 0.0).ravel() @ loss.ravel(), loss

    (_, loss), grad = jax.value_and_grad(total, has_aux=True)(jax.numpy.asarray(d.logp))
    return loss, grad
