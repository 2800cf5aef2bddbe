"""Losses of critics: scalar, clipped, distributional, expectile, conservative.

All per element and unreduced; targets are constants. A distributional critic has `K` atoms at
evenly spaced `centers [K]`: encode the target by `hl_gauss` or `two_hot`, train by
`categorical_loss`, read the value off by `categorical_value`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.divergence.f_divergence import conjugate
from jaxrl.losses.reduce.masking import as_float, constant
from jaxrl.losses.reduce.shapes import checked

KIND = "value"


@checked
def squared_error(values: jax.Array, returns: jax.Array) -> jax.Array:
    """Half the squared error to the return.

    Formula: `(V - R)^2 / 2`
    Paper: Sutton & Barto 2018, "Reinforcement Learning: An Introduction"

    Args:
      values: `[..., N]`.
      returns: `[..., N]` or `[N]`, the same for all members of an ensemble.

    Returns:
      `[..., N]`.
    """
    return 0.5 * jnp.square(as_float(values) - constant(returns))


@checked
def clipped_value(
    values: jax.Array, old_values: jax.Array, returns: jax.Array, *, clip: float = 0.2
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's value loss: the worse of the error and the error of a value that barely moved.

    Formula: `max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2`
    Paper: Schulman et al. 2015, "High-Dimensional Continuous Control Using GAE" (as in OpenAI
      baselines' PPO)

    Args:
      values, old_values, returns: `[...]`.
      clip: in units of the value.

    Returns:
      Loss `[...]`; metric `clipped` `[...]`.
    """
    values, old, returns = as_float(values), constant(old_values), constant(returns)
    near = old + jnp.clip(values - old, -clip, clip)
    plain, limited = jnp.square(values - returns), jnp.square(near - returns)
    clipped = jax.lax.stop_gradient((limited > plain).astype(jnp.float32))
    return 0.5 * jnp.maximum(plain, limited), {"clipped": clipped}


@checked
def hl_gauss(targets: jax.Array, centers: jax.Array, *, sigma_ratio: float = 0.75) -> jax.Array:
    """HL-Gauss: a scalar as the histogram of a Gaussian around it.

    Formula: `p_i = (Phi((z_(i+1) - y) / s) - Phi((z_i - y) / s)) / (Phi at z_K - Phi at z_0)`
    Paper: Imani & White 2018, "Improving Regression Performance with Distributional Losses";
      Farebrother et al. 2024, "Stop Regressing"

    Args:
      targets: `[...]`, clipped to the range of the bins.
      centers: `[K]` ascending, evenly spaced; the edges `z` lie half a width around them.
      sigma_ratio: standard deviation `s` over the width of a bin.

    Returns:
      `[..., K]` probabilities, without gradient.
    """
    centers = constant(centers)
    width = centers[1] - centers[0]
    edges = jnp.concatenate([centers - 0.5 * width, centers[-1:] + 0.5 * width])
    y = jnp.clip(constant(targets), edges[0], edges[-1])[..., None]
    cdf = jax.scipy.special.ndtr((edges - y) / (sigma_ratio * width))
    return jnp.diff(cdf, axis=-1) / (cdf[..., -1:] - cdf[..., :1])


@checked
def two_hot(targets: jax.Array, centers: jax.Array) -> jax.Array:
    """Two-hot: a scalar as the mixture of its two neighbouring atoms, whose mean it is.

    Formula: `p_i = max(0, 1 - |y - c_i| / width)`
    Paper: Bellemare et al. 2017 (C51's projection); Schrittwieser et al. 2020 (MuZero)

    Args:
      targets: `[...]`, clipped to `[c_1, c_K]`.
      centers: `[K]` ascending, evenly spaced.

    Returns:
      `[..., K]` probabilities, without gradient.
    """
    centers = constant(centers)
    width = centers[1] - centers[0]
    y = jnp.clip(constant(targets), centers[0], centers[-1])[..., None]
    return jnp.maximum(1.0 - jnp.abs(y - centers) / width, 0.0)


@checked
def categorical_loss(logits: jax.Array, target_probs: jax.Array) -> jax.Array:
    """Cross-entropy of a predicted distribution to an encoded target.

    Formula: `-sum_i p_i log softmax(z)_i`
    Paper: Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification"

    Args:
      logits: `[..., K]`.
      target_probs: `[..., K]` from `hl_gauss` or `two_hot`.

    Returns:
      `[...]` nats.
    """
    logp = jax.nn.log_softmax(as_float(logits), axis=-1)
    return -jnp.sum(constant(target_probs) * logp, axis=-1)


@checked
def categorical_value(logits: jax.Array, centers: jax.Array) -> jax.Array:
    """The scalar value of a categorical critic.

    Formula: `sum_i softmax(z)_i c_i`
    Paper: Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification"

    Args:
      logits: `[..., K]`.
      centers: `[K]`.

    Returns:
      `[...]`.
    """
    return jnp.sum(jax.nn.softmax(as_float(logits), axis=-1) * constant(centers), axis=-1)


