"""Corrected thoughts, by hand: where thoughts are, what takes their place, and what is drawn."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import Config, GuardConfig, RolloutConfig
from jaxrl.extensions import corrector, critic, replay
from jaxrl.extensions.corrector import CorrectorConfig
from jaxrl.extensions.critic import CriticConfig, with_last_states
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.run import guards
from jaxrl.training import objective
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack, shares
from jaxrl.types import TrainState, Trajectory
from tests.jaxrl.training.test_packing import prefixes

EPISODES = ("pab>cqd>e", "pabccqd>e", "pzz>yqz>z")
"""A prompt p, a turn, an observation q, and a turn; a thought ends with >. The last is void."""


def decode(ids):
    return "".join(map(chr, ids))


def encode(text):
    return [ord(each) for each in text]


def written(episodes=EPISODES):
    tokens = np.array([encode(each) for each in episodes], np.int32)
    turn = np.tile(np.array([0, 1, 1, 1, 1, 0, 2, 2, 2], np.int32), (len(tokens), 1))
    mask, count = turn > 0, len(tokens)
    return Trajectory(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.where(mask, -1.0, 0.0).astype(np.float32),
        policy_version=np.where(mask, 7, 0).astype(np.int32),
        rewards=np.ones(count, np.float32),
        valid=np.arange(count) < max(2, count - 1),
        group_ids=np.zeros(count, np.int32),
        extra={"turn": turn},
    )


def linked(batch, replaced):
    """The batch with `parent`; where a context was replaced, q continues p."""
    parent = np.tile(
        np.arange(-1, batch.tokens.shape[1] - 1, dtype=np.int32), (len(batch.tokens), 1)
    )
    parent[:, 5] = 0 if replaced else 4
    rewards = np.ones(batch.tokens.shape, np.float32)
    return batch.replace(
        stopped=np.ones(len(batch.tokens), bool),
        extra=batch.extra | {"parent": parent, "turn_rewards": rewards},
    )


def context(size=2, updates=1):
    tokenizer = types.SimpleNamespace(decode=decode, encode=encode)
    return types.SimpleNamespace(
        config=Config(rollout=RolloutConfig(group_size=size), updates_per_batch=updates),
        policy=types.SimpleNamespace(tokenizer=tokenizer),
        restriction=lambda state: None,
        score=scored,
    )


@pytest.fixture(autouse=True)
def on_one_device():
    """Corrected thoughts are scored on a mesh."""
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        yield


def scored(params, packed, restriction):
    """-2 for each token."""
    return np.full((len(packed.computed), packed.length), -2.0, np.float32)


def state(step):
    return types.SimpleNamespace(step=step, params={})


def test_thoughts_are_the_starts_of_turns():
    batch = written()
    spans = list(corrector.found(batch, decode, ">"))
    assert spans == [(0, 1, 4), (0, 6, 8), (1, 6, 8)]
    left = corrector.without(batch, spans)
    acts = ["".join(np.array(list(e))[m]) for e, m in zip(EPISODES, left.action_mask, strict=True)]
    assert acts == ["ce", "abcce", "zz>yz>z"] and not left.expert.any()
    assert batch.action_mask[0, 1]  # the batch itself stays as it was


def test_a_corrected_thought_stands_in_the_context_of_the_policys_own():
    batch, asked = written(), []

    def correct(context, thought):
        asked.append((context, thought))
        return encode(f"{thought[0]}!>")

    spans = list(corrector.found(batch, decode, ">"))
    made = [corrector.corrected(batch, spans, correct, decode, np.random.default_rng(s))
            for s in range(8)]  # fmt: skip
    texts = {decode(row["tokens"]) for rows in made for row in rows}
    assert texts == {"pa!>", "pab>cqd!>", "pabccqd!>"} and all(len(rows) == 2 for rows in made)
    assert set(asked) == {("p", "ab>"), ("pab>cq", "d>"), ("pabccq", "d>")}
    row = made[0][1]  # of the second episode, which has one thought
    assert decode(row["tokens"][row["action_mask"]]) == "d!>"
    assert row["turn"].tolist() == [0, 1, 1, 1, 1, 0, 2, 2, 2]
    assert row["policy_version"][row["action_mask"]].tolist() == [7] * 3
    assert not row["behavior_logp"].any()
    assert not corrector.corrected(batch, spans, lambda *_: (), decode, np.random.default_rng(0))


def test_the_corrector_reads_the_context_that_the_thought_was_written_in():
    asked = []
    for replaced in (False, True):
        batch = linked(written(), replaced)
        spans = [each for each in corrector.found(batch, decode, ">") if each[1] > 1]
        read = lambda context, thought: asked.append(context) or ()  # noqa: E731
        corrector.corrected(batch, spans, read, decode, np.random.default_rng(0))
    assert asked == ["pab>cq", "pabccq", "pq", "pq"]


@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("reinforce", [True, False])
def test_experts_rows_follow_the_batch(aggregate, reinforce):
    """Of all steps where they are aggregated, else of this one; the batch keeps its shape."""
    settings = CorrectorConfig(
        f"{__name__}:shouted", groups=3, aggregate=aggregate, end=">", reinforce=reinforce
    )
    ctx, made = context(), corrector.corrector(settings)
    texts = []
    for step, letter in enumerate("xyz"):
        episode = f"p{letter}{letter}>cq{letter}>e" if step < 2 else "pabccqdde"  # no thought
        batch = written((episode,) * 2)
        got = made.prepare(ctx, state(step), batch)
        assert got.tokens.shape == (2 + 3 * 2, 9)
        assert got.group_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert got.action_mask[0].sum() == (7 if reinforce or step == 2 else 2)
        assert not got.rewards[2:].any() and not got.expert[:2].any()
        added = got.action_mask[2:].any(axis=1)
        assert (added == got.expert[2:]).all() and (added == got.trained[2:]).all()
        assert not got.valid[2:].any() and got.trained[:2].all()
        assert added.all() or (step == 2 and not aggregate and not added.any())
        rows = zip(got.tokens[2:], got.action_mask[2:], strict=True)
        texts.append({decode(tokens[mask]) for tokens, mask in rows})
    old, new = {"XX>", "X>"}, {"YY>", "Y>"}
    assert texts[0] <= old
    assert texts[1] & new and bool(texts[1] & old) == aggregate
    assert texts[2] <= (old | new if aggregate else {""})
    again = corrector.corrector(settings)
    again.set_state(made.get_state())
    assert again.get_state() == made.get_state() and len(made.get_state()) == 4


@pytest.mark.parametrize("order", ["corrector", "replay corrector", "corrector replay"])
def test_each_update_has_its_part_of_every_kind_of_row(order):
    """The step's own rows, the corrected thoughts and the replayed rows, in either order."""
    settings = CorrectorConfig(f"{__name__}:shouted", groups=2, end=">")
    made = {
        "corrector": corrector.corrector(settings),
        "replay": replay.replay(ReplayConfig(groups=2, size=2)),
    }
    ctx = context(updates=2)
    for step in range(2):  # in the first, the buffer is empty
        batch = written(("pab>cqd>e",) * 4).replace(
            rewards=np.arange(4, dtype=np.float32) + 10 * step,
            valid=np.ones(4, bool),
            group_ids=np.repeat(np.arange(2, dtype=np.int32), 2),
        )
        for name in order.split():
            batch = made[name].prepare(ctx, state(step), batch)
    parts = list(shares(batch, 2))
    for i, part in enumerate(parts):
        assert part.rewards[:2].tolist() == [10 + 2 * i, 11 + 2 * i]
        kinds = [0, *range(1, 1 + len(order.split()))]
        assert part.extra["addition"].tolist() == np.repeat(kinds, 2).tolist()
        corrected = part.extra["addition"] == 1 + order.split().index("corrector")
        assert part.expert[corrected].all() and part.action_mask[corrected].any(axis=1).all()
        assert part.group_ids.tolist() == np.repeat(np.arange(len(kinds)), 2).tolist()
    assert np.concatenate([part.tokens for part in parts]).shape == batch.tokens.shape


