"""A text world of rooms in a row: fetch the key, carry it to the door, open the door."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl.data.environments import Arrays, Environment, Message, Opening, Reply, unscored
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

ACTIONS = ("left", "right", "take", "open")

HELP = (
    "You are in a row of numbered rooms. Fetch the key, then open the door. Answer with one word: "
    "left, right, take or open."
)


_HELD_OUT = 0.25  # of the worlds, which are few


@dataclasses.dataclass
class _World:
    room: int
    key: int
    door: int
    rooms: int
    left: int
    """Turns that are left."""
    held: bool = False
    words: bool = False
    credit: float = dataclasses.field(default=0.25, repr=False)  # repr decides the split
    think: bool = dataclasses.field(default=False, repr=False)

    def seen(self) -> str:
        """What the policy reads."""
        if self.words:
            return f"room {self.room} key {'held' if self.held else self.key} door {self.door}"
        return f"r{self.room}k{'h' if self.held else self.key}d{self.door}"


def task(
    level: int = 1,
    ood_level: int | None = None,
    turns: int = 0,
    instructions: bool = False,
    credit: float = 0.25,
    think: bool = False,
) -> Task:
    """Key-and-door worlds.

    Args:
      level: of train and test problems; a world has 2 + 2 level rooms.
      ood_level: of ood problems; None means one more than `level`.
      turns: the most that an episode may have; 0: two for each room, and four more.
      instructions: begin with a message that says what to do, for a model that can read it.
      credit: part of the reward of 1 that is for taking the key; the rest is for opening the door.
      think: a turn is two letters: a thought, which can be any and changes nothing, and the action.
    """
    ood_level = level + 1 if ood_level is None else ood_level
    if not 1 <= level < ood_level <= 100:
        raise ValueError(
            f"level={level}, ood_level={ood_level}: need 1 <= level < ood_level <= 100"
        )
    if turns < 0:
        raise ValueError(f"turns={turns} must be 0 (chosen by the level) or more")
    if not 0 <= credit <= 1:
        raise ValueError(f"credit={credit} is a part of the reward, from 0 to 1")

    if think and instructions:
        raise ValueError("think=True and instructions=True: thoughts are letters; turn one off")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        rooms = 2 + 2 * (ood_level if split == "ood" else level)

        def draw(stream: random.Random) -> _World:
            key, door = stream.sample(range(rooms), 2)
            limit = turns or 2 * rooms + 4
            room = stream.randrange(rooms)
            return _World(room, key, door, rooms, limit, False, instructions, credit, think)

        stream = generate.rng("keydoor", split, seed, index)
        world = generate.draw(draw, key=repr, stream=stream, split=split, share=_HELD_OUT)
        return generate.user_problem(
            "keydoor", repr(world), world.seen(), "open", world=dataclasses.asdict(world)
        )

    def begin(problem: Problem, seed: int) -> tuple[_World, Opening]:
        world = _World(**problem.metadata["world"])
        lead: tuple[Message, ...] = ({"role": "system", "content": HELP},) if instructions else ()
        return world, Opening((*lead, {"role": "user", "content": world.seen()}))

    task = Task(
        name="keydoor",
        problem=problem,
        reward=unscored,
        alphabet="lrtokdh0123456789\n" if not instructions else generate.ASCII,
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold, arrays=arrays),
    )
    return task


def gold(problem: Problem, seed: int) -> tuple[str, ...]:
    """The shortest way, as first letters; a thought is `k` on the way to the key, then `d`."""
    world = problem.metadata["world"]
    path = (world["room"], world["key"], world["door"])
    to_key, to_door = (("r" if a < b else "l") * abs(a - b) for a, b in itertools.pairwise(path))
    if world["think"]:
        return (
            *(f"k{action}" for action in f"{to_key}t"),
            *(f"d{action}" for action in f"{to_door}o"),
        )
    return (*to_key, "t", *to_door, "o")


def step(world: _World, action: str) -> Reply:
    """One action: a word of `ACTIONS` or its first letter; after a letter of thought, if asked for.

    Taking the key earns the world's credit, and opening the door the rest of 1.
    """
    word = extract.spoken(action).strip().lower()
    if world.think:
        word = word[1:] if len(word) == 2 else ""
    matches = {name: word in (name, name[0]) for name in ACTIONS}
    world.left -= 1
    reward = 0.0
    if matches["left"]:
        world.room = max(0, world.room - 1)
    elif matches["right"]:
        world.room = min(world.rooms - 1, world.room + 1)
    elif matches["take"] and world.room == world.key and not world.held:
        world.held, reward = True, world.credit
    opened = matches["open"] and world.held and world.room == world.door
    reward += (1 - world.credit) * opened
    parts = {"key": float(world.held), "door": float(opened)}
    if opened or not world.left:
        return Reply(reward=reward, parts=parts, done=True)
    refused = "no such action\n" if world.words and not any(matches.values()) else ""
    observation = refused + world.seen()
    return Reply(({"role": "user", "content": observation},), reward, parts)


def arrays(xp: Any, encode: Callable[[str], Sequence[int]]) -> Arrays:
    """The same worlds for the decode loop, in symbols and with at most ten rooms.

    Args:
      xp: the array namespace.
      encode: of a tokenizer of characters.
    """
    letters = "lrtokdh0123456789"
    letter_ids = xp.asarray([encode(letter)[0] for letter in letters])
    digits, line = letter_ids[7:], encode("\n")[0]
    r, k, d, h = (encode(letter)[0] for letter in "rkdh")

    def begin(problem: Problem) -> dict[str, np.ndarray]:
        world = problem.metadata["world"]
        if world["words"] or world["rooms"] > 10:
            raise ValueError(
                f"level and instructions: a world of {world['rooms']} rooms, described in "
                f"{'words' if world['words'] else 'symbols'}, is not given as arrays; have at most "
                "10 rooms and instructions=False"
            )
        names = ("room", "key", "door", "rooms", "left", "held", "think")
        state = {name: np.array(world[name], np.int32) for name in names}
        credit = np.array(world["credit"], np.float32)
        return state | {"opened": np.array(0, np.int32), "credit": credit}

    def act(state: dict[str, Any], tokens: Any, count: Any) -> tuple[Any, Any, Any, Any, Any]:
        spelled = (xp.arange(tokens.shape[0]) < count) & xp.any(
            tokens[:, None] == letter_ids, axis=1
        )
        letter = xp.sum(xp.where(spelled, tokens, 0)) * (xp.sum(spelled) == 1)
        follows = spelled[1:] & spelled[:-1]
        second = xp.sum(xp.where(follows, tokens[1:], 0)) * (xp.sum(spelled) == 2)
        letter = xp.where(state["think"] == 1, second, letter)
        left, right, take, unlock = (letter == letter_ids[i] for i in range(4))
        room = state["room"] + right.astype("int32") - left.astype("int32")
        room = xp.clip(room, 0, state["rooms"] - 1)
        takes_key = take & (room == state["key"]) & (state["held"] == 0)
        holds_key = state["held"] | takes_key.astype("int32")
        opened = unlock & (holds_key == 1) & (room == state["door"])
        over = opened | (state["left"] <= 1)
        after = {**state, "room": room, "held": holds_key, "left": state["left"] - 1}
        after["opened"] = opened.astype("int32")
        key = xp.where(holds_key == 1, h, digits[state["key"]])
        symbols = [line, r, digits[room], k, key, d, digits[state["door"]], line]
        observation = xp.stack([xp.asarray(symbol, dtype="int32") for symbol in symbols])
        credit = state["credit"]
        return after, observation, 8, credit * takes_key + (1 - credit) * opened, over

    def parts(state: dict[str, Any]) -> dict[str, float]:
        return {"key": float(state["held"]), "door": float(state["opened"])}

    return Arrays(begin, act, parts)
