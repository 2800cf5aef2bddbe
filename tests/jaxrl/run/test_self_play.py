"""Episodes of several agents: a match against itself, or against adapters on the same base."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import MOST_AGENTS, Environment, Opening, Reply, Turn, play, unscored
from jaxrl.data.sources import generate
from jaxrl.data.text import dialogue, tokenizers
from jaxrl.data.types import Problem, Task
from jaxrl.extensions import opponent as opponents
from jaxrl.extensions.opponent import OpponentConfig, opponent
from jaxrl.mesh import mesh
from jaxrl.models import decoder, lora
from jaxrl.models.checkpoints import peft
from jaxrl.record import metrics
from jaxrl.rollout import collect, episodes, policy
from jaxrl.rollout.engine import Local
from jaxrl.rollout.programs import Act, Context
from jaxrl.run import assemble
from jaxrl.run.extension import Extension
from jaxrl.sampling import sampler
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Completion, Source
from tests.jaxrl import sampler_oracle, tiny
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


TOKENIZER = tokenizers.characters("JQKpb.\n")
KUHN = {"game": "kuhn_poker", "opponent": "self", "symbols": True, "instructions": False}


def acted(plays, task, first_id, size=3):
    """The rows of a group in which `plays(agent)` gives the tokens of a turn, and who took them."""
    rollout = RolloutConfig(prompts=1, group_size=size, max_prompt_tokens=16, max_new_tokens=200)
    roles = dialogue.of_model(TOKENIZER, task.turns.roles, chat=False, tools=False)
    ctx = Context(rollout, 0, TOKENIZER, task, roles)
    problem = task.problem("train", 0, first_id)
    program = episodes.against(ctx, problem, first_id)
    players, rows, turns = play.Player(task), [], []
    for branch in program.send(None).programs:
        query, taken = branch.send(None), []
        while True:
            if isinstance(query, Act):
                answer = players.answer(query.turn)
            else:
                r, p = query.request, query.request.prefix
                before = [] if p is None else p.tokens.tolist()
                tokens = [*before, *TOKENIZER.encode(plays(r.adapter)), 0]
                new = np.arange(len(tokens)) >= len(before)
                source = np.full(len(tokens), Source.POLICY, np.int8)
                if p is not None:
                    source[: len(before)] = p.source
                answer = Completion(
                    r, np.array(tokens, np.int32), -1.0 * new.astype(np.float32),
                    new.astype(np.float32), 7 * new.astype(np.int32), True, source,
                )  # fmt: skip
                taken.append((r.adapter, len(tokens) - len(before)))
            try:
                query = branch.send(answer)
            except StopIteration as end:
                rows.append(end.value)
                turns.append(taken)
                break
    return rows, turns


def test_the_policy_plays_either_agent_and_its_own_turns_alone_are_actions():
    """Of random players: masks, turns and rewards are of the policy, whichever agent it is."""
    task = tasks.get("board_game", **KUHN, mistakes=1)
    stream, first, void = np.random.default_rng(0), set(), 0
    for group in range(12):
        rows, turns = acted(lambda adapter: "pb."[stream.integers(3)], task, 8 * group)
        first.add(turns[0][0][0])
        assert len({taken[0][0] for taken in turns}) == 1  # one seat for a group
        for row, taken in zip(rows, turns, strict=True):
            c, lengths = row.completion, [n for adapter, n in taken if adapter == episodes.LEARNER]
            if row.score.error is not None:
                assert not lengths and row.score.error.startswith("opponent:")
                void += 1
                continue
            assert c.actions.sum() == sum(lengths) and c.turn_agents == ()
            assert len(c.turn_rewards) == len(c.turn_reads) == len(lengths) == c.turn.max()
            assert [((c.turn == k + 1) & c.actions).sum() for k in range(len(lengths))] == lengths
            assert (c.logp[~c.actions] == 0).all() and (c.version[c.actions] == 7).all()
            assert len(c.turn) == len(c.tokens)
            assert c.parent is None or len(c.parent) == len(c.tokens)
            assert row.score.value == sum(c.turn_rewards) and 0 <= row.score.value <= 1
    assert first == {episodes.LEARNER, episodes.OPPONENT} and void


def test_what_one_player_wins_the_other_loses():
    """The policy's reward is that of its agent in the match, told by the last board."""
    task, rewards = tasks.get("board_game", **KUHN, mistakes=0), {}
    for group in range(16):
        # one bets and the other passes: so whoever bets wins the match
        for bold in (episodes.LEARNER, episodes.OPPONENT):
            rows, _ = acted(lambda adapter, bold=bold: "pb"[adapter == bold], task, 8 * group, 1)
            rewards.setdefault(bold, set()).add(rows[0].score.value)
    assert min(rewards[episodes.LEARNER]) > 0.5 > max(rewards[episodes.OPPONENT])


