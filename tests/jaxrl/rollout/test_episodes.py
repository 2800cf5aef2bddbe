"""Episodes under the driver: what comes of them depends on no order, and on no interruption."""

import dataclasses
import itertools
import json
import random
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply
from jaxrl.data.environments import play as play_module
from jaxrl.data.environments.tools import definition, formats
from jaxrl.data.environments.tools.calls import Call
from jaxrl.data.environments.wrappers import with_tools
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.sources import extract, generate
from jaxrl.data.text import dialogue, tokenizers
from jaxrl.data.types import Problem, Score, Task
from jaxrl.models import decoder
from jaxrl.record import checkpoint, values
from jaxrl.record.metrics import Timer
from jaxrl.rollout import collect, drive, engine, episodes, experience, flight, policy, programs
from jaxrl.rollout.drive import Drive, OpenGroups
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.flight import Flight, Weights
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import EMPTY, Act, Context, Grade, join
from jaxrl.rollout.schedule import Limits
from jaxrl.rollout.selection import Drawn
from jaxrl.sampling.requests import forced, limit_of
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Completion, Request, Source
from tests.data import test_environments
from tests.jaxrl import tiny
from tests.jaxrl.batches import MODEL
from tests.jaxrl.run.test_episode_families import LAYOUTS, write_tokenizer
from tests.jaxrl.run.test_episodes import ALPHABET, digits
from tests.models import byte_tokenizer

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
    talk = dialogue.of_model(TOKENIZER, ("user",), chat=False)
    # of the prefill, which is replaced
    setup = SimpleNamespace(rows=8, piece=16, models=(), sampler=SamplerConfig())
    rollout = RolloutConfig(8, SIZE, max_prompt_tokens=8, max_new_tokens=12, turn_tokens=3)

    def run(seed, enough, replies="together", wrap=lambda pool: pool, task=task, one=None):
        """`one`: the pool of all steps, as in a run that is not started again."""
        nonlocal order
        played = dataclasses.replace(rollout, replies=replies)
        order = random.Random(seed)
        open_groups = OpenGroups([], [Drawn(task.problem("train", 0, i)) for i in range(8)])
        open_groups.admit(8, SIZE)
        found, pending = {}, {}
        while open_groups.groups:
            pool = one or wrap(scoring.Pool(task, 0, 1.0, None, None))  # it remembers no episode
            sampler = Drive(
                episodes.group, Context(played, 0, TOKENIZER, task, talk),
                engine.Local(setup, None), pool, pending,
            )  # fmt: skip
            sampler.begin(open_groups.groups)
            drive.advance(
                sampler, version=0, timer=Timer(), enough=min(enough, len(open_groups.groups)),
                log=lambda done: None,
            )  # fmt: skip
            sampler.save_partial()
            pending = dict(sampler.pending.values()) if one else {}
            whole = [group for group in open_groups.groups if group.rows is not None][:enough]
            found |= {group.first_id: group.rows for group in whole}
            open_groups.groups = [g for g in open_groups.groups if g.first_id not in found]
            if one:
                continue
            text = json.dumps(flight.groups_to_state(open_groups), default=checkpoint.to_json)
            open_groups = flight.groups_from_state(
                json.loads(text, object_hook=checkpoint.from_json)
            )
        return [found[n] for n in sorted(found)]

    return run


def plain_row(row):
    return plain([[row]])


def plain(groups):
    return json.dumps(
        values.to_state([[tuple(r) for r in g] for g in groups]), default=np.ndarray.tolist
    )


def test_episodes_depend_on_no_order_and_no_interruption(play):
    whole = plain(play(0, enough=8))
    for seed in range(1, 6):
        assert plain(play(seed, enough=1 + seed % 3)) == whole
        assert plain(play(seed, enough=1 + seed % 3, replies="arrival")) == whole


