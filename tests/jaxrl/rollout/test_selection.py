"""Prompts in stream order, by curricula, from domains, from an earlier run."""

import collections
import dataclasses
import functools
import json

import numpy as np
import pytest

from jaxrl import config as configs
from jaxrl.config import BanditConfig, Config, CurriculumConfig, Domain, FreshModel, RolloutConfig
from jaxrl.data import tasks as bundled
from jaxrl.data.environments import Environment, Opening, Reply
from jaxrl.data.selection import bandits, curriculum
from jaxrl.data.types import Problem
from jaxrl.losses.pruning import donod
from jaxrl.mesh import mesh
from jaxrl.models import decoder
from jaxrl.rollout import history, policy, prompt_signals, rollout_log, selection, tasks

TARGETED = CurriculumConfig("difficulty_targeted", {"target": 0.5}, prompts=32)
UNIFORM = CurriculumConfig("jaxrl.data.selection.curriculum:uniform", prompts=32)
RETAINED = dataclasses.replace(UNIFORM, retain=0.5, retain_every=2)
GAIN = CurriculumConfig("gain", {"width": 4.0, "speed": 8.0}, prompts=32)
CLOSEST = CurriculumConfig("closest", {"share": 0.5}, prompts=32)
SUMS = {"operators": "+"}
TWO = {
    "short": Domain("arithmetic", {"digits": 1}, weight=1.0),
    "long": Domain("arithmetic", {"digits": 4}, weight=3.0, max_new_tokens=4),
}
LEARNED = {
    "short": dataclasses.replace(TWO["short"], curriculum=TARGETED),
    "long": dataclasses.replace(TWO["long"], curriculum=GAIN),
}
BATCH = 8


def config(**changes):
    made = Config(
        seed=3,
        task_args=SUMS,
        fresh=FreshModel(16, 32, 1, 2, 2, 8),
        rollout=RolloutConfig(prompts=BATCH, max_prompt_tokens=16, max_new_tokens=8),
    )
    for name, value in changes.items():
        made = configs.replaced(made, name.replace("__", "."), value)
    return made


SOURCES = {
    "stream": config(),
    "drop": config(rollout__max_prompt_tokens=5, rollout__long_prompts="drop"),
    "targeted": config(curriculum=TARGETED),
    "retained": config(curriculum=RETAINED),
    "gain": config(curriculum=GAIN),
    "closest": config(curriculum=CLOSEST),
    "mixture": config(domains=TWO),
    "sec": config(domains=LEARNED, bandit=BanditConfig("sec")),
    "dump": config(domains=TWO, bandit=BanditConfig("dump")),
}


@functools.cache
def policy_of():
    made = policy.create(config(), mesh.make(config().mesh))
    return made, policy.sampling_params(made.params, "float32")


def opened(config):
    """A source, and how its batches are drawn."""
    selection.check(config)
    actor, params = policy_of()
    source = selection.open_source(config, tasks.of_config(config), actor)
    last = []

    def draw(count=BATCH):
        last[:] = source.draw(count, params)
        return [each.problem for each in last]

    return source._replace(learn=lambda rewards: source.learn(last, rewards)), draw


def sums(digits):
    """A task with a sequence as its parameter."""
    return bundled.get("arithmetic", operators="+", digits=max(digits))


def rewards(problems, group=4):
    """Prompts whose answer is even are solved half of the time, others always."""
    return np.array([[1.0, 1.0, p.answer % 2, p.answer % 2] for p in problems])


@pytest.mark.sample(3, broad=3)
@pytest.mark.exact("a restored source of prompts continues with the same prompts")
@pytest.mark.parametrize("name", SOURCES)
def test_a_restored_source_continues_as_the_original(name):
    (source, draw), (other, draw_other) = opened(SOURCES[name]), opened(SOURCES[name])
    for _ in range(3):
        source.learn(rewards(draw()))
    other.set_state(json.loads(json.dumps(source.get_state())))
    for _ in range(4):
        batch = draw()
        assert batch == draw_other() and len(batch) == BATCH
        source.learn(rewards(batch))
        other.learn(rewards(batch))


