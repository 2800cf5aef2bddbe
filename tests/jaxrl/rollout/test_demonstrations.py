"""Demonstrations of episodes: what the task itself would do, as a batch to imitate."""

import dataclasses

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply
from jaxrl.data.environments.tools import formats
from jaxrl.data.sandbox import runner
from jaxrl.data.sources import generate
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Problem, Score, Task
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import demonstrations
from jaxrl.rollout.policy import Policy
from tests.data import test_environments
from tests.jaxrl.run.test_episode_families import LAYOUTS, write_tokenizer

TOKENIZER = tokenizers.characters(generate.ASCII)
ROLLOUT = RolloutConfig(max_prompt_tokens=700, max_new_tokens=300)


@pytest.fixture
def made():
    model = DecoderConfig(TOKENIZER.vocab_size, 8, 8, 1, 1, 1, 8)
    config = Config(task="calculator", rollout=ROLLOUT)
    task = tasks.get("calculator", digits=2, terms=2)
    return Policy(model, {}, TOKENIZER), config, task


def test_an_episode_is_imitated_turn_by_turn(made):
    policy, config, task = made
    problems = [task.problem("train", 0, i) for i in range(3)]
    batch = demonstrations.demonstrations(policy, config, task, problems)
    assert demonstrations.demonstrable(task) and batch.rewards.tolist() == [1, 1, 1]
    for n, problem in enumerate(problems):
        tokens, mask = np.asarray(batch.tokens[n]), np.asarray(batch.action_mask[n])
        call, answer = task.turns.gold(problem, 0)
        ends = np.flatnonzero(mask & (tokens == 0))
        assert len(ends) == 2  # each turn ends by its stop token, which is learned
        first, second = mask.copy(), mask.copy()
        first[ends[0] + 1 :] = second[: ends[0] + 1] = False
        assert TOKENIZER.decode(tokens[first]) == call
        assert TOKENIZER.decode(tokens[second]) == answer
        between = tokens[ends[0] + 1 : np.flatnonzero(second)[0]]
        assert TOKENIZER.decode(between) == f"\n{problem.answer}\n"
        assert problem.prompt in TOKENIZER.decode(tokens[: np.flatnonzero(mask)[0]])


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_are_imitated_as_the_template_teaches_them(layout, tmp_path, monkeypatch):
    """And are read as the calls of the solution."""
    monkeypatch.setenv(runner.ALLOW_WEAK, "1")  # it runs the project's own programs
    template = write_tokenizer(tmp_path, LAYOUTS[layout])
    tokenizer = tokenizers.load(tmp_path)
    form = formats.of_template(template)
    model = DecoderConfig(tokenizer.vocab_size, 8, 8, 1, 1, 1, 8)
    rollout = RolloutConfig(max_prompt_tokens=4000, max_new_tokens=4000, chat=True)
    for name in ("calculator", "database", "repository"):
        task = tasks.get(name)
        problem = task.problem("train", 0, 0)
        batch = demonstrations.demonstrations(
            Policy(model, {}, tokenizer), Config(task=name, rollout=rollout), task, [problem]
        )
        gold, opening = task.turns.gold(problem, 0), task.turns.begin(problem, 0)[1]
        mask, tokens = np.asarray(batch.action_mask[0]), np.asarray(batch.tokens[0])
        runs = np.split(tokens, np.flatnonzero(np.diff(mask)) + 1)[1 - mask[0] :: 2]
        for own, action in zip(runs[: len(gold)], gold, strict=True):
            text = tokenizer.spelled(own.tolist()).removesuffix(
                tokenizer.spelled([tokenizer.eos_ids[0]])
            )
            said, calls = form.read(text, opening.tools)
            assert calls == formats.HERMES.read(action)[1] and (calls or said == action)
            assert ("<tool_call>" in text) == (layout in ("hermes", "qwen_coder") and bool(calls))


def contexts(batch, n):
    """What each action of a demonstration is predicted from: tokens, first to last."""
    tokens, parent = np.asarray(batch.tokens[n]), np.asarray(batch.extra["parent"][n])
    for action in np.flatnonzero(batch.action_mask[n]):
        at, path = parent[action], []
        while at >= 0:
            path.append(int(tokens[at]))
            at = parent[at]
        yield int(tokens[action]), path[::-1]


def test_a_turn_is_imitated_in_the_context_that_it_is_written_in():
    """Here the environment leaves earlier pages out."""
    task = tasks.get("html_form", compress=True, symbols=True)
    tokenizer = tokenizers.characters(task.alphabet)
    policy = Policy(DecoderConfig(tokenizer.vocab_size, 8, 8, 1, 1, 1, 8), {}, tokenizer)
    problems = [task.problem("train", 0, i) for i in range(3)]
    config = Config(task="html_form", rollout=ROLLOUT)
    batch = demonstrations.demonstrations(policy, config, task, problems)
    for n, problem in enumerate(problems):
        state, opening = task.turns.begin(problem, 0)
        found = contexts(batch, n)
        for action in task.turns.gold(problem, 0):
            shown = "".join(f"{message['content']}\n" for message in opening.messages)
            for i, token in enumerate((*tokenizer.encode(action), tokenizer.eos_ids[0])):
                own, path = next(found)
                assert own == token and tokenizer.decode(path) == shown + action[:i]
            opening = task.turns.step(state, action).opening
        assert next(found, None) is None