def counting(states):
    """A task whose replies count the steps, take a while, and end the episode after the fourth."""

    def begin(problem, seed):
        states.append({"steps": 0, "closed": 0})
        return states[-1], Opening(({"role": "user", "content": problem.prompt},))

    def step(state, action):
        state["steps"] += 1
        number = state["steps"]
        time.sleep(0.02 * (random.Random(f"{number}{action}").random() < 0.4))
        said = {"role": "user", "content": str(number)}
        return Reply((said,), float(len(action)), done=number == 4)

    def close(state):
        state["closed"] += 1

    turns = Environment(begin, step, close=close, waits=True)
    return dataclasses.replace(digits(), turns=turns)


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("replies", ["together", "arrival"])
def test_a_reply_that_is_pending_between_steps_is_asked_for_once(replies, play):
    """In a run that goes on, whose pool remembers its episodes: no environment steps twice."""
    states = []
    task = counting(states)
    with scoring.Pool(task, 0, 10.0, None, None) as pool:
        whole = play(0, enough=8, task=task, one=pool)
    assert not any(row.score.error for rows in whole for row in rows)
    for seed in range(1, 5):
        states.clear()
        with scoring.Pool(task, 0, 10.0, None, None) as pool:
            rows = play(seed, enough=1 + seed % 3, replies=replies, task=task, one=pool)
        assert plain(rows) == plain(whole)
        assert len(states) == 8 * SIZE and all(state["closed"] == 1 for state in states)


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


def played_by(row):
    """What tells an episode from others: its opening, and its actions."""
    said = [m["content"] for m in row.messages]
    return said[0], tuple(said[1::2])


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("replies", ("together", "arrival"))
def test_environments_that_hang_cost_their_limit_once_a_turn_and_are_void(replies, play):
    """Those of one turn cost one limit together, and nothing else is lost."""
    whole = [row for group in play(0, enough=8) for row in group]
    first = [played_by(row) for row in whole if len(played_by(row)[1]) == 2]
    hangs = {(opening, actions[:1]) for opening, actions in first[:2]}
    hangs |= {(opening, actions) for opening, actions in first[-2:]}
    world = digits()

    def begin(problem, seed):
        state, opening = world.turns.begin(problem, seed)
        return (opening.messages[0]["content"], state), opening

    def step(state, action):
        opening, actions = state
        if (opening, (*actions, action)) in hangs:
            time.sleep(60)
        return world.turns.step(actions, action)

    slow = world.turns._replace(begin=begin, step=step, waits=True)
    start = time.monotonic()
    found = play(0, 8, replies, task=dataclasses.replace(world, turns=slow))
    assert time.monotonic() - start < 30  # the pool's limit is 1 s, the hang is 60
    lost = 0
    for row, as_before in zip((row for group in found for row in group), whole, strict=True):
        opening, actions = played_by(as_before)
        if {(opening, actions[:1]), (opening, actions)} & hangs:
            assert row.score.error == "timeout: no reply after 1 s"
            lost += 1
        else:
            assert plain_row(row) == plain_row(as_before)
    assert lost >= 4


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
    problems = [digits().problem("train", 0, 0)] * 8
    made = Experience(problems, completions, [], [row.score for row in rows], [])
    figures = experience.measure(made)
    whole = [row.completion for row in rows if row.score.error is None]
    assert figures["episode/errors"] == len(rows) - len(whole) > 0
    assert figures["episode/turns"] == np.mean([len(c.turn_rewards) for c in whole])
    assert figures["completion_length"] == np.mean([len(c.tokens) for c in whole])
    assert figures["completion_length_max"] == max(len(c.tokens) for c in whole)
    assert figures["truncated"] == np.mean([not c.stopped for c in whole])
    assert figures["tokens"] == sum(len(c.tokens) for c in completions)


