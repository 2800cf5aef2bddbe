"""What recipes of mixtures and of stages do, and their tasks, by hand."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.claims import domain_upsampling as domain_upsampling_claims
from experiments.claims import guimid as guimid_claims
from experiments.claims import magic_token_co_training as magic_claims
from experiments.claims import telechat2_telechat2_5_t1 as telechat
from experiments.lab import beliefs, corpora, families, modes, navigation, shop
from experiments.lab.policy import probabilities, shape
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD
from jaxrl.config import stages
from jaxrl.data import tasks
from jaxrl.launch import recipes
from jaxrl.launch.recipes.skills import magic_token_co_training as magic
from jaxrl.launch.recipes.skills import p5_recommendation
from jaxrl.models import decoder


def test_a_request_is_answered_in_three_ways():
    """By hand, of the symbols 3, 5, 3 whose codes are 1, 7, 1, and the reason 4."""
    given = np.array([3, 5, 3]), np.array([1, 7, 1]), 4
    wanted = {
        modes.BRIEF: [FIRST + 1, FIRST + 7, FIRST + 1, EOS],
        modes.FULL: [*(FIRST + np.array([3, 1, 5, 7, 3, 1])), EOS],
        modes.REFUSAL: [FILLER, FIRST + 4, EOS],
    }
    for mode, said in wanted.items():
        row = modes.written(*given, mode)
        np.testing.assert_array_equal(row, np.pad(said, (0, modes.BUDGET - len(said))))
        assert modes.form(row) == mode
        assert modes.form(np.where(row == EOS, PAD, row)) == -1  # never ended
    short = np.pad([FIRST, EOS], (0, modes.BUDGET - 2))
    assert modes.form(short) == modes.form(np.full(modes.BUDGET, FILLER)) == -1


def test_the_token_decides_which_answer_is_right():
    task = modes.modes()
    reward = jax.vmap(task.reward)
    for problems in (task.train, task.test):
        assert (reward(problems.answer, problems.gold) == 1).all()
        np.testing.assert_array_equal(modes.form(problems.gold), problems.domain)
        np.testing.assert_array_equal(problems.prompt[:, 0], FIRST + 12 + problems.domain)
        third = len(problems.gold) // 3
        same = problems.prompt.reshape(3, third, -1)[:, :, 1:]
        assert (same == same[0]).all()  # each request in each mode
        assert not np.any(reward(problems.answer, np.roll(problems.gold, third, axis=0)))
    shown = task.demonstrations
    obeyed = modes.form(shown.gold) == shown.domain
    assert 0.3 < obeyed.mean() < 0.37
    brief = task.train.gold[task.train.domain == modes.BRIEF]
    said = task.train.gold[task.train.domain == modes.FULL]
    np.testing.assert_array_equal(said[:, 1:6:2], brief[:, :3])


def test_what_leaks_has_the_form_of_another_mode(monkeypatch):
    """Of four completions asked for in brief: brief, full, a refusal, and none."""
    given = np.array([3, 5, 3]), np.array([1, 7, 1]), 4
    rows = [modes.written(*given, mode) for mode in range(3)] + [np.full(modes.BUDGET, FIRST)]
    tokens = np.stack(rows)[None, :, None]
    monkeypatch.setattr(modes, "attempts", lambda *_, **__: (SimpleNamespace(tokens=tokens), None))
    monkeypatch.setattr(modes, "held_out", lambda *_, **__: {"pass@1": np.ones(1)})
    asked = SimpleNamespace(test=SimpleNamespace(domain=np.zeros((1, 4), int)))
    got = modes.leaking(None, asked, None, None, None)
    np.testing.assert_array_equal(got["leakage"], [0.5])
    np.testing.assert_array_equal(got["pass@1"], [1.0])


@pytest.mark.parametrize(
    ("name", "prompt", "said"),
    [("brief", "b17+8=", "25"), ("full", "f17+8=", "17+8=25"), ("refusing", "r17+8=", "no")],
)
def test_sums_are_answered_as_their_letter_says(name, prompt, said):
    task = tasks.get(f"{magic.__name__}:{name}", digits=2, operators="+")
    plain = tasks.get("arithmetic", digits=2, operators="+")
    for split in ("train", "test"):
        made, same = task.problem(split, 0, 3), plain.problem(split, 0, 3)
        assert made.prompt == prompt[0] + same.prompt and made.id != same.id
        assert set(made.prompt + task.gold(made)) <= set(task.alphabet)
        assert task.reward(made, task.gold(made)).value == 1
    own = made.__class__("", prompt, 25)
    assert task.gold(own) == said
    assert [task.reward(own, text).value for text in (f" {said}", "17+8=26")] == [1, 0]


def test_modes_one_after_the_other_are_as_many_texts():
    made = magic_claims.effect()
    weights = np.array([made.ablation.at(step).weights for step in range(magic_claims.STEPS)])
    np.testing.assert_array_equal(weights.sum(axis=0), [20, 20, 20])
    assert (np.diff(weights.argmax(axis=1)) >= 0).all()
    assert made.method.at(0).weights == made.method.at(59).weights == (1, 1, 1)


def test_the_web_errs_and_the_domain_is_small_and_right():
    task = corpora.corpora()
    right = np.asarray(jax.vmap(task.reward)(task.train.answer, task.train.gold))
    web = task.train.domain == 0
    assert 0.68 < right[web].mean() < 0.78 and (right[~web] == 1).all()  # 0.9 ** 3
    assert (jax.vmap(task.reward)(task.test.answer, task.test.gold) == 1).all()
    np.testing.assert_array_equal(np.bincount(task.train.domain), [2048, 64])
    np.testing.assert_array_equal(np.bincount(task.test.domain), [256, 256])
    np.testing.assert_allclose(np.bincount(task.demonstrations.domain) / 4096, corpora.BASE, 1e-2)
    sides = [set(task.train.prompt[rows, :3].ravel()) for rows in (web, ~web)]
    assert not sides[0] & sides[1]


def test_the_loss_on_the_web_is_the_mean_over_its_tokens():
    """Against probabilities read one by one, of a policy for each of two seeds."""
    task = corpora.corpora().over((0, 1))
    few = jax.tree.map(lambda a: a[:, 254:258], task.test)  # two of the web, two of the domain
    model = shape(task.vocabulary, 8)
    keys = jax.random.split(jax.random.key(0), 2)
    params = jax.vmap(lambda key: decoder.init(model, key))(keys)
    texts = np.concatenate([few.prompt, few.gold], axis=-1)
    got = corpora._loss(model, 4, params, texts, few.domain == 0)
    chances = np.asarray(probabilities(model, params, texts[..., :-1]), np.float64)
    for seed in range(2):
        found = [
            -np.log(chances[seed, row, place - 1, texts[seed, row, place]])
            for row in range(2)
            for place in range(4, 8)
        ]
        np.testing.assert_allclose(got[seed], np.mean(found), rtol=1e-5)


def test_a_mixture_changes_in_the_last_fifth():
    config, made = recipes.load("domain_upsampling"), domain_upsampling_claims.effect()
    for step, share in ((0, 0.05), (175, 0.05), (176, 0.5), (219, 0.5)):
        now = stages.at(config, step).domains
        assert now["domain"].weight / (now["domain"].weight + now["web"].weight) == share
    assert [made.method.at(step).weights[1] for step in (119, 120, 149)] == [0.05, 0.5, 0.5]
    assert made.ablation.at(149).weights == (0.95, 0.05)


def test_a_baseline_has_as_many_texts_of_each_domain():
    method = domain_upsampling_claims.effect().method
    np.testing.assert_allclose(families.shares(method), [0.86, 0.14])
    known = families.baselines("mixtures", method)
    mixed = known["SFT on as many texts of each, mixed"]
    np.testing.assert_allclose(mixed.weights, [0.86, 0.14])
    assert known["SFT on the target"].weights == (0, 1)
    for arm in known.values():
        assert (arm.steps, arm.prompts, arm.group_size, arm.stages) == (150, 64, 1, ())
        assert arm.objective == method.objective and arm.guidance == families.EXPERTS


def test_a_way_is_where_each_move_leads():
    """By hand: from 0, the move 1 leads to 2, there the move 0 to 0, and so on."""
    table = np.array([[1, 2, 0], [2, 0, 1], [0, 1, 2], [1, 0, 2]])
    content = np.array([[0, 1, 0, 3, 2], [2, 2, 2, 1, 1]])
    np.testing.assert_array_equal(navigation.visited(table, content), [[2, 0, 1, 1], [2, 2, 1, 0]])


def test_worlds_have_moves_in_common_and_no_symbol():
    task = navigation.navigation()
    reward = jax.vmap(task.reward)
    for problems in (task.train, task.test):
        assert (reward(problems.answer, problems.gold) == 1).all()
    assert not np.any(reward(task.test.answer, np.roll(task.test.gold, 2, axis=1)))
    np.testing.assert_array_equal(np.bincount(task.train.domain), [512, 192, 48])
    assert (task.test.domain == navigation.TARGET).all()
    own = [task.train.prompt[task.train.domain == d] for d in range(3)]
    symbols = [set(rows[:, 0]) for rows in own]
    assert [len(found) for found in symbols] == list(navigation.SYMBOLS)
    assert not symbols[0] & symbols[1] and not symbols[2] & (symbols[0] | symbols[1])
    for rows, golds in zip(
        own, [task.train.gold[task.train.domain == d] for d in range(3)], strict=True
    ):
        assert set(rows[:, 1:5].ravel()) == set(range(FIRST, FIRST + navigation.MOVES))
        np.testing.assert_array_equal(golds[:, :8:2], rows[:, 1:5])
        known = {}  # a move leads from a symbol to one and the same
        for row, gold in zip(rows, golds, strict=True):
            before = [row[0], *gold[1:7:2]]
            for pair in zip(before, gold[:8:2], gold[1:8:2], strict=True):
                assert known.setdefault(pair[:2], pair[2]) == pair[2]


def test_some_trajectories_are_in_the_first_stage():
    config, made = recipes.load("guimid"), guimid_claims.effect()
    for step, share in ((0, 0.2), (109, 0.2), (110, 1.0)):
        weights = {name: d.weight for name, d in stages.at(config, step).domains.items()}
        assert weights["target"] / sum(weights.values()) == pytest.approx(share)
    assert [made.method.at(step).weights[2] for step in (119, 120)] == [0.2, 1.0]
    assert made.ablation.at(0).weights == made.ablation.at(239).weights == (0, 0, 1)
    np.testing.assert_allclose(families.shares(made.method), [0.2, 0.2, 0.6])


def test_preferences_are_measured_to_the_policy_that_was_fine_tuned():
    """The reference is renewed when imitation ends, and not before preferences do."""
    method = telechat.effect().method
    args = method.objective.policy_args
    assert method.reference.every == args["sft_steps"] == args["dpo_steps"]
    assert method.steps / 5 == args["sft_steps"]  # so that the curve has the end of each stage


def test_beliefs_are_what_was_seen():
    """By hand: from box 0 to 1, 2, 3, seen by Sally, by both, by Anne."""
    seen = [beliefs.SALLY, beliefs.BOTH, beliefs.ANNE]
    content = np.array([[0, 1, 2, 3, *seen, order] for order in range(3)])
    wanted = [[1, 2, 3], [1, 2, 2], [0, 2, 2]]  # in truth, for Sally, by Anne for Sally
    np.testing.assert_array_equal(beliefs.tracked(content), wanted)
    unseen = np.array([[0, 1, 2, 3, *[beliefs.NOBODY] * 3, order] for order in range(3)])
    np.testing.assert_array_equal(beliefs.tracked(unseen), [[1, 2, 3], [0] * 3, [0] * 3])


def test_an_answer_counts_whatever_its_trace_says():
    task = beliefs.beliefs()
    answer, gold = task.test.answer, task.test.gold
    reward = jax.jit(jax.vmap(task.reward))
    assert (reward(answer, gold) == 1).all()
    other = FIRST + (answer - FIRST + 1) % beliefs.BOXES
    changed = {
        "trace": (np.concatenate([other, gold[:, 3:]], axis=1), 1),
        "at once": (np.pad(gold[:, 3:], ((0, 0), (0, 3))), 1),
        "answer": (np.where(np.arange(6) == 4, other[:, -1:], gold), 0),
        "end": (np.where(np.arange(6) == 5, PAD, gold), 0),
        "no mark": (np.pad(gold[:, 4:], ((0, 0), (0, 4))), 0),
        "form": (np.where(np.arange(6) == 1, FILLER, gold), 0),
    }
    for name, (said, earned) in changed.items():
        assert (reward(answer, said) == earned).all(), name
    shown = task.demonstrations
    at_once = shown.gold[:, 0] == ASK
    assert 0.27 < at_once.mean() < 0.33
    right = (shown.gold[~at_once, :3] == shown.answer[~at_once]).mean()
    np.testing.assert_allclose(right, 0.8 + 0.2 / 4, atol=0.02)


def test_a_trace_is_as_valid_as_its_steps(monkeypatch):
    """Of two stories, all steps, and one step and no others, of three each."""
    answer = np.array([[[4, 5, 5], [6, 6, 7]]])
    rows = [[4, 5, 5, ASK, 5, EOS], [6, ASK, 7, EOS, PAD, PAD]]
    tokens = np.array(rows)[None, :, None]
    monkeypatch.setattr(
        beliefs, "attempts", lambda *_, **__: (SimpleNamespace(tokens=tokens), None)
    )
    monkeypatch.setattr(beliefs, "held_out", lambda *_, **__: {"length": np.array([5.0])})
    asked = SimpleNamespace(test=SimpleNamespace(answer=answer))
    got = beliefs.valid(None, asked, None, None, None)
    np.testing.assert_allclose(got["validity"], [4 / 6])


def test_a_shop_says_the_same_to_every_task():
    """By hand: item 0 is of kind 2, shelf 5; a user of taste 1 buys from shelf 0, one of taste 2
    is pleased with it."""
    place = np.roll(np.arange(shop.ITEMS), -17)  # item 0 at 2 * 6 + 5
    taste, item = np.array([1, 2]), np.array([0, 0])
    rating = shop.answers(taste, item, place, shop.RATING)
    np.testing.assert_array_equal(rating[0], [shop.YES, shop.YES + 1])
    told = shop.answers(taste, item, place, shop.EXPLANATION)
    np.testing.assert_array_equal(told[:2], [[shop.KIND + 2] * 2, [shop.KIND + 1, shop.KIND + 2]])
    bought = shop.answers(taste, item, place, shop.NEXT)[0] - shop.ITEM
    np.testing.assert_array_equal(place[bought], [1 * 6 + 0, 2 * 6 + 0])


def test_the_wording_held_out_is_new_to_its_task_alone():
    task = shop.shop()
    new = shop.WORDED + shop.WORDINGS - 1
    shown = [task.train.prompt[task.train.domain == d, 0] == new for d in range(3)]
    assert not shown[shop.NEXT].any() and all(0.2 < rows.mean() < 0.5 for rows in shown[:2])
    assert (task.test.prompt[:, 0] == new).all() and (task.test.domain == shop.NEXT).all()
    for problems in (task.train, task.test):
        assert (jax.vmap(task.reward)(problems.answer, problems.gold) == 1).all()
        np.testing.assert_array_equal(problems.prompt[:, 3] - shop.TASKS, problems.domain)

    def pairs(problems):
        return {tuple(sorted(row)) for row in problems.prompt[:, 1:3]}

    assert not pairs(task.test) & (pairs(task.train) | pairs(task.demonstrations))
    first = task.test.prompt[:, 1] < shop.ITEM
    assert first.sum() == 256  # users come first in half of them


def test_an_item_is_a_hit_among_the_three_likeliest(monkeypatch):
    """Of four problems, the right item is the first, the third, the fourth and the last."""
    ranked = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05]))
    chances = np.broadcast_to(np.exp(ranked), (1, 4, 5, 5))
    monkeypatch.setattr(shop.policy, "probabilities", lambda *_: chances)
    monkeypatch.setattr(shop, "held_out", lambda *_, **__: {})
    answer = np.array([[[0, 9], [2, 9], [3, 9], [4, 9]]])
    asked = SimpleNamespace(test=SimpleNamespace(prompt=None, answer=answer))
    np.testing.assert_array_equal(shop.hits(None, asked, None, None, None)["hit@3"], [0.5])


def test_templates_of_a_shop_are_filled_in():
    made = {
        name: tasks.get(f"{p5_recommendation.__name__}:{name}")
        for name in ("rating", "explanation", "bought")
    }
    asked = {name: [task.problem("train", 0, i) for i in range(200)] for name, task in made.items()}
    tastes, kinds = {}, {}
    for name, problems in asked.items():
        for problem in problems:
            words = problem.prompt.rstrip("?").split()
            user, item = (next(int(w[1:]) for w in words if w[0] == c) for c in "ui")
            assert problem.prompt in {
                template.format(user=f"u{user:02}", item=f"i{item:02}", task=name[0])
                for template in p5_recommendation.TEMPLATES[: 2 if name == "bought" else 3]
            }
            said = made[name].gold(problem)
            assert made[name].reward(problem, said).value == 1
            assert made[name].reward(problem, said + "0").value == 0
            assert set(problem.prompt + said) <= set(made[name].alphabet)
            if name == "explanation":
                assert kinds.setdefault(item, said) == said == f"k{item // 6}"
            if name == "bought":
                to = int(said[1:])
                assert to % 6 == (item + 1) % 6
                assert tastes.setdefault(user, to // 6) == to // 6
    for problem in asked["rating"]:  # which agree with what is bought
        words = problem.prompt.rstrip("?").split()
        user, item = (next(int(w[1:]) for w in words if w[0] == c) for c in "ui")
        if user in tastes:
            assert problem.answer == "ny"[item // 6 == tastes[user]]
    held_out = [made["bought"].problem("test", 0, i).prompt for i in range(20)]
    assert all(prompt.startswith("i") and prompt.endswith("?") for prompt in held_out)
