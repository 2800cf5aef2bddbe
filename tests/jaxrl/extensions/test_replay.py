"""The replay buffer: what it keeps, what comes back, and that the batch keeps its shape."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import config as configs
from jaxrl.config import DataConfig
from jaxrl.data.selection import replay as rules
from jaxrl.extensions import corrector, critic, replay
from jaxrl.extensions.corrector import CorrectorConfig
from jaxrl.extensions.critic import CriticConfig, with_last_states
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.training import objective
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import lag
from tests.jaxrl import tiny
from tests.jaxrl.batches import batch
from tests.jaxrl.training.test_packing import prefixes


def buffer(**changes):
    return replay.open_buffer(ReplayConfig(**{"groups": 2, "size": 4} | changes), seed=0)


def test_a_batch_keeps_its_shape_and_its_own_come_first():
    """Whether the buffer is empty, filling, or full."""
    made, size = buffer(), 4
    for version in range(4):
        fresh = batch(version, groups=3, length=24 + 8 * (version % 2))
        mixed = made.mix(fresh, size, version)
        assert len(mixed.tokens) == (3 + 2) * size
        own = {k: a[: 3 * size] for k, a in mixed.named().items()}
        width = fresh.tokens.shape[1]
        np.testing.assert_array_equal(own["tokens"][:, :width], fresh.tokens)
        np.testing.assert_array_equal(own["rewards"], fresh.rewards)
        assert mixed.group_ids.tolist() == np.repeat(np.arange(5), size).tolist()
        if version == 0:  # nothing to draw: rows that train nothing
            assert not mixed.action_mask[3 * size :].any() and not mixed.valid[3 * size :].any()
        else:
            assert mixed.action_mask[3 * size :].any(axis=1).all()
            assert mixed.valid[3 * size :].all()


@pytest.mark.exact("replayed groups are what was sampled, to the last bit")
def test_what_comes_back_is_what_was_sampled_then():
    made = buffer(choose="newest")
    old = batch(0, groups=2).replace(stopped=np.arange(8) % 3 > 0)
    made.mix(old, 4, 0)
    back = made.mix(batch(1, groups=2).replace(stopped=np.ones(8, bool)), 4, 1)
    for name in ("tokens", "behavior_logp", "action_mask", "rewards", "policy_version", "stopped"):
        np.testing.assert_array_equal(getattr(back, name)[8:], getattr(old, name))


@pytest.mark.parametrize("wider", ["batch", "group"])
def test_the_state_after_a_row_that_is_made_longer_has_its_whole_context(wider):
    """Its first token beyond the row's own width continues the last one; also in empty groups."""
    made = []
    for seed, name in enumerate(("group", "batch")):
        each = batch(seed, groups=1)
        width = 24 if name == wider else 1 + int(np.max(np.nonzero(each.action_mask)[1]))
        cut = {"tokens", "action_mask", "behavior_logp", "policy_version"}
        each = each.replace(**{name: getattr(each, name)[:, :width] for name in cut})
        parent = np.tile(np.arange(-1, width - 1, dtype=np.int32), (len(each.tokens), 1))
        made.append(each.replace(stopped=np.zeros(4, bool), extra={"parent": parent}))
    mixed = replay.joined(made[1], [made[0].named()], 2, 4)
    longer = with_last_states(mixed)
    found = prefixes(pack(longer, PackingConfig(bucket=8))[0])
    assert len(found) == mixed.action_mask.sum() + 8
    for (n, t), (seen, positions, _) in found.items():
        assert seen == longer.tokens[n, :t].tolist() and positions == list(range(t))
    np.testing.assert_array_equal(mixed.extra["parent"], np.tile(np.arange(-1, 23), (12, 1)))


def test_what_is_too_old_is_dropped():
    made = buffer(max_age=2)
    made.mix(batch(0, groups=2), 4, 0)
    assert made.mix(batch(1, groups=2), 4, 3).action_mask[8:].sum() == 0
    assert len(made.get_state()) == 2


def kept_again(data):
    """A buffer that keeps what passed; two groups, fresh and replayed after two others."""
    made = buffer(keep="passed", keep_args={"threshold": 0.9}, choose="newest")
    made.mix(data, 4, 0)
    return made, made.mix(batch(1, groups=2), 4, 1)