@pytest.mark.parametrize("replaced", [False, True])
def test_a_corrected_thought_is_predicted_in_its_context(replaced):
    """Token by token, and so is the state after it, whatever pads its row."""
    settings = CorrectorConfig(f"{__name__}:shouted", groups=8, end=">")
    batch = linked(written(), replaced)
    got = corrector.corrector(settings).prepare(context(), state(4), batch)
    stops = got.action_mask.shape[1] - np.argmax(got.action_mask[:, ::-1], axis=1)
    assert any(len(set(two)) > 1 for two in stops[len(batch.tokens) :].reshape(-1, 2).tolist())
    longer = with_last_states(got)  # a corrected thought did not end the response
    found, texts = prefixes(pack(longer, PackingConfig(bucket=8))[0]), set()
    assert set(found) == set(zip(*np.nonzero(longer.action_mask), strict=True))
    for (n, t), (seen, positions, target) in found.items():
        text = decode(got.tokens[n, :t])
        text = f"p{text[5:]}" if replaced and t > 5 else text
        assert decode(seen) == text and positions == list(range(len(text)))
        assert target == longer.tokens[n, t]
        texts.add(text)
    assert {"pA", "pAB", "pAB>"} <= texts
    own = "pq" if replaced else "pabccq"
    assert {f"{own}D", f"{own}D>"} <= texts


