"""Episodes under the driver: what comes of them depends on no order, and on no interruption."""

import dataclasses
import json
import random
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl.config import RolloutConfig
from jaxrl.data import dialogue, scoring, tokenizers
from jaxrl.data.environments import Reply, Turn
from jaxrl.record import checkpoint
from jaxrl.record.metrics import Timer
from jaxrl.rollout import driver, engine, episodes, experience, state
from jaxrl.rollout.driver import OpenGroups
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.programs import Context
from jaxrl.rollout.selection import Drawn
from jaxrl.sampling.requests import limit_of
from jaxrl.types import Completion, Request, Source
from tests.jaxrl import tiny
from tests.jaxrl.run.test_episodes import ALPHABET, digits

SIZE = 3
TOKENIZER = tokenizers.characters(ALPHABET)


def written(request, version):
    """A completion whose tokens depend on the request's id and their positions alone."""
    p = request.prefix
    tokens = [] if p is None else p.tokens.tolist()
    given = len(tokens)
    while len(tokens) < limit_of(request) - len(request.prompt):
        draw = random.Random(f"{request.id}/{len(tokens)}").random()
        tokens.append(0 if draw < 0.3 else int(draw * 30) % len(ALPHABET) + 1)
        if tokens[-1] == 0:
            break

    def column(name, value, kind):
        old = [] if p is None else getattr(p, name).tolist()
        return np.array(old + [value] * (len(tokens) - given), kind)

    return Completion(
        request, np.array(tokens, np.int32), column("logp", -1.0, "f4"),
        column("entropy", 1.0, "f4"), column("version", version, "i4"), tokens[-1] == 0,
        column("source", Source.POLICY, "i1"),
    )  # fmt: skip


@pytest.fixture
def play(monkeypatch):
    """`(order, enough) -> rows by group`: eight groups, kept as JSON between calls of `advance`."""
    order = None

    def advance(setup, params, work, version):
        waiting = list(work.queue)
        order.shuffle(waiting)
        work.queue.clear()
        work.queue.extend(waiting[2:])
        return [written(request, version) for request in waiting[:2]]

    def unfinished(setup, work):
        """Of some, the first token of the turn has been sampled."""
        out = []
        for request in work.queue:
            c = written(request, 0)
            count = (len(request.prefix.tokens) if request.prefix else 0) + order.randrange(2)
            if count < len(c.tokens):
                arrays = {
                    name: getattr(c, name)[:count]
                    for name in ("tokens", "logp", "entropy", "version", "source")
                }
                out.append(dataclasses.replace(c, **arrays, stopped=False, finished=False))
        return out

    monkeypatch.setattr(engine.sampler, "advance", advance)
    monkeypatch.setattr(engine.sampler, "unfinished", unfinished)
    monkeypatch.setattr(engine.sampler, "submit", lambda setup, work, new: work.queue.extend(new))
    task = digits()
    talk = dialogue.of(TOKENIZER, ("user",), chat=False)
    setup = SimpleNamespace(rows=8, piece=16)  # of the prefill, which is replaced
    rollout = RolloutConfig(8, SIZE, max_prompt_tokens=8, max_new_tokens=12, turn_tokens=3)

    def run(seed, enough, replies="together", wrap=lambda pool: pool):
        nonlocal order
        played = dataclasses.replace(rollout, replies=replies)
        order = random.Random(seed)
        open_groups = OpenGroups([], [Drawn(task.problem("train", 0, i)) for i in range(8)])
        driver.admit(open_groups, 8, SIZE)
        found = {}
        while open_groups.groups:
            pool = wrap(scoring.Pool(task, 0, 1.0, None, None))  # it remembers no episode
            driver.advance(
                open_groups, episodes.group, Context(played, 0, TOKENIZER, task, talk),
                engine.Local(setup, None), pool, version=0, timer=Timer(),
                enough=min(enough, len(open_groups.groups)), log=lambda done: None,
            )  # fmt: skip
            whole = [group for group in open_groups.groups if group.rows is not None][:enough]
            found |= {group.first_id: group.rows for group in whole}
            open_groups.groups = [g for g in open_groups.groups if g.first_id not in found]
            text = json.dumps(driver.to_state(open_groups), default=checkpoint.to_json)
            open_groups = driver.from_state(json.loads(text, object_hook=checkpoint.from_json))
        return [found[n] for n in sorted(found)]

    return run


def plain(groups):
    return json.dumps(
        state.to_state([[tuple(r) for r in g] for g in groups]), default=np.ndarray.tolist
    )


def test_episodes_depend_on_no_order_and_no_interruption(play):
    whole = plain(play(0, enough=8))
    for seed in range(1, 6):
        assert plain(play(seed, enough=1 + seed % 3)) == whole
        assert plain(play(seed, enough=1 + seed % 3, replies="arrival")) == whole


class Late:
    """Answers the first action of one episode only once another is at its second."""

    def __init__(self, pool):
        self.pool, self.over, self.waiting = pool, pool.over, None

    def act(self, turn):
        if turn.episode == 0 and len(turn.actions) == 1:
            self.waiting = Future(), turn
            return self.waiting[0]
        if self.waiting and len(turn.actions) == 2:
            (future, late), self.waiting = self.waiting, None
            future.set_result(self.pool.act(late).result())
        return self.pool.act(turn)


def test_an_episode_whose_environment_is_slow_stalls_no_other(play):
    whole = plain(play(0, enough=8))
    assert plain(play(1, enough=8, replies="arrival", wrap=Late)) == whole


