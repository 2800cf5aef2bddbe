"""Returns and advantages along a trajectory, for token-level rewards and critics.

Arrays are `[B, T]`. Only tokens with `mask` are steps of the decision process: the state after an
action is the state before the row's *next action*, however much tool output or padding lies
between, and the reward of a step stands on its action token. `last_value [B]` is the value of the
state after the last action: 0 where the episode ended, a critic's value where it was cut off.

The recursions are rlax's, which is imported where it is used: with what it needs, that takes as
long as importing JAX. A masked token is made transparent to them: value of the next state,
reward 0, discount and mixing 1.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import constant, row_constant, where_valid
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "return"


@checked
def token_rewards(
    rewards: jax.Array,
    *,
    mask: jax.Array,
    kl: jax.Array | None = None,
    beta: float | jax.Array = 0.0,
) -> jax.Array:
    """A sequence's reward on its last action, and a KL penalty on every action.

    Formula: `r_t = 1[t last action] R - beta kl_t`
    Paper: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences"

    Args:
      rewards: `[B]` of whole sequences.
      mask: `[B, T]`.
      kl: `[B, T]` estimates of `jaxrl.losses.divergence.kl` (k1 is usual here); none when omitted.
      beta: weight of the penalty.

    Returns:
      `[B, T]`, without gradient, 0 at masked tokens.
    """
    mask = jnp.asarray(mask, bool)
    acts_later = jnp.cumsum(mask[:, ::-1], axis=-1)[:, ::-1] - mask > 0
    out = jnp.where(mask & ~acts_later, row_constant(rewards, mask)[:, None], 0.0)
    return out if kl is None else out - beta * where_valid(mask, constant(kl))


@checked
def gae(
    rewards: jax.Array,
    values: jax.Array,
    *,
    mask: jax.Array,
    discount: float | jax.Array = 1.0,
    mixing: float | jax.Array = 0.95,
    last_value: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation over action tokens.

    Formula: `A_t = d_t + gamma lambda A_(t+1)`, `d_t = r_t + gamma V_(t+1) - V_t`
    Paper: Schulman et al. 2015, "High-Dimensional Continuous Control Using GAE"

    Args:
      rewards, values: `[B, T]`.
      mask: `[B, T]`.
      discount: gamma, scalar or broadcastable to `[B, T]`.
      mixing: lambda, likewise; `[B, 1]` gives each row its own (VAPO: `1 - 1 / (alpha length)`).
      last_value: `[B]`; zeros when omitted.

    Returns:
      Advantages and returns `A + V`, `[B, T]`, without gradient, 0 at masked tokens.
    """
    import rlax

    states = _states(values, mask, last_value)
    estimate = jax.vmap(rlax.truncated_generalized_advantage_estimation)
    advantages = estimate(
        where_valid(mask, constant(rewards)),
        _transparent(discount, states, mask),
        _transparent(mixing, states, mask),
        states,
    )
    return where_valid(mask, advantages), where_valid(mask, advantages + states[:, :-1])


