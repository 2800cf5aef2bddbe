"""Choices, schedules and shares against numbers that the authors' own functions gave.

A fixture holds inputs, constants and outputs of a public function, and names its repository,
commit, file and lines; the code itself is not here.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import Config, stages
from jaxrl.data.selection import bandits, curriculum, guidance, sampling_rounds
from jaxrl.launch import method
from jaxrl.launch.recipes.game_agents import agentgym_rl_scalinginter_rl
from jaxrl.launch.recipes.objectives import rast
from jaxrl.launch.recipes.search_agents import zerosearch
from jaxrl.launch.recipes.skills import warmup_then_rlvr
from jaxrl.launch.recipes.tool_agents import loop_leave_one_out
from jaxrl.losses.advantages import groups, rows
from jaxrl.losses.policy import mixed, objectives
from jaxrl.losses.reduce import aggregate
from jaxrl.models import merge
from jaxrl.training.tries import Chunks

FIXTURES = Path(__file__).with_name("authors_selection.json")


def fixture(name):
    """Inputs, and outputs."""
    found = json.loads(FIXTURES.read_text())[name]
    assert found.keys() == {"source", "commit", "function", "constants", "inputs", "outputs"}
    return SimpleNamespace(**found["inputs"]), SimpleNamespace(**found["outputs"])


def test_dump():
    """At their window: the recipe has that of `BanditConfig`."""
    given, want = fixture("dump")
    state = bandits.start(3, window=300)
    weights = [bandits.dump(state, temperature=0.1)]
    for domain, advantages in given.updates:
        state = bandits.observe(state, np.full(len(advantages), domain), np.abs(advantages))
        weights.append(bandits.dump(state, temperature=0.1))
    np.testing.assert_allclose(weights, want.weights, rtol=1e-8)


def test_scaling_inter():
    """The horizon of each step, of the recipe and of other plans.

    Theirs after a checkpoint is not compared: it changes a step late.
    """
    given, want = fixture("scaling_inter")
    plan = given.cases[0]
    recipe = agentgym_rl_scalinginter_rl.METHOD
    rounds = [changes["rollout.max_turns"] for changes in recipe.stages.values()]
    assert list(recipe.stages) == [i * plan["every"] / plan["steps"] for i in range(3)]
    assert rounds == plan["rounds"]
    for case, changes in zip(given.cases, want.changes, strict=True):
        shares = [i * case["every"] / case["steps"] for i in range(len(case["rounds"]))]
        turns = [{"rollout.max_turns": n} for n in case["rounds"]]
        plan = method.Method(stages=dict(zip(shares, turns, strict=True)))
        config = method.placed(Config(steps=case["steps"]), plan)
        for i, (step, now) in enumerate(changes):
            assert stages.at(config, step).rollout.max_turns == now
            if step:
                assert stages.at(config, step - 1).rollout.max_turns == changes[i - 1][1]
        assert stages.at(config, case["steps"] - 1).rollout.max_turns == changes[-1][1]


def test_rulereasoner():
    """Of one batch, and of a full buffer whose weighted mean stands for our moving average.

    Theirs divides the buffer's weighted sum by the number of batches, so that what falls short is
    25/48 of what it is in our formula, which the temperature makes up for here. Their epsilon
    cancels. A buffer that is neither, and a domain that is missing from it, are not compared, and
    the floor is ours.
    """
    given, want = fixture("rulereasoner")
    start = bandits.start(3)
    for (domains, rewards), weights in zip(given.single, want.single, strict=True):
        state = bandits.observe(start, domains, rewards, rate=1.0)
        got = bandits.dads(state, temperature=0.3, floor=0.0)
        np.testing.assert_allclose(got, weights, rtol=1e-8)
    decay = 1 / np.arange(4, 0, -1)
    for buffer, weights in zip(given.full, want.full, strict=True):
        means = [bandits.observe(start, *batch, rate=1.0).value for batch in buffer]
        state = start._replace(value=np.average(means, axis=0, weights=decay))
        got = bandits.dads(state, temperature=0.3 * 4 / decay.sum(), floor=0.0)
        np.testing.assert_allclose(got, weights, rtol=1e-8)


def store(epochs):
    """Of mean rewards or rewards by epoch and prompt; None: the prompt was not there."""
    state = curriculum.start(len(epochs[0]), window=len(epochs))
    for epoch in epochs:
        ids = [i for i, rewards in enumerate(epoch) if rewards is not None]
        state = curriculum.record(state, ids, [np.atleast_1d(epoch[i]) for i in ids])
    return state


def ordered(state, score):
    return curriculum.highest(state, len(score), np.ones(len(score), bool), score)[1].tolist()


def test_one_shot():
    """Both rankings, ties included."""
    given, want = fixture("one_shot")
    state = store(np.transpose(given.curves))
    variance, impact = curriculum.historical_variance(state), curriculum.learning_impact(state)
    np.testing.assert_allclose(np.sqrt(variance), want.std, rtol=1e-8)
    np.testing.assert_allclose(impact, want.lim, rtol=1e-6, atol=1e-7)
    assert ordered(state, variance) == want.std_order
    assert ordered(state, impact) == want.lim_order


def test_limr():
    """A prompt that is missing from an earlier epoch than the last is not compared.

    Theirs gives it the accuracy of the next epoch; here it has no score.
    """
    given, want = fixture("limr")
    epochs = [
        [None if right < 0 else [float(g < right) for g in range(4)] for right in epoch]
        for epoch in np.transpose(given.right).tolist()
    ]
    state = store(epochs)
    impact = curriculum.learning_impact(state)
    score = np.array([np.nan if s is None else s for s in want.score])
    np.testing.assert_allclose(impact, score, rtol=1e-6, atol=1e-7)
    everyone = np.ones(len(impact), bool)
    kept = curriculum.highest(state, len(want.kept), everyone, impact)[1]
    assert sorted(kept.tolist()) == want.kept


def test_gain_rl(monkeypatch):
    """Where the centre goes, and the weights of ranks around it.

    Theirs draws each subset where the centre was before its last move, and does not stop at the
    last prompt; neither is compared.
    """
    given, want = fixture("gain_rl")
    ranks = bandits.rank(np.zeros(7000))
    centres = [float(ranks.centre)]
    for accuracy, angle in zip(given.accuracy, given.angle, strict=True):
        ranks = bandits.move(ranks, accuracy, angle, speed=1000.0)
        centres.append(float(ranks.centre))
    np.testing.assert_allclose(centres, want.centre, rtol=1e-6)
    for case, probability in zip(given.draws, want.probabilities, strict=True):
        # Noise that undoes their probabilities: what it adds besides decides alone.
        bumps = np.random.default_rng(0).permutation(case["count"])
        noise = 1e-6 * bumps - np.log(probability)
        generator = SimpleNamespace(gumbel=lambda size, noise=noise: noise)
        monkeypatch.setattr(bandits, "stream", lambda state, generator=generator: generator)
        ranks = bandits.rank(-np.arange(case["count"]))._replace(centre=case["centre"])
        chosen = bandits.gaussian(ranks, case["count"], width=case["width"])[1]
        np.testing.assert_array_equal(chosen, np.argsort(-bumps))


def test_sws():
    """The part that is made for weaknesses; theirs rounds down."""
    given, want = fixture("sws")
    for case, new in zip(given.cases, want.new, strict=True):
        domains = np.repeat(np.arange(7), case["failed"])
        failing = np.ones(len(domains), bool)
        factors = bandits.weaknesses(failing, domains, 7, synthesized=1.0)
        np.testing.assert_array_equal(np.floor(factors / 7 * case["new"] + 1e-9), new)


def test_zerosearch():
    """The probability of noise by step; the recipe's changes at its ten stages alone."""
    given, want = fixture("zerosearch")
    got = [zerosearch.noise(min(step / 200, 1.0)) for step in given.step]
    np.testing.assert_allclose(got, want.threshold, rtol=1e-8)
    for share, changes in zerosearch.METHOD.stages.items():
        assert changes == {"task_args.noise": zerosearch.noise(share)}