def test_what_an_extension_adds_to_a_reward_is_earned_by_the_last_turn(play):
    """Of agent 0; episodes that are void, and answers of one turn, stay as they are."""
    rows = [row for group in play(0, enough=8) for row in group]
    completions = [row.completion for row in rows]
    completions[0] = dataclasses.replace(completions[0], turn=None, turn_rewards=())
    problems, scores = [digits().problem("train", 0, 0)] * 8, [row.score for row in rows]
    made = Experience(problems, completions, [], scores, [])
    assert experience.reconcile_turn_rewards(made, made) is made
    judged = [s if s.error else Score(s.value + 2.0, s.parts) for s in scores]
    got = experience.reconcile_turn_rewards(made, made._replace(scores=judged))
    assert got.scores == judged and got.completions[0] is completions[0]
    for old, new, score in zip(completions[1:], got.completions[1:], judged[1:], strict=True):
        if score.error:
            assert new is old
        else:
            assert sum(new.turn_rewards) == pytest.approx(score.value)
            assert new.turn_rewards[:-1] == old.turn_rewards[:-1]
    shared = dataclasses.replace(completions[1], turn_rewards=(0.0, 1.0), turn_agents=(0, 1))
    pair = Experience(problems[:1], [shared], [], [Score(0.0)], [])
    (got,) = experience.reconcile_turn_rewards(pair, pair._replace(scores=[Score(0.5)])).completions
    assert got.turn_rewards == (0.5, 1.0)


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
    batch = experience.to_trajectory(tiny.config(tmp_path))(made)
    assert np.bincount(batch.group_ids).tolist() == [SIZE] * 8
    valued = [0.0 if r.score.value is None else r.score.value for r in rows]
    assert np.asarray(batch.rewards).tolist() == pytest.approx(valued)
    assert np.asarray(batch.valid).tolist() == [r.score.error is None for r in rows]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(done=True), "gave no reward"),
        (Reply(reward=1e308, done=True, others={0: 1e308}), "come to inf"),
        (Reply(({"role": "user", "content": "é"},)), "alphabet"),
        (Reply(({"role": "user", "content": "\ud800"},)), "alphabet"),
        (Reply(opening=Opening(({"role": "user", "content": "2"},), error="lost")), "lost"),
    ],
)
def test_what_cannot_be_rewarded_or_read_voids_the_episode(reply, says):
    """Neither is ever a reward of 0."""
    task = digits()
    talk = dialogue.of_model(TOKENIZER, ("user",), chat=False)
    ctx = Context(
        RolloutConfig(1, 1, max_prompt_tokens=8, max_new_tokens=12), 0, TOKENIZER, task, talk
    )
    problem = task.problem("train", 0, 0)
    row = acted(ctx, problem, [task.turns.begin(problem, 0)[1], reply], ["1"])
    assert row.score.value is None and says in row.score.error
    assert len(row.completion.turn) == len(row.completion.tokens)


def test_turns_whose_rewards_come_to_1_are_an_episode_of_1():
    task = digits()
    talk = dialogue.of_model(TOKENIZER, ("user",), chat=False)
    rollout = RolloutConfig(1, 1, max_prompt_tokens=8, max_new_tokens=12)
    problem = task.problem("train", 0, 0)
    more = ({"role": "user", "content": "2"},)
    replies = [Reply(more, reward=0.6), Reply(more, reward=0.3), Reply(reward=0.1, done=True)]
    opening = task.turns.begin(problem, 0)[1]
    ctx = Context(rollout, 0, TOKENIZER, task, talk)
    row = acted(ctx, problem, [opening, *replies], ["1"] * 3)
    assert row.completion.turn_rewards == (0.6, 0.3, 0.1) and row.score.value == 1.0


@pytest.mark.parametrize("most", [0, 1, 2, 3, 9])
def test_an_episode_is_cut_off_after_so_many_turns(most):
    """What it has earned by then stays, and it has not ended by itself."""
    task = digits()
    talk = dialogue.of_model(TOKENIZER, ("user",), chat=False)
    rollout = RolloutConfig(1, 1, max_prompt_tokens=8, max_new_tokens=12, max_turns=most)
    problem = task.problem("train", 0, 0)
    more = ({"role": "user", "content": "2"},)
    replies = [Reply(more), Reply(more, reward=0.5), Reply(reward=0.5, done=True)]
    opening = task.turns.begin(problem, 0)[1]
    row = acted(Context(rollout, 0, TOKENIZER, task, talk), problem, [opening, *replies], ["1"] * 3)
    turns = min(most or 3, 3)
    assert row.completion.turn_rewards == (0.0, 0.5, 0.5)[:turns]
    assert row.score.value == (0.0, 0.5, 1.0)[turns - 1]
    assert row.completion.stopped == (turns == 3)