@pytest.mark.parametrize("name", ["stream", "targeted", "mixture"])
def test_a_source_ignores_the_state_of_another(name):
    source, draw = opened(SOURCES[name])
    for other in {"stream", "drop", "targeted"} - {name}:
        elsewhere, draw_there = opened(SOURCES[other])
        draw_there()
        source.set_state(elsewhere.get_state())
    assert draw() == opened(SOURCES[name])[1]()


def test_what_is_known_of_prompts_is_kept_under_another_choice():
    """Sequences in parameters come back from JSON as lists, which must not count as a change."""
    own = {"task": f"{__name__}:sums", "task_args": {"digits": (1, 2)}}
    source, draw = opened(config(curriculum=TARGETED, **own))
    batch = draw()
    source.learn(rewards(batch))
    ranked, draw = opened(config(curriculum=GAIN, **own))
    ranked.set_state(json.loads(json.dumps(source.get_state())))
    state = curriculum.from_json(curriculum.Prompts, ranked.get_state()["state"])
    assert (state.visits > 0).sum() == BATCH == len(draw())
    course = curriculum.from_json(selection.CurriculumState, ranked.get_state()["course"])
    assert np.isfinite(course.signal).all()  # measured now, for want of a measure before


def test_a_curriculum_comes_to_prefer_what_teaches():
    source, draw = opened(config(curriculum=TARGETED))
    seen = []
    for _ in range(40):
        batch = draw()
        seen.append(np.mean([p.answer % 2 == 0 for p in batch]))
        source.learn(rewards(batch))
    assert np.mean(seen[-10:]) > np.mean(seen[:5]) + 0.15


def test_groups_of_one_prompt_in_a_batch_are_all_learned_from():
    """They were drawn at several times, as with `rollout.in_flight`."""
    actor, params = policy_of()
    made = config(curriculum=TARGETED)
    source = selection.open_source(made, tasks.of_config(made), actor)
    first = source.draw(BATCH, params)
    given = np.arange(2.0 * BATCH).repeat(4).reshape(-1, 4)
    source.learn([*first, *first[::-1]], given)
    store = curriculum.from_json(curriculum.Prompts, source.get_state()["state"])
    own = store.curve[[each.ticket for each in first], -2:]
    np.testing.assert_array_equal(own, [[n, 2 * BATCH - 1 - n] for n in range(BATCH)])


def test_a_curriculum_fills_the_whole_budget_of_adaptive_rounds():
    """8 times 1.1 is 8.8, so 9 prompts."""
    few = dataclasses.replace(TARGETED, prompts=8)
    selection.check(config(curriculum=few))
    made = config(curriculum=few, rollout__rounds="adaptive", rollout__oversampling=1.1)
    with pytest.raises(ValueError, match=r"curriculum\.prompts=8 cannot fill .*oversampling=1\.1"):
        selection.check(made)


def test_over_long_prompts_are_dropped_truncated_or_refused():
    short = dataclasses.replace(config().rollout, max_prompt_tokens=5)
    tokenizer = policy_of()[0].tokenizer
    problem = Problem("long", "12+34=", 46)
    with pytest.raises(ValueError, match=r"has 6 tokens, more than rollout\.max_prompt_tokens=5"):
        policy.encode_prompt(tokenizer, short, problem)
    cut = dataclasses.replace(short, long_prompts="truncate")
    assert tokenizer.decode(policy.encode_prompt(tokenizer, cut, problem)) == "2+34="
    for settings in (CurriculumConfig(), UNIFORM):
        dropping = config(
            rollout__max_prompt_tokens=5, rollout__long_prompts="drop", curriculum=settings
        )
        _, draw = opened(dropping)
        kept = [p for _ in range(2) for p in draw(4)]
        assert len(kept) == 8 and all(len(p.prompt) <= 5 for p in kept)
        _, draw = opened(config(curriculum=settings))
        assert any(len(p.prompt) > 5 for _ in range(4) for p in draw())