def clipped(given, objective):
    """Value and gradient of `ppo_clip`, reduced as the objective says."""
    mask = jnp.arange(5) < jnp.array(given.length)[:, None]

    def loss(logp):
        per_token = objectives.ppo_clip(
            logp, jnp.array(given.behavior_logp), jnp.array(given.advantages)[:, None],
            **objective.policy_args,
        )[0]  # fmt: skip
        mode = objective.aggregation
        return aggregate.aggregate(per_token, mask, mode, aggregate.denominator(mask, mode))

    return jax.jit(jax.value_and_grad(loss))(jnp.array(given.logp))


def test_loop_leave_one_out():
    """Advantages, loss and gradient; the recipe rounds a bound of the ratio to 4 digits."""
    given, want = fixture("loop")
    sizes = [len(group) for group in given.returns]
    rewards, ids = np.concatenate(given.returns), np.repeat(np.arange(len(sizes)), sizes)
    got = groups.rloo(jnp.array(rewards), ids.astype(np.int32), num_groups=len(sizes))
    np.testing.assert_allclose(got, want.advantages, atol=1e-6)

    objective = loop_leave_one_out.METHOD.objective
    assert (objective.policy, objective.advantage) == ("ppo_clip", "rloo")
    value, slope = clipped(given, objective)
    np.testing.assert_allclose(value, np.mean(want.loss), atol=2e-6)
    np.testing.assert_allclose(slope * len(want.loss), want.gradient, atol=2e-6)


def test_warmup_then_rlvr():
    """Without a scale; the recipe's advantages are divided by the deviation of the group.

    The imitation is that of a trainer that is not theirs.
    """
    given, want = fixture("warmup_then_rlvr")
    rewards = jnp.array(given.rewards)
    ids, expert = jnp.arange(20) // 4, jnp.zeros(20, bool)
    got = groups.sampled_advantages(rewards.ravel(), ids, num_groups=5, expert=expert, scale="none")
    np.testing.assert_allclose(got.reshape(5, 4), want.advantages, atol=1e-6)
    objective = warmup_then_rlvr.METHOD.objective
    (stage,) = warmup_then_rlvr.METHOD.stages.values()
    assert (stage, objective.advantage) == ({"objective.policy": "ppo_clip"}, "sampled_advantages")
    value, slope = clipped(given, objective)
    np.testing.assert_allclose(value, want.loss, atol=2e-6)
    np.testing.assert_allclose(slope, want.gradient, atol=2e-6)


