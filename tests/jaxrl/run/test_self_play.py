"""Episodes of several agents that one policy plays: a match against itself, agent by agent."""

import dataclasses
import json

import numpy as np
import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import MOST_AGENTS, Environment, Opening, Reply, Turn, play, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task
from jaxrl.record import metrics
from jaxrl.run import assemble
from tests.jaxrl import tiny
from tests.jaxrl.run import flights

RULES = {"instructions": False, "symbols": True, "mistakes": 6, "opponent": "self"}
SELF = {
    "task": "board_game", "task_args": RULES, "steps": 2, "warm_start.steps": 0, "eval.problems": 2,
    "eval.every": 0, "rollout.turn_tokens": 2, "rollout.max_prompt_tokens": 32,
    "rollout.max_new_tokens": 160, "packing.row_length": 256, "packing.micro_batch_tokens": 1024,
    "optimizer.learning_rate": 3e-3, "objective.advantage": "agent_advantages",
}  # fmt: skip


@pytest.mark.parametrize("game", ["tic_tac_toe", "connect_four", "kuhn_poker"])
@pytest.mark.parametrize("symbols", [True, False])
def test_players_take_turns_in_conversations_of_their_own(game, symbols):
    """Each sees the board as the player that it is; one has the reward that the other lost."""
    task = tasks.get("board_game", game=game, symbols=symbols, instructions=not symbols,
                     opponent="self", mistakes=0)  # fmt: skip
    stream, outcomes = np.random.default_rng(0), set()
    for index in range(12):
        match, opening = task.turns.begin(task.problem("train", 0, index), 0)
        assert opening.agent == 0 == match.game.player(match.state)
        talks, agent, rewards = {0: list(opening.messages)}, 0, {0: 0.0, 1: 0.0}
        while True:
            move = str(stream.choice(match.game.moves(match.state)))
            talks[agent].append({"role": "assistant", "content": move})
            reply = task.turns.step(match, move[0] if symbols else move)
            if symbols:
                talks[agent][-1] = {"role": "assistant", "content": move[0]}
            if reply.done:
                break
            assert reply.reward is None and reply.opening.agent == match.game.player(match.state)
            agent = reply.opening.agent
            before = talks.get(agent, list(opening.messages[:-1]))
            assert list(reply.opening.messages[:-1]) == before
            talks[agent] = list(reply.opening.messages)
        rewards[agent] += reply.reward
        for other, value in reply.others.items():
            rewards[other] += value
        assert sum(rewards.values()) == 1.0
        assert rewards[0] == (1 + match.game.payoff(match.state)) / 2
        outcomes.add(rewards[0])
    assert len(outcomes) > 1


def test_held_out_matches_are_against_another():
    task = tasks.get("board_game", **RULES)
    opponents = {s: task.problem(s, 0, 0).metadata["opponent"] for s in ("train", "test", "ood")}
    assert opponents == {"train": "self", "test": "random", "ood": "strong"}
    with pytest.raises(ValueError, match="ood_opponent='self'"):
        tasks.get("board_game", ood_opponent="self")
    with pytest.raises(ValueError, match="choose random, or"):
        task.turns.arrays(np, list).begin(task.problem("train", 0, 0))


def test_an_illegal_end_is_the_other_players_win():
    task = tasks.get("board_game", **RULES | {"mistakes": 0})
    match, _ = task.turns.begin(task.problem("train", 0, 0), 0)
    assert task.turns.step(match, "5").opening.agent == 1
    assert task.turns.step(match, "5") == Reply(
        reward=0.0, parts={"illegal": 1.0}, done=True, others={0: 1.0}
    )
    match, _ = task.turns.begin(task.problem("train", 0, 0), 0)
    assert task.turns.step(match, ".").others == {}  # the other has not moved


def bidding(*replies, agents=2):
    """An environment of these replies."""
    turns = Environment(
        lambda problem, seed: ([], Opening(({"role": "user", "content": "1"},))),
        lambda state, action: (state.append(action), replies[len(state) - 1])[1],
        agents=agents,
    )
    return Task(
        "bidding",
        lambda *where: generate.user_problem("bidding", "0", "1", None),
        unscored,
        alphabet="0123456789\n",
        pure=True,
        turns=turns,
    )