def test_the_hardest_prompts_are_retained():
    source, draw = opened(config(curriculum=RETAINED))

    def known():
        saved = source.get_state()
        state = curriculum.from_json(curriculum.Prompts, saved["state"])
        return curriculum.pass_rate(state), curriculum.from_json(
            selection.CurriculumState, saved["course"]
        )

    rates, before, left = None, None, []
    for batch in range(6):
        problems = draw()
        _, course = known()
        left.append(int(course.allowed.sum()))
        assert course.allowed[course.last].all()
        if batch == 4:  # the hardest of what was left
            solved = np.nan_to_num(rates, nan=-1)
            assert solved[course.allowed].max() <= solved[~course.allowed & before].min()
        source.learn(rewards(problems) / 2)  # none is solved
        rates, before = known()[0], course.allowed
    assert left == [32, 32, 16, 16, 8, 8]


def test_gain_starts_with_the_most_concentrated_and_moves_on_as_they_are_solved():
    settings = config(curriculum=GAIN)
    actor, params = policy_of()
    task = tasks.of_config(settings)
    everything = [task.problem("train", 3, i) for i in range(32)]
    signal = prompt_signals.concentrations(actor, settings.rollout, task, params, everything)
    assert signal.std() > 0
    rank = {p.id: r for r, p in enumerate(everything[i] for i in np.argsort(-signal))}
    source, draw = opened(settings)
    first = draw()
    source.learn(np.ones((BATCH, 2)))
    for _ in range(8):
        last = draw()
        source.learn(np.ones((BATCH, 2)))
    assert np.mean([rank[p.id] for p in first]) < 8
    assert np.mean([rank[p.id] for p in last]) > 20


@pytest.mark.exact("angles of hidden states equal those of the training forward pass")
def test_angles_are_those_of_the_training_forward_pass():
    actor, params = policy_of()
    problems = [Problem("a", "1+2=", 3), Problem("b", "1+22+4=", 27)]
    task = tasks.of_config(config())
    got = prompt_signals.concentrations(actor, config().rollout, task, params, problems)
    for problem, value in zip(problems, got, strict=True):
        ids = np.array([policy.encode_prompt(actor.tokenizer, config().rollout, problem)])
        length = ids.shape[1]
        states = decoder.hidden(
            actor.model,
            actor.params,
            ids,
            np.arange(length)[None],
            np.full((1, length), length, np.int32),
        )
        segments = np.arange(length) >= 3  # both begin with 1+2
        wanted = bandits.angle_concentration(np.asarray(states[0], np.float64), segments)
        assert value == pytest.approx(wanted, abs=1e-5)


@pytest.mark.broad
@pytest.mark.exact("what a solution is worth is computed from the gradient of its plain loss")
def test_solutions_are_worth_what_their_gradients_say():
    """Each gradient made in full, from a forward pass of its own row."""
    actor, params = policy_of()
    task = tasks.of_config(config())
    problems = [task.problem("train", 3, n) for n in range(3)]
    table = np.asarray(decoder.unembedding(actor.params), np.float64)
    products = []
    for problem in problems:
        prompt = policy.encode_prompt(actor.tokenizer, config().rollout, problem)
        gold = [*actor.tokenizer.encode(task.gold(problem)), actor.tokenizer.eos_ids[0]]
        ids = np.array([[*prompt, *gold]])
        length = ids.shape[1]
        states = decoder.hidden(
            actor.model, actor.params, ids, np.arange(length)[None],
            np.full((1, length), length, np.int32),
        )  # fmt: skip
        read = np.asarray(states[0, len(prompt) - 1 : -1], np.float64)
        error = np.exp(read @ table.T)
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(gold)), gold] -= 1
        gradient = error.T @ read / len(gold)
        products.append([(table * gradient).sum(), (gradient**2).sum()])
    wanted = donod(*np.array(products).T, np.linalg.norm(table))
    got = prompt_signals.closeness(actor, config().rollout, task, params, problems)
    np.testing.assert_allclose(got, wanted, atol=1e-4)
    assert len(set(np.round(got, 3))) > 1