OPPOSED = SELF | {
    "task_args": KUHN | {"mistakes": 3}, "steps": 4, "lora.rank": 2, "lora.alpha": 8.0,
    "optimizer.learning_rate": 3e-2, "objective.advantage": "group_advantages",
    "rollout.max_new_tokens": 72, "packing.row_length": 128, "packing.micro_batch_tokens": 512,
}  # fmt: skip
PLAYED: list = []
"""Of each step: the parameters, and the adapters of the opponent and how they are made."""


def watched(settings: OpponentConfig) -> Extension:
    """`opponent`, which notes what samples."""
    inner = opponent(settings)

    def params(ctx, state, to_sampler):
        copy = jax.tree.map(jnp.copy, (state.params, state.extra["opponent"].adapters))
        PLAYED.append((ctx, *copy))
        return inner.provides["opposed_params"](ctx, state, to_sampler)

    return inner._replace(provides=inner.provides | {"opposed_params": params})


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["snapshot", "directory"])
def test_both_players_write_as_each_would_alone(kind, tmp_path, monkeypatch):
    """Every turn has the tokens that its adapters sample alone, added into the base, and the
    log-probabilities of an uncached pass; only those of the policy are trained."""
    directory, settings = tmp_path / "adapters", {"every": 2}
    if kind == "directory":
        config = tiny.config(tmp_path, **OPPOSED)
        model, _ = policy.describe(config)
        how = lora.LoraConfig(rank=3, alpha=24.0, targets=("*/attention/*",))
        with jax.set_mesh(mesh.make(Config().mesh)):
            base = policy.first_params(config, model, jax.sharding.get_mesh())
        small = jax.tree.map(lambda x: x + 0.1, lora.init(jax.random.key(3), model, base, how))
        peft.save(directory, model, small, how)
        settings = {"every": 0, "path": str(directory)}
    turns, chunk = [], Local.chunk

    def noted(engine, version):
        done = chunk(engine, version)
        turns.extend((len(PLAYED), c) for c in done.ended if c.request.adapter)
        return done

    monkeypatch.setattr(Local, "chunk", noted)
    PLAYED.clear()
    extensions = {f"{__name__}:watched": settings}
    changes = OPPOSED | {"extensions": extensions, "steps": 3 if kind == "snapshot" else 1}
    rows = flights.trained(tmp_path / "run", **changes)
    steps = list(metrics.read(tmp_path / "run"))
    assert all(row["logp_gap_max"] < 1e-4 for row in steps)
    assert kind == "directory" or steps[-1]["grad_norm"] > 0
    assert [row["opponent/step"] for row in steps] == [0, 0, 2][: len(steps)]
    compared = 0
    for step, (ctx, params, theirs) in enumerate(PLAYED, 1):
        ours, base = lora.detach(params)
        for place, adapters in ((1, ours), (2, theirs)):
            how = peft.load(directory, ctx.policy.model)[0] if (
                place == 2 and kind == "directory"
            ) else ctx.config.lora  # fmt: skip
            merged = lora.merge(ctx.policy.model, base, adapters, how)
            done = [c for at, c in turns if at == step and c.request.adapter == place]
            assert len(done) > 8
            compared += alone(ctx, merged, done)
    assert compared
    written = sum(sampled(c) for _, c in turns if c.request.adapter == 1)
    assert sum(int(c.actions.sum()) for c in rows) == written
    if kind == "snapshot":
        flat = [jax.tree.leaves(part) for part in (PLAYED[1][2], PLAYED[0][2], PLAYED[2][2])]
        assert all(map(np.array_equal, flat[0], flat[1]))
        assert not all(map(np.array_equal, flat[0], flat[2]))
        assert all(map(np.array_equal, flat[2], jax.tree.leaves(lora.detach(PLAYED[2][1])[0])))


def sampled(c):
    """Tokens of a turn."""
    return len(c.tokens) - (0 if c.request.prefix is None else len(c.request.prefix.tokens))


