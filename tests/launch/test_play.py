"""`jaxrl sample --env`: which flags count, and how an episode that a person plays can end."""

import dataclasses
import json
import re

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data.environments import Environment, Opening, Reply
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Score, Task
from jaxrl.launch import cli
from jaxrl.launch.inspect import play
from jaxrl.launch.inspect.sample import SampleConfig
from jaxrl.record import account, jsonl
from jaxrl.rollout import policy
from jaxrl.run import loop
from tests.jaxrl import tiny


def reward(problem: Problem, completion: str) -> Score:
    if completion == "wrong":
        return Score(None, error="reference: there is none")
    raise OSError("the judge is not there")


def judged() -> Task:
    """An episode of one turn, whose reward always fails; `nothing` and `later` are not judged."""

    def step(state: None, action: str) -> Reply:
        said = ({"role": "user", "content": "Go on."},)
        if action == "later":
            return Reply(said, 0.25)
        return Reply(done=True) if action == "nothing" else Reply(done=True, answer=action)

    opening = Opening(({"role": "user", "content": "Say it."},))
    return Task(
        "judged",
        lambda split, seed, index: generate.user_problem("judged", str(index), "Say it.", None),
        reward,
        turns=Environment(lambda problem, seed: (None, opening), step),
    )


def duel() -> Task:
    """Four turns, of agents 0 and 1 by turns; the last is 1's, and rewards both."""

    def begin(problem: Problem, seed: int) -> tuple[list[str], Opening]:
        return [], Opening(({"role": "user", "content": "You are 0."},))

    def step(turns: list[str], action: str) -> Reply:
        turns.append(action)
        agent = len(turns) % 2
        if len(turns) == 4:
            return Reply(reward=0.5, done=True, others={0: 0.5})
        said = ({"role": "user", "content": f"You are {agent}."},)
        return Reply(reward=0.25 if len(turns) < 3 else None, opening=Opening(said, agent=agent))

    return dataclasses.replace(judged(), turns=Environment(begin, step, agents=2))


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize(
    ("actions", "why"),
    [
        (["right"], "the judge is not there"),
        (["later", "right"], "the judge is not there"),
        (["wrong"], "reference: there is none"),
        (["nothing"], "gave agent 0 no reward"),
    ],
)
def test_what_has_no_reward_is_an_error_for_a_person_too(actions, why):
    said, left = [], iter(actions)
    config = SampleConfig(env=f"{__name__}:judged", human=True)
    assert play.by_hand(config, ask=lambda prompt: next(left), say=said.append) is None
    assert said[-1].startswith("error: ") and why in said[-1]
    assert not any(line.startswith("reward") for line in said)


@pytest.mark.broad
def test_a_reward_that_an_earlier_turn_gave_counts_at_the_end():
    said, left = [], iter(["later", "nothing"])
    config = SampleConfig(env=f"{__name__}:judged", human=True)
    assert play.by_hand(config, ask=lambda prompt: next(left), say=said.append) == 0.25
    assert said[-1] == "reward 0.25"


@pytest.mark.broad
def test_a_game_against_oneself_has_the_reward_of_the_first_player():
    """As where a policy plays both: the other player's reward is not added to it."""
    said, moves = [], iter("1425")
    config = SampleConfig(env=f"{__name__}:duel", human=True)
    assert play.by_hand(config, ask=lambda prompt: next(moves), say=said.append) == 0.75
    assert said[-1] == "reward 0.75"


@pytest.fixture
def episode(capsys, monkeypatch):
    """`(*flags) -> episode` of a random policy in `keydoor`."""
    args = {"level": 1, "turns": 4}
    drawn = tiny.config("unused", task="keydoor", task_args=args)
    monkeypatch.setattr(policy, "config_of", lambda name: drawn)
    given = [f"--env-args.{name}={json.dumps(value)}" for name, value in args.items()]
    given += ["--env", "keydoor", "--max-new-tokens", "60", "--turn-tokens", "2", "--json"]

    def played(*flags):
        assert cli.main(["sample", "a-model", *given, *flags]) == 0
        (made,) = json.loads(capsys.readouterr().out)["episodes"]
        own = [kind == "policy" for kind in made["source"]]
        return made["token_ids"], [p for p, mine in zip(made["logps"], own, strict=True) if mine]

    return played