@pytest.mark.parametrize("settings", [GAIN, CLOSEST], ids=["gain", "closest"])
def test_what_is_measured_fits_and_nothing_else_is_drawn(settings):
    """Prompts have 4 to 6 tokens, and solutions 2 to 4."""
    short = {"rollout__max_prompt_tokens": 5, "rollout__max_new_tokens": 3}
    made = config(curriculum=settings, rollout__long_prompts="drop", **short)
    source, draw = opened(made)
    for _ in range(6):
        drawn = draw(4)
        source.learn(np.ones((4, 2)))
        assert all(len(p.prompt) <= 5 for p in drawn)
        assert settings is GAIN or all(len(str(p.answer)) <= 2 for p in drawn)
    course = curriculum.from_json(selection.CurriculumState, source.get_state()["course"])
    assert 8 < course.allowed.sum() < 32 and np.isfinite(course.signal).all()
    assert course.signal[~course.allowed].max() < course.signal[course.allowed].min()


@pytest.mark.parametrize("long_prompts", ["error", "drop"])
@pytest.mark.parametrize("settings", [UNIFORM, GAIN], ids=["uniform", "gain"])
def test_episodes_are_chosen_whatever_the_length_of_their_problems_prompts(settings, long_prompts):
    """A policy may never read such a prompt, so that no choice refuses or drops one."""
    made = config(
        curriculum=settings, rollout__max_prompt_tokens=5, rollout__long_prompts=long_prompts
    )
    actor, params = policy_of()
    turns = Environment(
        lambda problem, seed: (None, Opening(())), lambda *_: Reply(reward=1.0, done=True)
    )
    task = dataclasses.replace(tasks.of_config(made), turns=turns)
    source = selection.open_source(made, task, actor)
    drawn = [each.problem for _ in range(4) for each in source.draw(BATCH, params)]
    assert any(len(p.prompt) > 5 for p in drawn)
    course = curriculum.from_json(selection.CurriculumState, source.get_state()["course"])
    assert course.allowed.all() and np.isfinite(course.signal).all() == (settings is GAIN)


def test_a_long_prompt_that_is_not_dropped_is_refused_before_it_is_measured():
    _, draw = opened(config(curriculum=GAIN, rollout__max_prompt_tokens=5))
    with pytest.raises(ValueError, match=r"has 6 tokens, more than rollout\.max_prompt_tokens=5"):
        draw()


@pytest.mark.parametrize("budget", ["max_prompt_tokens", "max_new_tokens"])
def test_a_curriculum_of_problems_none_of_which_fits_is_refused(budget):
    made = {f"rollout__{budget}": 1, "rollout__long_prompts": "drop"}
    with pytest.raises(ValueError, match=r"none of the first 32 .* raise rollout\.max_prompt_t"):
        opened(config(curriculum=CLOSEST, **made))


def test_solutions_are_needed_to_say_what_they_are_worth():
    actor, params = policy_of()
    task = dataclasses.replace(tasks.of_config(config()), gold=None)
    with pytest.raises(ValueError, match="has none; choose a task"):
        prompt_signals.closeness(actor, config().rollout, task, params, [])


@pytest.mark.exact("prompts of a domain come in the order of its own stream, and none is left out")
def test_domains_have_their_shares_settings_and_exact_positions():
    _, draw = opened(config(domains=TWO))
    drawn = collections.defaultdict(list)
    for _ in range(20):
        batch = draw()
        assert collections.Counter(p.domain for p in batch) == {"short": 2, "long": 6}
        for p in batch:
            drawn[p.domain].append(p)
    assert all(p.metadata["max_new_tokens"] == 4 for p in drawn["long"])
    parts = tasks.of_config(config(domains=TWO)).parts
    for name, problems in drawn.items():
        assert problems == [parts[name].problem("train", 3, i) for i in range(len(problems))]
    places = [p.domain for _ in range(10) for p in draw()[:2]]
    assert 1 < places.count("short") < 12  # shuffled, so that equal parts of a batch are alike


