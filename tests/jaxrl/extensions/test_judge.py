"""A language model as the judge of a run, and rewards in units of their history."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxrl.data.rewards.judged import questions, rubrics
from jaxrl.data.sources.rows import Row
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Problem, Score
from jaxrl.extensions import judge, renormalise, reward_model
from jaxrl.extensions.reward_model import RewardModelConfig
from jaxrl.losses.preference import pairs
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder, lora
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.record import metrics
from jaxrl.rollout import comparisons
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.training.logprobs import make_score
from jaxrl.types import TrainState
from tests.jaxrl import tiny
from tests.jaxrl.extensions.contexts import context

ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
RUBRIC = {"criteria": {"short": {"text": "it is short", "weight": 2}, "odd": {"text": "odd"}}}
TEXTS = ["12", "3", "4", "5"]


@pytest.fixture(scope="module")
def by():
    tokenizer = tokenizers.characters(ALPHABET)
    model = DecoderConfig(tokenizer.vocab_size, 32, 64, 1, 2, 2, 16)
    params = decoder.init(model, jax.random.key(0))
    return model, judge.Opened(params, tokenizer, make_score(model, temperature=1.0), 2048)


def experience(texts=TEXTS):
    problems = [Problem(f"p{i}", "1+1=", "2") for i in range(len(texts) // 2)]
    return Experience(problems, [], texts, [Score(0.5)] * len(texts), [])


def test_a_judge_of_adapters_on_the_base_of_the_policy_is_held_beside_it(by, monkeypatch):
    """Marks are those of the merged judge; another base, or none of the policy's, is not shared."""
    model, opened = by
    judging, training = LoraConfig(rank=2), LoraConfig(rank=3)

    def fresh(config, seed):
        small = lora.init(jax.random.key(seed), model, opened.params, config)
        leaves = jax.tree.map(lambda x: x + 0.01, small)
        return leaves, lora.attach(model, opened.params, leaves, config)

    small, judging_params = fresh(judging, 1)
    config = dataclasses.replace(tiny.config("unused"), lora=training)
    ctx = context(config)._replace(policy=Policy(model, {}, opened.tokenizer))
    state = TrainState(fresh(training, 2)[1], (), np.int32(0))
    saved = [judging_params, judging, 1]
    monkeypatch.setattr(judge.policy, "is_run", lambda name: name == "run")
    monkeypatch.setattr(judge.policy, "restored", lambda *_: tuple(saved))
    with jax.set_mesh(mesh.make(MeshConfig())):
        adapted = judge._beside_policy(ctx, "run", model, state)
        beside = judge._in_step(ctx, opened._replace(params={}, adapted=adapted), True, state)
        held = zip(
            *(jax.tree.leaves(lora.detach(p)[1]) for p in (beside.params, state.params)),
            strict=True,
        )
        assert all(a is b for a, b in held)
        merged = opened._replace(params=lora.merge(model, opened.params, small, judging))
        rubric, marks = rubrics.parse(RUBRIC), []
        for held_judge in (beside, merged, opened):
            scores = judge.marked(config, held_judge, rubric, experience())
            marks.append(np.array([score.value for score in scores]))
        assert np.allclose(marks[0], marks[1], rtol=0, atol=1e-5)
        assert not np.allclose(marks[0], marks[2], rtol=0, atol=1e-4)
        plain = ctx._replace(config=dataclasses.replace(config, lora=LoraConfig(rank=0)))
        assert judge._beside_policy(plain, "run", model, state) is None
        assert judge._beside_policy(ctx, "./Qwen3-4B", model, state) is None
        saved[0] = jax.tree.map(lambda x: x * 1.001, judging_params)
        assert judge._beside_policy(ctx, "run", model, state) is None


@pytest.mark.broad
def test_marks_are_probabilities_of_yes(by):
    model, opened = by
    rubric = rubrics.parse(RUBRIC)
    config = tiny.config("unused")
    with jax.set_mesh(mesh.make(MeshConfig())):
        found = judge.marked(config, opened, rubric, experience([*TEXTS[:3], "\x00"]))
    mark = judge._mark(config, [*TEXTS[:3], "\x00"])
    question = questions.question(
        rubric.criteria["short"].text, Problem("p0", "1+1=", "2"), TEXTS[0], mark
    )
    ids = opened.tokenizer.prompt(question)
    tokens = np.array([ids], np.int32)
    positions = np.arange(len(ids), dtype=np.int32)[None]
    hidden = decoder.hidden(model, opened.params, tokens, positions, np.full_like(tokens, len(ids)))
    logits = hidden[0, -1] @ decoder.unembedding(opened.params).T
    yes, no = (logits[opened.tokenizer.encode(c)[0]] for c in "YN")
    assert found[0].parts["short"] == pytest.approx(1 / (1 + np.exp(no - yes)), abs=1e-5)
    parts = found[0].parts
    assert found[0].value == pytest.approx((2 * parts["short"] + parts["odd"]) / 3)
    assert found[3].error.startswith("judge: it cannot read")