def of_turns(data):
    """Two turns in each sequence; the first earns 1 where the whole did not pass, in one group."""
    acts = np.cumsum(data.action_mask, axis=1) * data.action_mask
    turn = np.where(acts > 1, 2, acts).astype(np.int32)
    early = np.arange(8) % 2 == 0
    rewards = np.where(acts == 1, early[:, None], 0) + np.where(acts == 2, data.rewards[:, None], 0)
    zeros = np.zeros(turn.shape, np.int32)
    extra = {"turn": turn, "turn_rewards": rewards.astype(np.float32), "turn_state": zeros}
    return data.replace(extra=extra | {"agent": zeros})


def test_only_kept_rows_are_trained_on_again():
    """The others stay in the group as what the kept are compared with."""
    old = batch(0, groups=2)
    _, back = kept_again(old)
    again = old.rewards >= 0.9
    assert again.any() and not again.all() and back.valid.all()
    np.testing.assert_array_equal(back.action_mask[8:], old.action_mask)
    config = ObjectiveConfig()
    trained = np.concatenate([np.ones(8, bool), again])
    whole = objective.whole_batch(config, back, 9, step=1)
    np.testing.assert_array_equal(whole.mask, back.action_mask & trained[:, None])
    assert whole.tokens == (back.action_mask & trained[:, None]).sum()
    np.testing.assert_array_equal(objective.worth_computing(config, back, 1), trained)
    aged = np.where(back.action_mask[8:], 3, 0).astype(np.int32)  # the others' versions are older
    aged[again] = np.where(back.action_mask[8:][again], 7, 0)
    own = np.where(back.action_mask[:8], 7, 0).astype(np.int32)
    found = lag(back.replace(policy_version=np.concatenate([own, aged])), jnp.int32(7))
    assert (found["lag/mean"], found["lag/max"]) == (0, 0)


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("advantage", ["opo", "group_advantages", "turn_advantages", "gigpo"])
def test_replayed_rows_are_compared_as_when_they_were_fresh(advantage):
    """Also with the lengths and the turns of those that are not trained on again."""
    old = batch(0, groups=2)
    made = of_turns(old)
    buffered = buffer(keep="passed", keep_args={"threshold": 0.9}, choose="newest")
    buffered.mix(made, 4, 0)
    back = buffered.mix(of_turns(batch(1, groups=2)), 4, 1)
    config = ObjectiveConfig(advantage=advantage)
    fresh, again = (objective.whole_batch(config, each, 9, step=1) for each in (made, back))
    np.testing.assert_allclose(again.advantages[8:], fresh.advantages, rtol=1e-6)
    assert np.any(fresh.advantages)


def test_a_critic_whitens_the_advantages_that_are_trained_on():
    """Rows that are kept for comparison alone shift no mean."""
    buffered = buffer(keep="passed", keep_args={"threshold": 0.9}, choose="newest")
    buffered.mix(batch(0, groups=2), 4, 0)
    back = buffered.mix(batch(1, groups=2), 4, 1)
    values = np.zeros(back.tokens.shape, np.float32)
    found = critic.estimate(CriticConfig(), back, values, None).advantages
    trained = (back.valid & back.learned)[:, None] & back.action_mask
    assert np.any(back.valid & ~back.learned)
    assert abs(np.mean(found[trained])) < 1e-5 and abs(np.std(found[trained]) - 1) < 1e-2


def test_compensation_is_what_was_left_out_when_it_was_fresh():
    """RoRecomp's median is of the lengths of all, also of what is not trained on again."""
    old, ends = batch(0, groups=1), np.array([3, 5, 6, 7])
    places = np.arange(old.tokens.shape[1])
    acts = (places > 1) & (places < ends[:, None])
    old = old.replace(action_mask=acts, rewards=np.float32([1, 1, 1, 0]))
    made = buffer(keep="passed", groups=1)
    made.mix(old, 4, 0)
    back = made.mix(batch(1, groups=1), 4, 1)
    config = ObjectiveConfig(rows="recomposed")
    fresh, again = (objective.whole_batch(config, each, 9, step=1) for each in (old, back))
    assert np.any(fresh.mask, axis=1).tolist() == [True, True, False, True]
    assert np.any(again.mask[4:], axis=1).tolist() == [False, False, True, False]