def test_a_corrected_thought_has_no_reward():
    batch = linked(written(), False)
    spans = list(corrector.found(batch, decode, ">"))
    rows = corrector.corrected(
        batch, spans, lambda *_: encode("!>"), decode, np.random.default_rng(0)
    )
    for row in rows:
        np.testing.assert_array_equal(row["turn_rewards"], ~row["action_mask"])


def test_thoughts_that_were_saved_as_siblings_are_mended():
    """Each of their tokens continued what their first one does."""
    settings = CorrectorConfig(f"{__name__}:shouted", groups=1, end=">")
    made, again = corrector.corrector(settings), corrector.corrector(settings)
    made.prepare(context(), state(0), linked(written(), True))
    right, wrong = made.get_state(), []
    for row in right:
        first = row["parent"][np.argmax(row["action_mask"])]
        wrong.append(row | {"parent": np.where(row["action_mask"], first, row["parent"])})
        wrong[-1]["turn_rewards"] = np.ones_like(row["turn_rewards"])
    again.set_state(wrong)
    for one, other in zip(right, again.get_state(), strict=True):
        first = np.argmax(other["action_mask"])
        assert other["parent"][first + 1 :].tolist() == list(range(first, len(other["parent"]) - 1))
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], name)


def episodes():
    """Two groups of two, of which the last episode has no reward."""
    batch = written(EPISODES[:2] * 2)
    zeros = np.zeros(batch.tokens.shape, np.int32)
    more = {"turn_rewards": zeros.astype(np.float32), "turn_state": zeros, "agent": zeros}
    return batch.replace(
        rewards=np.float32([1, 3, 2, 0]),
        group_ids=np.repeat(np.arange(2, dtype=np.int32), 2),
        extra=batch.extra | more,
    )