def alone(ctx, merged, done):
    """Check turns against a sampler that has nothing else, and an uncached pass; their tokens."""
    config, actor = ctx.config, ctx.policy
    params, count = policy.sampling_params(merged, "float32"), 0
    by_id = itertools.groupby(sorted(done, key=lambda c: c.request.id), lambda c: c.request.id)
    for batch in itertools.zip_longest(*(list(group) for _, group in by_id)):
        batch = [c for c in batch if c is not None]
        requests = [dataclasses.replace(c.request, adapter=0) for c in batch]
        again = sampler.generate(
            actor.model, params, requests, stop_ids=actor.tokenizer.eos_ids,
            key=collect.key(config.seed), max_prompt=128, max_length=128,
            sampler=SamplerConfig(slots=16),
        )  # fmt: skip
        again = {c.request.id: c for c in again}
        for c in batch:
            other = again[c.request.id]
            np.testing.assert_array_equal(c.tokens, other.tokens)
            np.testing.assert_allclose(c.logp, other.logp, atol=1e-5)
        plain = [dataclasses.replace(c, request=r) for c, r in zip(batch, requests, strict=True)]
        count += sampler_oracle.recorded_as_recomputed(plain, merged, actor.model)
    return count


@pytest.mark.broad
@pytest.mark.exact(
    "a killed run against its earlier policy equals an uninterrupted one, bit for bit"
)
def test_a_killed_run_against_an_earlier_policy_continues_exactly(tmp_path):
    """Killed after the opponent was renewed, and between the steps that say whether it will be."""
    changes = OPPOSED | {"opponent.every": 2, "opponent.above": 0.1, "checkpoint.every": 1}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    tiny.finish(tiny.start(straight, **changes))
    assert tiny.kill_at(tiny.start(killed, **changes), "train 3")
    tiny.finish(tiny.start(killed, **changes))
    one, two = tiny.artefacts(straight), tiny.artefacts(killed)
    assert one["arrays"] == two["arrays"] and one["rows"] == two["rows"]
    assert one["host"] == two["host"] and one["texts"].keys() == two["texts"].keys()
    assert {row["opponent/step"] for row in one["rows"]} == {0, 2}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lora.rank": 0}, "add --lora.rank 16"),
        ({"lora.dora": True}, "lora.dora=True"),
        ({"lora.base": "int8"}, "lora.base='int8'"),
        ({"rollout.in_flight": 1.5}, "rollout.in_flight=1.5"),
        ({"asynchronous.staleness": 1}, "asynchronous.staleness=1"),
        ({"opponent.every": -1}, "every=-1"),
        ({"opponent.path": "nowhere"}, "add --opponent.every 0"),
        ({"opponent.path": "nowhere", "opponent.every": 0}, "holds no adapter_config.json"),
        ({"opponent.every": 0, "opponent.above": 0.5}, "above=0.5"),
        ({"task_args": RULES | {"opponent": "random"}}, "--task-args.opponent self"),
        ({"branching.fresh": 0.5}, "the extension branching"),
        ({"nucleus.mass": 0.9}, "the extension nucleus"),
        ({"sampler_refresh.every": 2}, "the extension sampler_refresh"),
        ({"sampling.weights": "int8"}, "sampling.weights='int8'"),
        ({"sampling.devices": 1}, "sampling.devices=1"),
        ({"generators": 1}, "generators=1"),
        ({"rollout.on_device": True}, "rollout.on_device=True"),
        ({"rollout.max_turns": 1}, "rollout.max_turns=1"),
    ],
)
def test_what_an_opponent_cannot_have_is_refused(changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        assemble.assemble(tiny.config(tmp_path, **OPPOSED | {"opponent.every": 2} | changes))


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("adapter_config.json", b"{", "opponent.path="),
        ("adapter_model.safetensors", b"ab", "opponent.path="),
        ("adapter_model.safetensors", None, "opponent.path="),
        ("adapter_model.safetensors", safetensors.numpy.save({}), "has no adapters"),
    ],
)
def test_a_damaged_directory_of_an_opponent_is_named(file, content, says, tmp_path):
    config = tiny.config(tmp_path / "run", **OPPOSED)
    model, _ = policy.describe(config)
    directory = tmp_path / "adapters"
    params = decoder.init(model, jax.random.key(0))
    adapters = lora.init(jax.random.key(1), model, params, config.lora)
    peft.save(directory, model, adapters, config.lora)
    assert opponents.read(str(directory), model, config.model).config.rank == config.lora.rank
    with pytest.warns(UserWarning, match="was trained on 'other'"):
        raw = json.loads((directory / "adapter_config.json").read_text())
        changed = json.dumps(raw | {"base_model_name_or_path": "other"})
        (directory / "adapter_config.json").write_text(changed)
        opponents.read(str(directory), model, config.model)
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        opponents.read(str(directory), model, config.model)
