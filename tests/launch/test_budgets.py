"""What arms took: the tokens and the updates that are recorded of them."""

import jax
import numpy as np
import pytest

from experiments import lab
from experiments.effects import table
from experiments.lab import archive, policy, train
from jaxrl.models import decoder
from jaxrl.training.objective import ObjectiveConfig

TASK = lab.cipher(problems=16)
MODEL = policy.shape(TASK.vocabulary, TASK.prompt_length + TASK.budget)
ARMS = dict(archive.read_all(table.RESULTS))


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize(
    ("terms", "updates_per_batch", "counted"),
    [
        ({}, 1, [1, 2, 3, 4]),
        ({}, 2, [2, 4, 6, 8]),
        ({"policy": "dph", "policy_args": {"presample_steps": 3}}, 1, [0, 0, 0, 1]),
        ({"policy": "dph", "policy_args": {"presample_steps": 3}}, 2, [0, 1, 3, 5]),
        ({"policy": "vcpo"}, 1, [1, 2, 3, 4]),
    ],
)
def test_updates_that_do_not_learn_are_not_counted(terms, updates_per_batch, counted):
    """Those of a phase that samples alone, whose rate has the factor 0. A small factor counts."""
    objective = ObjectiveConfig(**terms)
    arm = lab.Arm(objective, prompts=2, group_size=2, updates_per_batch=updates_per_batch)
    params = jax.vmap(lambda key: decoder.init(MODEL, key))(jax.random.split(jax.random.key(0), 2))
    seen = train.train(
        TASK, MODEL, params, arm, measure=lambda params, last: {}, measurements=4, steps=4
    )
    assert seen["updates"].tolist() == [[count] * 2 for count in counted]


def test_recorded_updates_are_those_that_learned():
    """Of steps that sample alone, too: what the code would record."""
    presampling = 0
    for key, arm in ARMS.items():
        made = arm["arm"]
        alone = made["objective"]["policy_args"].get("presample_steps", 0)
        done = np.array(arm["marks"]) * made["updates_per_batch"] - alone
        wanted = np.maximum(0, done)[:, None] * np.ones(len(arm["seeds"]))
        assert arm["curves"]["updates"] == wanted.tolist(), key
        assert arm["final"]["updates"] == wanted[-1].tolist(), key
        presampling += alone > 0
    assert presampling > 0


@pytest.mark.parametrize("name", ["dph_rl", "raft", "aepo", "remix"])
def test_ratios_of_budgets_are_those_of_the_recorded_arms(name):
    for row in table.recorded(name):
        for budget in ("tokens", "updates"):
            mine, other = (
                np.mean([np.mean(ARMS[key]["final"][budget]) for key in keys])
                for keys in row["arms"]
            )
            assert row[budget] == round(mine / other, 4), (row["task"], row["other"])