def added(step=4):
    """The episodes with their thoughts among the actions, and two groups of corrected ones."""
    settings = CorrectorConfig(f"{__name__}:shouted", groups=2, end=">", reinforce=True)
    return corrector.corrector(settings).prepare(context(), state(step), episodes())


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize(
    ("advantage", "args"),
    [
        ("reinforce_pp", {}),
        ("reinforce_pp_baseline", {}),
        ("gpg_advantages", {}),
        ("group_advantages", {"baseline": "batch", "scale": "batch"}),
    ],
)
def test_corrected_thoughts_are_in_no_statistic_of_the_batch(advantage, args):
    """They are imitated, and have no reward that others could be compared with."""
    config = ObjectiveConfig(policy="chord", advantage=advantage, advantage_args=args)
    own, whole = (objective.whole_batch(config, each, 9) for each in (episodes(), added()))
    np.testing.assert_array_equal(whole.advantages[:4], own.advantages)
    assert np.any(own.advantages) and not np.any(whole.advantages[4:])
    np.testing.assert_array_equal(whole.mask[:4], own.mask)
    np.testing.assert_array_equal(whole.mask[4:], added().action_mask[4:])
    assert np.any(whole.mask[4:], axis=1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": "best_worst"},
        {"rows": "spread"},
        {"rows": "recomposed"},
        {"rows": "fresh"},
        {"skip_zero_advantages": True},
    ],
    ids=lambda changes: str(next(iter(changes.values()))),
)
def test_what_leaves_rows_out_by_their_rewards_leaves_corrected_thoughts(changes):
    """They have none, and are imitated. A void episode stays out."""
    config = ObjectiveConfig(policy="chord", **changes)
    whole = objective.whole_batch(config, added(), 9)
    np.testing.assert_array_equal(whole.mask[4:], added().action_mask[4:])
    assert not np.any(whole.mask[:4][~added().valid[:4]])
    computed = objective.worth_computing(config, added())
    assert np.all(computed[4:]) and not np.any(computed[:4][~added().valid[:4]])


def test_a_critic_learns_nothing_from_corrected_thoughts():
    """Neither are its advantages whitened with theirs, nor are they worth 0 to it."""
    values = np.random.default_rng(0).normal(size=(8, 9)).astype(np.float32)
    own = critic.estimate(CriticConfig(), episodes(), values[:4], None)
    whole = critic.estimate(CriticConfig(), added(), values, None)
    np.testing.assert_array_equal(whole.advantages[:4], own.advantages)
    assert np.any(own.advantages) and not np.any(whole.advantages[4:])


def test_corrected_thoughts_are_as_likely_as_the_policy_of_now_finds_them():
    """Whatever step they are of; the policy's own tokens stay as they were sampled."""
    made = corrector.corrector(CorrectorConfig(f"{__name__}:shouted", groups=2, end=">"))
    for step in (8, 9):
        got, own = made.prepare(context(), state(step), episodes()), episodes()
        acted = got.action_mask[4:]
        assert acted.any(axis=1).all()
        assert (got.behavior_logp[4:][acted] == -2.0).all()
        assert (got.policy_version[4:][acted] == step).all()
        np.testing.assert_array_equal(got.behavior_logp[:4], own.behavior_logp)
        np.testing.assert_array_equal(got.policy_version[:4], own.policy_version)


def test_corrected_thoughts_are_no_failed_scores():
    """One of the four episodes has failed."""
    measured = dict.fromkeys(
        ("loss", "grad_norm", "logp_gap_max", "entropy", "advantage_abs", "skipped"), jnp.float32(0)
    )
    update = guards.guarded(lambda state, *_: (state, dict(measured)), GuardConfig())
    _, metrics = update(TrainState({}, {}, jnp.int32(4)), added(), None, None)
    assert metrics["error_rate"] == 0.25


def test_a_replay_keeps_no_corrected_thoughts():
    """They are drawn from those of all steps, and have no reward."""
    rule = "jaxrl.data.selection.replay:informative"
    buffer = replay.open_buffer(ReplayConfig(groups=2, size=8, keep=rule), seed=0)
    buffer.mix(added(), 2, 4)
    assert [group["expert"].any() for group in buffer.get_state()] == [False]


def shouted(context, thought):
    """A correction that can be told from the thought."""
    return thought.upper()
