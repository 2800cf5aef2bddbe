"""Demonstrations of episodes: what the task itself would do, as a batch to imitate."""

import dataclasses

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import generate, tasks, tokenizers
from jaxrl.data.environments import formats
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import demonstrations
from jaxrl.rollout.policy import Policy
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_are_imitated_as_the_template_teaches_them(layout, tmp_path):
    """And are read as the calls of the solution."""
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


def test_a_solution_over_the_budget_is_refused(made):
    policy, config, task = made
    short = dataclasses.replace(config, rollout=dataclasses.replace(ROLLOUT, max_new_tokens=40))
    with pytest.raises(ValueError, match=r"raise rollout\.max_new_tokens=40"):
        demonstrations.demonstrations(policy, short, task, [task.problem("train", 0, 0)])


def test_a_task_without_solutions_is_known():
    assert not demonstrations.demonstrable(tasks.get("board_game", game="kuhn_poker"))
    assert demonstrations.demonstrable(tasks.get("arithmetic"))