def test_new_weights_and_new_domains_leave_positions_alone():
    before, draw = opened(config(domains=TWO))
    seen = [p for _ in range(3) for p in draw()]
    more = TWO | {"third": Domain("arithmetic", {"digits": 2}, weight=4.0)}
    after, draw = opened(config(domains=more))
    after.set_state(before.get_state())
    batch = draw()
    assert collections.Counter(p.domain for p in batch) == {"short": 1, "long": 3, "third": 4}
    assert not {p.id for p in batch if p.domain == "long"} & {p.id for p in seen}


@pytest.mark.parametrize("name", ["sec", "dump", "dads"])
def test_a_bandit_comes_to_prefer_the_domain_that_teaches(name):
    """The long sums are solved half of the time, the short ones always."""
    args = {"temperature": 0.2}
    signal = "reward" if name == "dads" else "advantage"
    even = {k: dataclasses.replace(d, weight=1.0) for k, d in TWO.items()}
    source, draw = opened(
        config(
            domains=even, bandit=BanditConfig(f"jaxrl.data.selection.bandits:{name}", args, signal)
        )
    )
    shares = []
    for _ in range(20):
        batch = draw()
        shares.append(np.mean([p.domain == "long" for p in batch]))
        source.learn(
            np.array([[1.0, 1.0, 0.0, 0.0] if p.domain == "long" else [1] * 4 for p in batch])
        )
    assert shares[0] == 0.5 and np.mean(shares[-5:]) > 0.75


def test_rewards_of_a_domain_reach_its_own_curriculum():
    source, draw = opened(SOURCES["sec"])
    batch = draw()
    source.learn(rewards(batch))
    part = source.get_state()["parts"]["short"]
    store = curriculum.from_json(curriculum.Prompts, part["state"])
    known = curriculum.pass_rate(store)
    means = [r.mean() for p, r in zip(batch, rewards(batch), strict=True) if p.domain == "short"]
    assert sorted(known[~np.isnan(known)]) == pytest.approx(sorted(means)) and means


# Chosen by an earlier run


def earlier(path, curves, **changes):
    """A run's directory, in which prompt i had these mean rewards."""
    run = config(**changes)
    task = tasks.of_config(run)
    recorder = rollout_log.HistoryLog(path, print)
    problems = [task.problem("train", run.seed, i) for i in range(len(curves))]
    for visit in range(len(curves[0])):
        recorder.add(problems, np.array([[c[visit], np.nan, c[visit]] for c in curves]))
    (path / "config.json").write_text(json.dumps({"config": configs.to_dict(run)}))
    return problems


def test_prompts_are_chosen_by_their_history(tmp_path):
    curves = [[0, 0, 0], [0, 1, 0], [0, 0.5, 1], [1, 1, 1], [0.1, 0.4, 0.7]]
    problems = earlier(tmp_path, curves, seed=11)
    average = np.mean(curves, axis=0)
    one_shot = CurriculumConfig(history=str(tmp_path), keep=1)
    _, draw = opened(config(curriculum=one_shot))
    variances = np.var(curves, axis=1)
    assert {p.id for p in draw()} == {problems[int(np.argmax(variances))].id}
    limr = CurriculumConfig(history=str(tmp_path), score="learning_impact", keep=2)
    score = 1 - np.sum((curves - average) ** 2, 1) / np.sum((1 - average) ** 2)
    best = {problems[i].id for i in np.argsort(-score)[:2]}
    _, draw = opened(config(curriculum=limr))
    assert {p.id for p in draw()} == best == {problems[4].id, problems[2].id}
    chosen = dataclasses.replace(limr, keep=4, choose="jaxrl.data.selection.curriculum:uniform")
    _, draw = opened(config(curriculum=chosen, rollout__prompts=4))
    assert len({p.id for p in draw(4)}) == 4


