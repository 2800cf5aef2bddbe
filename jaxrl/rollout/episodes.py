"""Episodes: the policy and an environment take turns until one of them has ended.

Each turn is a sample whose prefix is the conversation so far. So a turn is sampled under the
prompt, the turns and the observations that it is trained under, token for token. While the
environment answers, the sampler holds the turn's slot, and then prefills only the observation; see
`drive`. An environment may replace the conversation; the episode then continues in another
context, see `contexts`, and remains one row.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.data.environments import Message, Opening, Reply, Token, Turn, Written
from jaxrl.data.text import rendering
from jaxrl.data.types import Problem, Score, exact_sum, is_reward
from jaxrl.random_streams import GroupStream
from jaxrl.rollout import programs
from jaxrl.rollout.contexts import Contexts, cut, observed
from jaxrl.rollout.programs import (
    EMPTY,
    Act,
    Context,
    Fork,
    Grade,
    Row,
    Sample,
    Wanted,
    dialogue_of,
    join,
)
from jaxrl.sampling.requests import forced, parts
from jaxrl.types import Completion, Prefix, Request, Source


def group(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
    """The rows of a group: episodes if the problem's task has turns, else single answers.

    The environments of a group have the same seed, so its episodes differ only in what the policy
    samples.
    """
    if ctx.task.of(problem).turns is None:
        rows = yield from programs.single_turn(ctx, problem, first_id)
        return rows if ctx.dialogue is None else list(map(single, rows))
    seed = int(ctx.rng(first_id, GroupStream.ENVIRONMENTS).integers(1 << 31))
    requests = programs.requests(ctx, problem, first_id)
    play = episode if ctx.arrays is None else on_device
    return (yield Fork([play(ctx, problem, request, seed) for request in requests]))


def against(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
    """The rows of a group of matches of two agents, one of which an opponent plays.

    The policy is the same agent in all matches of a group, either of the two with equal chance.
    The sampler's parameters have the adapters of the policy in place `LEARNER`, and those of the
    opponent in place `OPPONENT`.
    """
    agent = int(ctx.rng(first_id, GroupStream.SEAT).integers(2))
    seed = int(ctx.rng(first_id, GroupStream.ENVIRONMENTS).integers(1 << 31))
    requests = programs.requests(ctx, problem, first_id)
    return (
        yield Fork(
            [
                episode(ctx, problem, dataclasses.replace(request, adapter=LEARNER), seed, agent)
                for request in requests
            ]
        )
    )


LEARNER, OPPONENT = 1, 2
"""Places of adapters, see `against`."""


@dataclasses.dataclass
class _Record:
    """An episode so far, but for its tokens."""

    messages: list[Message]
    agent: int
    """Who takes the next turn."""
    read: int
    """A digest of what is read just before it."""
    error: str | None
    learner: int | None = None
    """The agent that the policy plays, where an opponent plays the other, whose turns are observed;
    None: it plays all."""
    stopped: bool = False
    marks: list[int] = dataclasses.field(default_factory=list)
    """The turn of each token."""
    rewards: list[float | None] = dataclasses.field(default_factory=list)
    agents: list[int] = dataclasses.field(default_factory=list)
    reads: list[int] = dataclasses.field(default_factory=list)
    named: dict[str, float] = dataclasses.field(default_factory=dict)
    calls: int = 0

    @property
    def observes(self) -> bool:
        """Whether the opponent takes the next turn."""
        return self.learner is not None and self.agent != self.learner


def episode(
    ctx: Context, problem: Problem, request: Request, seed: int, learner: int | None = None
) -> Generator[Wanted, Any, Row]:
    """Play an episode as one row: the policy writes the turns, and the rest is forced or observed.

    Args:
      ctx: its dialogue is that of the task.
      problem: what the environment begins with.
      request: its prompt is replaced by the environment's opening; its budget is that of the whole
        episode.
      seed: of the environment.
      learner: the agent that the policy plays, see `_Record`.
    """
    play = Turn(request.id, problem, seed)
    opening: Opening = yield Act(play)
    last: Opening | Reply = opening
    messages = [*_system(ctx), *opening.messages]
    record = _Record(messages, opening.agent, _first(opening), opening.error, learner)
    try:
        if record.error is None:
            prompt = _prompt(ctx, messages, opening.tools)
            budget = ctx.rollout.turn_tokens
            request = dataclasses.replace(request, prompt=prompt, turn_tokens=budget)
    except ValueError as refused:
        record.error = f"opening: {refused}"
    contexts = Contexts(request.prompt, messages, opening.tools)
    turn_request = dataclasses.replace(request, prefix=None, stop=opening.stop)
    while record.error is None:
        if record.observes:
            turn_request = dataclasses.replace(turn_request, adapter=OPPONENT)
        completion = yield Sample(turn_request)
        if record.observes:
            completion = observed(completion, _given(turn_request))
        play = _taken(ctx, contexts, play, last, completion, turn_request)
        reply: Reply = yield Act(play)
        last, is_observed = reply, record.observes
        _answered(record, contexts, play, reply)
        if record.error is None and reply.answer is not None and not is_observed:
            score = yield Grade(problem, reply.answer)
            record.error, record.named = score.error, record.named | dict(score.parts)
            record.rewards[-1] = (reply.reward or 0.0) + (score.value or 0.0)
        record.error = record.error or _reward_others(record, reply.others)
        if record.error is not None or reply.done:
            record.stopped = record.error is None
            break
        if len(play.actions) == ctx.rollout.max_turns:
            break
        try:
            following = _following(ctx, contexts, record, request, turn_request, completion, reply)
        except ValueError as refused:
            record.error = f"observation: {refused}"
            break
        if following is None:
            break
        turn_request = following
    if record.error is None and learner is not None and not record.rewards:
        record.error = (
            "opponent: the match ended before the first turn of the policy, by its rules, "
            "rollout.max_turns or rollout.max_new_tokens"
        )
    count, rewards, parent = len(record.marks), record.rewards, contexts.parent
    row = cut(contexts.row, count)  # without what the opponent wrote after the last turn
    agent_rewards = [r for r, agent in zip(rewards, record.agents, strict=True) if agent == 0]
    return Row(
        _completion(request, row, None if parent is None else parent[:count], record),
        ctx.tokenizer.decode(row.tokens.tolist()),
        _score(record.error, record.stopped, agent_rewards, record.named),
        tuple(record.messages),
    )


def _system(ctx: Context) -> list[Message]:
    return [{"role": "system", "content": ctx.rollout.system}] if ctx.rollout.system else []


def _taken(
    ctx: Context,
    contexts: Contexts,
    play: Turn,
    last: Opening | Reply,
    completion: Completion,
    turn_request: Request,
) -> Turn:
    """Add a turn that was sampled to the context; what the environment is then asked.

    Args:
      ctx, contexts: of the episode.
      play: what the environment was asked before, to which `last` is its answer.
      last: see `play`.
      completion: the turn, after the prefix of its request.
      turn_request: its request.
    """
    count, done = _given(turn_request), parts(completion)
    tokens = done.tokens[count:].tolist()
    action = dialogue_of(ctx).action(contexts.end, tokens, contexts.conversation[1])
    piece = Prefix(*(array[count:] for array in done[:5]))
    if done.support is not None:
        piece = piece._replace(support=done.support[count:])
    contexts.add(piece)
    play = dataclasses.replace(play, actions=(*play.actions, action), said=(*play.said, last))
    turns = ctx.task.of(play.problem).turns
    if turns is None or turns.reads is None:
        return play
    spelled = (ctx.tokenizer.decode([token]) for token in tokens)
    heard = tuple(map(Token, tokens, spelled, completion.logp[count:].tolist()))
    turn_record = Written(heard, len(turn_request.prompt) + count)
    return dataclasses.replace(play, written=(*play.written, turn_record))


def _given(request: Request) -> int:
    """Tokens of the prefix of a request."""
    return 0 if request.prefix is None else len(request.prefix.tokens)


def _answered(record: _Record, contexts: Contexts, play: Turn, last: Reply) -> None:
    """Record a turn and the environment's answer to it; of an opponent, what was said alone."""
    if not record.observes:
        record.rewards.append(last.reward)
        record.marks += [len(record.rewards)] * (contexts.length - len(record.marks))
        record.agents.append(record.agent if record.learner is None else 0)
        record.reads.append(record.read)
        record.calls += last.calls
    if not record.observes or last.done:
        record.named |= last.parts
    record.error = last.error
    turn = {"role": "assistant", "content": play.actions[-1]}
    contexts.said(turn, last.messages)
    record.messages += [turn, *last.messages]
    record.read = _digest(last.messages or record.messages)