@checked
def quantile_loss(quantiles: jax.Array, targets: jax.Array, *, huber: float = 1.0) -> jax.Array:
    """Quantile regression at the midpoints of K equal shares of probability.

    Formula: `sum_i mean_j |tau_i - 1[u_ij < 0]| huber(u_ij)`, `u_ij = y_j - q_i`,
      `tau_i = (i + 1/2) / K`
    Paper: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression"

    Args:
      quantiles: `[..., K]`.
      targets: `[..., M]` samples or quantiles of the target.
      huber: width of the quadratic zone (not divided out); 0 for the absolute value.

    Returns:
      `[...]`.
    """
    import rlax  # takes as long as importing JAX

    quantiles, targets = as_float(quantiles), constant(targets)
    count = quantiles.shape[-1]
    tau = ((jnp.arange(count) + 0.5) / count).astype(quantiles.dtype)
    lead = quantiles.shape[:-1]
    loss = jax.vmap(lambda q, y: rlax.quantile_regression_loss(q, tau, y, huber))
    return loss(quantiles.reshape(-1, count), targets.reshape(-1, targets.shape[-1])).reshape(lead)


@checked
def expectile_loss(values: jax.Array, targets: jax.Array, *, tau: float = 0.7) -> jax.Array:
    """IQL's expectile regression: a value near the best action the data supports.

    Formula: `|tau - 1[u < 0]| u^2`, `u = Q - V`
    Paper: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning"

    Args:
      values: `[...]`, V.
      targets: `[...]`, Q of the actions in the data.
      tau: 1/2 is the mean, towards 1 the maximum.

    Returns:
      `[...]`.
    """
    u = constant(targets) - as_float(values)
    return jnp.where(u < 0, 1.0 - tau, tau) * jnp.square(u)


@checked
def cql_term(q_values: jax.Array, actions: jax.Array, *, temperature: float = 1.0) -> jax.Array:
    """CQL's conservative term: pushes down every action but the one in the data.

    Formula: `T log sum_a exp(Q(s, a) / T) - Q(s, a_data)`
    Paper: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning"

    Args:
      q_values: `[..., A]`.
      actions: `[...]` int32.
      temperature: `T`.

    Returns:
      `[...]`, to be weighted and added to the Bellman error.
    """
    q = as_float(q_values)
    data_q = jnp.take_along_axis(q, actions[..., None], axis=-1)[..., 0]
    return temperature * jax.nn.logsumexp(q / temperature, axis=-1) - data_q


@checked
def double_q_target(online: jax.Array, target: jax.Array) -> jax.Array:
    """Double Q-learning: one network chooses the action, the other values it.

    Formula: `Q_target(s, argmax_a Q_online(s, a))`
    Paper: van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning"

    Args:
      online, target: `[..., A]`.

    Returns:
      `[...]`, without gradient.
    """
    best = jnp.argmax(online, axis=-1, keepdims=True)
    return jnp.take_along_axis(constant(target), best, axis=-1)[..., 0]


@checked
def ensemble_target(values: jax.Array, *, pessimism: float | None = None) -> jax.Array:
    """One target of an ensemble: the minimum, or the mean less some standard deviations.

    Formula: `min_e V_e`, or `mean_e V_e - pessimism std_e V_e`
    Paper: Fujimoto et al. 2018, "Addressing Function Approximation Error" (TD3, minimum of two);
      An et al. 2021, "Uncertainty-Based Offline RL with Diversified Q-Ensemble"

    Args:
      values: `[E, ...]`.
      pessimism: number of standard deviations (0 is the mean); the minimum when omitted.

    Returns:
      `[...]`, without gradient.
    """
    values = constant(values)
    if pessimism is None:
        return jnp.min(values, axis=0)
    return jnp.mean(values, axis=0) - pessimism * jnp.std(values, axis=0)


@checked
def dual_value_loss(
    values: jax.Array, targets: jax.Array, *, kind: str = "chi2", weight: float = 0.5
) -> jax.Array:
    """f-DVL: implicit maximisation by the conjugate of a divergence, in place of an expectile.

    Formula: `(1 - w) V + w f*_p(Q - V)`
    Paper: Sikchi et al. 2023, "Dual RL: Unification and New Methods for Reinforcement and Imitation
      Learning"

    Args:
      values: `[...]`, V of the states in the data.
      targets: `[...]`, Q of the actions in the data.
      kind: of `f_divergence.conjugate`.
      weight: `w` in (0, 1); larger follows the best actions more closely.

    Returns:
      `[...]`.
    """
    values = as_float(values)
    return (1.0 - weight) * values + weight * conjugate(constant(targets) - values, kind=kind)
