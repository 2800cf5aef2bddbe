"""One update equals the plain computation, however its input is packed, split and ordered."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.models import decoder
from jaxrl.training.logprobs import make_score
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import init_state, lag, make_update
from jaxrl.types import Params, Trajectory
from tests import broad_except
from tests.jaxrl.batches import MODEL, batch

TEMPERATURE = 0.8
WIDE = PackingConfig(micro_batch_tokens=4096, row_length=64)


def tree_max(a: Params, b: Params) -> float:
    """Greatest absolute difference of two trees."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a, b)))


@functools.cache
def params() -> Params:
    return jax.jit(functools.partial(decoder.init, MODEL))(jax.random.key(0))


@functools.cache
def update(**objective: object):
    if "policy" not in objective:
        objective = {"policy_args": {"clip_low": 0.2, "clip_high": 0.2}} | objective
    return make_update(
        MODEL,
        ObjectiveConfig(**objective),
        optax.sgd(1.0),
        temperature=TEMPERATURE,
        max_new_tokens=9,
        remat="none",
    )


def step(data: Trajectory, config: PackingConfig, run=None, ref_logp=None):
    """Gradient (of SGD at rate 1: the change) and metrics of an update."""
    state = init_state(jax.tree.map(jnp.array, params()), optax.sgd(1.0))
    after, metrics = (run or update())(state, data, pack(data, config)[0], ref_logp)
    return jax.tree.map(jnp.subtract, params(), after.params), jax.device_get(metrics)


def plain_logp(params: Params, data: Trajectory) -> jax.Array:
    """[N, T]: each sequence in a row of its own, all logits, one log-softmax."""
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    until = jnp.full((count, width), width)
    hidden = decoder.hidden(MODEL, params, data.tokens, position, until)
    logits = hidden @ decoder.unembedding(params).T / TEMPERATURE
    logp = jax.nn.log_softmax(logits[:, :-1])
    chosen = jnp.take_along_axis(logp, data.tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.where(data.action_mask, jnp.pad(chosen, ((0, 0), (1, 0))), 0.0)


def plain_loss(params: Params, data: Trajectory) -> jax.Array:
    """GRPO by its formula: clipped at 0.2, the group's standard deviation, mean over tokens."""
    advantages = np.zeros(len(data.rewards))
    for g in np.unique(data.group_ids):
        rows = (data.group_ids == g) & data.valid
        r = data.rewards[rows].astype(np.float64)
        advantages[rows] = (r - r.mean()) / (r.std(ddof=1) + 1e-4)
    mask = data.action_mask & data.valid[:, None]
    a = jnp.asarray(advantages, jnp.float32)[:, None]
    ratio = jnp.exp(plain_logp(params, data) - data.behavior_logp)
    per_token = -jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)
    return jnp.sum(jnp.where(mask, per_token, 0.0)) / mask.sum()


@pytest.fixture(scope="module")
def data() -> Trajectory:
    """Log-probabilities near the model's own, so that some ratios are clipped and some are not."""
    data = batch(0, failed=(2,))
    noise = np.random.default_rng(1).normal(0, 0.2, data.tokens.shape)
    logp = np.asarray(jax.jit(plain_logp)(params(), data)) + noise
    return data.replace(behavior_logp=np.where(data.action_mask, logp, 0).astype(np.float32))


@pytest.fixture(scope="module")
def expected(data) -> tuple[float, Params]:
    return jax.jit(jax.value_and_grad(functools.partial(plain_loss, data=data)))(params())


@pytest.mark.exact("log-probs of packed rows equal those of separate rows to 2e-5")
def test_log_probabilities_are_those_of_separate_rows(data):
    score = make_score(MODEL, temperature=TEMPERATURE)
    packed, cost = pack(data, WIDE)
    assert cost["shared_share"] > 0.2
    np.testing.assert_allclose(
        score(params(), packed), jax.jit(plain_logp)(params(), data), atol=2e-5
    )


SHAPES = {
    "one micro-batch, several trees a row": WIDE,
    "a row a micro-batch, groups split over them": PackingConfig(32, row_length=24),
    "some rows a micro-batch": PackingConfig(96, row_length=32),
}


