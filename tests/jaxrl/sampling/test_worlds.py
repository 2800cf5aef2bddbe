"""Episodes within the decode loop: those of the same environment on the host, token for token."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl.config import FreshModel, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments.games import game_arrays, keydoor, rules
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.text import tokenizers
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.record.metrics import Timer
from jaxrl.rollout import collect, episodes, experience
from jaxrl.rollout import tasks as rollout_tasks
from jaxrl.rollout.policy import Policy
from jaxrl.run import assemble
from jaxrl.sampling.work import SamplerConfig
from jaxrl.training.tries import Chunks
from jaxrl.types import Request, Source
from tests.jaxrl import tiny

TASK = tasks.get("keydoor", level=1, turns=10)
TOKENIZER = tokenizers.characters(TASK.alphabet)
ROLLOUT = RolloutConfig(
    group_size=4, max_prompt_tokens=16, max_new_tokens=90, turn_tokens=1, temperature=1.0
)

OTHERWISE = dict(
    group_size=5, max_prompt_tokens=20, max_new_tokens=95, turn_tokens=2, temperature=0.7,
    long_prompts="truncate", replies="arrival",
)  # fmt: skip
"""Fields that an episode within the decode loop must obey, at other values."""
REFUSED = {"chat": True, "system": "Be brief.", "strip_reasoning": True, "max_turns": 3}
"""Fields that such an episode cannot obey."""
OF_GROUPS = {"prompts", "in_flight", "oversampling", "rounds"}
"""Fields that choose the groups of a step."""
OF_NO_EPISODE = {"chunks"}
"""Fields that no task with turns goes with."""
OF_TEMPLATES = {"template_args"}
"""Fields of the chat template; such an episode has none, as `chat` is refused."""
OF_SUPPORT = {"top_k", "top_p", "min_p", "support"}
"""Fields of truncation, which tests/jaxrl/run/test_truncation.py holds for such episodes."""
CONFLICTS = {"constraint"}
"""Fields that a config with such episodes cannot have, see `jaxrl.config.conflicts`."""


def test_arrays_are_the_environment():
    """On random turns, some of two letters, of no known one, or ended by a stop token."""
    made, rng, ended = keydoor.arrays(np, TOKENIZER.encode), np.random.default_rng(0), 0
    for index in range(30):
        think = index % 3 == 0
        task = tasks.get("keydoor", turns=12, credit=(0.25, 0.5)[index % 2], think=think)
        problem = task.problem("train", 0, index)
        (world, _), state, done = task.turns.begin(problem, 0), made.begin(problem), False
        while not done:
            goal = world.door if world.held else world.key
            word = "to"[world.held] if world.room == goal else "lr"[world.room < goal]
            kinds = [word, word, word + "\n", "\n" + word, word + word, "h", "\n", ""]
            kinds += ["k" + word, "l" + word, "\nd" + word, word + "\n" + word, "kk" + word] * think
            text = rng.choice(kinds)
            ids = [*TOKENIZER.encode(text), 0]
            reply = task.turns.step(world, TOKENIZER.decode(ids))
            given = np.array([*ids, 9, 9], np.int32)
            state, seen, count, reward, done = made.step(state, given, len(ids))
            assert (float(reward), bool(done)) == (reply.reward or 0.0, reply.done)
            assert made.parts(state) == reply.parts
            if not done:
                said = f"\n{reply.messages[0]['content']}\n"
                assert TOKENIZER.decode(seen[:count].tolist()) == said
        ended += reply.parts["door"] == 1
    assert ended > 3
    with pytest.raises(ValueError, match="at most 10 rooms"):
        made.begin(tasks.get("keydoor", level=5).problem("train", 0, 0))


@pytest.mark.parametrize("game", rules.GAMES)
def test_arrays_are_the_matches_of_a_game(game):
    """On moves at random, illegal ones, several in a turn, numbers of two digits and nothing."""
    task = tasks.get("board_game", game=game, symbols=True, instructions=False, mistakes=2)
    tokenizer, rng = tokenizers.characters(task.alphabet), np.random.default_rng(1)
    made, ends = task.turns.arrays(np, tokenizer.encode), set()
    for index in range(60):
        problem = task.problem("train", 0, index)
        (match, _), state, done = task.turns.begin(problem, 0), made.begin(problem), False
        parts = {}
        while not done:
            moves = [move[0] for move in match.game.moves(match.state)]
            one, two = rng.choice(moves), rng.choice([*task.alphabet])
            kinds = [one] * 9 + [one + "." + two, two + one, one + "\n" + one, two, "\n", ""]
            ids = [*tokenizer.encode(rng.choice(kinds)), 0]
            reply = task.turns.step(match, tokenizer.decode(ids))
            given = np.array([*ids, 9, 9], np.int32)
            state, seen, count, reward, done = made.step(state, given, len(ids))
            assert (float(reward), bool(done)) == (reply.reward or 0.0, reply.done)
            parts |= reply.parts
            assert made.parts(state) == parts
            if not done:
                said = f"\n{reply.messages[0]['content']}\n"
                assert tokenizer.decode(seen[:count].tolist()) == said
        ends.add((reply.reward, *sorted(reply.parts)))
    assert (0.0, "illegal", "won") in ends and len(ends) > 2
    with pytest.raises(ValueError, match="opponent='strong'"):
        made.begin(task.problem("ood", 0, 0))


def test_lines_of_a_board():
    assert len(game_arrays.lines(3, 3, 3)) == 8 and len(game_arrays.lines(6, 7, 4)) == 69


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("episodes within the decode loop are those of the host, token for token")
@pytest.mark.parametrize(
    ("task", "rollout"),
    [
        (TASK, ROLLOUT),
        (TASK, dataclasses.replace(ROLLOUT, **OTHERWISE)),
        *(
            (
                tasks.get("board_game", game=game, symbols=True, instructions=False, mistakes=8),
                dataclasses.replace(
                    ROLLOUT, max_prompt_tokens=48, max_new_tokens=tokens, turn_tokens=2
                ),
            )
            for game, tokens in (("tic_tac_toe", 90), ("connect_four", 500), ("kuhn_poker", 30))
        ),
    ],
    ids=["keydoor", "otherwise", *rules.GAMES],
)
def test_episodes_within_the_decode_loop_are_those_of_the_host(task, rollout):
    tokenizer = tokenizers.characters(task.alphabet)
    shape = dataclasses.asdict(FreshModel(32, 64, 2, 2, 2, 16))
    model = DecoderConfig(vocab_size=tokenizer.vocab_size, **shape)
    params = decoder.init(model, jax.random.key(1))
    actor = Policy(model, params, tokenizer)
    problems = [task.problem("train", 0, i) for i in range(8)]
    found = []
    for on_device in (False, True):
        own = dataclasses.replace(rollout, on_device=on_device)
        with scoring.Pool(task, 0, 1.0, None, None) as pool:
            found.append(
                collect.collect(
                    actor, decoder.unstack(params), problems, task, pool, own,
                    SamplerConfig(slots=16, prefill_rows=4, bucket=32), key=jax.random.key(3),
                    first_id=0, version=2, timer=Timer(),
                )
            )  # fmt: skip
    kinds = set()
    for host, device in zip(*(each.completions for each in found), strict=True):
        assert device.request == host.request
        for name in ("tokens", "version", "source", "turn", "stopped", "turn_rewards"):
            np.testing.assert_array_equal(getattr(device, name), getattr(host, name), err_msg=name)
        np.testing.assert_allclose(device.logp, host.logp, atol=1e-5)
        np.testing.assert_allclose(device.entropy, host.entropy, atol=1e-5)
        kinds |= set(device.source.tolist())
    assert kinds == {Source.POLICY, Source.FORCED, Source.OBSERVATION}
    assert found[0].texts == found[1].texts
    scores = [[(score.value, score.parts) for score in each.scores] for each in found]
    assert scores[0] == scores[1] and len({repr(score) for score in scores[0]}) > 1
    assert {c.stopped for c in found[1].completions} == {True, False}
    length = max(len(c.request.prompt) + len(c.tokens) for c in found[0].completions)
    host, device = (
        experience.turns(each.completions, (len(each.completions), length)) for each in found
    )
    for name in host:
        np.testing.assert_array_equal(device[name], host[name], err_msg=name)
    first = [row[turn == 1][0] for row, turn in zip(host["turn_state"], host["turn"], strict=True)]
    later = host["turn"] > 1
    assert not np.any((host["turn_state"] == np.array(first)[:, None]) & later)


@pytest.mark.parametrize("opening", [{"stop": ("a",)}, {"agent": 1}])
def test_an_opening_that_asks_for_what_the_decode_loop_does_not_do_voids_the_episode(opening):
    ctx = collect.context(
        dataclasses.replace(ROLLOUT, on_device=True), 0, Policy(None, {}, TOKENIZER), TASK
    )
    problem = TASK.problem("train", 0, 0)
    play = episodes.on_device(ctx, problem, Request(0, (), 90), 0)
    next(play)
    with pytest.raises(StopIteration) as ended:
        play.send(TASK.turns.begin(problem, 0)[1]._replace(**opening))
    (name,) = opening
    assert f"{name}=" in ended.value.value.score.error


def test_every_field_is_obeyed_within_the_decode_loop_or_refused():
    """A field that is new must be put into one of the sets, with what holds it to its place."""
    names = {field.name for field in dataclasses.fields(RolloutConfig)} - {"on_device"}
    held = OTHERWISE.keys() | REFUSED.keys() | OF_GROUPS | OF_NO_EPISODE
    assert names == held | OF_TEMPLATES | OF_SUPPORT | CONFLICTS
    assert all(getattr(ROLLOUT, name) != value for name, value in OTHERWISE.items())
    inside = dataclasses.replace(ROLLOUT, on_device=True)
    assert rollout_tasks.arrays(TASK, TOKENIZER, inside) is not None
    for name, value in REFUSED.items():
        with pytest.raises(ValueError, match=f"rollout.on_device needs.*rollout.{name}="):
            changed = dataclasses.replace(inside, **{name: value})
            rollout_tasks.arrays(TASK, TOKENIZER, changed)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rollout.chat": True}, "chat"),
        ({"rollout.system": "Be brief."}, "rollout.system='Be brief.'"),
        ({"rollout.strip_reasoning": True}, "rollout.strip_reasoning"),
        ({"rollout.chunks": Chunks(8, 4)}, "rollout.chunks"),
        ({"rollout.turn_tokens": 0}, "rollout.turn_tokens=0"),
        ({"rollout.constraint": "problem"}, "rollout.on_device"),
        ({"task": "game24", "task_args": {}, "rollout.turn_tokens": 4}, "'game24' is not given"),
    ],
)
def test_what_cannot_be_played_within_the_decode_loop_is_refused(changes, why, tmp_path):
    given = {
        "task": "keydoor", "task_args": {"level": 1}, "rollout.turn_tokens": 1,
        "rollout.on_device": True, "warm_start.steps": 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=why):
        assemble.assemble(tiny.config(tmp_path, **given | changes))
