"""What recipes with learned reward models define for themselves, and their tasks, by hand."""

import jax
import numpy as np

from experiments import lab
from experiments.lab import preferences, scratchpads
from experiments.lab.tasks import ASK, EOS, FIRST, PAD
from tests.launch.test_recipe_functions import first, sampled


def test_pairwise_rl_unlearns_the_constants_that_a_scalar_model_keeps():
    """Both rank answers; the pair model's rewards vary less among answers of one quality."""
    task = preferences.compared()
    made = task.make(0)
    problems = first(made.train, 96)
    tokens = np.array(problems.gold)
    wrong = np.arange(96) % 4
    for n, count in enumerate(wrong):
        tokens[n, :count] = FIRST + (tokens[n, :count] - FIRST + 1 + n % 11) % preferences.SYMBOLS
    batch = sampled(tokens, problems=problems)
    scores, chances = preferences.scored(batch), preferences.preferred(batch)
    np.testing.assert_allclose(chances[wrong == 0], 0.5, atol=1e-6)
    for given in (scores, chances):
        means = [float(np.mean(given[wrong == count])) for count in range(4)]
        assert means == sorted(means, reverse=True)
    assert abs(np.std(np.asarray(scores)[wrong == 0]) - 2.0) < 0.8
    broken = sampled(np.where(tokens == EOS, PAD, tokens), problems=problems)
    np.testing.assert_array_equal(preferences.preferred(broken), 0.0)
    assert (preferences.scored(broken) < scores).all()
    assert (jax.vmap(task.reward)(made.test.answer, made.test.gold) == 1).all()


def test_preferences_are_those_of_both_models_by_hand():
    """In float64: sums over places, a constant, and a mean over both orders."""
    rng = np.random.default_rng(3)
    length, symbols = preferences.LENGTH, preferences.SYMBOLS
    answer = rng.integers(-200, 200, (1, 3 * length * symbols + 2 + length))
    answer[0, :length] = 4, 0, 7
    said = np.array([5, 0, 1])
    tables = np.split(answer[0] / 100, np.cumsum([3, 36, 1, 36, 36]))[1:]
    scores, constant, one, two, bias = (t.reshape(3, 12) if t.size > 1 else t for t in tables)

    def of(table, codes):
        return table[np.arange(3), codes].sum()

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    problems = lab.Problems(answer, answer, answer, answer[:, 0], answer)
    batch = sampled([[*(FIRST + said), EOS]], problems=problems)
    anchor = answer[0, :3]
    want = sigmoid(of(one, said) + of(two, anchor) + bias)
    want = (want + 1 - sigmoid(of(one, anchor) + of(two, said) + bias)) / 2
    np.testing.assert_allclose(preferences.scored(batch), of(scores, said) + constant, rtol=1e-5)
    np.testing.assert_allclose(preferences.preferred(batch), want, rtol=1e-5)


def test_spare_labels_in_one_pass_and_by_rollouts():
    """Without slips, labels are agreement with the reference; rollouts after an error fail."""
    rng = np.random.default_rng(0)
    content = rng.integers(scratchpads.BASE, size=(400, scratchpads.TERMS))
    perfect = np.ones((scratchpads.BASE,) * 2)
    said = scratchpads.sums(content)
    np.testing.assert_array_equal(scratchpads.written(rng, content, perfect), said)
    said[::2, 1:] = (said[::2, 1:] + 1) % scratchpads.BASE  # an error that is carried on
    labels = scratchpads.one_pass(rng, content, said, 0.0)
    np.testing.assert_array_equal(labels[::2], [[1, 0, 0, 0]] * 200)
    np.testing.assert_array_equal(labels[1::2], 1)
    np.testing.assert_array_equal(scratchpads.rolled_out(rng, content, said, perfect), labels)
    noisy = scratchpads.one_pass(rng, content, said, 0.1)
    assert (noisy[:, -1] == labels[:, -1]).all() and 0.05 < np.mean(noisy != labels) < 0.1
    some = scratchpads.rolled_out(rng, content, said, np.full((scratchpads.BASE,) * 2, 0.5))
    assert some[1::2, 0].mean() < 0.4 and (some[:, -1] == labels[:, -1]).all()
    model = scratchpads.fitted(content, said, labels)
    before = np.concatenate([content[:, :1], said[:, :-1]], axis=1)
    logits = model[np.arange(scratchpads.STEPS), before, content[:, 1:], said]
    assert logits[:, 1][1::2].mean() > logits[:, 1][::2].mean() + 2


def test_spare_multiplies_the_chances_of_the_steps_that_were_written():
    """By a model made by hand: a step's logit is its place, the digit before and its own."""
    task = scratchpads.scratchpads()
    made = task.make(0)
    assert (jax.vmap(task.reward)(made.test.answer, made.test.gold) == 1).all()
    digits = np.arange(scratchpads.BASE)
    table = np.arange(4)[:, None, None] - digits[None, :, None] + 0.5 * digits
    logits = np.stack([table, 0 * table]).reshape(1, -1) * scratchpads.UNIT
    answer = np.concatenate([np.zeros((1, 4)), logits], axis=1)
    prompt = np.array([[FIRST + 2, FIRST, FIRST, FIRST, FIRST, ASK]])
    problems = lab.Problems(prompt, answer, prompt, prompt[:, 0], prompt)
    said = np.array([3, 1, 5, 0])
    tokens = [[*(FIRST + said), EOS]]
    logit = np.arange(4) - np.array([2, 3, 1, 5]) + 0.5 * said
    want = np.prod(1 / (1 + np.exp(-logit)))
    batch = sampled(tokens, problems=problems)
    np.testing.assert_allclose(scratchpads.by_reference(batch), want, rtol=1e-5)
    np.testing.assert_allclose(scratchpads.by_rollouts(batch), 0.5**4, rtol=1e-5)
    open_end = sampled([[*(FIRST + said), PAD]], problems=problems)
    np.testing.assert_array_equal(scratchpads.by_reference(open_end), 0.0)


def test_spare_tables_are_of_the_tokens():
    """Right steps of the train split score above wrong ones, in the tokens of the instance."""
    made = scratchpads.scratchpads().make(0)
    problems = first(made.train, 128)
    wrong = np.array(problems.gold)
    wrong[:, 2] = FIRST + (wrong[:, 2] - FIRST + 1) % scratchpads.BASE
    for score in (scratchpads.by_reference, scratchpads.by_rollouts):
        right, other = (
            np.asarray(score(sampled(t, problems=problems))) for t in (problems.gold, wrong)
        )
        assert np.mean(right > other) > 0.7