@pytest.mark.sample(1, broad=2)
@pytest.mark.exact("an update equals the plain gradient whatever the packing")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_update_is_the_plain_gradient_whatever_the_packing(data, expected, shape):
    loss, gradient = expected
    change, metrics = step(data, SHAPES[shape])
    assert metrics["loss"] == pytest.approx(float(loss), abs=1e-6)
    assert tree_max(change, gradient) < 1e-5
    norm = float(optax.global_norm(gradient))
    assert norm > 0.05 and metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert 0 < metrics["clipped_low"] + metrics["clipped_high"] < 1


@pytest.mark.exact("an update does not depend on order or padding of sequences")
def test_the_update_does_not_depend_on_order_or_padding(data, expected):
    order = np.random.default_rng(0).permutation(len(data.tokens))
    shuffled = jax.tree.map(lambda a: a[order], data)
    padded = {
        name: np.pad(getattr(data, name), ((0, 0), (0, 8)))
        for name in ("tokens", "action_mask", "behavior_logp", "policy_version")
    }
    for variant in (shuffled, data.replace(**padded)):
        change, metrics = step(variant, WIDE)
        assert tree_max(change, expected[1]) < 1e-5
        assert metrics["loss"] == pytest.approx(float(expected[0]), abs=1e-6)


@pytest.mark.exact("a sequence without a score changes nothing in an update")
def test_a_failed_score_is_as_if_the_sequence_had_never_been(data):
    rest = jax.tree.map(lambda a: np.delete(np.asarray(a), 2, axis=0), data)
    assert tree_max(step(rest, WIDE)[0], step(data, WIDE)[0]) < 1e-5


def test_equal_rewards_give_a_zero_gradient(data):
    same = data.replace(rewards=np.full_like(data.rewards, 0.7))
    change, metrics = step(same, WIDE)
    assert tree_max(change, jax.tree.map(jnp.zeros_like, change)) == 0
    assert metrics["advantage_abs"] == 0


@pytest.mark.exact("a gradient that is not finite leaves the state to the last bit")
def test_a_gradient_that_is_not_finite_changes_nothing_but_the_step(data):
    broken = jax.tree.map(jnp.array, params())
    broken["norm"]["weight"] = broken["norm"]["weight"].at[0].set(jnp.nan)
    optimizer = optax.adam(1.0)
    run = make_update(
        MODEL, ObjectiveConfig(), optimizer, temperature=1.0, max_new_tokens=9, remat="none"
    )
    before = init_state(broken, optimizer)
    kept = jax.tree.map(np.array, before)
    after, metrics = run(before, data, pack(data, WIDE)[0], None)
    assert metrics["skipped"] == 1 and int(after.step) == 1
    jax.tree.map(np.testing.assert_array_equal, after.opt_state, kept.opt_state)
    jax.tree.map(np.testing.assert_array_equal, after.params, kept.params)


