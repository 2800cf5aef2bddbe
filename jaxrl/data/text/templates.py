"""How a problem becomes a prompt: a template, examples, and an answer format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Task

THINK = (
    "Reason first between <think> and </think>, then give the final answer alone between <answer> "
    "and </answer>."
)
"""System message for reasoning in the format of DeepSeek-R1 (Guo et al. 2025)."""

TEMPLATES: dict[str, str] = {
    "plain": "{question}",
    "qa": "Question: {question}\nAnswer:",
    "think": "{question}\n" + THINK,
    "boxed": "{question}\nPlease reason step by step, and put your final answer within \\boxed{}.",
}
"""Templates by name; `{question}` is replaced by the problem's prompt."""


def apply(problem: Problem, template: str, *, system: str = "") -> Problem:
    """The problem with its prompt in a template.

    Args:
      problem: its text, or the last turn of its conversation, is the question.
      template: a name in TEMPLATES, or text with `{question}` in it.
      system: put before the conversation, unless it has a system message.
    """
    template = TEMPLATES.get(template, template)
    turns = list(problem.messages or ({"role": "user", "content": problem.prompt},))
    turns[-1] = {**turns[-1], "content": extract.fill(template, turns[-1]["content"])}
    if system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system})
    prompt = extract.fill(template, problem.prompt)
    return dataclasses.replace(
        problem, prompt=f"{system}\n\n{prompt}" if system else prompt, messages=tuple(turns)
    )


def append(problem: Problem, text: str) -> Problem:
    """The problem with a text behind its prompt, and behind the last turn of its conversation."""
    return _edit(problem, lambda prompt: prompt + text)


def remove(problem: Problem, text: str) -> Problem:
    """The problem without a text that `append` has put behind its prompt."""
    return _edit(problem, lambda prompt: prompt.removesuffix(text))


def _edit(problem: Problem, change: Callable[[str], str]) -> Problem:
    """The problem with its prompt changed, and the last turn of its conversation likewise."""
    turns = problem.messages
    if turns:
        turns = (*turns[:-1], {**turns[-1], "content": change(turns[-1]["content"])})
    return dataclasses.replace(problem, prompt=change(problem.prompt), messages=turns)


def few_shot(problem: Problem, examples: Sequence[tuple[Problem, str]]) -> Problem:
    """The problem after worked examples: earlier turns of the conversation, or text before it.

    Raises:
      ValueError: an example that is the problem itself, which would give its answer away.
    """
    turns: list[Mapping[str, str]] = []
    text = ""
    for example, solution in examples:
        if example.id == problem.id:
            raise ValueError(f"problem {problem.id!r} is among its own examples; leave it out")
        turns += example.messages or ({"role": "user", "content": example.prompt},)
        turns.append({"role": "assistant", "content": solution})
        text += f"{example.prompt}\n{solution}\n\n"
    turns += problem.messages or ({"role": "user", "content": problem.prompt},)
    return dataclasses.replace(problem, prompt=text + problem.prompt, messages=tuple(turns))


def wrap(task: Task, change: Callable[[Problem], Problem]) -> Task:
    """The task with every problem changed, as by `apply` or `few_shot`.

    Name it in a function of your own (`MODULE:FUNCTION`), so that scoring processes can make it.
    """
    return dataclasses.replace(
        task, problem=lambda split, seed, index: change(task.problem(split, seed, index))
    )


def shots(task: Task, count: int, *, seed: int = 0) -> Callable[[Problem], Problem]:
    """A change for `wrap`: `count` solved train problems before each problem, never itself.

    Raises:
      ValueError: a task without solutions.
    """
    if task.gold is None:
        raise ValueError(f"task {task.name!r} has no solutions to show; write examples yourself")
    pool = [task.problem("train", seed, i) for i in range(count + 1)]

    def change(problem: Problem) -> Problem:
        examples = [p for p in pool if p.id != problem.id][:count]
        return few_shot(problem, [(p, task.gold(p)) for p in examples])

    return change
