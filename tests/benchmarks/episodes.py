"""Episodes a second: slow tools, slots that are held, and environments within the decode loop.

`python -m tests.benchmarks.episodes` prints a line of JSON for each of

- `latency`: tools that take a random time, by slots that are refilled while others wait
  (`rollout.replies` "arrival"), against a loop in rounds: it samples a turn of every episode of a
  batch, asks all their tools at once, waits for the last, and reads all histories again;
- `rounds`: the same, against such a loop that holds its slots and reads no history again;
- `held`: episodes of 8 and of 32 turns, whose slots are held between turns, against reading their
  history again at every turn;
- `crowded`: twice as many episodes as slots, whose replies are known at once, so that they keep
  their slots, against slots that are given to those that wait;
- `on_device`: the environment `keydoor` in the decode loop, against the same on the host.

Both sides of a line have the same model, prompts, budgets and random streams, in one process. Each
is run once before it is timed, so that nothing is compiled.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import string
import time
from collections.abc import Callable, Sequence

import jax

from jaxrl.config import FreshModel, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.sources import generate
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Problem, Task
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.record.metrics import Timer
from jaxrl.rollout import collect, drive, engine, episodes
from jaxrl.rollout.drive import OpenGroups
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.selection import Drawn
from jaxrl.sampling import sampler
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Request

ALPHABET = string.ascii_lowercase + string.digits + "\n"
LINES = ("latency", "rounds", "held", "crowded", "on_device")
Run = Callable[[], int]
"""Plays episodes and says how many."""


def tools(turns: int, mean: float, spread: float, said: int) -> Task:
    """Episodes of so many turns; a reply has `said` letters and takes a lognormal time.

    Args:
      turns: of an episode.
      mean: seconds of a reply on average; 0: it takes no time.
      spread: standard deviation of the logarithm of the time.
      said: letters of a reply.
    """

    def begin(problem: Problem, seed: int) -> tuple[list[str], Opening]:
        return [problem.id], Opening(({"role": "user", "content": problem.prompt},))

    def step(seen: list[str], action: str) -> Reply:
        stream = generate.rng(*seen[:1], len(seen))
        seen.append(action)
        if mean:
            time.sleep(mean * stream.lognormvariate(-spread * spread / 2, spread))
        message = {"role": "user", "content": "".join(stream.choices("abc", k=said))}
        return Reply((message,), 0.0, done=len(seen) > turns)

    return Task(
        "tools",
        lambda split, seed, index: generate.user_problem("tools", str(index), f"{index:04d}", None),
        unscored,
        alphabet=ALPHABET,
        pure=True,
        turns=Environment(begin, step, waits=bool(mean)),
    )


def policy(task: Task, width: int, layers: int) -> tuple[Policy, object]:
    """A fresh policy of a task, and its parameters for the sampler."""
    tokenizer = tokenizers.characters(task.alphabet)
    shape = FreshModel(width, 2 * width, layers, width // 16, width // 16, 16)
    model = DecoderConfig(vocab_size=tokenizer.vocab_size, **dataclasses.asdict(shape))
    params = decoder.init(model, jax.random.key(0))
    return Policy(model, params, tokenizer), decoder.unstack(params)


class ReadAgain(engine.Local):
    """A sampler whose slots are not held: a history is read again at every turn."""

    def put(self, requests: Sequence[Request]) -> None:
        """Begin requests, each from its prefix."""
        sampler.release(self.work, list(sampler.held_slots(self.work)))
        super().put(requests)


class GivesAway(engine.Local):
    """A sampler that gives the slots of held sequences to those that wait, and asks for nothing
    before it."""

    crowded = False


def driven(
    task: Task, size: tuple[int, int], rollout: RolloutConfig, slots: SamplerConfig, count: int,
    local: type[engine.Local] = engine.Local,
) -> Run:  # fmt: skip
    """All episodes at once, over so many slots."""
    actor, params = policy(task, *size)
    ctx = collect.context(rollout, 0, actor, task)
    setup = collect.sampler_setup(actor, rollout, slots, jax.random.key(0), **collect.turns_of(ctx))
    problems = [task.problem("train", 0, i) for i in range(count)]

    def run() -> int:
        groups = OpenGroups(waiting=[Drawn(problem) for problem in problems])
        groups.admit(count, rollout.group_size)
        with scoring.Pool(task, 0, 60.0, None, None) as pool:
            sampler = drive.Drive(episodes.group, ctx, local(setup, params), pool)
            sampler.begin(groups.groups)
            drive.advance(sampler, enough=count, version=0, timer=Timer(), log=lambda done: None)
        return sum(len(group.rows) for group in groups.groups)

    return run


def in_rounds(
    task: Task, size: tuple[int, int], rollout: RolloutConfig, slots: SamplerConfig, count: int,
    local: type[engine.Local],
) -> Run:  # fmt: skip
    """Batches of as many episodes as there are slots, each a turn at a time."""
    batches = [
        driven(
            dataclasses.replace(task, problem=_from(task, first)), size,
            dataclasses.replace(rollout, replies="together"), slots, slots.slots, local,
        )
        for first in range(0, count, slots.slots)
    ]  # fmt: skip
    return lambda: sum(batch() for batch in batches)


def _from(task: Task, first: int) -> Callable[[str, int, int], Problem]:
    return lambda split, seed, index: task.problem(split, seed, first + index)


def rate(run: Run) -> tuple[float, float]:
    """Episodes a second, and seconds."""
    run()
    start = time.perf_counter()
    count = run()
    seconds = time.perf_counter() - start
    return count / seconds, seconds


def compare(name: str, ours: Run, other: Run, **what: object) -> None:
    """Print episodes a second of both."""
    (first, seconds), (second, others) = rate(ours), rate(other)
    figures = {"episodes/s": round(first, 2), "against": round(second, 2)}
    times = {"ratio": round(first / second, 2), "seconds": [round(seconds, 2), round(others, 2)]}
    print(json.dumps({"benchmark": name, **what, **figures, **times}), flush=True)


def latency(
    name: str, local: type[engine.Local], count: int, slots: int, turns: int, mean: float,
    spread: float,
) -> None:  # fmt: skip
    """Tools that take a random time, against rounds by a sampler."""
    task, size = tools(turns, mean, spread, 8), (64, 2)
    rollout = RolloutConfig(
        group_size=1, max_prompt_tokens=8, max_new_tokens=turns * 20, turn_tokens=8,
        replies="arrival",
    )  # fmt: skip
    layout = SamplerConfig(slots=slots, prefill_rows=slots, chunk=8, bucket=256)
    compare(
        name, driven(task, size, rollout, layout, count),
        in_rounds(task, size, rollout, layout, count, local),
        episodes=count, slots=slots, turns=turns, mean_seconds=mean, spread=spread,
    )  # fmt: skip


def on_slots(
    name: str, count: int, number: int, turns: int, other: type[engine.Local], **what: object
) -> None:
    """Episodes over so many slots, which are held between turns, against another sampler."""
    task, size = tools(turns, 0.0, 0.0, 24), (128, 4)
    rollout = RolloutConfig(
        group_size=1, max_prompt_tokens=8, max_new_tokens=turns * 36, turn_tokens=8
    )
    layout = SamplerConfig(slots=number, prefill_rows=number, chunk=8, bucket=64)
    compare(
        name, driven(task, size, rollout, layout, count),
        driven(task, size, rollout, layout, count, other),
        episodes=count, turns=turns, **what,
    )  # fmt: skip


def on_device(count: int) -> None:
    """The recipe's worlds, in the decode loop and on the host."""
    task = tasks.get("keydoor", level=1, turns=12)
    rollout = RolloutConfig(group_size=8, max_prompt_tokens=32, max_new_tokens=132, turn_tokens=1)
    layout = SamplerConfig(slots=128, prefill_rows=64, bucket=64)
    inside = dataclasses.replace(rollout, on_device=True)
    compare(
        "on_device", driven(task, (64, 2), inside, layout, count // 8),
        driven(task, (64, 2), rollout, layout, count // 8),
        episodes=count, turns=12,
    )  # fmt: skip


def main() -> None:
    """Print all lines, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", choices=[*LINES, []])
    names = parser.parse_args().only or LINES
    for name, local in (("latency", ReadAgain), ("rounds", engine.Local)):
        if name in names:
            latency(name, local, 96, 32, 8, 0.25, 1.0)
    if "held" in names:
        for turns in (8, 32):
            on_slots("held", 16, 16, turns, ReadAgain, read_a_turn=27)
    if "crowded" in names:
        for turns in (8, 32):
            on_slots("crowded", 32, 16, turns, GivesAway, slots=16)
    if "on_device" in names:
        on_device(4096)


if __name__ == "__main__":
    main()
