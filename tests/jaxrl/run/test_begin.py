"""What is refused before a run begins."""

import dataclasses

import jax.numpy as jnp
import pytest

from jaxrl.launch import recipes
from jaxrl.run import assemble, placement
from jaxrl.training.tries import Chunks
from tests.jaxrl import tiny as small


def tiny(row_length, **rollout):
    base = recipes.load("quickstart")
    return dataclasses.replace(
        base,
        rollout=dataclasses.replace(
            base.rollout, max_prompt_tokens=16, max_new_tokens=16, **rollout
        ),
        packing=dataclasses.replace(base.packing, row_length=row_length),
    )


@pytest.mark.parametrize("row_length", [1, 16, 30])
def test_rows_that_the_longest_sequence_does_not_fit_in_are_refused(row_length):
    with pytest.raises(ValueError, match=rf"packing\.row_length={row_length} .* 32 tokens"):
        assemble.assemble(tiny(row_length))


@pytest.mark.parametrize("row_length", [0, 31, 32, 64])
def test_rows_that_it_fits_in_are_not(row_length):
    assemble.assemble(tiny(row_length))


def test_of_a_response_in_chunks_a_row_holds_one():
    assemble.assemble(tiny(23, chunks=Chunks(8, 0)))
    with pytest.raises(ValueError, match=r"packing\.row_length=22 .* 24 tokens"):
        assemble.assemble(tiny(22, chunks=Chunks(8, 0)))


def test_extensions_can_work_with_every_stage(tmp_path):
    """In groups of 2 the second opponent of an answer would be the answer itself."""
    changes = {"judge.pairwise": True, "judge.opponents": 2, "rollout.group_size": 4}
    config = small.config(tmp_path, **changes, stages={3: {"rollout.max_new_tokens": 3}})
    assemble.assemble(config)
    config = dataclasses.replace(config, stages={3: {"rollout.group_size": 2}})
    with pytest.raises(ValueError, match=r"stages\.3: judge\.opponents=2 with .*group_size=2"):
        assemble.assemble(config)


def test_an_objective_that_would_fail_in_the_first_update_is_refused(tmp_path):
    assemble.assemble(small.config(tmp_path, **{"critic": {}, "objective.policy": "gspo"}))
    for changes, message in (
        ({"objective.policy": "gmpo", "objective.advantage": "tp_grpo"}, "'tp_grpo' gives one a t"),
        ({"objective.policy": "gmpo", "critic": {}}, "an extension gives one a token"),
        ({"objective.advantage_args": {"scale": "grp"}}, "scale='grp'.* group, batch, none"),
        ({"objective.policy_args": {"clip_low": "0,2"}}, "clip_low='0,2' must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            assemble.assemble(small.config(tmp_path, **changes))


def test_stages_have_rows_that_fit():
    config = dataclasses.replace(tiny(32), stages={10: {"rollout.max_new_tokens": 32}}, steps=20)
    with pytest.raises(ValueError, match=r"packing\.row_length=32 .* 48 tokens"):
        assemble.assemble(config)


@pytest.mark.parametrize("factor", [1.01, 1.1, 1.125])
def test_groups_in_flight_that_are_rounded_away_are_refused(factor):
    message = (
        rf"in_flight={factor} times rollout\.prompts=4 is rounded to 4.* use 1\.25 or more, or 1"
    )
    with pytest.raises(ValueError, match=message):
        assemble.assemble(small.config("unused", **{"rollout.in_flight": factor}))
    assemble.assemble(small.config("unused", **{"rollout.in_flight": 1.25}))


def test_runs_that_share_a_base_hold_that_of_the_first():
    shared = placement.sharing()
    first, equal, unequal = ({"w": jnp.full((2, 3), value)} for value in (1.0, 1.0, 2.0))
    assert all(shared.frozen(params)["w"] is first["w"] for params in (first, equal, first))
    with pytest.raises(ValueError, match="leave --together out"):
        shared.frozen(unequal)
