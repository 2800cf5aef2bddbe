"""Losses of control: targets, actors and conservative terms for continuous and discrete actions.

Unreduced. `[...]` are any leading axes; where a docstring says so, targets may lack them and stand
for all members of an ensemble. What a formula marks as a target carries no gradient.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, bounded_exp, constant
from jaxrl.losses.reduce.shapes import checked

KIND = "control"


@checked
def td_target(
    rewards: jax.Array, terminals: jax.Array, next_values: jax.Array, *, discount: float
) -> jax.Array:
    """The one-step target of a value.

    Formula: `r + gamma (1 - d) V(s')`
    Paper: Sutton & Barto 2018, "Reinforcement Learning: An Introduction"

    Args:
      rewards, terminals: `[...]`; a terminal is 1 where nothing follows, 0 at a time limit.
      next_values: `[...]`.
      discount: gamma.

    Returns:
      `[...]`, without gradient.
    """
    # a terminal's next value is never read, not even as 0 times it, which may not be finite
    ahead = jnp.where(jnp.asarray(terminals) >= 1.0, 0.0, (1.0 - terminals) * next_values)
    return constant(rewards + discount * ahead)


@checked
def soft_actor(logp: jax.Array, q_values: jax.Array, *, temperature: jax.Array) -> jax.Array:
    """SAC's actor: value of its own action, and entropy. The gradient flows through the action.

    Formula: `alpha log pi(a | s) - Q(s, a)`, `a ~ pi`
    Paper: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"

    Args:
      logp: `[...]` of the sampled action.
      q_values: `[...]`, already one value of the ensemble.
      temperature: alpha, without gradient.

    Returns:
      `[...]`.
    """
    return constant(temperature) * logp - q_values


@checked
def temperature_loss(
    log_temperature: jax.Array, logp: jax.Array, *, target_entropy: float
) -> jax.Array:
    """SAC's dual: the temperature rises where the entropy is below its target.

    Formula: `-log alpha (log pi(a | s) + H)`
    Paper: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (with `log alpha`
      in place of alpha, as its authors implement it)

    Args:
      log_temperature: scalar.
      logp: `[...]`, without gradient.
      target_entropy: H; minus the number of action dimensions is usual.

    Returns:
      `[...]`.
    """
    return -log_temperature * constant(logp + target_entropy)


@checked
def advantage_weight(
    advantages: jax.Array, *, temperature: float, high: float = 100.0
) -> jax.Array:
    """The weight of an action in the data when a policy is extracted by regression.

    Formula: `min(exp(A / T), high)`
    Paper: Peng et al. 2019, "Advantage-Weighted Regression"; Nair et al. 2020, "AWAC"; Kostrikov et
      al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning"

    Args:
      advantages: `[...]`.
      temperature: `T`; the inverse of IQL's beta.
      high: bound of the weight.

    Returns:
      `[...]`, without gradient.
    """
    return jnp.minimum(bounded_exp(constant(advantages) / temperature), high)


@checked
def gumbel_loss(
    values: jax.Array,
    targets: jax.Array,
    *,
    temperature: float,
    high: float = 7.0,
    rescale: bool = False,
) -> jax.Array:
    """XQL's Gumbel regression: the value whose expectation is the soft maximum over the data.

    Formula: `exp(z) - z - 1`, `z = min((Q - V) / T, high)`; rescaled, that times `exp(-m)`,
      `m = max(-1, max z)` over the batch (as in the authors' code), so that no element pulls by
      more than 1
    Paper: Garg et al. 2023, "Extreme Q-Learning: MaxEnt RL without Entropy"

    Args:
      values: `[...]`, V.
      targets: `[...]`, Q of the actions in the data.
      temperature: `T`; towards 0 the maximum, large the mean.
      high: bound of the exponent, beyond which an element no longer pulls.
      rescale: divide by the largest `exp(z)`, at least `exp(-1)`.

    Returns:
      `[...]`.
    """
    z = jnp.minimum((constant(targets) - as_float(values)) / temperature, high)
    if not rescale:
        return jnp.exp(z) - z - 1.0
    most = constant(jnp.maximum(jnp.max(z), -1.0))
    return jnp.exp(z - most) - (z + 1.0) * jnp.exp(-most)


@checked
def huber(values: jax.Array, targets: jax.Array, *, width: float = 1.0) -> jax.Array:
    """A regression that a corrupted target moves no more than an error of `width` does.

    Formula: `u^2 / 2` where `|u| <= w`, else `w (|u| - w / 2)`, `u = target - value`
    Paper: Huber 1964; Yang et al. 2023, "Towards Robust Offline Reinforcement Learning under
      Diverse Data Corruption" (RIQL)

    Args:
      values: `[..., N]`.
      targets: `[..., N]` or `[N]`.
      width: `w`.

    Returns:
      `[..., N]`.
    """
    error = jnp.abs(constant(targets) - as_float(values))
    near = jnp.minimum(error, width)
    return near * (error - 0.5 * near)


@checked
def sampled_cql(
    q_values: jax.Array,
    log_density: jax.Array,
    q_data: jax.Array,
    *,
    floor: jax.Array | float = -jnp.inf,
) -> jax.Array:
    """CQL's term for continuous actions, by importance sampling; with a floor, Cal-QL's.

    Formula: `log mean_i exp(max(Q(s, a_i), floor) - log mu(a_i | s)) - Q(s, a_data)`
    Paper: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning"; Nakamoto
      et al. 2023, "Cal-QL" (the floor: a reference value, such as the return to go)

    Args:
      q_values: `[N, ...]` of N sampled actions.
      log_density: `[N, ...]` under the density that each was drawn from.
      q_data: `[...]` of the action in the data.
      floor: scalar, `[...]`, or `[N, ...]` for each action its own, -inf where there is none
        (Cal-QL's authors lift the policy's actions and not the uniform ones); none when omitted.

    Returns:
      `[...]`, to be weighted and added to the Bellman error.
    """
    lifted = jnp.maximum(as_float(q_values), floor) - constant(log_density)
    return jax.nn.logsumexp(lifted, axis=0) - jnp.log(len(lifted)) - q_data


@checked
def gradient_diversity(gradients: jax.Array) -> jax.Array:
    """EDAC's term: how alike the members' gradients of the action are.

    Formula: `sum_(i != j) <g_i, g_j> / (E - 1)`, `g = grad_a Q / |grad_a Q|`
    Paper: An et al. 2021, "Uncertainty-Based Offline RL with Diversified Q-Ensemble"

    Args:
      gradients: `[E, ..., A]` of Q by the action, for each of E members.

    Returns:
      `[...]`, to be weighted and added to the members' Bellman errors.
    """
    norm = jnp.sqrt(jnp.sum(jnp.square(gradients), axis=-1, keepdims=True) + 1e-10)
    unit = gradients / norm
    total = jnp.sum(unit, axis=0)
    alike = jnp.sum(total**2, axis=-1) - jnp.sum(unit**2, axis=(0, -1))
    return alike / (len(gradients) - 1)


@checked
def flow_matching(velocity: jax.Array, noise: jax.Array, actions: jax.Array) -> jax.Array:
    """Behaviour cloning of a flow: the field along straight lines from noise to the data.

    Formula: `mean_A (v(x_t, t) - (a - x_0))^2`, at `x_t = (1 - t) x_0 + t a`
    Paper: Lipman et al. 2022, "Flow Matching for Generative Modeling"; Park et al. 2025, "Flow
      Q-Learning"

    Args:
      velocity: `[..., A]`, the field at `x_t`.
      noise: `[..., A]`, `x_0`.
      actions: `[..., A]`, `a`.

    Returns:
      `[...]`.
    """
    return jnp.mean(jnp.square(velocity - constant(actions - noise)), axis=-1)


@checked
def forward_backward(measure: jax.Array, target: jax.Array, *, discount: jax.Array) -> jax.Array:
    """FB: the successor measure as an inner product, by temporal differences between all pairs.

    Formula: `mean_(j != i) (M_ij - gamma_i M'_ij)^2 / 2 - M_ii`,
      `M_ij = F(s_i, a_i, z_i) . B(s'_j)`
    Paper: Touati & Ollivier 2021, "Learning One Representation to Optimize All Rewards"

    Args:
      measure: `[N, N]`, M of each step i and each next state j of the batch.
      target: `[N, N]`, M' of the target networks at the next state and action of i.
      discount: `[N]`, gamma, or 0 where the episode ended.

    Returns:
      `[N]`.
    """
    size = len(measure)
    off = 1.0 - jnp.eye(size)
    error = jnp.square(measure - constant(discount[:, None] * target))
    return 0.5 * jnp.sum(off * error, axis=1) / (size - 1) - jnp.diagonal(measure)


@checked
def orthonormality(features: jax.Array) -> jax.Array:
    """FB's constraint on B: its covariance stays near the identity.

    Formula: `mean_(j != i) (B_i . B_j)^2 - 2 |B_i|^2`
    Paper: Touati et al. 2022, "Does Zero-Shot Reinforcement Learning Exist?"

    Args:
      features: `[N, D]`, B of N independent states.

    Returns:
      `[N]`.
    """
    products = features @ features.T
    off = 1.0 - jnp.eye(len(features))
    alike = jnp.sum(off * jnp.square(products), axis=1) / (len(features) - 1)
    return alike - 2.0 * jnp.diagonal(products)


@checked
def dual_imitation(
    q_values: jax.Array,
    next_values: jax.Array,
    terminals: jax.Array,
    expert: jax.Array,
    *,
    discount: float,
    weight: float,
) -> jax.Array:
    """ReCOIL's critic, chi-square: high on the expert, low elsewhere, Bellman-consistent on both.

    Formula: `w (1 - 2 e) Q(s, a) + (gamma (1 - d) V(s') - Q(s, a))^2 / 2`, e 1 on expert steps
    Paper: Sikchi et al. 2023, "Dual RL: Unification and New Methods for Reinforcement and Imitation
      Learning" (the expectation over the initial states replaced by the data's, as there)

    Args:
      q_values: `[..., N]`, over a batch that is half expert.
      next_values, terminals: `[..., N]` or `[N]`.
      expert: `[N]`, 1 where the step is the expert's.
      discount: gamma.
      weight: `w`.

    Returns:
      `[..., N]`.
    """
    reached = jnp.where(jnp.asarray(terminals) >= 1.0, 0.0, (1.0 - terminals) * next_values)
    consistent = discount * constant(reached) - q_values
    return weight * (1.0 - 2.0 * expert) * q_values + 0.5 * jnp.square(consistent)


@checked
def worst_change(values: jax.Array, perturbed: jax.Array) -> jax.Array:
    """RO2O's smoothness: the largest change of a value that a small change of the state makes.

    Formula: `max_k (Q(s, a) - Q(s_k, a))^2`
    Paper: Wen et al. 2023, "Towards Robust Offline-to-Online Reinforcement Learning via Uncertainty
      and Smoothness"

    Args:
      values: `[...]`.
      perturbed: `[K, ...]`, at K states near.

    Returns:
      `[...]`.
    """
    return jnp.max(jnp.square(perturbed - values), axis=0)


@checked
def dynamics_gap(q_simulated: jax.Array, gap: jax.Array, q_real: jax.Array) -> jax.Array:
    """H2O's term: values are lowered where the simulator is wrong, raised on the real data.

    Formula: `log sum_i w_i exp(Q_i) - mean_j Q_j`, `w_i = u_i / sum u`, i simulated, j real
    Paper: Niu et al. 2022, "When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online
      Reinforcement Learning"

    Args:
      q_simulated: `[..., N]`.
      gap: `[N]`, u, not negative: how far the simulator's dynamics are from the real ones.
      q_real: `[..., M]`.

    Returns:
      `[...]`.
    """
    weight = jnp.log(constant(gap) + 1e-6)
    lifted = jax.nn.logsumexp(weight + q_simulated, axis=-1) - jax.nn.logsumexp(weight)
    return lifted - jnp.mean(q_real, axis=-1)


@checked
def distributional_critic(
    mean: jax.Array,
    std: jax.Array,
    expected: jax.Array,
    sampled: jax.Array,
    *,
    scale: jax.Array,
    width: jax.Array,
) -> jax.Array:
    """DSAC-T's critic: a normal return, with steadied gradients.

    Formula: `-(w + e) (sg[(y_q - Q) / (s^2 + e)] Q + sg[((y_z - Q)^2 - s^2) / (s^3 + e)] s)`, y_z
      clipped to `Q +- width`, e 0.1
    Paper: Duan et al. 2023, "Distributional Soft Actor-Critic with Three Refinements"

    Args:
      mean, std: `[..., N]`, Q and s.
      expected: `[..., N]` or `[N]`, y_q: the target's mean, which alone moves Q.
      sampled: `[..., N]` or `[N]`, y_z: a draw of the target, which moves s.
      scale: w, a running mean of s^2: undoes the division on average.
      width: bound of a draw's distance from Q; three running means of s.

    Returns:
      `[..., N]`, whose gradient is meant and whose value is not.
    """
    small = 0.1
    q, s = constant(mean), constant(std)
    clipped_target = jnp.clip(sampled, q - width, q + width)
    by_mean = constant(expected - q) / (jnp.square(s) + small)
    by_std = constant(jnp.square(clipped_target - q) - jnp.square(s)) / (s**3 + small)
    return -constant(scale + small) * (by_mean * mean + by_std * std)


@checked
def denoising(predicted: jax.Array, noise: jax.Array) -> jax.Array:
    """Behaviour cloning of a diffusion policy: the noise that was added to the action.

    Formula: `mean_A (eps(sqrt(k_t) a + sqrt(1 - k_t) eps, t) - eps)^2`
    Paper: Ho et al. 2020, "Denoising Diffusion Probabilistic Models"; Wang et al. 2022, "Diffusion
      Policies as an Expressive Policy Class for Offline Reinforcement Learning"

    Args:
      predicted: `[..., A]`, of the network at the noisy action.
      noise: `[..., A]`, eps.

    Returns:
      `[...]`.
    """
    return jnp.mean(jnp.square(predicted - constant(noise)), axis=-1)
