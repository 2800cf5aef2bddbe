"""The lab's verifiers, its sampler against its trainer, its update, and its statistics."""

import dataclasses
import importlib
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import lab
from experiments.claims import aepo, par
from experiments.effects import table as effects_table
from experiments.lab import (
    archive,
    arms,
    collect,
    critic,
    families,
    measurement,
    plans,
    policy,
    stores,
    tasks,
    train,
)
from experiments.lab import effect as experiment
from experiments.lab.variants import variants
from jaxrl.config import CurriculumConfig
from jaxrl.data.selection.guidance import Hint
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.nucleus import masked
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.models import decoder
from jaxrl.models.value import ValueConfig
from jaxrl.sampling.chunks import Chunks
from jaxrl.sampling.logits import nucleus_of
from jaxrl.training import packing
from jaxrl.training.logprobs import Restriction
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

TASK = lab.cipher(((10, 0.8), (36, 0.2)), (((2, 1), 0.5), ((0, 2), 0.5)), filler_rate=0.1, slack=2)
MODEL = policy.shape(TASK.vocabulary, TASK.train.prompt.shape[1] + TASK.budget)
SEEDS = 2


@pytest.fixture(scope="module")
def params():
    return jax.vmap(lambda k: decoder.init(MODEL, k))(jax.random.split(jax.random.key(0), SEEDS))


def batch(count=6):
    rows = np.tile(np.arange(count), (SEEDS, 1))
    return jax.tree.map(lambda a: a[rows], TASK.train)


def rewards(answers, completions, task=TASK):
    return np.asarray(jax.vmap(task.reward)(answers, completions))


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize(
    "task", [TASK, lab.cipher(partial=True), lab.cipher(modes=2, accepted=(0.7, 0.3)), lab.lookup()]
)
def test_gold_is_right_and_anything_else_is_not(task):
    for problems in (task.train, task.test):
        assert (rewards(problems.answer, problems.gold, task) == 1).all()
    if task.respond is not None:
        return  # what the world would have said is not in the verifier
    rng = np.random.default_rng(0)
    written = task.train.gold.copy()
    place = rng.integers((written > tasks.EOS).sum(axis=1))  # a symbol, not the end
    written[np.arange(len(written)), place] = tasks.ASK
    assert (rewards(task.train.answer, written, task) < 1).all()
    assert (
        rewards(task.train.answer, np.where(task.train.gold == 1, 0, task.train.gold), task) < 1
    ).all()


def test_fillers_are_ignored_and_the_budget_is_not():
    answer, gold = TASK.train.answer[:1], TASK.train.gold[0]
    gold = [int(t) for t in gold if t != tasks.PAD]
    room = TASK.budget - len(gold)
    padded = np.array([[tasks.FILLER] * room + gold])
    assert rewards(answer, padded) == 1
    assert rewards(answer, np.array([gold[:1] + [tasks.FILLER] * room + gold[1:]])) == 1
    assert rewards(answer, np.array([[tasks.FILLER] * (room + 1) + gold[:-1]])) == 0


@pytest.mark.broad
def test_the_world_answers_each_question(params):
    """The policy's own keys at even places, the table's at odd ones until it answers."""
    task = lab.lookup(hops=2)
    model = policy.shape(task.vocabulary, task.train.prompt.shape[1] + task.budget)
    params = jax.vmap(lambda k: decoder.init(model, k))(jax.random.split(jax.random.key(0), 1))
    problems = jax.tree.map(lambda a: a[None, :64], task.train)
    forced = np.full((1, 64, task.budget), -1)
    forced[:, ::2] = np.where(np.arange(task.budget) % 2, -1, task.train.gold[:64:2])
    given = (params, problems.prompt, problems.answer, forced, jax.random.key(1)[None])
    written = policy.sample(model, *given, 1.0, task.respond)
    tokens, actions = np.asarray(written.tokens[0]), np.asarray(written.actions[0])
    tables = task.train.answer[:64, 1:]
    for row, chosen, table in zip(tokens, actions, tables, strict=True):
        for t in range(1, task.budget, 2):
            if (row[:t] <= tasks.ASK).any():
                break
            asked = row[t - 1] - tasks.FIRST
            assert row[t] == (tasks.FIRST + table[asked] if asked >= 0 else tasks.FILLER)
            assert not chosen[t]
    np.testing.assert_array_equal(tokens[::2, :5], task.train.gold[:64:2, :5])
    assert actions[::2, 5].all()  # the answer itself is the policy's


def test_the_pupil_is_as_good_as_its_skill():
    task = lab.cipher(((30, 0.9), (12, 0.5)), (((2, 0), 0.5), ((0, 3), 0.5)))
    right = rewards(task.demonstrations.answer, task.demonstrations.gold, task)
    for domain, expected in ((0, 0.81), (1, 0.125)):
        seen = right[task.demonstrations.domain == domain]
        assert abs(seen.mean() - expected) < 4 * (expected * (1 - expected) / len(seen)) ** 0.5