def _following(
    ctx: Context,
    contexts: Contexts,
    record: _Record,
    request: Request,
    turn_request: Request,
    completion: Completion,
    last: Reply,
) -> Request | None:
    """What asks for the next turn; None: the budget is spent, or the reply has an error.

    Args:
      ctx, contexts, record: of the episode.
      request: of the whole episode.
      turn_request, completion: of the turn before.
      last: the reply to it.

    Raises:
      ValueError: the reply cannot be encoded.
    """
    opening = _replaced(ctx, contexts, last, _system(ctx))
    if opening is not None:
        record.error = opening.error
        if record.error is not None:
            return None
        ids = contexts.encoded(dialogue_of(ctx), opening.messages, opening.tools)
        if not contexts.replace(ids, opening.messages, opening.tools, request.max_new_tokens):
            return None
        if last.opening is not None:
            record.messages += opening.messages
            record.agent, record.read = opening.agent, _digest(last.opening.messages)
        return dataclasses.replace(contexts.request(request), prefix=None, stop=opening.stop)
    last_token = int(completion.tokens[-1])
    boundary = dialogue_of(ctx).joint(last_token, last.messages, contexts.conversation[1])
    segments = [forced(boundary.close), forced(boundary.more, Source.OBSERVATION)]
    if contexts.length + sum(len(segment.tokens) for segment in segments) >= request.max_new_tokens:
        return None
    for segment in segments:
        contexts.add(segment)
    prefix = join([parts(completion), *segments])
    return dataclasses.replace(turn_request, prefix=prefix, stop=last.stop)