def test_the_loss_holds_no_array_of_all_sequences_for_each_micro_batch():
    """Of an objective that looks at tokens alone, with every term."""
    data = batch(0)
    packed, _ = pack(data, SHAPES["some rows a micro-batch"])
    state = jax.eval_shape(lambda p: init_state(p, optax.sgd(1.0)), params())
    run = update(kl_coef=0.3, entropy_coef=0.1)
    program = jax.make_jaxpr(run)(state, data, packed, data.behavior_logp)

    def made(jaxpr: jax.extend.core.Jaxpr, looped: bool) -> Iterator[tuple[int, ...]]:
        for equation in jaxpr.eqns:
            if looped:
                yield from (tuple(out.aval.shape) for out in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from made(inner, looped or equation.primitive.name in ("while", "scan"))

    count, width = data.tokens.shape
    inside = set(made(program.jaxpr, False))
    assert packed.tokens.shape[1:] in inside
    assert not inside & {(count, width), (count, width, 1), (count * width,)}


@pytest.mark.exact("terms of the objective add up over micro-batches to 1e-5")
def test_terms_of_the_objective_add_up_over_micro_batches(data):
    """KL and entropy have their weight and their gradient, also when micro-batches are many."""
    run = update(kl_coef=0.3, entropy_coef=0.1, aggregation="seq-mean-token-mean")
    ref = data.behavior_logp
    whole, metrics = step(data, WIDE, run, ref)
    split, more = step(data, SHAPES["some rows a micro-batch"], run, ref)
    assert tree_max(whole, split) < 1e-5
    for name, value in metrics.items():
        assert more[name] == pytest.approx(value, abs=1e-5), name
    without, _ = step(data, WIDE, update(aggregation="seq-mean-token-mean"))
    assert tree_max(whole, without) > 1e-3


@pytest.mark.broad
@pytest.mark.exact("an objective that couples a group does not depend on micro-batches")
def test_an_objective_that_couples_a_group_is_exact_over_micro_batches(data):
    """Every pair of a group has a term, also where the two lie in different micro-batches."""
    run = update(policy="opmd_pairwise")
    whole, metrics = step(data, WIDE, run)
    split, more = step(data, SHAPES["some rows a micro-batch"], run)
    assert tree_max(whole, split) < 1e-5 < tree_max(whole, jax.tree.map(jnp.zeros_like, whole))
    assert more["loss"] == pytest.approx(metrics["loss"], rel=1e-4)


@pytest.mark.exact("an objective with a statistic of the whole batch ignores micro-batches: 1e-5")
@pytest.mark.parametrize(
    ("policy", "args"),
    [
        pytest.param("m2po", {"threshold": 0.01}, marks=pytest.mark.broad),
        pytest.param("vcpo", {}, marks=pytest.mark.broad),
        ("clip_cov", {"fraction": 0.3, "cov_low": -1.0}),
    ],
)
def test_a_statistic_of_the_batch_does_not_depend_on_micro_batches(data, policy, args):
    given = ObjectiveConfig(policy=policy, policy_args=args)
    run = make_update(MODEL, given, optax.sgd(1.0), temperature=TEMPERATURE, max_new_tokens=9,
                      remat="none")  # fmt: skip
    whole, metrics = step(data, WIDE, run)
    split, more = step(data, SHAPES["some rows a micro-batch"], run)
    assert tree_max(whole, split) < 1e-5 < tree_max(whole, jax.tree.map(jnp.zeros_like, whole))
    assert more["loss"] == pytest.approx(metrics["loss"], rel=1e-4)


def half_a_step(logp: jax.Array, advantages: jax.Array):
    return -advantages * logp, {"lr_scale": jnp.float32(0.5)}


def a_step(logp: jax.Array, advantages: jax.Array):
    return -advantages * logp, {}


@pytest.mark.parametrize("shape", broad_except(["some"], ["one", "some"]))
def test_an_objective_scales_the_learning_rate_of_its_update(data, shape):
    """Of what the optimizer makes of the gradient, and once, however the batch is split."""
    packing = WIDE if shape == "one" else SHAPES["some rows a micro-batch"]
    whole, metrics = step(data, packing, update(policy=f"{__name__}:a_step"))
    half, scaled = step(data, packing, update(policy=f"{__name__}:half_a_step"))
    assert scaled["lr_scale"] == 0.5 and "lr_scale" not in metrics
    assert scaled["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-6)
    assert tree_max(jax.tree.map(lambda x: 0.5 * x, whole), half) < 1e-6
    assert tree_max(whole, half) > 1e-3


@pytest.mark.exact("skipping sequences of zero advantage does not change the update")
def test_leaving_out_what_has_no_advantage_changes_nothing(data, expected):
    keep = data.valid & (data.group_ids < 3)  # the last group has equal rewards
    packed, _ = pack(data, WIDE, keep=keep)
    state = init_state(jax.tree.map(jnp.array, params()), optax.sgd(1.0))
    after, metrics = update()(state, data, packed, None)
    change = jax.tree.map(jnp.subtract, params(), after.params)
    assert tree_max(change, expected[1]) < 1e-5
    assert metrics["loss"] == pytest.approx(float(expected[0]), abs=1e-6)
    assert not set(np.unique(packed.sequence)) & set(np.flatnonzero(~keep))


def test_lag_by_hand():
    data = batch()
    versions = np.full(data.tokens.shape, 5, np.int32)
    own = np.zeros(data.tokens.shape, bool)
    own[0, 2:4] = own[1, 2:4] = True
    versions[0, 2], versions[0, 3], versions[1] = 7, 4, 1
    expert = np.arange(len(own)) == 1
    data = data.replace(policy_version=versions, action_mask=own)
    found = lag(data, jnp.int32(7))
    assert (found["lag/mean"], found["lag/max"]) == ((0 + 3 + 6 + 6) / 4, 6)
    found = lag(data.replace(expert=expert), jnp.int32(7))
    assert (found["lag/mean"], found["lag/max"]) == (1.5, 3)
    nothing = lag(data.replace(action_mask=np.zeros_like(own)), jnp.int32(7))
    assert (nothing["lag/mean"], nothing["lag/max"]) == (0, 0)