@pytest.mark.exact("log-probs of the lab's sampler equal those of its trainer to 1e-5")
def test_the_sampler_records_what_the_trainer_computes(params):
    problems, keys = batch(), jax.random.split(jax.random.key(1), SEEDS)
    forced = np.full((SEEDS, 6, TASK.budget), -1)
    forced[:, 2, :2] = TASK.train.gold[2, :2]
    written = policy.sample(
        MODEL, params, problems.prompt, problems.answer, forced, keys, 0.7, None
    )
    tokens = jnp.concatenate([problems.prompt, written.tokens], axis=2)
    score = jax.vmap(lambda p, x: policy.logprobs(MODEL, p, x, 0.7))
    logp, entropy = (a[..., -TASK.budget :] for a in score(params, tokens))
    assert (np.asarray(written.tokens)[:, 2, :2] == TASK.train.gold[2, :2]).all()
    assert not np.asarray(written.actions)[:, 2, :2].any()
    real = np.asarray(written.tokens) != tasks.PAD
    ended = (np.asarray(written.tokens) == tasks.EOS).cumsum(axis=2) - (written.tokens == tasks.EOS)
    assert not np.asarray(written.actions)[
        ended > 0
    ].any()  # the end is an action, what follows not
    np.testing.assert_allclose(logp[real], written.logp[real], atol=1e-5)
    np.testing.assert_allclose(entropy[real], written.entropy[real], atol=1e-5)


@pytest.mark.broad
@pytest.mark.exact("in chunks, log-probs of the lab's sampler equal those of its trainer to 1e-5")
def test_in_chunks_the_sampler_records_what_the_trainer_computes(params):
    """And what that is: each token under the prompt and the chunk that it was written in."""
    problems, keys = batch(), jax.random.split(jax.random.key(1), SEEDS)
    free, chunks = np.full((SEEDS, 6, TASK.budget), -1), Chunks(3, 1)
    written = policy.sample(
        MODEL, params, problems.prompt, problems.answer, free, keys, 1.0, None, chunks
    )
    tokens = np.concatenate([problems.prompt, written.tokens], axis=2)
    first = problems.prompt.shape[2]
    score = jax.vmap(lambda p, x: policy.logprobs(MODEL, p, x, 1.0, chunks, first))
    logp, entropy = (np.asarray(a) for a in score(params, tokens))
    real = np.asarray(written.tokens) != tasks.PAD
    assert real[..., 3:].any()
    np.testing.assert_allclose(logp[..., first:][real], written.logp[real], atol=1e-5)
    np.testing.assert_allclose(entropy[..., first:][real], written.entropy[real], atol=1e-5)
    for start, stop in ((0, 3), (3, 5), (5, TASK.budget)):
        kept = [*range(first), *range(first + max(start - 1, 0), first + stop)]
        plain, _ = jax.vmap(lambda p, x: policy.logprobs(MODEL, p, x))(params, tokens[:, :, kept])
        mine = logp[:, :, first + start : first + stop]
        np.testing.assert_allclose(plain[:, :, start - stop :], mine, atol=1e-5)


@pytest.mark.broad
@pytest.mark.exact(
    "in a nucleus, log-probs of the lab's sampler equal those of its trainer to 1e-5"
)
def test_in_a_nucleus_the_sampler_records_what_the_trainer_computes(params):
    """And draws nothing outside the nucleus of the other policy."""
    problems, keys = batch(), jax.random.split(jax.random.key(1), SEEDS)
    free = np.full((SEEDS, 6, TASK.budget), -1)
    other = jax.vmap(lambda k: decoder.init(MODEL, k))(jax.random.split(jax.random.key(9), SEEDS))
    given = (problems.prompt, problems.answer, free, keys, 1.0, None)
    written = policy.sample(MODEL, params, *given, mass=0.7, likely=other)
    tokens = np.concatenate([problems.prompt, written.tokens], axis=2)
    score = jax.vmap(
        lambda p, o, x: policy.logprobs(
            MODEL, p, x, restriction=Restriction(o, masked, nucleus_of, 0.7)
        )
    )
    logp, entropy = (np.asarray(a)[..., -TASK.budget :] for a in score(params, other, tokens))
    real = np.asarray(written.tokens) != tasks.PAD
    np.testing.assert_allclose(logp[real], written.logp[real], atol=1e-5)
    np.testing.assert_allclose(entropy[real], written.entropy[real], atol=1e-5)
    plain = jax.vmap(lambda p, x: policy.all_logprobs(MODEL, p, x))
    probs = np.exp(plain(other, tokens))[:, :, -TASK.budget - 1 : -1]
    chosen = np.take_along_axis(probs, np.asarray(written.tokens)[..., None], axis=-1)
    likelier = np.where(probs > chosen, probs, 0.0).sum(axis=-1)
    assert (likelier[real] < 0.7).all() and (likelier[real] > 0).any()


@pytest.mark.broad
@pytest.mark.exact("tokens of a seed of the lab do not depend on the other seeds")
def test_tokens_of_a_seed_do_not_depend_on_the_others(params):
    problems, keys = batch(), jax.random.split(jax.random.key(1), SEEDS)
    forced = jnp.full((SEEDS, 6, TASK.budget), -1)
    both = policy.sample(MODEL, params, problems.prompt, problems.answer, forced, keys, 1.0, None)
    one = [a[1:] for a in (problems.prompt, problems.answer, forced, keys)]
    alone = policy.sample(MODEL, jax.tree.map(lambda a: a[1:], params), *one, 1.0, None)
    np.testing.assert_array_equal(alone.tokens[0], both.tokens[1])


