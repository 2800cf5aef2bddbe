"""Games that were played before the run, by scripted players, in place of the policy's own."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.data.environments import Opening
from jaxrl.data.types import Problem
from jaxrl.random_streams import GroupStream
from jaxrl.rollout import episodes, programs, tasks
from jaxrl.rollout.programs import Act, Context, Fork, Program, Row, Sample, Wanted
from jaxrl.run.extension import Extension
from jaxrl.sampling.requests import limit_of
from jaxrl.types import Request

Player = Callable[[str], str]
"""`what the environment showed last -> action`, in one game."""


@dataclasses.dataclass(frozen=True)
class LoggedConfig:
    """Who played the games, and how many there are."""

    player: str = ""
    """Function, as module:function, that is given `rng`, the random generator of a game, and gives
    its player: a function from what the environment showed last to an action."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    games: int = 16
    """Games in the log for each problem; a game is drawn as often as a step happens to draw it."""


def logged(settings: LoggedConfig) -> Extension:
    """Offline learning from games: rows are drawn from a fixed log, and the policy samples none.

    The tokens of the players are an expert's, and their rewards are those of the environment. A
    game is known by its problem and its number, so it is played again when it is drawn.
    """

    def check(config: Config) -> None:
        if not settings.player:
            raise ValueError(
                "logged.player is empty: name a function with --logged.player module:function, "
                "such as jaxrl.launch.recipes.game_agents.lmrl_gym:player"
            )
        functions.resolve(settings.player, settings.args, {"rng"})
        if settings.games < 1:
            raise ValueError(f"logged.games={settings.games}: have one game of a problem or more")
        tasks.require_turns(config, "logged", or_else=", or learn from a file")
        if config.rollout.on_device:
            raise ValueError(
                "logged with rollout.on_device: scripted players play on the host; set it to False"
            )

    return Extension(
        check=check, program=lambda program: recorded(settings), provides={"plays_turns": True}
    )


def recorded(settings: LoggedConfig) -> Program:
    """A group of games of a problem, drawn from its log with replacement."""
    make = functions.resolve(settings.player, settings.args, {"rng"})

    def program(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
        requests = programs.requests(ctx, problem, first_id)
        numbers = ctx.rng(first_id, GroupStream.LOGGED_GAMES).integers(
            settings.games, size=len(requests)
        )
        seed = zlib.crc32(problem.id.encode())
        games = []
        for request, number in zip(requests, numbers.tolist(), strict=True):
            rng = np.random.default_rng([seed, number])
            player = functions.call(make, settings.args, {"rng": rng})
            games.append(_game(ctx, problem, request, seed, player))
        return (yield Fork(games))

    return program


def _game(
    ctx: Context, problem: Problem, request: Request, seed: int, player: Player
) -> Generator[Wanted, Any, Row]:
    """An episode whose turns are the player's."""
    program, observation, tools = episodes.episode(ctx, problem, request, seed), "", ()
    operation = next(program)
    try:
        while True:
            if isinstance(operation, Sample):
                request, limit = operation.request, limit_of(operation.request)
                turn = programs.expert_turn(ctx, request, player(observation), tools, limit=limit)
                operation = program.send(turn)
                continue
            answer = yield operation
            if isinstance(operation, Act):
                opening = answer if isinstance(answer, Opening) else answer.opening
                messages = answer.messages if opening is None else opening.messages
                observation = messages[-1]["content"] if messages else observation
                tools = tools if opening is None else opening.tools
            operation = program.send(answer)
    except StopIteration as ended:
        return ended.value