def test_a_turn_is_imitated_in_the_prompt_of_its_template():
    """Here the template leaves out of earlier turns what it begins them with."""
    backend = test_environments.of_bytes("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = test_environments.with_template(backend, test_environments.NO_THINKING)
    policy = Policy(DecoderConfig(tokenizer.vocab_size, 8, 8, 1, 1, 1, 8), {}, tokenizer)
    rollout = dataclasses.replace(ROLLOUT, max_prompt_tokens=4000, max_new_tokens=8000, chat=True)
    task = tasks.get("game24")
    problem = task.problem("train", 0, 0)
    batch = demonstrations.demonstrations(
        policy, Config(task="game24", rollout=rollout), task, [problem]
    )
    state, opening = task.turns.begin(problem, 0)
    said, found = list(opening.messages), list(contexts(batch, 0))
    begins = [i for i, (_, path) in enumerate(found) if not i or path[:-1] != found[i - 1][1]]
    gold = task.turns.gold(problem, 0)
    assert len(begins) == len(gold) > 1
    for begin, action in zip(begins, gold, strict=True):
        asked = tokenizer.render(said, None, add_generation_prompt=True).text
        assert backend.spelled(found[begin][1]) == asked
        reply = task.turns.step(state, action)
        said += [{"role": "assistant", "content": action}, *reply.messages]


def test_a_solution_over_the_budget_is_refused(made):
    policy, config, task = made
    short = dataclasses.replace(config, rollout=dataclasses.replace(ROLLOUT, max_new_tokens=40))
    with pytest.raises(ValueError, match=r"raise rollout\.max_new_tokens=40"):
        demonstrations.demonstrations(policy, short, task, [task.problem("train", 0, 0)])


@pytest.mark.parametrize("compress", [True, False])
def test_a_turn_that_the_policy_could_not_write_is_refused(compress):
    """It would be cut off, by the budget of a turn or by what is left of that of the episode."""
    task = tasks.get("html_form", compress=compress, symbols=True)
    tokenizer = tokenizers.characters(task.alphabet)
    policy = Policy(DecoderConfig(tokenizer.vocab_size, 8, 8, 1, 1, 1, 8), {}, tokenizer)
    problem = task.problem("train", 0, 0)

    def written(**budget):
        rollout = dataclasses.replace(ROLLOUT, **budget)
        config = Config(task="html_form", rollout=rollout)
        batch = demonstrations.demonstrations(policy, config, task, [problem])
        return int(np.flatnonzero(np.asarray(batch.action_mask[0]))[-1]) - len(problem.prompt)

    whole = written(turn_tokens=2)
    page = len(task.turns.begin(problem, 0)[1].messages[0]["content"]) - len(problem.prompt)
    length = whole - page - 1  # of the response, without the token that ends its last turn
    assert written(turn_tokens=2, max_new_tokens=length) == whole
    for budget in ({"turn_tokens": 1}, {"max_new_tokens": length - 1}):
        ((name, value),) = budget.items()
        with pytest.raises(ValueError, match=rf"raise rollout\.{name}={value}"):
            written(**budget)


def test_a_task_without_solutions_is_known():
    assert not demonstrations.demonstrable(tasks.get("board_game", game="kuhn_poker"))
    assert demonstrations.demonstrable(tasks.get("arithmetic"))


def answering(closed, right=True):
    """A task whose second turn is an answer that its reward judges."""

    def begin(problem, seed):
        return [problem.id, 0], Opening(({"role": "user", "content": problem.prompt},))

    def step(state, action):
        state[1] += 1
        if state[1] == 1:
            return Reply(({"role": "user", "content": "1"},), 0.25)
        return Reply(done=True, answer=action)

    def reward(problem, completion):
        if not right:
            raise RuntimeError("no judge")
        return Score(float(completion == problem.answer))

    turns = Environment(
        begin, step, gold=lambda problem, seed: ("2", problem.answer), close=closed.append
    )
    return Task("own", lambda *_: Problem("0", "0", "34"), reward, turns=turns)


@pytest.mark.parametrize(
    ("budgets", "right", "match"),
    [
        ({}, True, None),
        ({}, False, "no judge"),
        ({"turn_tokens": 1}, True, "a turn of its solution has 2 tokens"),
        ({"max_prompt_tokens": 1}, True, "opening"),
        ({"max_new_tokens": 5}, True, "after 2 tokens"),
        ({"max_new_tokens": 6}, True, "does not fit"),
    ],
)
def test_an_answer_is_judged_and_an_episode_closed_whether_it_fits_or_not(budgets, right, match):
    closed = []
    task = answering(closed, right)
    policy = Policy(DecoderConfig(TOKENIZER.vocab_size, 8, 8, 1, 1, 1, 8), {}, TOKENIZER)
    config = Config(task="own", rollout=dataclasses.replace(ROLLOUT, **budgets))
    if match is None:
        batch = demonstrations.demonstrations(policy, config, task, [task.problem("train", 0, 0)])
        own = np.asarray(batch.tokens)[np.asarray(batch.action_mask)]
        assert TOKENIZER.decode([each for each in own.tolist() if each]) == "234"
    else:
        with pytest.raises(ValueError, match=match):
            demonstrations.demonstrations(policy, config, task, [task.problem("train", 0, 0)])
    assert len(closed) == 1