@pytest.mark.broad
def test_an_update_follows_the_gradient_of_reinforce(params):
    """A first Adam step moves every parameter by the rate, against the sign of its gradient."""
    objective = ObjectiveConfig(
        policy="reinforce",
        advantage_args={"scale": "none"},
        aggregation="seq-mean-token-sum",
    )
    arm = lab.Arm(objective=objective, prompts=4, group_size=4, learning_rate=1e-3)
    ids = np.tile(np.arange(4), (SEEDS, 1))
    state = train.learner(params)
    given, _ = collect.collect(TASK, MODEL, params, arm, ids, 0, versions=np.zeros(SEEDS, int))
    given = given.replace(rewards=jnp.tile(jnp.arange(16.0) % 4, (SEEDS, 1)))
    after = train.update(MODEL, TASK, arm)(state, params, None, given, arm.learning_rate)

    def reinforce(p, t):
        logp, _ = policy.logprobs(MODEL, p, t.tokens)
        row = jnp.sum(jnp.where(t.action_mask, logp, 0), axis=1)
        return -jnp.mean(row * (t.rewards - 1.5))

    slopes = jax.vmap(jax.grad(reinforce))(params, given)
    for old, new, g in zip(*map(jax.tree.leaves, (params, after.params, slopes)), strict=True):
        clear = np.abs(g) > 1e-4
        np.testing.assert_allclose((new - old)[clear], -1e-3 * np.sign(g)[clear], rtol=0.02)
    assert (after.steps == 1).all()