@checked
def turn_gae(
    rewards: jax.Array,
    values: jax.Array,
    turn_ids: jax.Array,
    *,
    mask: jax.Array,
    discount: float = 1.0,
    mixing: float = 0.95,
    last_value: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """GAE whose step is a turn: all tokens of a turn share one advantage.

    A turn's reward is the sum over its tokens, its value that of its first token.

    Formula: `A_k = d_k + gamma lambda A_(k+1)`, `d_k = R_k + gamma V_(k+1) - V_k` over turns k
    Paper: Schulman et al. 2015 (GAE), on the turns of Zhou et al. 2024, "ArCHer"

    Args:
      rewards, values: `[B, T]`.
      turn_ids: `[B, T]` int32, constant over a turn and different from the turn before it.
      mask: `[B, T]`.
      discount, mixing: gamma and lambda between turns.
      last_value: `[B]`; zeros when omitted.

    Returns:
      Advantages and returns `A + V_k`, `[B, T]`, equal along a turn, 0 at masked tokens.
    """
    mask = jnp.asarray(mask, bool)
    first = mask & ~_continues(turn_ids, mask)
    index = jnp.maximum(jnp.cumsum(first, axis=-1) - 1, 0)
    length = mask.shape[-1]
    rewards = where_valid(mask, constant(rewards))
    turn_rewards = jax.vmap(lambda r, i: jax.ops.segment_sum(r, i, length))(rewards, index)
    first_values = where_valid(first, constant(values))
    turn_values = jax.vmap(lambda v, i: jax.ops.segment_sum(v, i, length))(first_values, index)
    turns = jnp.arange(length) < jnp.sum(first, axis=-1, keepdims=True)
    per_turn = gae(
        turn_rewards,
        turn_values,
        mask=turns,
        discount=discount,
        mixing=mixing,
        last_value=last_value,
    )
    advantages, returns = (jnp.take_along_axis(x, index, axis=-1) for x in per_turn)
    return where_valid(mask, advantages), where_valid(mask, returns)


@checked
def bilevel_gae(
    rewards: jax.Array,
    values: jax.Array,
    turn_ids: jax.Array,
    *,
    mask: jax.Array,
    turn_discount: float = 1.0,
    turn_mixing: float = 0.95,
    discount: float = 1.0,
    mixing: float = 1.0,
    last_value: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Bi-level GAE: credit flows between turns, then from each turn's end back to its tokens.

    A turn's reward is at its last token, and the value there is the turn's. The advantage of that
    token is the turn's, and starts the recursion over the turn's tokens. The authors' release has
    one lambda for both levels.

    Formula: `A_end(k) = R_k + gamma_T V_end(k+1) - V_end(k) + gamma_T lambda_T A_end(k+1)`;
      inside a turn `A_t = r_t + gamma V_(t+1) - V_t + gamma lambda A_(t+1)`
    Paper: Wang et al. 2025, "VAGEN: Reinforcing World Model Reasoning for Multi-Turn VLM Agents"

    Args:
      rewards, values: `[B, T]`; `R_k` is the reward at the last token of the turn.
      turn_ids: `[B, T]` int32, constant over a turn and different from the turn before it.
      mask: `[B, T]`.
      turn_discount, turn_mixing: between turns.
      discount, mixing: between the tokens of a turn.
      last_value: `[B]`; zeros when omitted.

    Returns:
      Advantages and returns `A + V`, `[B, T]`, 0 at masked tokens.
    """
    mask = jnp.asarray(mask, bool)
    last = mask & ~_continues(turn_ids[:, ::-1], mask[:, ::-1])[:, ::-1]
    at_end, _ = gae(
        rewards,
        values,
        mask=last,
        discount=turn_discount,
        mixing=turn_mixing,
        last_value=last_value,
    )
    # The token recursion restarts at a turn's end: an error equal to the turn's advantage there,
    # and no mixing past it.
    values = where_valid(mask, constant(values))
    restart = jnp.where(last, at_end + values, constant(rewards))
    gamma = jnp.where(last, 0.0, discount)
    return gae(restart, values, mask=mask, discount=gamma, mixing=mixing)


@checked
def td_lambda(
    rewards: jax.Array,
    values: jax.Array,
    *,
    mask: jax.Array,
    discount: float = 1.0,
    mixing: float = 0.95,
    last_value: jax.Array | None = None,
) -> jax.Array:
    """TD(lambda) returns: the critic's targets.

    Formula: `G_t = r_t + gamma ((1 - lambda) V_(t+1) + lambda G_(t+1))`
    Paper: Sutton 1988, "Learning to Predict by the Methods of Temporal Differences"

    Args:
      rewards, values: `[B, T]`.
      mask: `[B, T]`.
      discount, mixing: gamma and lambda; lambda 1 is the Monte Carlo return.
      last_value: `[B]`; zeros when omitted.

    Returns:
      `[B, T]`, without gradient, 0 at masked tokens.
    """
    import rlax

    states = _states(values, mask, last_value)
    returns = jax.vmap(rlax.lambda_returns)(
        where_valid(mask, constant(rewards)),
        _transparent(discount, states, mask),
        states[:, 1:],
        _transparent(mixing, states, mask),
    )
    return where_valid(mask, returns)


@checked
def vtrace(
    logp: jax.Array,
    behavior_logp: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    *,
    mask: jax.Array,
    discount: float = 1.0,
    mixing: float = 1.0,
    clip_rho: float = 1.0,
    clip_advantage_rho: float = 1.0,
    last_value: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """V-trace: off-policy value targets and advantages under truncated importance weights.

    Formula: `v_t = V_t + rho_t d_t + gamma c_t (v_(t+1) - V_(t+1))`,
      `A_t = rho_t (r_t + gamma v_(t+1) - V_t)`, `c = lambda min(1, r)`
    Paper: Espeholt et al. 2018, "IMPALA"

    Args:
      logp, behavior_logp: `[B, T]`.
      rewards, values: `[B, T]`.
      mask: `[B, T]`.
      discount, mixing: gamma and lambda.
      clip_rho: bound of `rho` in the targets.
      clip_advantage_rho: bound of `rho` in the advantages.
      last_value: `[B]`; zeros when omitted.

    Returns:
      Advantages and targets `[B, T]`, without gradient, 0 at masked tokens.
    """
    import rlax

    states = _states(values, mask, last_value)
    rho = where_valid(mask, constant(importance_ratio(logp, behavior_logp)), 1.0)

    def row(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        v, r, gamma, weights, lam = arrays
        out = rlax.vtrace_td_error_and_advantage(
            v[:-1], v[1:], r, gamma, weights, lam, clip_rho, clip_advantage_rho
        )
        return out.pg_advantage, out.errors + v[:-1]

    advantages, targets = jax.vmap(row)(
        states,
        where_valid(mask, constant(rewards)),
        _transparent(discount, states, mask),
        rho,
        _transparent(mixing, states, mask),
    )
    return constant(where_valid(mask, advantages)), constant(where_valid(mask, targets))


@checked
def retrace(
    logp: jax.Array,
    behavior_logp: jax.Array,
    rewards: jax.Array,
    q_values: jax.Array,
    values: jax.Array,
    *,
    mask: jax.Array,
    discount: float = 1.0,
    mixing: float = 1.0,
) -> jax.Array:
    """Retrace: off-policy targets of action values, traces cut where the policy would not go.

    Formula: `G_t = r_t + gamma (V_(t+1) + c_(t+1) (G_(t+1) - Q_(t+1)))`, `c = lambda min(1, r)`
    Paper: Munos et al. 2016, "Safe and Efficient Off-Policy Reinforcement Learning"

    Args:
      logp, behavior_logp: `[B, T]`.
      rewards: `[B, T]`.
      q_values: `[B, T]` of the sampled tokens.
      values: `[B, T]`, expected action value of each state under the policy.
      mask: `[B, T]`.
      discount, mixing: gamma and lambda.

    Returns:
      `[B, T]`, without gradient, 0 at masked tokens. The episode ends after the last action.
    """
    import rlax

    states = _states(values, mask, None)
    c = mixing * jnp.minimum(constant(importance_ratio(logp, behavior_logp)), 1.0)
    # A masked token passes the return of the next action on: c 1, and q equal to its state's value.
    c = where_valid(mask, c, 1.0)
    q = jnp.where(jnp.asarray(mask, bool), constant(q_values), states[:, :-1])
    targets = jax.vmap(rlax.general_off_policy_returns_from_q_and_v)(
        q[:, 1:],
        states[:, 1:],
        where_valid(mask, constant(rewards)),
        _transparent(discount, states, mask),
        c[:, 1:],
    )
    return where_valid(mask, targets)


@checked
def potential_shaping(
    rewards: jax.Array, potentials: jax.Array, *, mask: jax.Array, discount: float = 1.0
) -> jax.Array:
    """Potential-based shaping: a dense reward that leaves the optimal policy what it was.

    Formula: `r_t + gamma Phi_(t+1) - Phi_t`, `Phi = 0` after the last action
    Paper: Ng et al. 1999, "Policy invariance under reward transformations"

    Args:
      rewards: `[B, T]`.
      potentials: `[B, T]` of the state before each action.
      mask: `[B, T]`.
      discount: gamma of the returns taken afterwards.

    Returns:
      `[B, T]`, without gradient, 0 at masked tokens.
    """
    phi = _states(potentials, mask, None)
    return where_valid(mask, constant(rewards) + discount * phi[:, 1:] - phi[:, :-1])


def _states(values: jax.Array, mask: jax.Array, last_value: jax.Array | None) -> jax.Array:
    """`[B, T + 1]`: at each position the value of the next action's state, itself included."""
    values = where_valid(mask, constant(values))
    last = jnp.zeros(len(values), values.dtype) if last_value is None else constant(last_value)

    def step(following: jax.Array, inputs: tuple) -> tuple[jax.Array, jax.Array]:
        value, acts = inputs
        following = jnp.where(acts, value, following)
        return following, following

    _, filled = jax.lax.scan(step, last, (values.T, jnp.asarray(mask, bool).T), reverse=True)
    return jnp.concatenate([filled.T, last[:, None]], axis=1)


def _transparent(x: float | jax.Array, states: jax.Array, mask: jax.Array) -> jax.Array:
    """A coefficient per token, 1 at masked ones."""
    x = jnp.broadcast_to(jnp.asarray(x, states.dtype), mask.shape)
    return where_valid(mask, x, 1.0)


def _continues(turn_ids: jax.Array, mask: jax.Array) -> jax.Array:
    """`[B, T]`: the row's previous action token belongs to the same turn."""
    rows = jnp.zeros(len(turn_ids), turn_ids.dtype)

    def step(
        state: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        previous, any_before = state
        turn, acts = inputs
        same = any_before & (previous == turn)
        return (jnp.where(acts, turn, previous), any_before | acts), same

    start = rows, rows.astype(bool)
    _, same = jax.lax.scan(step, start, (turn_ids.T, jnp.asarray(mask, bool).T))
    return same.T
