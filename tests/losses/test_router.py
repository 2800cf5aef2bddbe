"""Terms of routers: numbers worked by hand, and transformers' load-balancing loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses import router

CHOSEN = jnp.array([[[[0, 1], [0, 2], [3, 3]]]])  # [L, R, T, K]: one layer, one row, three tokens
WEIGHTS = jnp.array(
    [[1.0, 2.0, 0.0]]
)  # the second is shared by two sequences; the third is padding


def test_a_load_counts_tokens_as_often_as_they_are_shared():
    load = router.expert_load(CHOSEN, WEIGHTS, num_experts=4)
    np.testing.assert_array_equal(load, [[3, 1, 2, 0]])


def test_balance_by_hand():
    """f = (3, 1, 2, 0) / 6; P = (0.4 + 2 * 0.1, 0.3 + 2 * 0.2, 0.2 + 2 * 0.3, ...) / 3."""
    p = jnp.array([[[[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [jnp.e] * 4]]])
    load = jnp.array([[3.0, 1.0, 2.0, 0.0]])
    want = 4 * (3 * 0.6 + 1 * 0.7 + 2 * 0.8) / 18
    np.testing.assert_allclose(
        router.load_balancing(p, load, WEIGHTS, total=3.0), [want], rtol=1e-6
    )
    slope = jax.grad(lambda p: router.load_balancing(p, load, WEIGHTS, total=3.0)[0])(p)[0, 0]
    f = np.array([3, 1, 2, 0]) / 6
    np.testing.assert_allclose(slope, [4 * f / 3, 2 * 4 * f / 3, 0 * f], rtol=1e-6)


def test_balance_is_1_under_a_uniform_load_and_e_where_all_goes_to_one():
    even = jnp.full((1, 1, 3, 4), 0.25)
    ones = jnp.ones((1, 3))
    assert router.load_balancing(even, jnp.ones((1, 4)), ones, total=3.0) == 1
    one = jax.nn.one_hot(jnp.zeros((1, 1, 3), jnp.int32), 4)
    assert router.load_balancing(one, jnp.array([[9.0, 0, 0, 0]]), ones, total=3.0) == 4


def test_balance_within_sequences_is_the_mean_of_each_alone():
    rng = np.random.default_rng(0)
    p = jnp.asarray(rng.dirichlet(np.ones(4), (2, 1, 5)), jnp.float32)
    chosen = jnp.asarray(rng.integers(0, 4, (2, 1, 5, 2)))
    member = jnp.array([[[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]]], bool)
    alone = []
    for own in member[0, jnp.array([0, 2])]:
        weights = own[None].astype(jnp.float32)
        load = router.expert_load(chosen, weights, num_experts=4)
        alone.append(router.load_balancing(p, load, weights, total=weights.sum()))
    got = router.sequence_load_balancing(p, chosen, member, total=2.0)
    np.testing.assert_allclose(got, np.mean(alone, axis=0), rtol=1e-5)


def test_z_loss_by_hand():
    logits = jnp.log(jnp.array([[[[1.0, 1.0], [3.0, 1.0], [9.0, 9.0]]]]))
    want = (np.log(2) ** 2 + 2 * np.log(4) ** 2) / 3
    np.testing.assert_allclose(router.router_z_loss(logits, WEIGHTS, total=3.0), [want], rtol=1e-6)


def test_probabilities_by_hand():
    logits = jnp.array([0.0, jnp.log(3.0)])
    np.testing.assert_allclose(router.router_probabilities(logits), [0.25, 0.75], rtol=1e-6)
    got = router.router_probabilities(logits, scoring="sigmoid")
    np.testing.assert_allclose(got, [0.5 / 1.25, 0.75 / 1.25], rtol=1e-6)


def test_a_bias_moves_against_the_load():
    load = jnp.array([[3.0, 1.0, 2.0, 2.0]])
    np.testing.assert_allclose(router.bias_step(load, speed=0.5), [[-0.5, 0.5, 0.0, 0.0]])


def test_biases_alone_bring_a_skewed_load_near_uniform():
    """Tokens prefer expert 0 by far; after some steps no expert has much more than its share."""
    rng = np.random.default_rng(0)
    scores = jax.nn.sigmoid(rng.normal(np.array([2.0, 0.5, 0.0, -1.0]), size=(512, 4)))
    bias, ones, loads = jnp.zeros((1, 4)), jnp.ones((1, 512)), []
    for _ in range(60):
        chosen = jax.lax.top_k(scores + bias[0], 2)[1][None, None]
        loads.append(router.expert_load(chosen, ones, num_experts=4)[0])
        bias += router.bias_step(loads[-1][None], speed=0.02)
    assert loads[0].max() > 1.8 * 256 and loads[-1].max() < 1.1 * 256


@pytest.mark.parity
@pytest.mark.exact("the load-balancing loss of a layer is transformers', over experts a token")
def test_balance_is_that_of_transformers():
    """Each layer alone, padding left out; transformers' sums over the choices of a token."""
    torch = pytest.importorskip("torch")
    moe = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 7, 8)).astype(np.float32)
    real = np.arange(7) < np.array([[7], [4], [1]])
    p = router.router_probabilities(jnp.asarray(logits))
    chosen = jax.lax.top_k(p, 3)[1]
    weights = jnp.asarray(real, jnp.float32)
    load = router.expert_load(chosen, weights, num_experts=8)
    ours = router.load_balancing(p, load, weights, total=weights.sum())
    for layer in range(2):
        given = (torch.tensor(logits[layer].reshape(-1, 8)),)
        theirs = moe.load_balancing_loss_func(given, 8, 3, torch.tensor(real, dtype=torch.long))
        np.testing.assert_allclose(3 * ours[layer], theirs.numpy(), rtol=1e-5)


def test_a_misspelled_scoring_is_refused():
    with pytest.raises(ValueError, match=r"scoring='sigmiod' is unknown; choose softmax or sigm"):
        router.router_probabilities(jnp.ones(3), scoring="sigmiod")