def _first(opening: Opening) -> int:
    """Of the opening, which is a state of its own: it is never the state of a later turn."""
    return _digest(({"role": "opening"}, *opening.messages))


def _digest(messages: Sequence[Message]) -> int:
    """Of what is read just before a turn; where that is nothing, of all that was said."""
    return zlib.crc32(json.dumps(messages).encode())


def _reward_others(record: _Record, other_rewards: Mapping[int, float]) -> str | None:
    """Add the rewards of other agents to their last turns; says what is wrong, or None."""
    agents, rewards = record.agents, record.rewards
    if record.learner is not None:
        share = other_rewards.get(record.learner) if agents else None
        other_rewards = {} if share is None else {0: share}
    for agent, value in other_rewards.items():
        if agent not in agents:
            return f"reward: agent {agent} is rewarded and has taken no turn"
        at = len(agents) - 1 - agents[::-1].index(agent)
        rewards[at] = (rewards[at] or 0.0) + value
    return None


def _replaced(
    ctx: Context, contexts: Contexts, last: Reply, system: Sequence[Message]
) -> Opening | None:
    """What takes the place of the conversation after a reply, which it includes; None: nothing.

    It is what the environment says, or the conversation as the template writes it anew, or without
    reasoning that the template leaves out, or that the config does: that of the last turn.
    """
    if last.opening is not None:
        return last.opening._replace(messages=(*system, *last.opening.messages))
    (messages, tools), dialogue = contexts.conversation, dialogue_of(ctx)
    kept_messages = list(dialogue.kept(messages, tools))
    at = len(messages) - len(last.messages) - 1
    if ctx.rollout.strip_reasoning and "</think>" in kept_messages[at]["content"]:
        kept_messages[at] = rendering.answer(kept_messages[at])
    same = kept_messages == messages and not dialogue.anew
    return None if same else Opening(tuple(kept_messages), last.stop, tools=tuple(tools))


