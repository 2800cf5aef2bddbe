"""Apps with a state, behind calls that only their documentation names, all in symbols.

What is judged is not an answer, but what the calls have changed: all that was asked for, and
nothing else. The calls of each app have other names in each problem, so a policy that does not
read the documentation can only guess them.
"""

from __future__ import annotations

import dataclasses
import random
import re

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

GOALS = ("set", "clear", "copy")
_APPS, _KEYS, _NAMES = "ABCD", "abcd", "pqrstu"
_DOCS, _CALL, _DONE = _STOPS = ("?", ";", ".")
_OK, _ERROR, _EMPTY = "+", "!", "-"
_CALLS = re.compile(r"([A-D])([p-u])([a-d])([0-9]?)")

State = dict[str, dict[str, str]]
"""What each app holds under each key; empty: nothing."""


@dataclasses.dataclass
class _World:
    state: State
    start: State
    """What it was at the beginning."""
    wanted: State
    """What it should be at the end."""
    names: dict[str, str]
    """Of each app, the names of its calls: to read, to write and to clear."""
    left: int
    """Turns that are left."""
    docs: int = 0
    failed: int = 0


def task(
    goals: str = "set,clear",
    ood_goals: str = "copy",
    apps: int = 3,
    keys: int = 3,
    turns: int = 8,
    sparse: bool = True,
) -> Task:
    """Changes to make in apps.

    `Aa=3` asks for 3 under the key a of the app A, `Aa-` for nothing there, and `Aa>Bb` for the
    same under b of B as under a of A. `A?` is answered with the names of A's calls, such as `tpr`:
    t reads, p writes and r clears. `Ata;` reads, `Apa3;` writes 3, and `Ara;` clears. `.` says that
    all is done. A call that cannot be run gives `!` and changes nothing.

    The tests of an episode are one for each change that was asked for, and one that nothing else
    has changed. They are run after `.`, or after the last turn.

    Args:
      goals: of train and test problems, apart by commas: set, clear, copy.
      ood_goals: of the ood split.
      apps: 2 to 4.
      keys: of each app, 2 to 4.
      turns: the most that an episode may have; a copy takes 5.
      sparse: the reward is 1 if all tests pass, else 0; otherwise the share that passes.
    """
    if not 2 <= apps <= len(_APPS):
        raise ValueError(f"apps={apps}: there are 2 to {len(_APPS)}")
    if not 2 <= keys <= len(_KEYS):
        raise ValueError(f"keys={keys}: an app has 2 to {len(_KEYS)}")
    if turns < 5:
        raise ValueError(f"turns={turns}: a copy takes 5; allow 5 or more")
    kinds = {"train": _kinds("goals", goals), "ood": _kinds("ood_goals", ood_goals)}

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)

        def draw(stream: random.Random) -> tuple[State, dict[str, str], str]:
            state = {
                a: {k: stream.choice("0123456789") for k in _KEYS[:keys]} for a in _APPS[:apps]
            }
            names = {app: "".join(stream.sample(_NAMES, 3)) for app in state}
            return (
                state,
                names,
                _goal(stream, stream.choice(kinds.get(split, kinds["train"])), state),
            )

        stream = generate.rng("apps", split, seed, index)
        state, names, goal = generate.draw(draw, key=repr, stream=stream, split=split)
        identity = repr((state, names, goal))
        return generate.user_problem("apps", identity, goal, "", state=state, names=names)

    def begin(problem: Problem, seed: int) -> tuple[_World, Opening]:
        start, names = problem.metadata["state"], problem.metadata["names"]
        world = _World(_copied(start), start, after(start, problem.prompt), names, turns)
        return world, Opening(({"role": "user", "content": problem.prompt},), _STOPS)

    def step(world: _World, action: str) -> Reply:
        world.left -= 1
        output = None if action == _DONE else ran(world, action)
        if action != _DONE and world.left:
            message = {"role": "user", "content": output or _ERROR}
            return Reply((message,), 0.0, figures(world), stop=_STOPS, calls=1)
        parts = figures(world)
        reward = parts["correct"] if sparse else parts["passed"]
        return Reply(reward=reward, parts=parts, done=True, calls=int(action != _DONE))

    task = Task(
        name="apps",
        problem=problem,
        reward=unscored,
        alphabet=f"{_APPS}{_KEYS}{_NAMES}0123456789=>{''.join(_STOPS)}{_OK}{_ERROR}{_EMPTY}\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=_gold),
    )
    return task