@pytest.mark.broad
def test_a_policy_plays_with_the_limits_of_the_flags(episode):
    """Log-probabilities are those of the distribution that the limits leave."""
    greedy, _ = episode("--temperature", "0")
    _, free = episode()
    assert max(free) < -1
    for flags in (("--top-k", "1"), ("--top-p", "0.001"), ("--min-p", "1")):
        tokens, logps = episode(*flags)
        assert tokens == greedy and max(map(abs, logps)) < 1e-6
    _, two = episode("--top-k", "2")
    assert min(two) > min(free) and min(two) < -0.1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one step in `keydoor`, evaluated on four episodes."""
    args = {"level": 1, "turns": 3}
    changes = {"task": "keydoor", "task_args": args, "warm_start.steps": 0, "steps": 1}
    changes |= {"rollout.turn_tokens": 2, "rollout.max_new_tokens": 40, "eval.problems": 4}
    run = tmp_path_factory.mktemp("play") / "run"
    loop.train(tiny.config(run, **changes))
    return run


@pytest.mark.broad
def test_a_run_plays_as_it_was_trained(trained, capsys):
    """Its task's parameters, the lengths of turns and episodes: what is not given is the run's."""
    given = ["sample", str(trained), "--env", "keydoor", "--episodes", "4", "--temperature", "0"]
    assert cli.main([*given, "--json"]) == 0
    played = json.loads(capsys.readouterr().out)["episodes"]
    held_out = list(jsonl.read(trained / "evals" / "000001.jsonl"))
    for mine, row in zip(played, held_out, strict=True):
        assert (mine["source"], mine["reward"]) == (row["source"], row["reward"])
        np.testing.assert_allclose(mine["logps"], row["logp"], atol=1e-3)
    assert cli.main([*given, "--env-args.turns", "1", "--json"]) == 0
    shorter = json.loads(capsys.readouterr().out)["episodes"]
    assert max(len(each["token_ids"]) for each in shorter) <= 2


def test_a_run_plays_with_its_truncation_unless_a_flag_says_otherwise(monkeypatch):
    rollout = RolloutConfig(top_k=3, top_p=0.9)
    monkeypatch.setattr(policy, "is_run", lambda name: True)
    monkeypatch.setattr(account, "config", lambda *_: Config(rollout=rollout))
    played = play.resolve("run", SampleConfig(env="keydoor", top_p=1.0)).rollout
    assert played.truncated == {"top_k": 3} and not played.records_support


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--env", "calculator", "--n", "3"], "n=3 with env='calculator'.*--episodes"),
        (["--env", "calculator", "--prompt", "Hi"], "prompt='Hi' with env='calculator'.*leave"),
        (["--env", "board_game", "--human", "--seat", "1", "--n", "2"], "n=2 with env"),
        (["--env", "calculator", "--human", "--json"], "json=True with human=True.*leave"),
        (["--env", "calculator", "--human", "--episodes", "2"], "episodes=2 with human=True"),
        (["--env", "calculator", "--human", "--top-k", "2"], "top_k=2 with human=True"),
        (["--prompt", "Hi", "--episodes", "2"], "episodes=2 with no env.*--env"),
        (["--prompt", "Hi", "--env-args.level", "2"], "env_args=.* with no env.*--env"),
        (["--human"], "human=True with no env.*--env"),
        (["--prompt", "Hi", "--system", "Be brief."], "system='Be brief.' with no chat.*--chat"),
    ],
)
def test_a_flag_without_effect_is_refused(given, why, capsys):
    assert cli.main(["sample", "a-model", *given]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert re.search(why, shown), shown