def test_bad_histories_are_refused(tmp_path):
    def choose(**changes):
        opened(config(curriculum=CurriculumConfig(history=str(tmp_path), **changes)))

    with pytest.raises(ValueError, match=r"no history\.jsonl there"):
        choose()
    earlier(tmp_path, [[0.5], [0.2]])
    with pytest.raises(ValueError, match=r"keep=1 .*several visits"):
        choose()
    earlier(tmp_path, [[0.5, 1], [0.2, 1]], task_args={"digits": 3})
    with pytest.raises(ValueError, match=r"is of task 'arithmetic' with \{'digits': 3\}"):
        choose()


def test_domains_that_an_earlier_run_failed_get_more(tmp_path):
    """Half of the long sums are failed, none of the short ones: 1/4 and 1/4 + 3/4 2 of each."""
    recorder = rollout_log.HistoryLog(tmp_path, print)
    problems = [Problem("same", "", 0, domain=d) for d in ("long", "short")]
    problems += [Problem("other", "", 0, domain=d) for d in ("long", "elsewhere")]
    for _ in range(3):
        recorder.add(problems, np.array([[0.0], [1.0], [1.0], [0.0]]))
    np.testing.assert_allclose(history.weaknesses(tmp_path, ["short", "long"]), [0.25, 1.75])
    bandit = BanditConfig(history=str(tmp_path))
    even = {k: dataclasses.replace(d, weight=1.0) for k, d in TWO.items()}
    _, draw = opened(config(domains=even, bandit=bandit))
    assert [sum(p.domain == "long" for p in draw()) for _ in range(3)] == [7] * 3
    with pytest.raises(ValueError, match=r"has no prompts of \['third'\]"):
        opened(config(domains={**TWO, "third": TWO["short"]}, bandit=bandit))
    with pytest.raises(ValueError, match=r"no history\.jsonl there"):
        opened(config(domains=TWO, bandit=BanditConfig(history=str(tmp_path / "nowhere"))))


def test_a_restored_run_drops_the_history_that_it_repeats(tmp_path):
    recorder = rollout_log.HistoryLog(tmp_path, print)
    problems = [Problem(str(i), "", 0) for i in range(2)]
    for batch in range(4):
        recorder.add(problems, np.array([[batch, batch], [np.nan, np.nan]]))
    (tmp_path / "history.jsonl").open("a").write('{"torn": ')
    again = rollout_log.HistoryLog(tmp_path, print)
    again.back_to(2)
    again.add(problems[:1], np.array([[9.0]]))
    assert history.read(tmp_path) == (["0", "1"], ["", ""], [[0, 1, 9], []])


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"curriculum__choose": "jaxrl.data.selection.curriculum:difficulty_target"},
            "did you mean 'difficulty_t",
        ),
        ({"curriculum": dataclasses.replace(TARGETED, args={"targt": 1.0})}, "did you mean 'targe"),
        ({"curriculum": TARGETED, "rollout__prompts": 64}, r"rollout\.prompts=64"),
        ({"curriculum__retain": 0.5}, r"curriculum\.retain=0\.5 needs curriculum\.choose"),
        ({"domains": TWO, "curriculum": TARGETED}, r"set --domains\.NAME\.curriculum"),
        ({"domains": TWO, "rollout__max_new_tokens": 3}, r"domains\.long\.max_new_tokens=4 exc"),
        ({"bandit__weigh": "sec"}, "needs domains"),
        ({"domains": TWO, "bandit__weigh": "jaxrl.data.selection.bandits:ucb"}, "does not exist"),
    ],
)
def test_bad_selections_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        selection.check(config(**changes))
