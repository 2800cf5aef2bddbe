"""Episodes whose context is replaced: sampled and trained in each of their contexts."""

import dataclasses
import json

import numpy as np
import pytest

from jaxrl.config import RolloutConfig
from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.text import dialogue, tokenizers
from jaxrl.data.types import Task
from jaxrl.extensions import replay
from jaxrl.mesh import mesh
from jaxrl.record import metrics
from jaxrl.rollout import episodes, policy, programs
from jaxrl.rollout.contexts import Contexts
from jaxrl.rollout.programs import EMPTY
from jaxrl.run import loop
from jaxrl.sampling.requests import forced
from jaxrl.types import Completion, Request, Source
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl import tiny
from tests.jaxrl.run import flights
from tests.jaxrl.run.test_episodes import ALPHABET, PLAYED


def asked(content):
    return {"role": "user", "content": content}


def branches():
    """Four turns: the second after a reply, the third of another agent, the fourth back again."""

    def begin(problem, seed):
        first = asked(f"{problem.prompt}{seed % 10}")
        return (first, []), Opening((first,))

    def step(state, action):
        first, actions = state
        actions.append(action)
        reward = float(action[0]) / 9 if action[:1].isdigit() else 0.0
        if len(actions) == 1:
            return Reply((asked("1"),), reward)
        if len(actions) == 2:  # the first message and a summary
            return Reply(reward=reward, opening=Opening((first, asked("+2"))))
        if len(actions) == 3:  # the first conversation, and another message
            one, two = ({"role": "assistant", "content": each} for each in actions[:2])
            return Reply(reward=reward, opening=Opening((first, one, asked("1"), two, asked("3"))))
        return Reply(reward=reward, done=True)

    return Task(
        "branches",
        lambda split, seed, index: generate.user_problem(
            "branches", str(index), str(index % 10), None
        ),
        unscored,
        alphabet=ALPHABET,
        pure=True,
        turns=Environment(begin, step),
    )