def test_what_questions_begin_alike_with_is_computed_once(by):
    """All criteria of a completion, which stand behind it: verdicts are those of each alone."""
    _, opened = by
    config, scored = tiny.config("unused"), []
    stem = "Judge the answer.\n" + "1+1=2 " * 20
    questions = [stem + f"{n}\nIs it {name}?" for n in range(3) for name in ("short", "odd", "x")]

    def score(params, packed):
        scored.append(int((np.asarray(packed.visible_until) > 0).sum()))
        return opened.score(params, packed)

    counting = opened._replace(score=score)
    with jax.set_mesh(mesh.make(MeshConfig())):
        together = judge.preferences(config, counting, questions, ("Yes", "No"))
        apart = [judge.preferences(config, counting, [q], ("Yes", "No"))[0] for q in questions]
    np.testing.assert_allclose(together, apart, atol=1e-5)
    assert scored[0] < 0.35 * sum(scored[1:])


def test_comparisons_favour_no_order(by):
    _, opened = by
    rubric, config = rubrics.parse(RUBRIC), tiny.config("unused")
    with jax.set_mesh(mesh.make(MeshConfig())):
        found = judge.compared(config, opened, rubric, experience(), 1)
        same = judge.compared(config, opened, rubric, experience(["7", "7", "8", "8"]), 1)
    values = [score.value for score in found]
    assert values[0] + values[1] == pytest.approx(1) and values[2] + values[3] == pytest.approx(1)
    assert values[0] != pytest.approx(0.5, abs=1e-7)
    assert [score.value for score in same] == pytest.approx([0.5] * 4)


def test_an_answer_that_cannot_be_read_voids_no_other(by):
    """What it meets is scored by the comparisons that were read; only itself is an error."""
    _, opened = by
    config, texts = tiny.config("unused"), ["1", "\x00", "3", "4", "5", "6"]
    made = experience(texts)._replace(problems=[Problem("p0", "1+1=", "2")])
    with jax.set_mesh(mesh.make(MeshConfig())):
        found = judge.compared(config, opened, None, made, 2)
        pair = judge.compared(config, opened, None, made._replace(texts=texts[:2]), 1)
    assert [score.error is None for score in found] == [True, False, True, True, True, True]
    assert all(0 < score.value < 1 for score in found if score.error is None)
    assert all(score.error.startswith("judge: it cannot read") for score in pair)


def test_an_anchor_is_met_in_both_orders_without_a_rubric(by):
    """By hand: what the decoder finds of `A` and `B` after each of the two questions."""
    model, opened = by
    config, anchors = tiny.config("unused"), ["3", None]
    with jax.set_mesh(mesh.make(MeshConfig())):
        found = judge.anchored(config, opened, None, experience(), anchors)
    mark = questions.boundary(config.seed, [*TEXTS, "3", "3"])

    def chance(*pair):
        question = questions.comparison((), Problem("p0", "1+1=", "2"), *pair, mark)
        assert "A good answer" not in question
        tokens = np.array([opened.tokenizer.prompt(question)], np.int32)
        places = np.arange(tokens.size, dtype=np.int32)[None]
        ends = np.full_like(tokens, tokens.size)
        hidden = decoder.hidden(model, opened.params, tokens, places, ends)
        logits = np.asarray(hidden[0, -1] @ decoder.unembedding(opened.params).T, np.float64)
        a, b = (logits[opened.tokenizer.encode(letter)[0]] for letter in "AB")
        return np.exp(a) / (np.exp(a) + np.exp(b))

    wanted = (chance("12", "3") + 1 - chance("3", "12")) / 2
    assert found[0].value == pytest.approx(wanted, abs=1e-5) and wanted != pytest.approx(0.5)
    assert found[1].value == pytest.approx(0.5)
    assert all(score.error.startswith("gold: ") for score in found[2:])