@pytest.mark.parametrize(
    ("reply", "agents", "says"),
    [
        (Reply(opening=Opening(({"role": "user", "content": "2"},), agent=2)), 2, "agent=2"),
        (Reply(reward=1.0, done=True, others={3: 1.0}), 2, "agent=3"),
        (Reply(reward=1.0, done=True, others={1: float("nan")}), 2, "others=nan"),
        (Reply(reward=1.0, done=True, others=[1]), 2, "give numbers by agent"),
        (Reply(done=True, others={MOST_AGENTS: 1.0}), MOST_AGENTS + 1, f"at most {MOST_AGENTS}"),
    ],
)
def test_agents_that_there_are_not_are_an_error(reply, agents, says):
    task = bidding(reply, agents=agents)
    turn = Turn(0, Problem("0", "1", None), 0)
    player = play.Player(task)
    opening = player.answer(turn)
    answer = player.answer(Turn(0, turn.problem, 0, ("5",), (opening,)))
    assert says in answer.error


def test_rewards_of_others_go_through_a_worker():
    turn = Turn(0, Problem("0", "1", None), 0, ("5",), (Opening(),))
    reply = Reply(reward=0.25, done=True, others={1: 0.75})
    line = json.dumps(play.as_json(reply, 3)).encode()
    assert play.read(line, 3, turn, Environment(None, None, agents=2)) == reply


@pytest.mark.broad
def test_a_match_against_oneself_is_trained_as_it_was_sampled(tmp_path):
    """Both players' actions are trained, each with the advantage of its own side."""
    found = flights.trained(tmp_path / "run", **SELF)
    rows = list(metrics.read(tmp_path / "run"))
    assert len(rows) == 2 and all(row["grad_norm"] > 0 for row in rows)
    assert rows[0]["logp_gap_max"] < 1e-4
    several = [c for c in found if c.turn_agents]
    assert several and all(set(c.turn_agents) == {0, 1} for c in several)
    opposed = 0
    for line in (tmp_path / "run/rollouts/000001.jsonl").read_text().splitlines():
        row = json.loads(line)
        agents = row.get("turn_agents", [0] * len(row["turn_rewards"]))
        shares = [
            sum(r for r, a in zip(row["turn_rewards"], agents, strict=True) if a == k)
            for k in (0, 1)
        ]
        if row["error"] is not None:
            continue
        assert row["reward"] == pytest.approx(shares[0])
        own = np.array(row["source"]) == "policy"
        who = np.array(agents)[np.array(row["turn"])[own] - 1]
        advantage = np.array(row["advantage"])[own]
        sides = [set(advantage[who == k].tolist()) for k in (0, 1)]
        assert all(len(each) <= 1 for each in sides)
        opposed += len(set.union(*sides)) > 1
    assert opposed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"critic.credit": "turn_gae"}, "the extension critic"),
        ({"ilql.targets": "td"}, "the extension ilql"),
        ({"objective.advantage": "group_advantages"}, "objective.advantage='group_advantages'"),
        ({"objective.advantage": "gigpo"}, "objective.advantage='gigpo'"),
    ],
)
def test_what_would_mix_the_rewards_of_agents_is_refused(changes, says, tmp_path):
    with pytest.raises(ValueError, match=says) as refused:
        assemble.assemble(tiny.config(tmp_path, **SELF | changes))
    assert "episodes have 2 agents" in str(refused.value)


@pytest.mark.broad
def test_an_agent_that_took_no_turn_cannot_be_rewarded(tmp_path):
    found = flights.trained(
        tmp_path / "run",
        **SELF | {"task": f"{__name__}:early", "task_args": {}, "steps": 1},
    )  # fmt: skip
    assert all(not c.turn_agents for c in found)
    (row,) = metrics.read(tmp_path / "run")
    assert row["episode/errors"] > 0


def early():
    """Ends at an odd first digit with a reward for an agent that has taken no turn."""

    def step(state, action):
        odd = action[:1] in tuple("13579")
        reward = 0.5 + 0.1 * (action[:1] == "2")
        return Reply(reward=reward, done=True, others={1: 1.0} if odd else {})

    task = bidding(agents=2)
    return dataclasses.replace(task, turns=task.turns._replace(step=step))