BRANCHED = PLAYED | {
    "task": f"{__name__}:branches", "steps": 2, "rollout.max_new_tokens": 40,
    "checkpoint.every": 1, "eval.problems": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run whose steps leave episodes in flight, and the completions that it trained on."""
    directory = tmp_path_factory.mktemp("branches") / "run"
    return directory, flights.trained(directory, **BRANCHED)


@pytest.mark.broad
@pytest.mark.exact("an episode that branches is trained as sampled in every context, to 1e-4")
def test_an_episode_that_branches_is_trained_as_it_was_sampled(played):
    """In every context, and under each of the versions that sampled it."""
    directory, found = played
    rows = list(metrics.read(directory))
    assert len(rows) == 2 and all(row["grad_norm"] > 0 for row in rows)
    assert rows[0]["logp_gap_max"] < 1e-4
    whole = [c for c in found if c.parent is not None]
    assert len(whole) > len(found) / 2 and {4} == {len(c.turn_rewards) for c in whole}
    model, _ = policy.describe(config := tiny.config(directory, **BRANCHED))
    on, versions = mesh.make(config.mesh), set()
    weights = [policy.restored(str(directory), model, on, step)[0] for step in range(2)]
    for c in whole[::5]:
        paths = list(flights.contexts(c))
        tokens = np.array([*c.request.prompt, *c.tokens.tolist()])
        # the summary follows the first message, and the last turn what the second wrote
        before = len(c.request.prompt) - 1 + np.arange(len(c.tokens))
        assert (c.parent != before).sum() == 2
        versions |= set(c.version[c.actions].tolist())
        for version in set(c.version[c.actions].tolist()):
            scores, _ = oracle.forward([tokens[p] for p in paths], weights[version], model)
            for path, each in zip(paths, scores, strict=True):
                at = path[-1] - len(c.request.prompt)
                if c.version[at] == version:
                    logp = oracle.distribution(each[len(path) - 2], c.request, ())
                    assert c.logp[at] == pytest.approx(logp[tokens[path[-1]]], abs=1e-4)
    assert len(versions) > 1
    logged = [json.loads(x) for x in (directory / "rollouts/000001.jsonl").read_text().splitlines()]
    assert any("parent" in row and len(row["parent"]) == len(row["tokens"]) for row in logged)


TOKENIZER = tokenizers.characters(generate.ASCII)
TALK = dialogue.of_model(TOKENIZER, ("user",), chat=False)


def turn(sample, text):
    """What comes of a request for a turn."""
    own = written([*TOKENIZER.encode(text), TALK.end])
    before = sample.request.prefix or EMPTY
    done = programs.join([before, own])
    return Completion(sample.request, *done[:4], True, done.source)


def test_reasoning_is_left_out_of_what_later_turns_read():
    """It is trained, in the context that it was written in."""
    task = dataclasses.replace(branches(), turns=Environment(None, None))
    rollout = RolloutConfig(max_new_tokens=99, max_prompt_tokens=9, strip_reasoning=True)
    ctx = programs.Context(rollout, 0, TOKENIZER, task, TALK)
    problem = task.problem("train", 0, 0)
    (request,) = programs.requests(ctx, problem, 0)[:1]
    play = episodes.episode(ctx, problem, request, 0)
    next(play)
    sample = play.send(Opening((asked("12"),)))
    play.send(turn(sample, "<think>3</think>4"))
    sample = play.send(Reply((asked("5"),), 0.0))
    assert sample.request.prompt == TALK.opening([asked("12"), asked("4"), asked("5")])
    play.send(turn(sample, "6"))
    sample = play.send(Reply((asked("7"),), 0.0))
    assert TOKENIZER.decode(sample.request.prefix.tokens.tolist()) == "6\n7\n"
    play.send(turn(sample, "8"))
    with pytest.raises(StopIteration) as ended:
        play.send(Reply(reward=1.0, done=True))
    c = ended.value.value.completion
    assert TOKENIZER.decode(c.tokens[c.actions].tolist()) == "<think>3</think>468"
    assert c.parent[np.flatnonzero(c.source == Source.OBSERVATION)[0]] == len(c.request.prompt) - 1
    assert c.turn.max() == 3 and len(c.turn_rewards) == 3


def written(ids):
    return forced(ids, Source.POLICY)


def test_a_conversation_that_is_returned_to_keeps_its_ids():
    """And one without earlier reasoning shares what precedes that."""
    encode = TOKENIZER.encode
    first = [asked("12")]
    made = Contexts(TALK.opening(first), first)
    own = [*encode("<3>4"), TALK.end]
    made.add(written(own))
    answer = {"role": "assistant", "content": "<3>4"}
    made.said(answer, ())
    short = {"role": "assistant", "content": "4"}
    stripped = made.encoded(TALK, [*first, short, asked("5")], ())
    assert stripped == TALK.opening([*first, short, asked("5")])
    assert not made.replace(stripped, [*first, short, asked("5")], (), made.length + 1)
    assert made.replace(stripped, [*first, short, asked("5")], (), 99)
    made.add(written([*encode("6"), TALK.end]))
    made.said({"role": "assistant", "content": "6"}, ())
    back = made.encoded(TALK, [*first, answer, asked("7")], ())
    joint = TALK.joint(own[-1], [asked("7")])
    assert back == (*TALK.opening(first), *own, *joint.more)
    assert made.encoded(TALK, [*first, answer, asked("7")], ({"name": "a"},)) != back
    assert made.replace(back, [*first, answer, asked("7")], (), 99)
    start = len(TALK.opening(first))
    new = [n for n in range(made.length) if made.parent[n] != start + n - 1]
    assert [int(made.parent[n]) for n in new] == [start - 1, start + len(own) - 1]
    request = made.request(Request(0, TALK.opening(first), 99))
    assert request.prompt == back and request.draw == 2 << 16
    assert request.max_new_tokens == 99 - made.length
    assert len(made.row.tokens) == made.length and made.row.source.dtype == EMPTY.source.dtype


@pytest.mark.sample(1)
@pytest.mark.exact("replayed episodes keep their turns and contexts, and resume bit for bit")
@pytest.mark.broad
@pytest.mark.parametrize("task", [f"{__name__}:branches", "tests.jaxrl.run.test_episodes:digits"])
def test_episodes_are_replayed_with_their_turns_and_contexts(task, tmp_path, monkeypatch):
    """Groups of earlier steps stand beside those of a step, whatever contexts they have."""
    changes = {"task": task, "steps": 3, "replay.groups": 2, "updates_per_batch": 2,
               "eval.problems": 4, "objective.advantage": "gigpo"}  # fmt: skip
    mixed, join = [], replay.joined

    def joined(*given):
        mixed.append(join(*given))
        return mixed[-1]

    monkeypatch.setattr(replay, "joined", joined)
    loop.train(tiny.config(tmp_path / "run", **BRANCHED | changes))
    own = len(mixed[0].tokens) - 2 * tiny.config(tmp_path).rollout.group_size
    known, replayed = set(), 0
    for batch in mixed:
        arrays = [batch.tokens, batch.extra["turn"], batch.extra["parent"]]
        rows = [b"".join(np.ascontiguousarray(a[n]).tobytes() for a in arrays)
                for n in range(len(batch.tokens))]  # fmt: skip
        real = [rows[n] for n in range(own, len(rows)) if batch.action_mask[n].any()]
        assert set(real) <= known
        replayed += len(real)
        known |= set(rows[:own])
    assert replayed and all(row["grad_norm"] > 0 for row in metrics.read(tmp_path / "run"))
    loop.train(tiny.config(tmp_path / "again", **BRANCHED | changes | {"steps": 2}))
    loop.train(tiny.config(tmp_path / "again", **BRANCHED | changes))
    again, straight = (tiny.artefacts(tmp_path / name) for name in ("again", "run"))
    assert again["arrays"] == straight["arrays"]