def test_comparisons_are_learned_by_the_cross_entropy_of_the_letter(by):
    """In float64, of the softmax over both letters; each order has its own right one."""
    tokenizer = by[1].tokenizer
    row = Row("f:1", "1+1=", ("2", "3"), (1.0, 0.0))
    made = comparisons.examples(tokenizer, row, 0)
    letters = [[tokenizer.decode(each.tokens) for each in pair] for pair in made]
    assert letters == [["A", "B"], ["B", "A"]] and all(len(e.learned) == 1 for p in made for e in p)
    for pair, (first, second) in zip(made, (("2", "3"), ("3", "2")), strict=True):
        assert pair[0].prompt == pair[1].prompt
        said = tokenizer.decode(pair[0].prompt)
        assert said.index(f"\n{first}\n") < said.index(f"\n{second}\n")
    logp = np.array([[-1.2], [-0.7], [-3.0], [-0.1]])
    loss, metrics = pairs.ranked_reward(
        logp,
        np.array([1.0, 0.0, 1.0, 0.0]),
        mask=np.ones((4, 1), bool),
        group_ids=np.array([0, 0, 1, 1]),
    )
    odds = np.exp(logp[:, 0].reshape(2, 2))
    np.testing.assert_allclose(loss[::2, 0], -np.log(odds[:, 0] / odds.sum(axis=1)), rtol=1e-6)
    assert metrics["accuracy"][0, 0] == 0


def test_two_answers_of_one_speaker_are_their_texts():
    turn = ({"role": "user", "content": "hello"},)
    several = (*turn, {"role": "assistant", "content": "yes"})
    text = comparisons.questions(Row("f:1", several, (turn, "no"), (1.0, 0.0)), 0)[0]
    assert "user: hello\n\nassistant: yes\n" in text and "\nhello\n=" in text


@pytest.mark.broad
def test_a_run_rewards_itself(tmp_path):
    """Two steps by the policy's own verdicts, renormalised; the history is in the checkpoint."""
    path = tmp_path / "rubric.yaml"
    path.write_text(json.dumps(RUBRIC))
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"prompt": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(8)))
    run = tmp_path / "run"
    tiny.run(
        run,
        **{
            "task": "file",
            "task_args": {"path": str(data), "rewards": '[["none", "none", 1.0, {}]]'},
            "warm_start.steps": 0,
            "steps": 2,
            "rollout.max_prompt_tokens": 8,
            "eval.every": 0,
            "judge.rubric": str(path),
            "renormalise": {},
        },
    )
    rows = metrics.read(run)
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["reward/judge"] < 1 and row["reward/task"] == 0 and row["reward/raw"] > 0
    assert abs(rows[0]["reward/mean"]) < 1e-5  # of the first batch itself


def test_a_verdict_may_count_as_a_part_alone():
    for weight, wanted in ((1.0, 2.25), (0.0, 2.0)):
        settings = judge.JudgeConfig(pairwise=True, task_weight=2.0, weight=weight)
        score = judge._combined(settings, Score(1.0), Score(0.25))
        assert score.value == wanted and score.parts["judge"] == 0.25


def test_a_narrow_judge_is_spread_out():
    extension = renormalise.renormalise(renormalise.RenormaliseConfig(part="judge", weight=0.5))
    rng = np.random.default_rng(0)

    def step():
        scores = [Score(1.0, {"judge": 0.8 + 0.05 * rng.random()}) for _ in range(32)]
        scores[5] = Score(None, error="judge: late")
        made = Experience([], [], [""] * 32, scores, [])
        return extension.reward(context(), None, made).scores

    for _ in range(3):
        found = step()
    assert found[5].error == "judge: late"
    values = np.array([s.value for s in found if s.error is None])
    assert values.std() == pytest.approx(0.5, rel=0.3) and values.mean() == pytest.approx(
        1, abs=0.2
    )
    saved = json.loads(json.dumps(extension.get_state()))
    other = renormalise.renormalise(renormalise.RenormaliseConfig(part="judge", weight=0.5))
    other.set_state(saved)
    assert other.get_state() == extension.get_state() and saved["weight"] > 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "name a rubric"),
        ({"rubric": "none.yaml"}, "cannot be read"),
        ({"rubric": "r.yaml", "pairwise": True, "opponents": 99}, "judge.opponents=99"),
        ({"pairwise": True, "opponents": 99}, "judge.opponents=99"),
        ({"rubric": "r.yaml", "anchor": "gold"}, "without judge.pairwise"),
    ],
)
def test_refused(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(json.dumps(RUBRIC))
    with pytest.raises(ValueError, match=message):
        judge.judge(judge.JudgeConfig(**settings)).check(tiny.config("unused"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rollout.oversampling", 2.0),
        ("curriculum.choose", "difficulty_targeted"),
        ("bandit.weigh", "ucb"),
    ],
)
def test_what_selects_by_the_rewards_that_are_replaced_is_refused(field, value):
    """Dynamic sampling would see rewards of 0 throughout."""
    for name, check in {
        "judge": judge.judge(judge.JudgeConfig(pairwise=True)).check,
        "reward_model": reward_model.reward_model(RewardModelConfig(models=("m",))).check,
    }.items():
        with pytest.raises(ValueError, match=f"{name} with {field}=.*set {field} to"):
            check(tiny.config("unused", **{field: value}))
