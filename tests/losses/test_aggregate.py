"""Reductions by hand, and their invariance to how a batch is split."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.losses.reduce import aggregate

LOSS = np.array([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [5.0, 6.0, 7.0], [9.0, 9.0, 9.0]])
MASK = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
GROUPS = np.array([0, 0, 1, 1])
BY_HAND = {
    "token-mean": (1 + 2 + 4 + 5 + 6 + 7) / 6,
    "token-sum": 25.0,
    "seq-mean-token-sum": 25.0 / 3,
    "seq-mean-token-mean": (1.5 + 4 + 6) / 3,
    "seq-mean-token-sum-norm": 25.0 / 3 / 10,
    "prompt-mean": (7 / 3 + 6) / 2,
}


def test_each_source_has_a_mean_of_its_own():
    """Samples of 1 and 3 tokens, an expert of 2: (4 + 5 + 6 + 7) / 4 and (1 + 2) / 2."""
    expert = jnp.array([True, False, False, False])
    weights = aggregate.source_weights(jnp.asarray(MASK), expert)
    assert aggregate.weighted_sum(jnp.asarray(LOSS), jnp.asarray(MASK), weights) == 5.5 + 1.5
    alone = aggregate.source_weights(jnp.asarray(MASK), jnp.zeros(4, bool))
    np.testing.assert_allclose(alone, np.full(4, 1 / 6), rtol=1e-6)


def reduce(loss, mask, groups, mode, whole=None):
    whole = (mask, groups) if whole is None else whole
    count = aggregate.denominator(
        jnp.asarray(whole[0]), mode, max_length=10, group_ids=jnp.asarray(whole[1]), num_groups=8
    )
    tokens = aggregate.prompt_tokens(jnp.asarray(whole[0]), jnp.asarray(whole[1]), 8)
    return aggregate.aggregate(
        jnp.asarray(loss), jnp.asarray(mask), mode, count, group_ids=groups, prompt_tokens=tokens
    )


@pytest.mark.parametrize("mode", aggregate.MODES)
def test_by_hand(mode):
    np.testing.assert_allclose(reduce(LOSS, MASK, GROUPS, mode), BY_HAND[mode], rtol=1e-6)


@pytest.mark.sample(2, broad=2)
@pytest.mark.exact("an aggregation's parts add up to the whole in any split and order")
@pytest.mark.parametrize("mode", aggregate.MODES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), parts=st.integers(1, 6))
def test_any_split_and_any_order_add_up_to_the_whole(mode, seed, parts):
    rng = np.random.default_rng(seed)
    loss, mask = rng.normal(size=(6, 4)), rng.random((6, 4)) < 0.6
    groups = rng.integers(0, 3, 6)
    whole = reduce(loss, mask, groups, mode)
    order = rng.permutation(6)
    pieces = [
        reduce(loss[i], mask[i], groups[i], mode, whole=(mask, groups))
        for i in np.array_split(order, parts)
    ]
    np.testing.assert_allclose(sum(pieces), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.exact("an aggregation's parts add up to the whole where sequences are cut, 1e-5")
@pytest.mark.parametrize("mode", aggregate.MODES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), parts=st.integers(1, 6))
def test_parts_that_cut_sequences_add_up_to_the_whole(mode, seed, parts):
    """The tokens of a sequence lie in any of the parts, as the chunks of a response do."""
    rng = np.random.default_rng(seed)
    loss, mask = rng.normal(size=(6, 4)), rng.random((6, 4)) < 0.6
    groups, part = rng.integers(0, 3, 6), rng.integers(0, parts, (6, 4))
    weights = aggregate.weights(
        jnp.asarray(mask), mode, max_length=10, group_ids=jnp.asarray(groups), num_groups=8
    )
    pieces = [aggregate.weighted_sum(loss, mask & (part == i), weights) for i in range(parts)]
    np.testing.assert_allclose(sum(pieces), reduce(loss, mask, groups, mode), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", aggregate.MODES)
def test_padding_nan_and_empty_batches(mode):
    dirty = np.where(MASK == 1, LOSS, np.nan)
    wide = np.pad(dirty, ((0, 2), (0, 3)), constant_values=np.inf)
    got = reduce(wide, np.pad(MASK, ((0, 2), (0, 3))), np.pad(GROUPS, (0, 2)), mode)
    np.testing.assert_allclose(got, BY_HAND[mode], rtol=1e-6)
    grad = jax.grad(lambda x: reduce(x, MASK, GROUPS, mode))(jnp.asarray(dirty))
    assert np.all(np.asarray(grad)[MASK == 0] == 0.0) and np.all(np.isfinite(grad))
    assert reduce(dirty, np.zeros_like(MASK), GROUPS, mode) == 0.0


def test_bfloat16_losses_are_summed_in_float32():
    loss, mask = jnp.ones((1, 1000), jnp.bfloat16), jnp.ones((1, 1000))
    assert aggregate.aggregate(loss, mask, "token-sum", jnp.float32(1.0)) == 1000.0


def test_masked_mean():
    assert aggregate.masked_mean(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1, 1, 0])) == 2.0
    assert aggregate.masked_mean(jnp.array([1.0, 3.0]), jnp.array([1, 1]), jnp.float32(8)) == 0.5
    assert aggregate.masked_mean(jnp.array([jnp.nan]), jnp.array([0])) == 0.0


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("mean", "mode='mean' is unknown"),
        ("seq-mean-token-sum-norm", "max_length"),
        ("prompt-mean", "group_ids"),
    ],
)
def test_missing_arguments_are_named(mode, message):
    with pytest.raises(ValueError, match=message):
        aggregate.denominator(jnp.asarray(MASK), mode)
    if mode != "seq-mean-token-sum-norm":
        with pytest.raises(ValueError, match=message):
            aggregate.aggregate(LOSS, MASK, mode, 1.0)


@pytest.mark.exact("eight devices give the loss of one")
def test_eight_devices_give_the_loss_of_one():
    """The same jitted program on a batch sharded over 8 devices, with group baselines inside."""
    program = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        from jaxrl.losses.advantages import groups as advantages
        from jaxrl.losses.policy import objectives as policy, sequence
        from jaxrl.losses.reduce import aggregate

        def loss(logp, behavior, rewards, groups, mask):
            a = advantages.group_advantages(rewards, groups, num_groups=16)[:, None]
            out = 0.0
            for mode, f in (("token-mean", policy.ppo_clip), ("prompt-mean", policy.ppo_clip),
                            ("seq-mean-token-mean", sequence.gspo)):
                extra = {"mask": mask} if f is sequence.gspo else {}
                whole = aggregate.denominator(mask, mode, group_ids=groups, num_groups=16)
                tokens = aggregate.prompt_tokens(mask, groups, 16)
                out += aggregate.aggregate(f(logp, behavior, a, **extra)[0], mask, mode, whole,
                                           group_ids=groups, prompt_tokens=tokens)
            return out

        rng = np.random.default_rng(0)
        logp = -rng.random((16, 6), np.float32)
        batch = (logp, logp + 0.3 * rng.normal(size=logp.shape).astype(np.float32),
                 rng.normal(size=16).astype(np.float32), rng.integers(0, 5, 16),
                 rng.random((16, 6)) < 0.7)
        step = jax.jit(jax.value_and_grad(loss))
        one = step(*batch)
        assert len(jax.devices()) == 8
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        sharding = NamedSharding(mesh, P("data"))
        eight = step(*jax.device_put(batch, sharding))
        assert len(eight[1].sharding.device_set) == 8
        for a, b in zip(one, eight):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    """
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr


def test_a_loss_per_sequence_is_refused():
    with pytest.raises(ValueError, match="mask of aggregate has shape"):
        aggregate.aggregate(jnp.ones((4, 1)), jnp.asarray(MASK), "token-mean", jnp.float32(1.0))
