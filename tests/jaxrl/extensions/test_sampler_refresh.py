"""A sampler that lags: which weights sample, with which version, and what a run records of it."""

import jax.numpy as jnp
import pytest

from jaxrl.config import AsynchronousConfig, Config
from jaxrl.extensions.sampler_refresh import RenewalConfig, sampler_refresh
from jaxrl.record import jsonl, metrics
from jaxrl.run import extension, loop
from jaxrl.training.trainable import Part
from jaxrl.types import TrainState
from tests.jaxrl import tiny
from tests.jaxrl.extensions.contexts import context


def test_the_weights_that_sample_are_renewed_on_schedule():
    half = Part(lambda p: ({"a": p["a"]}, {"b": p["b"]}), lambda trained, rest: trained | rest)
    made, ctx = sampler_refresh(RenewalConfig(every=2)), context(part=half)
    state = TrainState({"a": jnp.float32(1), "b": jnp.float32(5)}, (), jnp.int32(0))
    state = made.init(ctx, state)
    state = state.replace(params={"a": jnp.float32(2), "b": jnp.float32(6)}, step=jnp.int32(7))
    params_of = made.provides["sampling_params"]
    assert params_of(ctx, state) == ({"a": 1, "b": 6}, 0)
    assert params_of(ctx, made.after(ctx, state, 1)) == ({"a": 1, "b": 6}, 0)
    assert params_of(ctx, made.after(ctx, state, 2)) == ({"a": 2, "b": 6}, 7)


@pytest.mark.parametrize(
    ("every", "asynchronous", "match"),
    [(0, None, "every=0"), (2, 1, r"asynchronous\.staleness=1")],
)
def test_what_does_not_go_together_is_refused(every, asynchronous, match):
    config = Config(asynchronous=AsynchronousConfig(staleness=asynchronous))
    with pytest.raises(ValueError, match=match):
        sampler_refresh(RenewalConfig(every)).check(config)


def letters(settings: RenewalConfig) -> extension.Extension:
    """Evaluations are steered to one token, whatever the policy has learned."""
    guide = extension.Guide(one, 7)
    return extension.Extension(provides={"steering": lambda ctx, state, to_sampler: guide})


def one(logits, seen, token):
    """All mass on one token."""
    return jnp.where(jnp.arange(logits.shape[1]) == token, 0.0, -jnp.inf) + 0 * logits


@pytest.mark.broad
def test_a_run_records_the_lag_and_is_steered_where_it_is_evaluated(tmp_path):
    """Two updates a step, a renewal after step 2; the guide is of evaluations alone."""
    given = {"steps": 3, "updates_per_batch": 2, "optimizer.learning_rate": 0.03}
    given["objective.entropy_coef"] = 0.5  # which moves the policy, whatever the rewards are
    few = {"eval.every": 0, "eval.problems": 4, "sampler_refresh.every": 2}
    steered = {"extensions": {f"{__name__}:letters": {}}}
    loop.train(tiny.config(tmp_path / "run", **given, **few, **steered))
    rows = metrics.read(tmp_path / "run")
    assert [row["lag/max"] for row in rows] == [1, 3, 1]
    assert rows[1]["logp_gap_max"] > 10 * max(rows[0]["logp_gap_max"], rows[2]["logp_gap_max"])
    evaluated = list(jsonl.read(tmp_path / "run" / "evals" / "000003.jsonl"))
    assert {token for row in evaluated for token in row["tokens"]} == {"6"}  # token 7