def test_self_low_likelihood_rlvr():
    given, want = fixture("self")
    got = rows.unsolved(jnp.sum(jnp.array(given.token_rewards), axis=1))
    np.testing.assert_array_equal(got, want.kept)


def test_rast():
    given, want = fixture("rast")
    guide = rast.steered(None, None, None)
    assert guide.args == given.strength[0] == 1.0
    context = SimpleNamespace(others=(jnp.array(given.tuned), jnp.array(given.untuned)))
    for strength, logits in zip(given.strength, want.logits, strict=True):
        got = guide.process(jnp.array(given.large), context, strength)
        np.testing.assert_allclose(got, logits, atol=1e-5)


def test_delethink():
    """The contexts, with nothing kept of the beginning of the first chunk.

    Theirs keeps its first 100 tokens too, which is not compared.
    """
    given, want = fixture("delethink")
    for case, turns in zip(given.cases, want.turns, strict=True):
        size, carry = case["size"], case["carry"]
        longest = size + (case["turns"] - 1) * (size - carry)
        spans = Chunks(size, carry).spans(0, min(case["tokens"], longest))
        response = list(range(100, 100 + case["tokens"]))
        got = [[case["prompt"] + response[a:b], response[b:c]] for a, b, c in spans]
        assert got == turns


def test_ghpo():
    """Who is asked again, with how much, and whose rewards count; rewards are 0 or 1.

    Where a hint stands is not compared, nor a score that failed.
    """
    given, want = fixture("ghpo")
    rng = np.random.default_rng(0)
    for case, asked, last in zip(given.cases, want.asked, want.rewards, strict=True):
        rewards = np.array(case["rewards"], float)
        assert guidance.escalate(0, None, rng) == guidance.escalate(4, rewards, rng) == []
        for attempt, groups_asked in enumerate(asked, start=1):
            hints = guidance.escalate(attempt, rewards, rng)
            asked_rows = [(hint.problem, hint.row) for hint in hints]
            assert asked_rows == [(p, row) for p in groups_asked for row in range(3)]
            for hint in hints:
                rewards[hint.problem, hint.row] = case["later"][attempt - 1][hint.problem][hint.row]
                characters = [round(hint.given * n) for n in given.solution]
                assert characters == [lengths[attempt - 1] for lengths in want.hint]
        np.testing.assert_array_equal(rewards, last)


def test_dph_rl():
    """Theirs has no gradient where the divergence of a token is above 10; there is none here."""
    given, want = fixture("dph_rl")
    behavior_logp, zero = jnp.array([given.behavior_logp]), jnp.zeros((1, 1))
    lag = jnp.full(behavior_logp.shape, 20, jnp.int32)

    def loss(logp):
        return mixed.dph(
            logp, behavior_logp, zero, lag=lag, step=jnp.asarray(30),
            presample_steps=16, coefficient=1.0,
        )[0]  # fmt: skip

    got, back = jax.vjp(jax.jit(loss), jnp.array([given.logp]))
    np.testing.assert_allclose(got[0], want.divergence, rtol=1e-5, atol=1e-6)
    slope = back(jnp.ones_like(got))[0]
    np.testing.assert_allclose(slope[0], want.gradient, rtol=1e-5, atol=1e-6)


def test_ram():
    """Theirs divides by zero where a model has changed nothing alone; that is not compared."""
    given, want = fixture("ram")
    base, *models = (
        {name: np.array(leaf, np.float32) for name, leaf in tree.items()}
        for tree in (given.base, *given.models)
    )
    for case, merged in zip(given.cases, want.merged, strict=True):
        got = merge.ram(base, [models[i] for i in case["models"]], scale=case["scale"])
        for name, leaf in merged.items():
            np.testing.assert_allclose(got[name], leaf, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", range(5))
def test_codev_r1(case):
    """Sizes of rounds and prompts trained on, batch after batch.

    Theirs divides by zero after a round without an informative prompt; that is not compared.
    """
    given, want = fixture("codev_r1")
    wanted, rewards = given.cases[case]["wanted"], np.array(given.cases[case]["rewards"])
    acceptance, at = sampling_rounds.Acceptance(), 0
    for sizes, trained in zip(want.rounds[case], want.trained[case], strict=True):
        quota, got, kept, missing = curriculum.quota(wanted, oversampling=1e6), [], [], True
        while missing:
            got.append(sampling_rounds.size(acceptance, quota))
            asked = np.arange(at, at + got[-1])
            quota, keep, missing = curriculum.dynamic(quota, rewards[asked])
            acceptance = sampling_rounds.observe(acceptance, rewards[asked], last=not missing)
            kept += asked[keep].tolist()
            at += got[-1]
        assert (got, kept) == (sizes, trained)