@pytest.mark.broad
@pytest.mark.parametrize("head", [ValueConfig(), ValueConfig(bins=21, low=-0.5, high=1.5)])
def test_a_critic_learns_what_its_states_are_worth(params, head):
    """With lambda 1 the return of every action is the reward, and a first value is the same."""
    config = CriticConfig(
        head=head, mixing=1.0, clip=0.0, whiten=False, bootstrap=False,
        optimizer=OptimizerConfig(learning_rate=3e-3),
    )  # fmt: skip
    ids = np.tile(np.arange(4), (SEEDS, 1))
    arm = lab.Arm(prompts=4, group_size=4)
    given, _ = collect.collect(TASK, MODEL, params, arm, ids, 0, versions=np.zeros(SEEDS, int))
    given = given.replace(rewards=np.tile(np.arange(16) // 4 % 2, (SEEDS, 1)).astype(np.float32))
    steps = critic.steps(config, MODEL, train._OPTIMIZER)
    critics = steps.init(params)
    first = steps.advised(critics, given, None)
    acted = np.asarray(given.action_mask)
    rewards = np.broadcast_to(given.rewards[..., None], acted.shape)
    value = (head.low + head.high) / 2 if head.bins > 1 else 0.0
    np.testing.assert_allclose(np.asarray(first.values)[acted], value, atol=1e-5)
    np.testing.assert_allclose(np.asarray(first.returns)[acted], rewards[acted], atol=1e-5)
    np.testing.assert_allclose(
        np.asarray(first.advantages)[acted], rewards[acted] - value, atol=1e-5
    )
    more = critic.steps(dataclasses.replace(config, bootstrap=True), MODEL, train._OPTIMIZER)
    cut = acted & ~given.stopped[..., None]
    assert cut.any() and given.stopped.any()
    np.testing.assert_allclose(
        np.asarray(more.advised(critics, given, None).returns)[acted],
        (rewards + np.where(cut, value, 0.0))[acted],
        atol=1e-5,
    )
    batch = first
    for _ in range(60):
        critics = steps.update(critics, batch)
        batch = steps.advised(critics, given, None)
    error = [np.square(np.asarray(b.values) - rewards)[acted].mean() for b in (first, batch)]
    assert error[1] < 0.2 * error[0]


@pytest.mark.broad
@pytest.mark.parametrize("rows", ["", "fresh"])
def test_an_arm_with_replay_trains(params, rows):
    """On rows of the step and of the buffer, or of the step alone."""
    objective = ObjectiveConfig(rows=rows, shaping="episodic")
    arm = lab.Arm(
        replay=ReplayConfig(groups=4, size=8), prompts=4, group_size=4, updates_per_batch=2,
        objective=objective,
    )  # fmt: skip

    def change(now, last):
        far = jax.tree.map(lambda a, b: jnp.sum(jnp.abs(a - b)), now, params)
        return {"change": np.asarray(sum(jax.tree.leaves(far)))[None]}

    got = train.train(TASK, MODEL, params, arm, measure=change, measurements=2, steps=2)
    assert np.isfinite(got["change"]).all() and (np.diff(got["change"], axis=0) > 0).all()


@pytest.mark.broad
def test_an_arm_with_a_critic_trains(params):
    critic = CriticConfig(kl_coef=0.1)
    arm = lab.Arm(critic=critic, prompts=4, group_size=4, updates_per_batch=2)

    def change(now, last):
        far = jax.tree.map(lambda a, b: jnp.sum(jnp.abs(a - b)), now, params)
        return {"change": np.asarray(sum(jax.tree.leaves(far)))[None]}

    got = train.train(TASK, MODEL, params, arm, measure=change, measurements=2, steps=2)
    assert np.isfinite(got["change"]).all() and (np.diff(got["change"], axis=0) > 0).all()


def prefix_then_solution(attempt, rewards, count):
    """First row 0 of each group begins with half the solution; then failures become experts."""
    if attempt == 0:
        return [Hint(p, 0, given=0.5) for p in range(count)]
    failed = zip(*np.nonzero(rewards < 1), strict=True) if attempt == 1 else []
    return [Hint(int(p), int(g), expert=True) for p, g in failed]


def test_a_guide_helps_as_in_the_real_loop(params):
    guidance = GuidanceConfig(guide=f"{__name__}:prefix_then_solution")
    arm = lab.Arm(guidance=guidance, prompts=4, group_size=2)
    ids = np.tile(np.arange(4), (SEEDS, 1))
    got, rewards = collect.collect(TASK, MODEL, params, arm, ids, 0, versions=np.zeros(SEEDS, int))
    assert (rewards == 1).all()  # an untrained policy fails; the experts do not
    width = TASK.train.prompt.shape[1]
    answers = np.asarray(got.tokens)[:, ::2, width:]
    np.testing.assert_array_equal(answers, np.tile(TASK.train.gold[:4], (SEEDS, 1, 1)))
    expert = np.asarray(got.expert)
    assert expert.mean() > 0.8
    real = np.asarray(got.tokens)[..., width:] != tasks.PAD
    assert (np.asarray(got.action_mask)[..., width:] == real)[expert].all()

    first = dataclasses.replace(arm, guidance=GuidanceConfig(guide=f"{__name__}:prefix_only"))
    got, _ = collect.collect(TASK, MODEL, params, first, ids, 0, versions=np.zeros(SEEDS, int))
    half = np.round(0.5 * np.count_nonzero(TASK.train.gold[:4], axis=1)).astype(int)
    for row, n in enumerate(half):
        given = slice(width, width + n)
        assert (got.tokens[:, 2 * row, given] == TASK.train.gold[row, :n]).all()
        assert not got.action_mask[:, 2 * row, given].any()  # given, not chosen
        assert got.action_mask[:, 2 * row, width + n].all()


def own_beginnings(attempt, tokens, entropies, count):
    """Row 1 of each group begins as row 0 did."""
    if attempt != 1:
        return []
    assert all(len(t) == len(e) > 0 for t, e in zip(tokens[0], entropies[0], strict=True))
    return [Hint(p, 1, begin=tuple(tokens[p][0][:2]) if p else ()) for p in range(count)]


def test_a_response_may_begin_as_another_did(params):
    guidance = GuidanceConfig(guide=f"{__name__}:own_beginnings")
    arm = lab.Arm(guidance=guidance, prompts=4, group_size=2)
    ids = np.tile(np.arange(4), (SEEDS, 1))
    got, _ = collect.collect(TASK, MODEL, params, arm, ids, 0, versions=np.zeros(SEEDS, int))
    starts = got.tokens[:, :, TASK.train.prompt.shape[1] :][:, :, :2]
    long = (starts[:, ::2, 0] > tasks.EOS) & (starts[:, ::2, 1] > tasks.PAD)
    long[:, 0] = False
    assert long.any()
    np.testing.assert_array_equal(starts[:, ::2][long], starts[:, 1::2][long])
    chosen = got.action_mask[:, 1::2, TASK.train.prompt.shape[1] :][:, :, :2]
    assert not chosen[long].any()
    assert chosen[:, 0, 0].all()  # no beginning, and no other help either


def prefix_only(attempt, count):
    return prefix_then_solution(0, None, count) if attempt == 0 else []


def test_rewards_of_the_environment(params):
    """They may ask the policy for log-probabilities, and nan leaves a row out."""

    def two_more(s):
        logp = s.score(jnp.concatenate([s.problems.prompt, s.tokens], axis=1))
        same = jnp.abs(logp[:, s.problems.prompt.shape[1] :] - s.logp) < 1e-4
        two = 2.0 * jnp.all(same | ~s.actions)
        return jnp.where(s.group_ids == 1, jnp.nan, s.rewards + two)

    arm = lab.Arm(prompts=4, group_size=2, rewards=two_more)
    ids = np.tile(np.arange(4), (SEEDS, 1))
    got, rewards = collect.collect(TASK, MODEL, params, arm, ids, 0, versions=np.zeros(SEEDS, int))
    assert np.isnan(rewards[:, 1]).all() and (rewards[:, [0, 2, 3]] >= 2).all()
    assert not got.valid.reshape(SEEDS, 4, 2)[:, 1].any() and got.valid.mean() == 0.75


def seen_by(params, arm, task=TASK, steps=4):
    """Prompts [step, S, P] of a short run."""
    seen = []
    train.train(
        task,
        MODEL,
        params,
        arm,
        measure=lambda p, last: {},
        steps=steps,
        note=lambda i, _: seen.append(i),
    )
    return np.array(seen)


@pytest.mark.broad
def test_prompts_come_from_the_real_curricula(params):
    """Passes show all of the first 32 before any again; weights divide the batch by domain."""
    passes = CurriculumConfig("passes", prompts=32)
    arm = lab.Arm(prompts=16, group_size=2, curriculum=passes, learning_rate=0.0)
    seen = seen_by(params, arm)
    for seed in range(SEEDS):
        assert sorted(seen[:2, seed].reshape(-1)) == sorted(seen[2:, seed].reshape(-1))
        assert set(seen[:2, seed].reshape(-1)) == set(range(32))
    assert (seen[:, 0] != seen[:, 1]).any()

    shared = lab.Arm(prompts=4, group_size=2, weights=(3.0, 1.0), learning_rate=0.0)
    assert (TASK.train.domain[seen_by(params, shared)].sum(axis=-1) == 1).all()
    later = {"weights": (1.0, 3.0)}
    staged = dataclasses.replace(shared, stages=((0, {}), (2, later)))
    drawn = TASK.train.domain[seen_by(params, staged)].sum(axis=-1)
    assert (drawn[:2] == 1).all() and (drawn[2:] == 3).all()


@pytest.mark.broad
def test_an_order_by_angles_begins_with_the_most_concentrated(params):
    args = {"width": 0.1, "speed": 0.0}
    curriculum = CurriculumConfig("gain", args)
    arm = lab.Arm(prompts=4, group_size=2, curriculum=curriculum, learning_rate=0.0)
    seen = seen_by(params, arm, steps=2)
    prompts = TASK.train.prompt
    for seed in range(SEEDS):
        one = jax.tree.map(lambda a, s=seed: a[s], params)
        length = prompts.shape[1]
        cache = decoder.empty_cache(MODEL, len(prompts), length)
        place = np.tile(np.arange(length), (len(prompts), 1))
        hidden, _ = decoder.extend(
            MODEL, decoder.unstack(one), prompts, place, cache, window=length
        )
        unit = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
        cosine = np.einsum("ntd,nud->ntu", unit, unit)
        mean = (cosine.sum((1, 2)) - length) / (length * (length - 1))
        least = np.sort(mean)[-4]
        assert (mean[seen[:, seed]] >= least - 1e-4).all()


def by_first_token(state):
    """Prompts of even number, the higher the better; of those that were seen twice."""
    number = np.arange(len(state.visits))
    return np.where(state.visits == 2, number, np.nan)


@pytest.mark.broad
def test_an_earlier_run_chooses_the_prompts(params):
    """It saw 32 prompts twice: the best two of those come back, repeated in each batch."""
    passes = CurriculumConfig("passes", prompts=32)
    before = lab.Arm(steps=4, prompts=16, group_size=2, curriculum=passes, learning_rate=0.0)
    chosen = CurriculumConfig(score=f"{__name__}:by_first_token", keep=2)
    arm = lab.Arm(prompts=4, group_size=2, before=before, curriculum=chosen, learning_rate=0.0)
    seen = seen_by(params, arm, steps=2)
    assert set(seen.reshape(-1)) == {30, 31} and (np.sort(seen) == [30, 30, 31, 31]).all()


def test_an_earlier_run_shifts_weights_to_what_it_failed(params):
    """An untrained policy fails everything; paid for domain 0, it fails domain 1 alone."""
    before = lab.Arm(
        steps=4, prompts=16, group_size=2, learning_rate=0.0,
        rewards=lambda s: 1.0 * (s.problems.domain == 0),
    )  # fmt: skip
    arm = lab.Arm(prompts=16, group_size=2, before=before, weights=(1.0, 1.0), learning_rate=0.0)
    drawn = TASK.train.domain[seen_by(params, arm, steps=1)].sum(axis=-1)
    assert (drawn == 14).all()  # 1/4 of an even share, and all of the other 3/4


def test_an_arm_changes_with_its_stages():
    arm = lab.Arm(stages=((0, {"temperature": 1.2}), (5, {"max_new_tokens": 3})))
    assert (arm.at(4).temperature, arm.at(4).max_new_tokens) == (1.2, 0)
    assert (arm.at(5).temperature, arm.at(5).max_new_tokens) == (1.2, 3)


def by_gold(batch):
    return batch.problems.gold[:, 0] % 2.0


@pytest.mark.broad
def test_stale_data_is_recorded_as_such(params):
    """With a delay of 2 the third batch comes from the first policy."""
    seen = []
    arm = lab.Arm(prompts=4, group_size=2, delay=2, rewards=by_gold)
    arm = dataclasses.replace(arm, objective=ObjectiveConfig(advantage_args={"baseline": "batch"}))
    original = train.collect

    def watched(task, model, behavior, *rest, **kwargs):
        seen.append(np.asarray(jax.tree.leaves(behavior)[0]))
        return original(task, model, behavior, *rest, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "collect", watched)
        train.train(TASK, MODEL, params, arm, measure=lambda p, last: {}, steps=4)
    assert (seen[0] == seen[1]).all() and (seen[0] == seen[2]).all()
    assert (seen[0] != seen[3]).any()


@pytest.mark.broad
@pytest.mark.exact("two equal arms of an experiment differ by 0")
def test_equal_arms_have_no_effect():
    """And each mark of a run counts the tokens and updates so far."""
    arm = lab.Arm(steps=5, prompts=4, group_size=4, updates_per_batch=2)
    same = lab.Effect("nothing differs", TASK, arm, dataclasses.replace(arm), warm_steps=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "SAMPLES", 2)
        result = lab.run(same, seeds=(0, 1))
        figures = lab.run_arm(same, arm, (0, 1))
    assert result["comparison"]["effect"] == 0 and result["method"] == result["ablation"]
    assert result["method"] == figures["final"]["pass@1"]
    assert figures["final"]["updates"] == [10, 10] and figures["marks"] == [1, 2, 3, 4, 5]
    assert np.all(np.diff(figures["curves"]["tokens"], axis=0) > 0)
    assert "pass@2" in figures["final"] and "pass@2" not in figures["area"]


@pytest.mark.broad
def test_blocks_of_seeds_are_run_by_the_same_programs(monkeypatch, caplog):
    """A second call, another rate and another width of the clip compile nothing either."""
    monkeypatch.setattr(experiment, "SAMPLES", 1)
    monkeypatch.setattr(experiment, "BLOCK", 1)
    arm = lab.Arm(steps=5, prompts=4, group_size=2, rewards=by_gold)
    arm = dataclasses.replace(arm, objective=ObjectiveConfig(advantage_args={"baseline": "batch"}))
    same = lab.Effect("nothing differs", TASK, arm, arm, warm_steps=1)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        one = lab.run_arm(same, arm, (3,))
        assert "Compiling" in caplog.text
        caplog.clear()
        two = lab.run_arm(same, arm, (3, 4))
        other = lab.run_arm(same, arms.tuned(arm, 0.1, 0.5), (3,))
    assert "Compiling" not in caplog.text
    for name, values in one["final"].items():
        assert two["final"][name][0] == values[0] and len(two["final"][name]) == 2
    assert other["final"]["entropy"] != one["final"]["entropy"]


@pytest.mark.broad
def test_the_warm_start_is_as_long_for_a_short_arm(monkeypatch):
    """Arms of fewer steps than the warm start begin from the same policies as longer ones."""
    monkeypatch.setattr(experiment, "SAMPLES", 1)
    short = lab.Arm(steps=5, prompts=4, group_size=2)
    warm = lab.Effect("nothing differs", TASK, short, short, warm_steps=9)
    longer = dataclasses.replace(short, steps=10)
    before = [lab.run_arm(warm, arm, (3,))["before"] for arm in (short, longer)]
    assert before[0] == before[1]
    quick = lab.run_arm(warm, longer, (3,), steps=5)
    assert quick["before"] != before[0]  # a quick look is quick as a whole


@pytest.mark.broad
@pytest.mark.exact("a clip changes nothing where every batch is sampled by the policy it updates")
@pytest.mark.parametrize("updates", [1, 2])
def test_a_clip_binds_only_off_policy(monkeypatch, updates):
    """What is not tuned for arms that `on_policy` names makes no difference to them."""
    monkeypatch.setattr(experiment, "SAMPLES", 1)
    arm = lab.Arm(steps=5, prompts=4, group_size=2, updates_per_batch=updates, rewards=by_gold)
    arm = dataclasses.replace(arm, objective=ObjectiveConfig(advantage_args={"baseline": "batch"}))
    same = lab.Effect("nothing differs", TASK, arm, arm, warm_steps=1)
    narrow, wide = (
        lab.run_arm(same, arms.tuned(arm, 0.1, clip), (3,))["final"] for clip in (0.01, 4.0)
    )
    assert (narrow == wide) is arms.on_policy(arm) is (updates == 1)


def test_a_seed_has_an_instance_of_its_own():
    first, second = (TASK.over((seed,)) for seed in (3, 4))
    both = TASK.over((3, 4))
    np.testing.assert_array_equal(both.test.prompt, [first.test.prompt[0], second.test.prompt[0]])
    symbols = [set(np.unique(t.train.gold[0])) for t in (first, second)]
    codes = [dict(zip(t.train.prompt[0].ravel(), t.train.gold[0, :, :4].ravel(), strict=True))
             for t in (first, second)]  # fmt: skip
    assert symbols[0] == symbols[1] and codes[0] != codes[1]
    rows = np.array([[5, 0], [1, 1]])
    got = tasks.taken(both.train, rows)
    np.testing.assert_array_equal(got.prompt[0, 0], first.train.prompt[0, 5])
    np.testing.assert_array_equal(got.prompt[1, 1], second.train.prompt[0, 1])
    assert TASK.digest() == TASK.digest() != lab.neutral().digest()


def test_dynamic_sampling_keeps_groups_that_differ():
    rewards = np.array([[[1, 1], [0, 1], [0, 0], [1, 0]], [[1, 1], [1, 1], [0, 1], [0, 0]]]) * 1.0
    kept, sampled = train.informative(rewards, 2)
    np.testing.assert_array_equal(kept, [[1, 3], [0, 2]])  # the second has one that differs
    np.testing.assert_array_equal(sampled, [4, 4])
    kept, sampled = train.informative(rewards[:1, :2], 1)
    np.testing.assert_array_equal(kept, [[1]])
    np.testing.assert_array_equal(sampled, [2])


@pytest.mark.broad
def test_an_arm_samples_dynamically(params):
    """It trains on as many groups as without, and pays for those that it leaves out."""
    seen, arm = [], lab.Arm(prompts=2, group_size=2, oversampling=2.0, rewards=first_two_alike)
    original = packing.shares

    def watched(batch, count):
        seen.append(batch)
        return original(batch, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "shares", watched)
        got = train.train(TASK, MODEL, params, arm, measure=lambda p, last: {}, steps=1)
    np.testing.assert_array_equal(seen[0].group_ids, [[0, 0, 1, 1]] * SEEDS)
    np.testing.assert_array_equal(seen[0].rewards, [[0, 1, 0, 1]] * SEEDS)
    alone = train.train(
        TASK, MODEL, params, dataclasses.replace(arm, prompts=4, oversampling=1.0),
        measure=lambda p, last: {}, steps=1,
    )  # fmt: skip
    np.testing.assert_array_equal(got["tokens"], alone["tokens"])


def first_two_alike(batch):
    """Groups 0 and 1 have equal rewards, the others not."""
    place = jnp.arange(len(batch.rewards))
    return jnp.where(batch.group_ids < 2, 1.0, place % 2)


def test_an_advantage_that_the_policy_loss_does_not_take_is_no_part():
    """To take it out changes nothing; with a filter of sequences it may."""
    blind = ObjectiveConfig(policy="pacs", kl_coef=0.1)
    other = ObjectiveConfig(policy="reinforce", advantage="rloo")
    method, plain = lab.Arm(objective=blind), lab.Arm(objective=other)
    assert sorted(arms.parts(method, plain)) == ["KL penalty", "all", "policy loss"]
    assert arms.parts(method, plain)["all"] == plain
    filtered = dataclasses.replace(method, objective=dataclasses.replace(blind, rows="recomposed"))
    assert "advantage" in arms.parts(filtered, plain)
    same = dataclasses.replace(blind, advantage="rloo")
    assert arms.parts(method, dataclasses.replace(method, objective=same)) == {}


@pytest.mark.broad
def test_no_part_gives_the_figures_of_the_whole_method():
    """To take such a part out does nothing, so what was measured is not the method."""

    def figures(keys):
        return [archive.read(effects_table.RESULTS, key)["digest"] for key in keys]

    rows = [row for row in effects_table.rows() if row["measured"] and row["against"] == "ablation"]
    idle = [
        (row["id"], row["task"], row["other"])
        for row in rows
        if figures(row["arms"][0]) == figures(row["arms"][1])
    ]
    assert idle == []


@pytest.mark.slow
def test_dph_rl_has_something_to_rehearse():
    """The policy that its experiment begins from answers a part of the prompts right 8 times of 8,
    and on the neutral task none."""

    def solved(task, warm_steps):
        one = task.over((0,))
        model = policy.shape(one.vocabulary, one.prompt_length + one.budget)
        start = experiment.imitate(one, model, warm_steps)
        _, rewards = experiment.attempts(model, one, effect.method, start)
        return (rewards == 1).all(axis=-1).mean()

    effect = effects_table.effect_of("dph_rl")
    assert 0.2 < solved(effect.task, effect.warm_steps) < 0.8
    assert solved(lab.neutral(), effect.warm_steps) < 0.02
    assert "neutral" not in variants(effect)


FURTHER = [n for n in effects_table.names() if effects_table.effect_of(n).further]


@pytest.mark.parametrize("name", FURTHER)
def test_further_arms_are_others_and_leave_a_plan_as_it_is(name):
    """A plan that was made before has its arms and no others, until they are added."""
    effect = effects_table.effect_of(name)
    made = plans.competitors(effect, families.RECIPES[name][0])
    own = [made[f"ablation: {each}"] for each in effect.further]
    every = [arms.describe(each) for each in (effect.method, effect.ablation, *own)]
    assert all(a != b for a, b in itertools.combinations(every, 2))
    if name in ("aepo", "vcpo"):  # parts inside the policy loss
        assert len(own) == 2
        for each in own:
            assert dataclasses.replace(each, objective=effect.method.objective) == effect.method
    plan = json.loads((effects_table.RESULTS / f"{name}.plan.json").read_text())
    assert plans.differences(plan, name, effect) == []
    without = dataclasses.replace(effect, further={})
    for task, variant in variants(effect).items():
        family = families.RECIPES[name][0]
        assert (task == "regime") or not variant.further
        made, plain = (plans.competitors(v, family) for v in (variant, variants(without)[task]))
        assert {label: made[label] for label in plain} == plain


@pytest.mark.broad
def test_an_arm_may_have_its_own_sizes_and_figures():
    """RL of the large model begins where that model stands after its demonstrations."""
    module = importlib.import_module("experiments.claims.rast")
    effect, given = module.effect(), module.of_the_large(module.effect().method)
    figures = experiment.run_arm(effect, given, (0,), steps=1)
    task = effect.task.over((0,))
    model = policy.shape(task.vocabulary, task.prompt_length + task.budget)
    large = dataclasses.replace(model, **module.LARGE)
    start = experiment.imitate(task, large, 1)
    own = module.alone(large, task, given, start, start)["pass@1"]
    np.testing.assert_allclose(figures["before"]["pass@1"], own, atol=1e-5)
    described = [arms.describe(module.of_strength(x)(effect.method)) for x in (0.5, 2.0)]
    assert described[0]["measure"] != described[1]["measure"]
    assert not {"measure", "model"} & arms.describe(effect.method).keys()


def test_the_other_shapings_of_pars_paper_by_hand():
    """Of three samples; an expert's row and one without a reward are in no statistic."""
    rewards = jnp.array([1.0, 2.0, 3.0, 10.0, jnp.nan])
    given = {"expert": jnp.arange(5) == 3, "valid": jnp.arange(5) < 4}
    std = (2 / 3) ** 0.5
    for shaped, expected in (
        (par.clipped, [2 - std, 2, 2 + std]),
        (par.ranged, [0, 0.5, 1]),
        (par.standardised, [-1 / std, 0, 1 / std]),
    ):
        np.testing.assert_allclose(shaped(rewards, **given)[:3], expected, rtol=1e-6)


def test_an_arm_is_added_to_a_plan_and_the_other_rows_keep_theirs(tmp_path):
    """It is tuned as they were, and has their seeds; changed later, it is another."""

    def run(effect, given, seeds):
        figures = {"pass@1": [0.5 + 0.1 * (given.prompts == 16)] * len(seeds)}
        figures |= {name: [1.0] * len(seeds) for name in ("tokens", "updates")}
        same = {"final": figures, "area": figures, "before": {}, "curves": {}}
        return same | {"marks": [1], "minutes": 0.0}

    store = stores.Store(tmp_path, run)
    effect = dataclasses.replace(effects_table.effect_of("raft"), further={})
    old = plans.make(store, "raft", effect)
    other = lambda prompts: lambda method: dataclasses.replace(method, prompts=prompts)  # noqa: E731
    more = dataclasses.replace(effect, further={"fewer prompts": other(8)})
    label, family = "ablation: fewer prompts", old["family"]
    assert plans.unplanned(more, family, old["tasks"]["regime"]) == [label]
    new = plans.make(store, "raft", more, old)
    assert {**new["tasks"]["regime"], "later": {}} == {**old["tasks"]["regime"], "later": {}}
    assert new["tasks"]["neutral"] == old["tasks"]["neutral"]
    assert plans.unplanned(more, family, new["tasks"]["regime"]) == []
    assert plans.differences(new, "raft", more) == []
    rows = {row["other"]: row for row in measurement.measure(store, new, more, "x")
            if row["task"] == "regime"}  # fmt: skip
    assert rows["fewer prompts"]["comparison"]["seeds"] == old["tasks"]["regime"]["seeds"]
    for row in measurement.measure(store, old, effect, "x"):
        if row["task"] == "regime":
            assert rows[row["other"]]["plan_digest"] == row["plan_digest"]
    changed = dataclasses.replace(more, further={"fewer prompts": other(4)})
    assert plans.differences(new, "raft", changed) == [f"regime: the arm {label!r} is another"]
    again = plans.make(store, "raft", changed, new)["tasks"]["regime"]
    assert {k: v for k, v in again.items() if k != "later"} == old["tasks"]["regime"]
    assert again["later"][label] != new["tasks"]["regime"]["later"][label]
    assert plans.make(store, "raft", effect, new)["tasks"] == old["tasks"]
    shadow = dataclasses.replace(effect, further={"rewards": other(8)})
    with pytest.raises(ValueError, match="further='rewards': a part of the ablation has this name"):
        plans.competitors(shadow, family)


def test_aepo_without_its_clip_weighs_by_entropy_and_clips_as_ppo():
    given = {"entropy": jnp.array([[1.0, 2.0]]), "mask": jnp.ones((1, 2), bool)}
    logp, advantages = jnp.log(jnp.array([[2.0, 1.0]])), jnp.ones((1, 1))
    loss, _ = aepo.hard_clip(logp, jnp.zeros((1, 2)), advantages, alpha=0.4, **given)
    np.testing.assert_allclose(loss, [[-1.28 * 1.2, -1.4]], rtol=1e-6)


LENGTHS = {0.02: (0.6, 4.0), 0.005: (0.62, 5.0), 0.08: (0.2, 1.0)}
"""Weight of a length penalty -> accuracy and length of what it trains."""


def test_the_baseline_of_a_length_is_one_of_the_accurate(tmp_path):
    """The shortest fails at most prompts; the best of the other two is chosen."""

    def run(effect, given, seeds):
        weight = given.objective.shaping_args.get("weight", 0.005)
        figures = {
            name: [value] * len(seeds)
            for name, value in zip(("pass@1", "length"), LENGTHS[weight], strict=True)
        }
        return {"final": figures, "area": figures, "minutes": 0.0}

    effect = effects_table.effect_of("rorecomp")
    plan = plans.make(stores.Store(tmp_path, run), "rorecomp", effect)
    assert {x["baseline"] for x in plan["tasks"].values()} == {"baseline: linear penalty"}
    accurate = dataclasses.replace(effect, statistic="pass@1", better="higher")
    plan = plans.make(stores.Store(tmp_path, run), "rorecomp", accurate)
    best = "baseline: linear penalty, a quarter"
    assert {x["baseline"] for x in plan["tasks"].values()} == {best}


GOLD = [n for n in effects_table.names() if families.RECIPES[n][0] == "gold solutions"]


@pytest.mark.parametrize("name", GOLD)
def test_every_method_with_gold_solutions_has_a_row_against_sft_alone(name):
    """Beside that against the best baseline, where the plan has another."""
    plan = json.loads((effects_table.RESULTS / f"{name}.plan.json").read_text())
    effect = effects_table.effect_of(name)
    for task in plan["tasks"]:
        rows = plans.compared_with(plan, effect, task)
        assert plan["tasks"][task]["baseline"] in rows and "baseline: SFT" in rows
        assert len(rows) == len(set(rows))


@pytest.mark.broad
def test_a_plan_foresees_the_row_against_sft(tmp_path):
    """Its seeds give that row power too."""

    def run(effect, given, seeds):
        better = 0.1 * (given.objective.policy_args.get("mu") == 0.5)
        figures = {"pass@1": [0.5 + better] * len(seeds)}
        return {"final": figures, "area": figures, "minutes": 0.0}

    effect = effects_table.effect_of("tram")
    plan = plans.make(stores.Store(tmp_path, run), "tram", effect)
    for task, planned in plan["tasks"].items():
        assert planned["baseline"] == "baseline: SFT + GRPO"
        assert {"baseline: SFT", "baseline: SFT + GRPO"} < {*planned["power"]}
        assert {*plans.compared_with(plan, effect, task)} == {*planned["power"]}
