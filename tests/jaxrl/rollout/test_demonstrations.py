"""Demonstrations of episodes: what the task itself would do, as a batch to imitate."""

import dataclasses

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import generate, tasks, tokenizers
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import demonstrations
from jaxrl.rollout.policy import Policy

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


def test_a_solution_over_the_budget_is_refused(made):
    policy, config, task = made
    short = dataclasses.replace(config, rollout=dataclasses.replace(ROLLOUT, max_new_tokens=40))
    with pytest.raises(ValueError, match=r"raise rollout\.max_new_tokens=40"):
        demonstrations.demonstrations(policy, short, task, [task.problem("train", 0, 0)])


def test_a_task_without_solutions_is_known():
    assert not demonstrations.demonstrable(tasks.get("board_game"))
    assert demonstrations.demonstrable(tasks.get("arithmetic"))