def test_rows_say_what_was_whose(play):
    groups = play(0, enough=8)
    rows = [row for group in groups for row in group]
    errors = [row for row in rows if row.score.error]
    assert 0 < len(errors) < len(rows)
    assert all(row.score.value is None for row in errors)
    prompts = [{row.completion.request.prompt for row in group} for group in groups]
    assert all(len(each) == 1 for each in prompts)  # the opening shows the seed
    assert len(set.union(*prompts)) == len(groups)
    cut = 0
    for row in rows:
        c = row.completion
        own = c.source == Source.POLICY
        turns = [c.tokens[own & (c.turn == k)].tolist() for k in range(1, max(c.turn) + 1)]
        said = [m["content"] for m in row.messages if m["role"] == "assistant"]
        assert [TOKENIZER.decode(turn) for turn in turns] == said
        assert len(c.turn_rewards) == len(turns) and all(0 < len(t) <= 3 for t in turns)
        forced = c.tokens[c.source == Source.FORCED].tolist()
        assert forced == [0] * len(forced)  # ends a turn that was cut off
        cut += len(forced)
        assert len(forced) == sum(turn[-1] != 0 for turn in turns[:-1])
        if not row.score.error:
            assert row.score.value == pytest.approx(sum(c.turn_rewards))
            seen = c.tokens[c.source == Source.OBSERVATION].tolist()
            assert TOKENIZER.decode(seen) == "\n1\n"
    assert cut


def test_turns_become_arrays(play):
    rows = [row for group in play(0, enough=8) for row in group]
    completions = [row.completion for row in rows]
    arrays = experience.turns(completions, (len(rows), 24))
    for n, c in enumerate(completions):
        start = len(c.request.prompt)
        assert arrays["turn"][n, start : start + len(c.tokens)].tolist() == c.turn.tolist()
        assert not arrays["turn"][n, :start].any()
        at = np.flatnonzero(arrays["turn_rewards"][n])
        assert arrays["turn_rewards"][n].sum() == pytest.approx(sum(c.turn_rewards))
        assert all(c.source[i - start] == Source.POLICY for i in at)
    problems = [group[0] for group in [[Reply()]] * 8]
    made = Experience(problems, completions, [], [row.score for row in rows], [])
    figures = experience._episodes(made)
    assert figures["episode/errors"] == sum(row.score.error is not None for row in rows)
    assert figures["episode/turns"] == np.mean([len(c.turn_rewards) for c in completions])


def test_a_turn_that_takes_the_place_of_another_was_taken_in_its_state():
    """Three tries of the second turn: each continues the observation that the first try read."""
    source = np.array([0, 2, 0, 0, 0, 2, 0], np.int8)
    c = Completion(
        Request(0, (5, 6), 9), np.array([1, 7, 2, 3, 4, 8, 9], np.int32), *np.zeros((3, 7)), True,
        source=source, turn=np.array([1, 2, 2, 3, 4, 5, 5], np.int16), turn_rewards=(0.0,) * 5,
        parent=np.array([1, 2, 3, 3, 3, 6, 7], np.int32),
    )  # fmt: skip
    assert (Source.POLICY, Source.OBSERVATION) == (0, 2)
    state = experience.turns([c], (1, 9))["turn_state"][0, 2:]
    one, two, other = state[0], state[1], state[5]
    assert state.tolist() == [one, two, two, two, two, other, other]
    assert len({one, two, other}) == 3


def test_an_episode_counts_once_however_many_turns_it_has(play, tmp_path):
    """In its group's statistics, and as one sequence of the update: no turn is a sample."""
    groups = play(0, enough=8)
    rows = [row for group in groups for row in group]
    count = [len(row.completion.turn_rewards) for row in rows]
    assert {1, 2} == set(count) and len({row.completion.request.id for row in rows}) == len(rows)
    problems = [Drawn(None)] * 8
    texts = [row.text for row in rows]
    made = Experience(problems, [r.completion for r in rows], texts, [r.score for r in rows], [])
    batch = experience.as_trajectory(made, tiny.config(tmp_path))
    assert np.bincount(batch.group_ids).tolist() == [SIZE] * 8
    valued = [0.0 if r.score.value is None else r.score.value for r in rows]
    assert np.asarray(batch.rewards).tolist() == pytest.approx(valued)
    assert np.asarray(batch.valid).tolist() == [r.score.error is None for r in rows]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(done=True), "gave no reward"),
        (Reply(({"role": "user", "content": "é"},)), "alphabet"),
    ],
)
def test_what_cannot_be_rewarded_or_read_voids_the_episode(reply, says):
    """Neither is ever a reward of 0."""
    task = digits()
    request = episodes.programs.requests(
        ctx := Context(
            RolloutConfig(1, 1, max_prompt_tokens=8, max_new_tokens=12), 0, TOKENIZER, task,
            dialogue.of(TOKENIZER, ("user",), chat=False),
        ),
        problem := task.problem("train", 0, 0),
        0,
    )[0]  # fmt: skip
    program = episodes.episode(ctx, problem, request, 0)
    asked = next(program)
    assert asked.turn == Turn(0, problem, 0)
    sample = program.send(task.turns.begin(problem, 0)[1])
    program.send(written(sample.request, 0))
    with pytest.raises(StopIteration) as ended:
        program.send(reply)
    row = ended.value.value
    assert row.score.value is None and says in row.score.error
