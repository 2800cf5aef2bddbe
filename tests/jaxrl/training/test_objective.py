"""The objective: terms, denominators and the batch as a whole, against NumPy."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import functions
from jaxrl.losses.advantages import groups, pass_rate
from jaxrl.training import objective, turns, validate
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import shares
from jaxrl.training.train_step import effective_share
from jaxrl.types import Trajectory
from tests.jaxrl.batches import batch


def arrays(data: Trajectory, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = data.tokens.shape
    return {
        "logp": np.asarray(data.behavior_logp) + rng.normal(0, 0.3, shape).astype(np.float32),
        "entropy": rng.random(shape).astype(np.float32),
        "ref_logp": rng.normal(-3, 0.3, shape).astype(np.float32),
    }


def evaluated(**config: object):
    config = ObjectiveConfig(**config)

    @jax.jit
    def run(data: Trajectory, given: dict[str, jax.Array], rows: jax.Array):
        whole = objective.whole_batch(config, data, 9)
        mask = whole.mask & rows[:, None]
        return objective.objective(
            config, data, whole, mask, given["logp"], given["entropy"], given["ref_logp"], 3
        )

    return run


EVERY = np.ones(16, bool)


@pytest.mark.exact("the loss of a batch, with its penalties, equals a NumPy formula to 1e-5")
def test_loss_is_the_formula():
    """Clipped surrogate + 0.1 k3 - 0.2 entropy, each a mean over sequences of token means."""
    data = batch(1, failed=(3, 9))
    given = arrays(data)
    run = evaluated(
        kl_coef=0.1,
        entropy_coef=0.2,
        aggregation="seq-mean-token-mean",
        policy_args={"clip_low": 0.2, "clip_high": 0.3},
        advantage_args={"baseline": "leave_one_out", "scale": "none"},
    )
    loss, metrics = jax.device_get(run(data, given, EVERY))
    total, kl, count = 0.0, 0.0, 0
    logp, ref, entropy = (given[k].astype(np.float64) for k in ("logp", "ref_logp", "entropy"))
    for n in np.flatnonzero(data.valid):
        group = data.valid & (data.group_ids == data.group_ids[n])
        others = group & (np.arange(16) != n)
        advantage = data.rewards[n] - data.rewards[others].mean()
        at = data.action_mask[n]
        ratio = np.exp(logp[n, at] - data.behavior_logp[n, at])
        surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.3) * advantage)
        gap = ref[n, at] - logp[n, at]
        k3 = np.exp(gap) - 1 - gap
        total += np.mean(-surrogate + 0.1 * k3 - 0.2 * entropy[n, at])
        kl, count = kl + k3.sum(), count + at.sum()
    assert loss == pytest.approx(total / data.valid.sum(), rel=1e-5)
    assert metrics["kl"] == pytest.approx(kl / count, rel=1e-5)


@pytest.mark.exact("losses of parts of a batch add up to the loss of the whole")
@pytest.mark.exact("CHORD's two terms are each a mean over their own tokens, to 1e-5")
def test_chord_is_the_sum_of_two_means():
    """`(1 - mu) mean(ppo) + mu mean(-log pi)`, in float64, with one expert in four rows."""
    data = batch(5)
    expert = np.arange(16) % 4 == 0
    data = data.replace(expert=expert)
    given, mask, mu = arrays(data), np.asarray(data.action_mask), 0.3
    config = {"policy": "chord", "policy_args": {"mu": mu}, "advantage": "sampled_advantages"}
    loss, _ = evaluated(**config, aggregation="source-mean")(data, given, EVERY)
    made = ObjectiveConfig(**config, aggregation="source-mean")
    a = np.asarray(objective.whole_batch(made, data, 9).advantages, np.float64)
    u = np.exp(given["logp"].astype(np.float64) - data.behavior_logp)
    ppo = -np.minimum(u * a, np.clip(u, 0.8, 1.2) * a)
    own, theirs = mask & ~expert[:, None], mask & expert[:, None]
    want = (1 - mu) * ppo[own].mean() - mu * given["logp"].astype(np.float64)[theirs].mean()
    assert loss == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-sum-norm", "prompt-mean", "source-mean"]
)
def test_parts_of_a_batch_add_up(aggregation):
    """Also with groups cut in two, and parts of very different length."""
    data = batch(2, failed=(0,))
    run = evaluated(aggregation=aggregation, kl_coef=0.5)
    given = arrays(data)
    rows = np.arange(16) % 5 < 2
    (whole, metrics), (a, first), (b, second) = (
        jax.device_get(run(data, given, r)) for r in (EVERY, rows, ~rows)
    )
    assert whole == pytest.approx(a + b, rel=1e-5)
    for name in metrics.keys() - {"logp_gap_max"}:
        assert metrics[name] == pytest.approx(first[name] + second[name], abs=1e-5), name
    assert metrics["logp_gap_max"] == max(first["logp_gap_max"], second["logp_gap_max"])


def test_what_is_masked_does_not_leak():
    data = batch(3)
    given = arrays(data)
    broken = {k: np.where(data.action_mask, v, np.nan) for k, v in given.items()}
    run = evaluated(kl_coef=0.1)
    assert run(data, given, EVERY)[0] == run(data, broken, EVERY)[0]


def test_sequences_that_change_nothing_are_known():
    data = batch(4, failed=(1,))
    assert objective.worth_computing(ObjectiveConfig(), data) is None
    config = ObjectiveConfig(skip_zero_advantages=True)
    skipping = objective.worth_computing(config, data)
    assert skipping.tolist() == [n != 1 and n < 12 for n in range(16)]  # equal rewards in the last
    # an entropy bonus that an extension moves depends on all
    assert objective.worth_computing(config, data, 0, {"entropy_coef": 0.1}) is None


def test_parts_of_rewards_reach_the_advantage():
    config = ObjectiveConfig(advantage="gdpo")
    validate.check(config)
    data = batch(5)
    parts = np.random.default_rng(0).random((16, 2)).astype(np.float32)
    a, b = (
        objective.whole_batch(config, data.replace(reward_parts=p), 9).advantages
        for p in (parts, parts * np.array([1.0, 9.0], np.float32))
    )
    np.testing.assert_allclose(a, b, atol=1e-2)  # each part is normalised before they are added
    with pytest.raises(ValueError, match="needs 'reward_parts', which this run does not provide"):
        objective.whole_batch(config, data, 9)


ADVANTAGES = [
    f"{module.__name__}:{name}"
    for module in (groups, pass_rate)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and "num_groups" in inspect.signature(function).parameters
]
NEEDED = {"k": 2}
"""Arguments that some of them have no default for."""


@pytest.mark.sample(3, broad=4)
@pytest.mark.exact("a share of a batch has the advantages of a batch of its own")
@pytest.mark.parametrize("function", ADVANTAGES)
@settings(max_examples=3, deadline=None)
@given(prompts=st.sampled_from([1, 3]), updates=st.sampled_from([2, 4]), seed=st.integers(0, 1000))
def test_a_share_has_the_advantages_of_a_batch_of_its_own(function, prompts, updates, seed):
    """Also with more updates than a group has samples; and the weights that `prompt-mean` gives."""
    group = 2  # few shapes, as each is compiled
    size = prompts * group
    data = batch(seed, groups=prompts * updates, size=group)
    rng = np.random.default_rng(seed)
    data = data.replace(
        rewards=rng.integers(0, 2, len(data.rewards)).astype(np.float32),
        greedy_rewards=rng.random(len(data.rewards)).astype(np.float32),
        reward_parts=rng.random((len(data.rewards), 2)).astype(np.float32),
    )
    parameters = inspect.signature(getattr(*_named(function))).parameters
    args = {name: value for name, value in NEEDED.items() if name in parameters}
    whole = [
        objective.whole_batch(
            ObjectiveConfig(advantage=function, advantage_args=args, aggregation="prompt-mean"),
            part,
            9,
        )
        for part in shares(data, updates)
    ]
    for i, found in enumerate(whole):
        rows = slice(i * size, (i + 1) * size)
        alone = {
            "rewards": data.rewards[rows],
            "group_ids": np.repeat(np.arange(prompts), group),
            "num_groups": prompts,
            "greedy_rewards": data.greedy_rewards[rows],
            "reward_parts": data.reward_parts[rows],
            "lengths": data.action_mask[rows].sum(axis=1),
            "expert": np.zeros(size, bool),
        }
        given_ = {name: jnp.asarray(x) if name != "num_groups" else x for name, x in alone.items()}
        expected = functions.call(getattr(*_named(function)), args, given_)
        np.testing.assert_allclose(found.advantages[:, 0], expected, rtol=1e-5, atol=1e-6)
        tokens = data.action_mask[rows].sum(axis=1).reshape(prompts, group)
        weight = np.repeat(1 / tokens.sum(axis=1) / prompts, group)
        np.testing.assert_allclose(found.weights, weight, rtol=1e-6)


def configs_by_advantage() -> dict[str, ObjectiveConfig]:
    """A config of each advantage that a config may name, by its name."""
    made = {}
    for name, references in functions._named().items():
        for reference in references:
            module, function = _named(reference)
            found = inspect.signature(getattr(module, function)).parameters
            args = {arg: value for arg, value in NEEDED.items() if arg in found}
            config = ObjectiveConfig(advantage=reference, advantage_args=args)
            if getattr(module, "KIND", "") == "advantage":
                with contextlib.suppress(ValueError):  # a helper of others
                    validate.check(config, ("turn",))
                    made[name] = config
    return made


def fined(rewards: jax.Array) -> jax.Array:
    """Every third reward is lower by 5."""
    return rewards - jnp.where(jnp.arange(len(rewards)) % 3 == 2, 5.0, 0.0)


def episodes_of(data: Trajectory) -> Trajectory:
    """A batch as episodes of two turns, each of another agent, whose rewards are at their ends."""
    mask, count = data.action_mask, len(data.tokens)
    so_far = np.cumsum(mask, axis=1)
    turn = np.where(mask, np.where(so_far <= (so_far[:, -1:] + 1) // 2, 1, 2), 0).astype(np.int32)
    rewards = np.zeros(mask.shape, np.float32)
    first = np.max(np.where(turn == 1, np.arange(mask.shape[1]), 0), axis=1)
    rewards[np.arange(count), first] = data.rewards
    extra = {
        "turn": turn, "turn_rewards": rewards, "agent": (turn == 2).astype(np.int32),
        "turn_state": np.zeros(mask.shape, np.int32),
    }  # fmt: skip
    return data.replace(
        extra=extra,
        reward_parts=np.stack([data.rewards, -data.rewards], axis=1),
        greedy_rewards=np.full(count, 0.5, np.float32),
    )


def _named(function: str) -> tuple[object, str]:
    module, _, name = function.partition(":")
    return importlib.import_module(module), name


CONFIGS = configs_by_advantage()


@pytest.mark.sample(8, broad=5)
@pytest.mark.parametrize("plain", CONFIGS.values(), ids=CONFIGS)
def test_shaping_moves_each_advantage_or_is_refused(plain):
    shaped = dataclasses.replace(plain, shaping=f"{__name__}:fined")
    reads = {*inspect.signature(functions.lookup(plain.advantage)).parameters}
    if not reads & {"rewards", "step_rewards"}:
        with pytest.raises(ValueError, match=r"objective\.shaping"):
            validate.check(shaped, ("turn",))
        return
    validate.check(shaped, ("turn",))
    data = episodes_of(batch(6, size=6))
    before, after = (objective._advantages(config, data, 3) for config in (plain, shaped))
    assert not np.allclose(before, after, atol=1e-3)


def test_shaping_is_refused_where_the_policy_objective_reads_rewards():
    config = ObjectiveConfig(policy="pair_dpo", shaping=f"{__name__}:fined")
    with pytest.raises(ValueError, match=r"objective\.shaping.*pair_dpo"):
        validate.check(config)


def test_what_shaping_changes_is_in_the_last_turn_of_agent_0_by_hand():
    """Of two episodes; in the first, agent 0 takes turns 1 and 3. The second is void."""
    turn = np.array([[0, 1, 1, 2, 3, 3], [0, 1, 1, 1, 2, 2]], np.int32)
    mask = (turn > 0) & np.array([[True], [False]])
    agent = (turn == 2).astype(np.int32)
    rewards = np.array([[0, 0, 1, 2, 0, 4], [0, 0, 0, 0, 0, 0]], np.float32)
    arrays = {"turn": turn, "turn_rewards": rewards, "agent": agent, "turn_state": turn}
    more = jnp.array([-3.0, 7.0])
    found = turns.with_more(arrays, mask, more)["turn_rewards"]
    assert found.tolist() == [[0, 0, 1, 2, 0, 1], [0] * 6]
    early = turns.with_more(arrays, mask & (turn < 3), more)["turn_rewards"]
    assert early.tolist() == [[0, 0, -2, 2, 0, 4], [0] * 6]


def test_arguments_of_a_function_determine_its_scope():
    def of(policy: str, **more: object) -> str:
        return objective.scope(
            ObjectiveConfig(policy=f"tests.jaxrl.training.test_objective:{policy}", **more)
        )

    assert of("looks_at_tokens") == "token"
    assert of("looks_at_rows") == of("draws") == "sequence"
    assert of("looks_at_groups") == of("looks_at_all") == "batch"
    divergence = "tests.jaxrl.training.test_objective:divergence_of_all"
    assert of("looks_at_tokens", kl=divergence) == "token"  # weight 0: it is not called
    assert of("looks_at_tokens", kl=divergence, kl_coef=0.1) == "batch"


def looks_at_tokens(logp: jax.Array, expert: jax.Array, rewards: jax.Array) -> tuple:
    return logp, {}


def looks_at_rows(logp: jax.Array, mask: jax.Array) -> tuple:
    return logp, {}


def draws(logp: jax.Array, key: jax.Array) -> tuple:
    return logp * jax.random.uniform(key, logp.shape), {}


def looks_at_groups(logp: jax.Array, group_ids: jax.Array) -> tuple:
    return logp, {}


def looks_at_all(logp: jax.Array, batch_mask: jax.Array) -> tuple:
    return logp, {}


def divergence_of_all(logp: jax.Array, batch_mask: jax.Array) -> jax.Array:
    return logp


def test_draws_are_of_the_seed_and_the_step():
    data = batch(0)
    config = ObjectiveConfig(policy="tests.jaxrl.training.test_objective:draws")
    given_ = arrays(data)
    whole = objective.whole_batch(config, data, 9)

    def loss(step: int, seed: int) -> float:
        arguments = (given_["logp"], given_["entropy"], None, step, {}, seed)
        return float(objective.objective(config, data, whole, whole.mask, *arguments)[0])

    assert loss(3, 0) == loss(3, 0)
    assert len({loss(3, 0), loss(4, 0), loss(3, 1)}) == 3


def test_arguments_that_only_some_functions_take():
    assert objective.needs_proximal(ObjectiveConfig(policy="decoupled_ppo"))
    assert not objective.needs_proximal(ObjectiveConfig())
    of_sampler = dict(policy="sft", kl="k3_importance")
    assert objective.needs_behavior(ObjectiveConfig(**of_sampler, kl_coef=0.1))
    assert not objective.needs_behavior(ObjectiveConfig(**of_sampler))
    assert objective.needs_reference(ObjectiveConfig(policy="grpo", policy_args={"beta": 0.04}))
    for without in ({}, {"beta": 0.0}, {"clip_low": 0.1}):
        assert not objective.needs_reference(ObjectiveConfig(policy="grpo", policy_args=without))


def test_the_penalty_of_grpo_is_that_of_the_objective():
    """`grpo` with a beta compares with the reference as a `kl_coef` does."""
    data, given_ = batch(0), arrays(batch(0))
    found = []
    for config in (
        ObjectiveConfig(policy="grpo", policy_args={"beta": 0.04}),
        ObjectiveConfig(policy="ppo_clip", kl_coef=0.04),
    ):
        whole = objective.whole_batch(config, data, 9)
        ref_logp = given_["ref_logp"] if objective.needs_reference(config) else None
        arguments = (given_["logp"], given_["entropy"], ref_logp, 0)
        loss, metrics = objective.objective(config, data, whole, whole.mask, *arguments)
        found.append((loss, metrics["kl"]))
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            dict(policy="jaxrl.losses.policy.objectives:ppo_klip"),
            "does not exist; did you mean 'ppo_clip'",
        ),
        (dict(policy="losses.polcy:ppo_clip"), "no module 'losses.polcy'"),
        (dict(policy_args={"clip_lo": 0.1}), "no argument 'clip_lo'; did you mean 'clip_low'"),
        (
            dict(policy="clipped_surrogate"),
            "needs 'r', which this run does not",
        ),
        (dict(advantage="gigpo"), "needs '"),
        (dict(aggregation="token-men"), "did you mean 'token-mean'"),
        (dict(skip_zero_advantages=True, kl_coef=0.1), "leave those terms out"),
        (
            dict(skip_zero_advantages=True, policy="grpo", policy_args={"beta": 0.1}),
            "leave those terms out",
        ),
        (
            dict(
                skip_zero_advantages=True, policy="tests.jaxrl.training.test_objective:looks_at_all"
            ),
            "statistics of the whole batch would leave",
        ),
    ],
)
def test_a_config_that_names_what_does_not_exist_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        validate.check(ObjectiveConfig(**config))


def test_functions_get_what_they_ask_for():
    def needs(b: jax.Array, *, factor: float) -> jax.Array:
        return factor * b

    assert functions.call(needs, {"factor": 2.0}, {"a": 1, "b": jnp.float32(3)}) == 6
    assert functions.takes(needs, "b") and not functions.takes(needs, "a")


def fresh_and_long(age: jax.Array, lengths: jax.Array, expert: jax.Array) -> jax.Array:
    return (age == 2) & (lengths > 3) & ~expert


def test_rows_know_how_old_a_sequence_is():
    """Of two versions in a sequence the older counts, and only where the policy acted."""
    data = batch(1)
    versions = np.where(data.action_mask, 7, 0).astype(np.int32)
    versions[::2] = np.where(np.cumsum(data.action_mask[::2], axis=1) == 1, 5, versions[::2])
    data = data.replace(policy_version=versions, extra={"addition": np.ones(16, np.int32)})
    config = ObjectiveConfig(rows="tests.jaxrl.training.test_objective:fresh_and_long")
    lengths = data.action_mask.sum(axis=1)
    whole = objective.whole_batch(config, data, 9, step=9)
    kept = (np.arange(16) % 2 == 1) & (lengths > 3)
    np.testing.assert_array_equal(np.any(whole.mask, axis=1), kept)
    np.testing.assert_array_equal(objective.worth_computing(config, data, 9), kept)


@pytest.mark.parametrize("update", range(3))
def test_the_sequences_of_a_step_are_fresh_in_all_updates_on_them(update):
    """What was added is not, also where it was sampled just now."""
    data = batch(1)
    added = np.arange(16) >= 12
    data = data.replace(policy_version=np.where(data.action_mask, 7, 0).astype(np.int32))
    for extra, kept in (({}, added | True), ({"addition": added.astype(np.int32)}, ~added)):
        given = (ObjectiveConfig(rows="fresh"), data.replace(extra=extra), 9)
        whole = objective.whole_batch(*given, step=7 + update)
        acted = data.action_mask.any(axis=1) & data.valid
        np.testing.assert_array_equal(np.any(whole.mask, axis=1), kept & acted)


def drawn(logp: jax.Array, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jax.random.uniform(key, logp.shape), {}


def test_a_policy_objective_draws_anew_in_every_update():
    config, data = ObjectiveConfig(policy=f"{__name__}:drawn"), batch(1)
    given = arrays(data)
    whole = objective.whole_batch(config, data, 9)
    arguments = (config, data, whole, whole.mask, given["logp"], given["entropy"], None)
    losses = [float(objective.objective(*arguments, version)[0]) for version in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2]


def of_lag(logp, behavior_logp, advantages, *, lag):
    """An objective that is the lag of each token."""
    return lag.astype(jnp.float32) + 0.0 * logp, {}


def test_an_objective_that_names_lag_gets_that_of_each_token():
    data = batch(1)
    versions = np.random.default_rng(0).integers(0, 4, data.tokens.shape).astype(np.int32)
    data = data.replace(policy_version=versions)
    run = evaluated(policy=f"{__name__}:of_lag")
    loss, _ = jax.device_get(run(data, arrays(data), EVERY))
    assert loss == pytest.approx(np.mean(3 - versions[data.action_mask]), rel=1e-6)


def test_the_effective_sample_size_by_hand():
    weights = np.array([0.5, 1.0, 2.0])
    reported = {"loss": 1.0, "weight_mean": weights.mean(), "weight_square": (weights**2).mean()}
    found = effective_share(reported)
    assert found == {"loss": 1.0, "ess": pytest.approx(3.5**2 / (3 * 5.25))}
    assert effective_share({"loss": 1.0}) == {"loss": 1.0}
    data = batch(1)
    given, config = arrays(data), ObjectiveConfig()
    whole = objective.whole_batch(config, data, 9)
    arguments = given["logp"], given["entropy"], None, 3
    _, metrics = objective.objective(config, data, whole, whole.mask, *arguments, weights=True)
    ratio = np.exp((given["logp"] - data.behavior_logp)[data.action_mask].astype(np.float64))
    ess = effective_share(metrics)["ess"]
    assert ess == pytest.approx(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()), rel=1e-5)
