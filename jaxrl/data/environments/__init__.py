"""Environments: they reply to a policy that acts in turns.

An environment is two functions. `begin(problem, seed)` gives a state, which may be any object, and
the messages that open the conversation. `step(state, action)` changes the state and gives the reply
to one turn of the policy. `Task.turns` holds the environment of a task.

An episode is known by its problem, its seed and its actions: the same three must give the same
replies in any process. So an episode can be continued after a restart, and by another process, by
playing its actions again. All members of a group have the same seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.types import Problem, Score

MOST_AGENTS = 8
"""Of an episode."""

Message = Mapping[str, str]
"""`role` and `content`. The role is one of the environment's `roles`, and in an opening also
`system`, `user`, or `assistant`, for what is read as the policy's turns and not trained on."""


class Opening(NamedTuple):
    """How an episode begins."""

    messages: tuple[Message, ...] = ()
    stop: tuple[str, ...] = ()
    """The first turn ends with the first of these strings that it completes."""
    error: str | None = None
    """See `Reply.error`."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of what the policy may call, see `tools.Tool.schema`. The chat template shows
    them, or else a system message; `step` reads calls in one format, see `formats`."""
    agent: int = 0
    """Who takes the turns of this conversation, below `Environment.agents`. The policy plays all
    agents; each has rewards of its own."""


class Reply(NamedTuple):
    """The reply of an environment to a turn."""

    messages: tuple[Message, ...] = ()
    """What the policy reads before its next turn."""
    reward: float | None = None
    """Of this turn; None: the environment gives none for it. The reward of an episode is the sum
    over the turns of agent 0."""
    parts: Mapping[str, float] = {}
    """Named figures for the log; a later reply's replace an earlier one's."""
    done: bool = False
    """Whether the episode has ended."""
    error: str | None = None
    """`kind: explanation`: the episode is void. It is counted, and left out of every statistic."""
    stop: tuple[str, ...] = ()
    """The next turn ends with the first of these strings that it completes."""
    calls: int = 0
    """Calls of tools in the turn, malformed ones included."""
    answer: str | None = None
    """With `done`: a text that the task's `reward` judges, under the limits of the scoring pool.
    Its value is added to `reward`, and its parts to `parts`."""
    opening: Opening | None = None
    """Takes the place of the conversation so far: a summary of it, or the conversation of another
    agent. Its messages may be of any role, and it may continue an earlier conversation of the
    episode. With it, `messages` is empty."""
    others: Mapping[int, float] = {}
    """Rewards of other agents, each added to that of the last turn that the agent has taken."""


class Token(NamedTuple):
    """A token of an action."""

    id: int
    text: str
    """Empty for a special token."""
    logp: float
    """Nats, under the distribution that it was sampled from."""


class Written(NamedTuple):
    """How the policy wrote an action."""

    tokens: tuple[Token, ...]
    read: int
    """Tokens of the context that it was written in."""


class Arrays(NamedTuple):
    """An environment as pure functions of arrays, which are compiled into the decode loop.

    It is the same as one on the host, token for token, and knows the alphabet of a tokenizer.
    """

    begin: Callable[[Problem], Any]
    """`problem -> state`, a pytree of NumPy arrays, of equal shapes for all problems.

    Raises ValueError where the problem cannot be given as arrays."""
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]
    """`(state, tokens [A] int32, count) -> (state, observation [O] int32, its count, reward, done)`
    of one episode: the first `count` tokens are the turn, the one that ends it included. The
    observation is what follows the end of the turn, as `jaxrl.data.text.rendering.Joint.more`."""
    parts: Callable[[Any], Mapping[str, float]] = lambda state: {}
    """The figures that replies have given, the last of each name, from the last state."""


class Environment(NamedTuple):
    """The environment of a task's episodes."""

    begin: Callable[[Problem, int], tuple[Any, Opening]]
    """`(problem, seed) -> (state, opening)`."""
    step: Callable[[Any, str], Reply]
    """`(state, action) -> reply`; changes the state in place. The action is the text of a turn."""
    roles: tuple[str, ...] = ("user",)
    """Roles of the messages of its replies."""
    gold: Callable[[Problem, int], tuple[str, ...]] | None = None
    """`(problem, seed) -> actions` that earn the full reward: demonstrations for a supervised warm
    start."""
    close: Callable[[Any], None] = lambda state: None
    """Called once with the state of an episode that is over, or no longer remembered. A worker that
    is killed, as after a time-out, does not call it; what it has started is killed with it."""
    reads: Callable[[Any, Written], None] | None = None
    """`(state, written)`: given the tokens of each action before `step` gets its text; None: the
    environment needs the text alone."""
    arrays: Callable[[Any, Callable[[str], Sequence[int]]], Arrays] | None = None
    """`(array namespace, encode) -> Arrays`: the same environment for the decode loop, where the
    namespace is `jax.numpy`. Equal functions give equal programs."""
    tools: bool = False
    """Whether its openings may offer tools; a chat template is then proved with tools before a
    run, and not only with the first opening that does."""
    agents: int = 1
    """How many agents take turns, each in conversations of its own, see `Opening.agent`; at most
    `MOST_AGENTS`."""
    waits: bool = False
    """Whether its replies wait for other processes. Each is then asked on a thread of the process
    that trains, as many at once as there are episodes; of openings, as many as there are cores."""
    against: Callable[[int, Callable[[str, tuple[str, ...]], str]], Environment] | None = None
    """`(seat, ask) -> Environment`: a game of two, 1 and 2 in the order of their first moves, in
    which somebody else has this seat and the policy the other. `ask(what that player sees, the
    legal moves)` gives their move; a text that is none is asked for again. Without moves the game
    is over, and the text is not read. None: the environment is no game of seats."""
    seconds: Callable[[Problem, str], float] | None = None
    """`(problem, action) -> seconds` that its answer to an action may take, by limits that it keeps
    itself; of its opening, where the action is empty. An episode whose answer takes longer than
    that and 5 s, and longer than `score_seconds`, is void. None: it keeps no limits, and
    `Task.seconds` or `score_seconds` is the only one."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """Asks for the opening of an episode, or for the reply to the last of its actions."""

    episode: int
    """Names the episode among those of a run."""
    problem: Problem
    seed: int
    actions: tuple[str, ...] = ()
    said: tuple[Opening | Reply, ...] = ()
    """The opening and the replies to all actions but the last; an environment that is asked to
    continue an episode that it does not remember must give these again."""
    written: tuple[Written, ...] = ()
    """Each action, where `Environment.reads` asks for them."""


def unscored(problem: Problem, completion: str) -> Score:
    """The `Task.reward` of a task whose environment rewards its turns."""
    return Score(None, error="turns: this task is rewarded by its environment, turn by turn")
