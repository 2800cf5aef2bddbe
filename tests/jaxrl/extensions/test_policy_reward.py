"""The policy's own reward against a plain forward pass over each spliced sequence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import Config
from jaxrl.data import tasks
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Score
from jaxrl.extensions import policy_reward
from jaxrl.extensions.policy_reward import PolicyRewardConfig
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.programs import written_by_expert
from jaxrl.training.logprobs import make_score
from jaxrl.types import Request
from tests.jaxrl import tiny

TEXTS = ["12=7", "=3", "9", "4=5=8"]  # with reasoning, without, without a marker, with two


@pytest.fixture(scope="module")
def world():
    task = tasks.get("arithmetic", digits=1, operators="+")
    tokenizer = tokenizers.characters(task.alphabet)
    model = DecoderConfig(tokenizer.vocab_size, 32, 64, 2, 2, 2, 16)
    return task, tokenizer, model, decoder.init(model, jax.random.key(0))


def probability(model, params, prompt, reasoning, answer):
    """Mean probability of the answer's tokens in one unpacked sequence."""
    tokens = jnp.array([[*prompt, *reasoning, *answer]])
    positions = jnp.arange(tokens.shape[1])[None]
    hidden = decoder.hidden(
        model, params, tokens, positions, jnp.full_like(tokens, tokens.shape[1])
    )
    probs = jax.nn.softmax(hidden[0] @ decoder.unembedding(params).T, axis=-1)
    start = len(prompt) + len(reasoning)
    return np.mean([probs[start - 1 + i, token] for i, token in enumerate(answer)])


@pytest.mark.broad
@pytest.mark.exact("the policy's own reward equals a plain forward pass over each spliced sequence")
def test_mean_probability_of_the_reference_answer(world):
    task, tokenizer, model, params = world
    problems = [task.problem("train", 0, i) for i in range(2)]
    asked = [p for p in problems for _ in range(2)]
    completions = [
        written_by_expert(
            Request(0, tuple(tokenizer.prompt(problem.prompt)), 8),
            [*tokenizer.encode(text), tokenizer.eos_ids[0]],
        )
        for problem, text in zip(asked, TEXTS, strict=True)
    ]
    scores = [Score(1.0), Score(0.0), Score(None, error="timeout: "), Score(0.5)]
    with jax.set_mesh(mesh.make(MeshConfig())):
        made = policy_reward.rewarded(
            tiny.config("unused"),
            PolicyRewardConfig(marker="="),
            tokenizer,
            make_score(model, temperature=1.0),
            params,
            Experience(problems, completions, TEXTS, scores, []),
        )
    for n, start in enumerate(["12=", "=", "9=", "4=5="]):
        prompt, answer = completions[n].request.prompt, tokenizer.encode(str(asked[n].answer))
        with_it = probability(model, params, prompt, tokenizer.encode(start), answer)
        without = probability(model, params, prompt, tokenizer.encode("="), answer)
        if n == 2:
            assert made.scores[n] == scores[n]  # a failure stays one
        else:
            assert made.scores[n].value == pytest.approx(np.clip(with_it - without, 0, 1), abs=1e-6)
            assert made.scores[n].parts["task"] == scores[n].value
    assert made.scores[1].value < 1e-6  # no reasoning gives no reward


@pytest.mark.parametrize("lacking", ["one", "all"])
@pytest.mark.parametrize("answer", ["", None])
def test_without_a_reference_answer_there_is_no_reward(world, answer, lacking):
    """It is an error of the problem, which no other problem notices."""
    task, tokenizer, model, params = world
    problems = [task.problem("train", 0, i) for i in range(2)]
    emptied = [dataclasses.replace(problem, answer=answer) for problem in problems]
    given = [emptied[0], (problems if lacking == "one" else emptied)[1]]

    def scores(problems):
        completions = [
            written_by_expert(
                Request(0, tuple(tokenizer.prompt(problem.prompt)), 8), tokenizer.encode("12=7")
            )
            for problem in problems
        ]
        with jax.set_mesh(mesh.make(MeshConfig())):
            return policy_reward.rewarded(
                tiny.config("unused"),
                PolicyRewardConfig(marker="="),
                tokenizer,
                make_score(model, temperature=1.0),
                params,
                Experience(problems, completions, ["12=7"] * 2, [Score(0.0)] * 2, []),
            ).scores

    found = scores(given)
    assert found[0].value is None
    assert found[0].error == (
        f"gold: the problem {problems[0].id!r} has no reference answer (it is {answer!r})"
    )
    if lacking == "one":
        assert found[1].value == pytest.approx(scores(problems)[1].value, abs=1e-6)
    else:
        assert found[1].error.startswith("gold: ")


def test_a_task_with_turns_is_refused():
    """An episode is no prompt with one answer."""
    made = policy_reward.policy_reward(PolicyRewardConfig())
    made.check(Config(task="arithmetic"))
    with pytest.raises(ValueError, match="policy_reward: task 'keydoor' has turns"):
        made.check(Config(task="keydoor"))