def on_device(
    ctx: Context, problem: Problem, request: Request, seed: int
) -> Generator[Wanted, Any, Row]:
    """The same episode, played within the decode loop.

    Args: see `episode`.
    """
    arrays = ctx.arrays
    assert arrays is not None
    opening: Opening = yield Act(Turn(request.id, problem, seed))
    messages, error = list(opening.messages), opening.error
    try:
        if opening.stop or opening.agent:
            raise ValueError(
                f"stop={opening.stop}, agent={opening.agent}: within the decode loop nothing stops "
                "turns, and agent 0 takes them all; set rollout.on_device to False"
            )
        if error is None:
            prompt = _prompt(ctx, messages, opening.tools)
            state, budget = arrays.begin(problem), ctx.rollout.turn_tokens
            request = dataclasses.replace(request, prompt=prompt, turn_tokens=budget, world=state)
    except ValueError as refused:
        error = f"opening: {refused}"
    if error is not None:
        done = _completion(request, EMPTY, None, _Record(messages, 0, 0, error))
        return Row(done, "", Score(None, error=error), tuple(messages))
    completion: Completion = yield Sample(request)
    reads = list[int]()
    for number in range(1, len(completion.turn_rewards) + 1):
        observation, action = (
            ctx.tokenizer.decode(
                completion.tokens[
                    (completion.turn == number) & (completion.source == kind)
                ].tolist()
            )
            for kind in (Source.OBSERVATION, Source.POLICY)
        )
        user_messages = (
            ({"role": "user", "content": observation.strip("\n")},) if observation else ()
        )
        reads.append(_first(opening) if number == 1 else _digest(user_messages or messages))
        messages += [*user_messages, {"role": "assistant", "content": action.strip("\n")}]
    reward_parts = dict(arrays.parts(completion.world))
    completion = dataclasses.replace(
        completion,
        request=dataclasses.replace(request, world=None),
        world=None,
        turn_reads=tuple(reads),
    )
    text = ctx.tokenizer.decode(completion.tokens.tolist())
    return Row(
        completion,
        text,
        _score(None, completion.stopped, completion.turn_rewards, reward_parts),
        tuple(messages),
    )


def single(row: Row) -> Row:
    """A row of one turn, as an episode."""
    c, value = row.completion, row.score.value
    marks = np.ones(len(c.tokens), np.int16)
    completion = dataclasses.replace(c, turn=marks, turn_rewards=(0.0 if value is None else value,))
    return row._replace(completion=completion)


def _prompt(
    ctx: Context, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    ids = dialogue_of(ctx).opening(messages, tools)
    if len(ids) > ctx.rollout.max_prompt_tokens:
        raise ValueError(
            f"it has {len(ids)} tokens, more than rollout.max_prompt_tokens="
            f"{ctx.rollout.max_prompt_tokens}; raise the budget"
        )
    return ids


def _completion(
    request: Request, done: Prefix, parent: np.ndarray | None, record: _Record
) -> Completion:
    return Completion(
        request,
        *done[:4],
        record.stopped,
        done.source,
        turn=np.array(record.marks, np.int16),
        turn_rewards=tuple(reward or 0.0 for reward in record.rewards),
        turn_agents=tuple(record.agents) if any(record.agents) else (),
        turn_reads=tuple(record.reads),
        tool_calls=record.calls,
        parent=parent,
        support=done.support,
    )


def _score(
    error: str | None,
    stopped: bool,
    rewards: Sequence[float | None],
    reward_parts: dict[str, float],
) -> Score:
    """The sum of agent 0's rewards; an episode that ended without any has failed."""
    total = exact_sum(reward or 0.0 for reward in rewards)
    if error is None and stopped and all(reward is None for reward in rewards):
        error = "reward: the environment ended the episode and gave no reward for a turn of agent 0"
    if error is None and not is_reward(total):
        error = f"reward: the rewards of its turns come to {total}; give smaller ones"
    return Score(total, reward_parts) if error is None else Score(None, error=error)