WAYS = ["continued", "anew", "without reasoning"]


def conversing(written):
    """A context in which conversations go on in one of `WAYS`."""
    backend = test_environments.of_bytes("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    template = test_environments.NO_THINKING if written == "anew" else test_environments.CHATML
    tokenizer = test_environments.with_template(backend, template)
    talk = dialogue.of_model(tokenizer, ("user",), chat=True)
    rollout = RolloutConfig(
        1, 1, max_prompt_tokens=900, max_new_tokens=4000, chat=True,
        strip_reasoning=written == "without reasoning",
    )  # fmt: skip
    return Context(rollout, 0, tokenizer, digits(), talk)


@pytest.mark.parametrize("written", WAYS)
def test_an_environment_hears_how_much_was_read_before_each_action(written):
    ctx, turns, prompts = conversing(written), [], []
    heard = ctx.task.turns._replace(reads=lambda state, written: None)
    ctx = ctx._replace(task=dataclasses.replace(ctx.task, turns=heard))
    problem = ctx.task.problem("train", 0, 0)

    def answering(reply):
        return lambda turn: turns.append(turn) or reply

    replies = [answering(Reply(({"role": "user", "content": "Go on."},), 0.0))] * 2
    answers = [ctx.task.turns.begin(problem, 0)[1], *replies, answering(Reply(done=True))]
    acted(ctx, problem, answers, ["<think>\nHm.\n</think>\n\nLeft."] * 3, prompts)
    assert [each.read for each in turns[-1].written] == [len(prompt) for prompt in prompts]
    assert len(prompts) == 3


@pytest.mark.parametrize("written", WAYS)
def test_the_state_of_a_turn_is_what_was_read_before_it(written):
    """However the conversation goes on, and whatever the policy said before."""
    ctx = conversing(written)
    task, problem = ctx.task, ctx.task.problem("train", 0, 0)

    def played(first, *seen):
        replies = [Reply(({"role": "user", "content": each},), 0.0) for each in seen]
        answers = [task.turns.begin(problem, 0)[1], *replies, Reply(reward=1.0, done=True)]
        return acted(ctx, problem, answers, [first, *["Go."] * len(seen)]).completion

    thought = "<think>\nHm.\n</think>\n\n" * (written == "without reasoning")
    rows = [played(thought + "Left.", "a room", "a hall"), played("Right.", "a room", "a door")]
    assert written == "continued" or rows[0].parent is not None
    length = max(len(c.request.prompt) + len(c.tokens) for c in rows)
    arrays = experience.turns(rows, (2, length))
    states = [[set(arrays["turn_state"][n, arrays["turn"][n] == k]) for k in (1, 2, 3)]
              for n in range(2)]  # fmt: skip
    assert all(len(each) == 1 for row in states for each in row)
    assert [one == two for one, two in zip(*states, strict=True)] == [True, True, False]


def test_turns_before_which_nothing_was_read_are_in_one_state_after_the_same_turns_alone():
    """As where the policy writes what it finds; otherwise all such turns would be one state."""
    ctx = conversing("continued")
    task, problem = ctx.task, ctx.task.problem("train", 0, 0)
    answers = [task.turns.begin(problem, 0)[1], Reply(), Reply(), Reply(reward=1.0, done=True)]
    rows = [acted(ctx, problem, answers, [*said, "End."]).completion for said in ("ab", "ac", "bb")]
    one, two, three = (row.turn_reads for row in rows)
    assert one[0] == two[0] == three[0] and one[1] == two[1] and one[2] != two[2]
    assert len({*one, *two, *three}) == 1 + 2 + 3


def acted(ctx, problem, answers, actions, prompts=None):
    """The row of an episode whose answers and actions are given; `prompts` gets what turns read."""
    (request,) = episodes.programs.requests(ctx, problem, 0)[:1]
    program, answers, actions = (
        episodes.episode(ctx, problem, request, 0),
        iter(answers),
        iter(actions),
    )
    wanted = next(program)
    try:
        while True:
            if isinstance(wanted, Act):
                answer = next(answers)
                wanted = program.send(answer(wanted.turn) if callable(answer) else answer)
                continue
            if isinstance(wanted, Grade):
                wanted = program.send(scoring.score_completion(ctx.task, problem, wanted.text))
                continue
            own = forced([*ctx.tokenizer.encode(next(actions)), ctx.dialogue.end], Source.POLICY)
            before = wanted.request.prefix or EMPTY
            if prompts is not None:
                prompts.append((*wanted.request.prompt, *before.tokens.tolist()))
            done = join([before, own])
            wanted = program.send(Completion(wanted.request, *done[:4], True, done.source))
    except StopIteration as ended:
        return ended.value


@pytest.fixture(scope="module")
def bytes_tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bytes")
    byte_tokenizer.write(directory)
    return tokenizers.load(directory)


@pytest.fixture(params=["characters", "lines", "chat"])
def repaired(request, bytes_tokenizer):
    """The task `repository` under a tokenizer of characters, or of bytes without and with chat."""
    task = tasks.get("repository")
    made = bytes_tokenizer
    if request.param == "characters":
        made = tokenizers.characters(generate.ASCII)
    rollout = RolloutConfig(
        1, 1, max_prompt_tokens=4000, max_new_tokens=4000, chat=request.param == "chat"
    )
    return Context(rollout, 0, made, task, dialogue.of_model(made, ("tool",), chat=rollout.chat))


def test_half_a_surrogate_pair_that_the_policy_writes_is_a_malformed_call(repaired):
    """It would else come back in what a tool gives, which no tokenizer encodes."""
    problem = repaired.task.problem("train", 0, 0)
    files = problem.metadata["files"]
    path, source = next(iter(files.items()))
    calls = [
        Call("edit", {"path": path, "old": source.splitlines()[0], "new": "\ud800"}),
        Call("read", {"path": "\udfff"}),
        Call("read", {"path": path}),
    ]
    state, opening = repaired.task.turns.begin(problem, 0)
    actions = [formats.write_call(call) for call in calls]
    replies = (repaired.task.turns.step(state, action) for action in actions)
    row = acted(
        repaired,
        problem,
        itertools.chain([opening], replies, [Reply(reward=1.0, done=True)]),
        [*actions, "1"],
    )
    assert row.score == Score(1.0)
    *edited, read = [m["content"] for m in row.messages if m["role"] == "tool"]
    assert all(said.startswith("error: a call is") for said in edited) and read == files[path]


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_half_a_surrogate_pair_that_an_environment_says_voids_the_episode(repaired, role):
    problem = repaired.task.problem("train", 0, 0)
    said = ({"role": role, "content": "a\ud800b"},)
    good = Opening(({"role": "user", "content": "x"},))
    row = acted(repaired, problem, [Opening(said)], [])
    assert row.score.error.startswith("opening: ") and not len(row.completion.tokens)
    for reply in (Reply(said), Reply(opening=Opening(said))):
        row = acted(repaired, problem, [good, reply], ["1"])
        assert row.score.error.startswith("observation: ")


@pytest.fixture(params=["at once", "as Reply.answer"])
def thinking(request, tmp_path):
    """The task `with_tools` under a template that begins a thought."""
    byte_tokenizer.write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(byte_tokenizer.THINKING)

    def reward(problem, completion):
        return Score(float(extract.last_number(completion) == str(problem.answer)))

    inner = dataclasses.replace(tasks.get("arithmetic"), reward=reward)
    make = [definition.tool(lambda: "noon", name="now")]
    world = with_tools.environment(
        inner, lambda seed: make, role="user", waits=request.param != "at once"
    )
    task = dataclasses.replace(inner, turns=world)
    made = tokenizers.load(tmp_path)
    rollout = RolloutConfig(1, 1, max_prompt_tokens=4000, max_new_tokens=4000, chat=True)
    return Context(rollout, 0, made, task, dialogue.of_model(made, ("user",), chat=True))


@pytest.mark.parametrize(
    ("written", "scored"),
    [
        ("<|channel|>analysis<|message|>2+2 is 5 or", ""),
        ("<|channel|>analysis<|message|>5?<|end|><|start|>assistant", ""),
        (
            "<|channel|>analysis<|message|>5?<|end|><|start|>assistant"
            "<|channel|>final<|message|>4<|return|>",
            "4",
        ),
        ("<|channel|>analysis<|message|>5?<|end|><|channel|>final<|message|>4, as", "4, as"),
        ("<|channel|>final<|message|>4<|return|>", "4"),
        ("4<|return|>", "4"),
        ("", ""),
    ],
)
def test_a_single_answer_in_harmony_is_its_final_message(written, scored):
    """What was thought before earns nothing."""
    backend = test_environments.of_bytes(*test_environments.HARMONY_TOKENS)
    made = tokenizers._assemble(
        backend, eos_ids=[backend.ids("<|return|>")], bos_id=None,
        template=test_environments.HARMONY, special={},
    )  # fmt: skip
    prompt, own = backend.encode("<|start|>assistant")[0], backend.encode(written)[0]
    done = SimpleNamespace(
        tokens=np.array(own, np.int32), request=SimpleNamespace(prompt=tuple(prompt))
    )
    ctx = Context(RolloutConfig(chat=True), 0, made, tasks.get("arithmetic"))
    grade = next(programs.graded(ctx, tasks.get("arithmetic").problem("train", 0, 0), done))
    assert grade.text == scored


@pytest.mark.parametrize("lead", ["", "<think>"])
def test_a_thought_calls_nothing_and_answers_nothing(thinking, lead):
    """Whether the template begins it or the policy: as in a task of one turn."""
    problem = thinking.task.problem("train", 0, 0)
    call, gold = formats.write_call(Call("now", {})), tasks.get("arithmetic").gold(problem)
    for text, value, calls in [
        (f"It is {gold}", 0.0, 0),
        (f"{call}{gold}", 0.0, 0),
        (f"It is 0{call}</think>{gold}", 1.0, 0),
        (f"It is {gold}</think>0", 0.0, 0),
        (f"Let me see.</think>{call}", 1.0, 1),
    ]:
        player = play_module.Player(thinking.task)
        then = [f"</think>{gold}"]
        row = acted(thinking, problem, itertools.repeat(player.answer), [lead + text, *then])
        assert (row.score.value, row.completion.tool_calls) == (value, calls), row
        said = next(m["content"] for m in row.messages if m["role"] == "assistant")
        assert said == f"<think>{lead + text}"
        assert extract.plain(said) == extract.plain(extract.thinking("<think>", lead + text))


@pytest.mark.parametrize("layout", ["hermes", "mistral"])
def test_reasoning_that_the_template_leaves_out_leads_to_a_branch(layout, tmp_path):
    """The policy then reads what the template makes of the conversation, its calls included."""
    template = write_tokenizer(tmp_path, LAYOUTS[layout])
    stripped = "{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
    template = template.replace("{{ m.content }}", stripped)
    (tmp_path / "chat_template.jinja").write_text(template)
    made = tokenizers.load(tmp_path)
    rollout = RolloutConfig(1, 1, max_prompt_tokens=4000, max_new_tokens=4000, chat=True)
    now = definition.tool(lambda: "noon", name="now", description="The time.")
    world = with_tools.environment(tasks.get("arithmetic"), lambda seed: [now])
    task = dataclasses.replace(tasks.get("arithmetic"), turns=world)
    ctx = Context(rollout, 0, made, task, dialogue.of_model(made, ("tool",), chat=True, tools=True))
    problem, player = task.problem("train", 0, 0), play_module.Player(task)
    call = formats.to_template_form(
        formats.of_template(template), formats.write_call(Call("now", {})), [now.schema], template
    )
    turn, prompts = f"<think>\nHm.\n</think>\n\n{call}", []
    row = acted(ctx, problem, itertools.repeat(player.answer), [turn, turn, call, "1"], prompts)
    own, result = {"role": "assistant", "content": call}, {"role": "tool", "content": "noon"}
    talk = [{"role": "user", "content": problem.prompt}]
    whole = []
    for _ in range(4):
        text = made.render(talk, [now.schema], add_generation_prompt=True).text
        whole.append(tuple(made.encode(text)))
        talk += [own, result]
    assert prompts == whole and row.score.value is not None
    assert len(set(row.completion.turn[row.completion.actions].tolist())) == 4
    branches = np.flatnonzero(
        row.completion.parent != len(prompts[0]) - 1 + np.arange(len(row.completion.tokens))
    )
    assert len(branches) == 2
    text = made.spelled(row.completion.tokens[row.completion.actions].tolist())
    assert text.count("Hm.") == 2


def sampled(slots, workers=0):
    """Twelve episodes of `keydoor` under a real sampler of so many slots, and its chunks."""
    task, key = tasks.get("keydoor", turns=5), jax.random.key(0)
    tokenizer = tokenizers.characters(task.alphabet)
    model = dataclasses.replace(MODEL, vocab_size=tokenizer.vocab_size)
    actor, params = Policy(model, {}, tokenizer), decoder.init(model, key)
    rollout = RolloutConfig(3, 4, max_prompt_tokens=16, max_new_tokens=56, turn_tokens=1)
    ctx = collect.context(rollout, 0, actor, task)
    layout = SamplerConfig(slots=slots, prefill_rows=4, bucket=32)
    setup = collect.sampler_setup(actor, rollout, layout, key, **collect.turns_of(ctx))
    groups = OpenGroups([], [Drawn(task.problem("train", 0, i)) for i in range(3)])
    groups.admit(3, 4)
    chunks = []
    with scoring.open_pool("keydoor", {"turns": 5}, workers=workers) as pool:
        sampler = Drive(episodes.group, ctx, engine.Local(setup, decoder.unstack(params)), pool)
        sampler.begin(groups.groups)
        drive.advance(sampler, enough=3, version=0, timer=Timer(), log=chunks.append)
    return [row for group in groups.groups for row in group.rows], chunks


@pytest.mark.broad
def test_episodes_whose_replies_are_known_at_once_keep_their_slots():
    """Fewer slots than episodes: the others wait, and no history is read again."""
    (whole, _), (rows, chunks) = sampled(slots=12), sampled(slots=6)
    others, again = sampled(slots=6, workers=1)  # whose replies come later
    said = [[row.completion.tokens.tolist() for row in each] for each in (whole, rows, others)]
    assert said[0] == said[1] == said[2]
    prompts = sum(len(row.completion.request.prompt) for row in rows[::4])
    assert prompts <= sum(chunk.read for chunk in chunks) <= 2 * prompts  # of groups apart
    assert sum(chunk.read for chunk in again) > 4 * prompts


@pytest.mark.parametrize("long_prompts", ["error", "drop"])
@pytest.mark.parametrize("opening", ["1", "1" * 100])
def test_of_an_episode_the_opening_alone_must_fit(opening, long_prompts):
    """The policy may never read the problem's prompt. One with a long opening is void."""
    begun = Opening(({"role": "user", "content": opening},))
    turns = Environment(
        lambda problem, seed: (None, begun), lambda *_: Reply(reward=1.0, done=True)
    )
    task = Task("t", lambda *_: Problem("0", "1" * 100, None), None, turns=turns, pure=True)
    rollout = RolloutConfig(
        1, 2, max_prompt_tokens=8, max_new_tokens=12, turn_tokens=3, long_prompts=long_prompts
    )
    problem = task.problem("train", 0, 0)
    policy.check_prompt(TOKENIZER, rollout, task, problem)
    keep = policy.keeps(TOKENIZER, rollout, task)
    assert (keep is None) == (long_prompts == "error") and (keep is None or keep(problem))
    single = dataclasses.replace(task, turns=None)
    if keep is not None:
        assert not policy.keeps(TOKENIZER, rollout, single)(problem)
    with pytest.raises(ValueError, match="its prompt has 100 tokens"):
        policy.check_prompt(TOKENIZER, rollout, single, problem)
    ctx = Context(rollout, 0, TOKENIZER, task, dialogue.of_model(TOKENIZER, ("user",), chat=False))
    play, player = episodes.group(ctx, problem, 4), play_module.Player(task)
    (first, second), rows = next(play).programs, []
    for episode in (first, second):
        given = None
        try:
            while True:
                wanted = episode.send(given)
                acts = isinstance(wanted, Act)
                given = player.answer(wanted.turn) if acts else written(wanted.request, 0)
        except StopIteration as ended:
            rows.append(ended.value)
    assert [row.completion.request.id for row in rows] == [4, 5]
    if len(opening) == 1:
        assert [row.score for row in rows] == [Score(1.0)] * 2
        assert rows[0].completion.request.prompt == tuple(ctx.dialogue.opening(begun.messages, ()))
        return
    assert all(row.score.error.startswith("opening: ") for row in rows)
    void = Experience(
        [problem], [r.completion for r in rows], ["", ""], [r.score for r in rows], []
    )
    made = experience.to_trajectory(Config())(void)
    assert not made.valid.any() and not made.action_mask.any() and made.tokens.shape[1] > 0


def endless(closed, wait):
    """A task whose episodes do not end, and begin once `wait` is set."""

    def begin(problem, seed):
        wait.wait(20)
        return problem.id, Opening(({"role": "user", "content": "1"},))

    turns = Environment(begin, lambda state, action: Reply(), close=closed.append)
    return Task("endless", lambda *_: None, lambda *_: None, turns=turns, pure=True)


@pytest.mark.parametrize(("waits", "answered"), [(False, True), (True, True), (True, False)])
def test_episodes_that_are_abandoned_are_closed_once(waits, answered):
    """Also those that have not been answered yet."""
    closed, wait = [], threading.Event()
    task = endless(closed, wait)
    task = dataclasses.replace(task, turns=task.turns._replace(waits=waits))
    if answered:
        wait.set()
    nothing = SimpleNamespace(  # a sampler that has come nowhere
        crowded=False, context=0, put=id, keep=id, unfinished=list
    )
    rollout = RolloutConfig(2, 2, max_prompt_tokens=8, max_new_tokens=12, turn_tokens=3)
    talk = dialogue.of_model(TOKENIZER, ("user",), chat=False)
    ctx = Context(rollout, 0, TOKENIZER, task, talk)
    with scoring.Pool(task, 0, 20.0, None, None) as pool:
        flight = Flight(
            Limits(2, None, 2, "finished"), 2, None,
            lambda weights, known: Drive(episodes.group, ctx, nothing, pool, known), pool.over,
        )  # fmt: skip
        flight.open.waiting = [Drawn(Problem(str(n), "1", None)) for n in range(2)]
        flight.start(Weights({}, None, 0, 0))
        flight.admit()
        drive = flight.drive
        assert sorted(name[0] for name, _ in drive.pending.values()) == [0, 0, 2, 2]
        if answered:
            drive.receive(drive.answers())
        assert not closed
        flight.abandon()
        wait.set()
        deadline = time.monotonic() + 10
        while len(closed) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(closed) == ["0", "0", "1", "1"]
    assert len(closed) == 4
