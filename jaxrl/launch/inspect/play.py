"""Episodes for `jaxrl sample --env`: a policy plays the problems of a task's test split."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from rich.console import Console

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import Opening, Reply, Turn
from jaxrl.data.scoring.pool import Pool, open_pool
from jaxrl.data.types import Task
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.inspect.sample import DEFAULT_TOKENS, SampleConfig
from jaxrl.launch.streams import say
from jaxrl.record import account
from jaxrl.record.metrics import Timer
from jaxrl.rollout import collect, drive, episodes, policy, rollout_log
from jaxrl.rollout.drive import OpenGroups
from jaxrl.rollout.engine import Local
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Row
from jaxrl.rollout.selection import Drawn
from jaxrl.run import evaluate

_LONGEST_OPENING = 2048  # tokens


def resolve(name: str, config: SampleConfig) -> Config:
    """The run's config, or the defaults for a model, with what the flags override.

    Args:
      name: of a run, a model or its directory.
      config: the flags.

    Raises:
      ValueError: the run's config names functions of others, which are not trusted.
    """
    run_config = Config(rollout=RolloutConfig(max_new_tokens=DEFAULT_TOKENS))
    if policy.is_run(name):
        run_config = account.config(name, None if config.trust else policy.named_functions(config))
    args = config.env_args
    if run_config.task == config.env:
        args = run_config.task_args | args
    fields = (
        "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "turn_tokens", "chat", "system",
    )  # fmt: skip
    overrides = {field: getattr(config, field) for field in fields}
    overrides = {field: value for field, value in overrides.items() if value is not None}
    overrides |= {"group_size": 1, "on_device": False, "support": "full"}  # nothing is trained
    rollout = dataclasses.replace(run_config.rollout, **overrides)
    return dataclasses.replace(
        run_config, task=config.env, task_args=args, domains={}, rollout=rollout
    )


def main(actor: Policy, config: SampleConfig, played: Config) -> int:
    """Print the episodes, as text or as JSON; see `described`.

    Args:
      actor: who plays.
      config: the flags.
      played: of `resolve`.

    Raises:
      ValueError: the task has no environment, or the model cannot play it.
    """
    rows = play(actor, config, played)
    if config.json:
        print(json.dumps({"episodes": [described(row) for row in rows]}))
        return 0
    show(rows, PlainConsole())
    return 0


def show(rows: Sequence[Row], console: Console) -> None:
    """Print episodes: how each ended, and its messages."""
    for i, row in enumerate(rows, 1):
        failed = row.score.value is None
        ended = row.score.error if failed else f"reward {row.score.value:g}"
        console.rule(as_text(f"episode {i}: {ended}"))
        for message in row.messages:
            console.print(as_text(f"{message['role']}: {message['content']}", lines=True))


def play(actor: Policy, config: SampleConfig, played: Config) -> list[Row]:
    """One episode of each of the first problems of the task's test split.

    With `config.seat`, standard input has the moves of the other player.

    Raises:
      ValueError: the task has no environment, or the model cannot play it.
    """
    if config.episodes < 1:
        raise ValueError(f"episodes={config.episodes}: must be 1 or more")
    task = _task(config)
    if config.seat:
        world = task.turns.against(config.seat, _asked)
        task = dataclasses.replace(task, turns=world)
    room = min(_LONGEST_OPENING, actor.model.max_positions - played.rollout.max_new_tokens)
    rollout = dataclasses.replace(played.rollout, max_prompt_tokens=max(room, 1))
    ctx = collect.context(rollout, config.seed, actor, task)
    problems = evaluate.problems(task, "test", config.episodes)
    open_groups = OpenGroups(waiting=[Drawn(problem) for problem in problems])
    open_groups.admit(len(problems), 1)
    setup = collect.sampler_setup(
        actor, rollout, Config().sampler, jax.random.key(config.seed), turns=True,
        matchers=ctx.matchers,
    )  # fmt: skip
    params = policy.sampling_params(actor.params, "float32")
    with _pool(config, task, played) as pool:
        sampler = drive.Drive(episodes.group, ctx, Local(setup, params), pool)
        sampler.begin(open_groups.groups)
        drive.advance(
            sampler, enough=len(problems), version=0, timer=Timer(), log=lambda done: None
        )
    return [row for group in open_groups.groups for row in group.rows]


def _pool(config: SampleConfig, task: Task, played: Config) -> Pool:
    """What plays the task: in this process where a person does too, who may take their time."""
    if config.seat:
        return Pool(task, 0, sys.maxsize, None, None)
    return open_pool(
        config.env,
        config.env_args,
        workers=0,
        time_limit_s=played.score_seconds,
        memory_limit_mb=played.score_memory_mb,
        allow_weak=played.sandbox.allow_weak or config.allow_weak,
    )


def _asked(observation: str, moves: tuple[str, ...]) -> str:
    """A move of the person at standard input; what they see goes to the standard error output."""
    say(observation, error=True)
    if not moves:
        return ""
    say(f"moves: {', '.join(moves)}", error=True)
    print("you: ", end="", file=sys.stderr, flush=True)
    if not (line := sys.stdin.readline()):
        raise EOFError("standard input ended before the game")
    return line


def check_seat(config: SampleConfig) -> None:
    """Refuse a seat that there is not.

    Raises:
      ValueError: there is no person for it, the task is no game of seats, or has none of that
        number.
    """
    if config.seat and not config.human:
        raise ValueError(f"seat={config.seat}: add --human, or leave it out")
    if config.seat and _task(config).turns.against is None:
        raise ValueError(
            f"env={config.env!r} is no game of seats; leave --seat out to play in the place of the "
            "policy"
        )
    if config.seat not in (0, 1, 2):
        raise ValueError(f"seat={config.seat}: choose 1 or 2, in the order of the first moves")


def by_hand(
    config: SampleConfig, ask: Callable[[str], str] = input, say: Callable[[str], None] = say
) -> float | None:
    """A person plays the first problem of the task's test split, in the place of the policy.

    Args:
      config: names the task; no model is read.
      ask: gives the text of a turn; the end of its input ends the episode.
      say: shows a line.

    Returns:
      The episode's reward; None where it failed or was not played to its end.

    Raises:
      ValueError: the task has no environment.
    """
    task = _task(config)
    (problem,) = evaluate.problems(task, "test", 1)
    turn, agent, rewards = Turn(0, problem, config.seed), 0, list[float | None]()  # of agent 0
    with open_pool(config.env, config.env_args, workers=0, allow_weak=config.allow_weak) as pool:
        while True:
            answer = pool.act(turn).result()
            observation = answer
            if isinstance(answer, Reply) and answer.opening is not None:
                observation = answer.opening
                say("the conversation is replaced by")
            for message in observation.messages:
                say(f"{message['role']}: {message['content']}")
            if isinstance(answer, Opening):
                for tool in answer.tools:
                    say(f"tool: {json.dumps(tool.get('function', tool))}")
            else:
                rewards += [answer.reward if agent == 0 else None, answer.others.get(0)]
            if isinstance(observation, Opening):
                agent = observation.agent
            error = answer.error
            if error is None and isinstance(answer, Reply) and answer.answer is not None:
                score = pool.submit(problem, answer.answer).result()
                say(f"answer: {answer.answer.strip()}")
                rewards.append(score.value if agent == 0 else None)
                error = score.error
            valid_rewards = [reward for reward in rewards if reward is not None]
            if error is None and isinstance(answer, Reply) and answer.done and not valid_rewards:
                error = "reward: the environment ended the episode and gave agent 0 no reward"
            if error is not None:
                say(f"error: {error}")
                return None
            if isinstance(answer, Reply) and answer.done:
                say(f"reward {sum(valid_rewards):g}")
                return sum(valid_rewards)
            try:
                action = ask("you: ")
            except EOFError:
                return None
            turn = dataclasses.replace(
                turn, actions=(*turn.actions, action), said=(*turn.said, answer)
            )


def _task(config: SampleConfig) -> Task:
    task = tasks.get(config.env, **config.env_args)
    if task.turns is None:
        raise ValueError(
            f"env={config.env!r} is a task of one turn; `jaxrl tasks --json` marks those that have "
            'an environment with "turns": true'
        )
    return task


def described(row: Row) -> dict[str, Any]:
    """An episode as JSON values; `error` says why there is no reward, where there is none.

    `token_ids`, `source` and `logps` have one entry a token of what follows the opening.
    """
    c = row.completion
    return {
        "messages": [dict(message) for message in row.messages],
        "reward": row.score.value,
        "error": row.score.error,
        "token_ids": c.tokens.tolist(),
        "source": rollout_log.sources(c),
        "logps": c.logp.tolist(),
    }