def after(state: State, goal: str) -> State:
    """The state that a goal asks for; the given one stays as it is."""
    target = _copied(state)
    app, key, how, *rest = goal
    match how:
        case "=":
            target[app][key] = rest[0]
        case ">":
            target[rest[0]][rest[1]] = state[app][key]
        case _:
            target[app][key] = ""
    return target


def ran(world: _World, action: str) -> str | None:
    """Run a call and count it.

    Returns:
      What it says; None where it cannot be run.
    """
    output = None
    if action[-1:] == _DOCS and action[:-1] in world.names:
        world.docs += 1
        output = world.names[action[:-1]]
    elif action[-1:] == _CALL and (call := _CALLS.fullmatch(action[:-1])):
        output = _called(world, *call.groups())
    world.failed += output is None
    return output


def figures(world: _World) -> dict[str, float]:
    """The parts of an episode's reward.

    `correct`: all tests pass; `passed`: the share that does; `collateral`: keys that have changed
    and were not to; `docs`: times that documentation was read; `failed`: calls that could not run.
    """
    places = [(app, key) for app in world.start for key in world.start[app]]
    goal_keys = [(a, k) for a, k in places if world.wanted[a][k] != world.start[a][k]]
    reached = sum(world.state[a][k] == world.wanted[a][k] for a, k in goal_keys)
    other_keys = [(a, k) for a, k in places if (a, k) not in goal_keys]
    collateral = sum(world.state[a][k] != world.start[a][k] for a, k in other_keys)
    passed = reached + (not collateral)
    tests = len(goal_keys) + 1
    return {
        "correct": float(passed == tests),
        "passed": passed / tests,
        "collateral": float(collateral),
        "docs": float(world.docs),
        "failed": float(world.failed),
    }


def _kinds(field: str, names: str) -> tuple[str, ...]:
    kinds = tuple(name.strip() for name in names.split(",") if name.strip())
    if not kinds or any(kind not in GOALS for kind in kinds):
        raise ValueError(f"{field}={names!r}: name some of {', '.join(GOALS)}, apart by commas")
    return kinds


def _goal(stream: random.Random, kind: str, state: State) -> str:
    """A goal that is not reached yet."""
    app, key = stream.choice(list(state)), stream.choice(list(state["A"]))
    if kind == "clear":
        return f"{app}{key}-"
    if kind == "set":
        other_digits = [digit for digit in "0123456789" if digit != state[app][key]]
        return f"{app}{key}={stream.choice(other_digits)}"
    places = [
        (a, k) for a in state for k in state[a] if a != app and state[a][k] != state[app][key]
    ]
    if not places:  # the same digit everywhere else
        return _goal(stream, "clear", state)
    return f"{app}{key}>{''.join(stream.choice(places))}"


def _called(world: _World, app: str, name: str, key: str, value: str) -> str | None:
    """What a call says; None where its app, name, key or number of arguments is wrong."""
    contents = world.state.get(app, {})
    kind = world.names.get(app, "").find(name)
    if key not in contents or kind < 0 or (kind == 1) != bool(value):
        return None
    if kind == 0:
        return contents[key] or _EMPTY
    contents[key] = value
    return _OK


def _gold(problem: Problem, seed: int) -> tuple[str, ...]:
    """The documentation of each app before it is called."""
    state, names = problem.metadata["state"], problem.metadata["names"]
    app, key, how, *rest = problem.prompt
    read, write, clear = names[app]
    first = f"{app}{_DOCS}"
    match how:
        case "=":
            calls = [first, f"{app}{write}{key}{rest[0]}{_CALL}"]
        case ">":
            to, under = rest
            calls = [first, f"{app}{read}{key}{_CALL}", f"{to}{_DOCS}"]
            calls.append(f"{to}{names[to][1]}{under}{state[app][key]}{_CALL}")
        case _:
            calls = [first, f"{app}{clear}{key}{_CALL}"]
    return (*calls, _DONE)


def _copied(state: State) -> State:
    return {app: dict(contents) for app, contents in state.items()}