def test_a_buffer_of_an_older_run_trains_as_it_did():
    """Its tokens that are not trained on again are no actions, and it does not say which rows."""
    made, _ = kept_again(batch(0, groups=2))
    older = []
    for group in made.get_state():
        mask = group["action_mask"] & group["trained"][:, None]
        older.append({k: a for k, a in group.items() if k != "trained"} | {"action_mask": mask})
    again = buffer(keep="passed", keep_args={"threshold": 0.9}, choose="newest", max_age=3)
    again.set_state(older)
    got, new = (each.mix(batch(2, groups=2), 4, 2) for each in (again, made))
    config = ObjectiveConfig()
    a, b = (objective.whole_batch(config, each, 9, step=2) for each in (got, new))
    np.testing.assert_array_equal(a.mask, b.mask)
    np.testing.assert_array_equal(a.advantages, b.advantages)


@pytest.mark.exact("a restored replay buffer continues with the same groups")
def test_a_restored_buffer_equals_an_uninterrupted_one():
    straight, stopped = buffer(), buffer()
    for version in range(3):
        straight.mix(batch(version, groups=2), 4, version)
        stopped.mix(batch(version, groups=2), 4, version)
    again = buffer()
    again.set_state(stopped.get_state())
    a, b = (m.mix(batch(9, groups=2), 4, 3) for m in (straight, again))
    for name, array in a.named().items():
        np.testing.assert_array_equal(array, b.named()[name])


def test_rules():
    rewards = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, np.nan]])
    lengths = np.array([[2, 3, 8, 9], [1, 2, 3, 4]])
    assert rules.informative(rewards, lengths).tolist() == [[True] * 4, [False] * 4]
    rng = np.random.default_rng(0)
    assert rules.newest(np.array([3, 1, 2]), rewards, 2, rng).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(groups=4, size=2), "replay.groups=4 with replay.size=2"),
        (dict(groups=3), "does not divide replay.groups=3"),
        (dict(groups=2, keep="jaxrl.data.selection.replay:al"), "does not exist"),
    ],
)
def test_a_buffer_that_cannot_work_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        run = tiny.config("unused", replay={}, updates_per_batch=2)
        replay.replay(ReplayConfig(**config)).check(run)


@pytest.mark.parametrize("added", ["replay", "corrector"])
def test_rows_are_added_before_the_critic_estimates(added):
    """Else replayed rows would have the advantages of another step."""
    config = tiny.config("unused", critic={}, task="calculator", task_args={})
    config = configs.extended(config, added)
    check = {
        "replay": replay.replay(ReplayConfig()).check,
        "corrector": corrector.corrector(
            CorrectorConfig("jaxrl.launch.recipes.game_agents.gtr:corrected")
        ).check,
    }[added]
    with pytest.raises(ValueError, match=f"{added} after critic.*list it first"):
        check(config)


def test_a_run_on_a_file_replays_nothing():
    data = DataConfig(path="rows.jsonl", kinds=("preference",))
    with pytest.raises(ValueError, match=r"replay with data\.path='rows.jsonl'"):
        replay.replay(ReplayConfig()).check(dataclasses.replace(tiny.config("unused"), data=data))


def test_a_rule_may_keep_by_the_version_that_sampled():
    """DPH-RL's: groups that the initial policy solves, whatever later policies do."""
    made = buffer(
        keep="jaxrl.launch.recipes.objectives.dph_rl:initially_solved",
        keep_args={"before": 2},
        size=8,
    )
    for version in range(4):
        fresh = batch(version, groups=2)
        versions = np.where(fresh.action_mask, version, 0).astype(np.int32)
        rewards = np.repeat([1.0, version % 2], 4).astype(np.float32)
        made.mix(fresh.replace(policy_version=versions, rewards=rewards), 4, version)
    kept = [int(group["policy_version"].max()) for group in made.get_state()]
    assert kept == [0, 1, 1]
