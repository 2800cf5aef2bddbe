"""Next-segment prediction: continue raw text, rewarded by closeness to what really follows.

After Li et al. 2025, "Reinforcement Learning on Pre-Training Data" (RLPT): the next sentence from
those before it, or a middle one from those before and the one behind.
"""

from __future__ import annotations

import functools
import random
import re
from pathlib import Path

from jaxrl.data.rewards import text
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_SENTENCE = re.compile(r"[^.!?]+[.!?]+[\"')\]]*\s*|[^.!?]+$")


def task(
    path: str = "",
    test_path: str = "",
    context: int = 3,
    metric: str = "",
    answer_format: str = "text",
    template: str = "{question}",
    middle: float = 0.0,
    ood_context: int | None = None,
) -> Task:
    """Sentences to be continued by the next.

    Args:
      path: a UTF-8 text file for the train split; empty makes up counting stories, whose next
        sentence follows from the ones before.
      test_path: a text file for the test and ood splits; without it, the last tenth of `path`.
      context: sentences shown in train and test.
      metric: see `jaxrl.data.rewards.text`; empty takes f1 for a file, and exact_match for
        stories, whose sentences share most of their words.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}`, the context, in it.
      middle: share of the problems that show the sentence after next as well, behind `...`.
      ood_context: sentences shown in the ood split; None means twice `context`.
    """
    ood_context = 2 * context if ood_context is None else ood_context
    if context < 2 or ood_context <= context:
        raise ValueError(
            f"context={context}, ood_context={ood_context}: need 2 <= context < ood_context"
        )
    context_sizes = {"train": context, "test": context, "ood": ood_context}
    if not 0 <= middle <= 1:
        raise ValueError(f"middle={middle} must be in [0, 1]")
    extract.fill(template, "")

    @functools.cache
    def segments(split: str) -> list[str]:
        if split != "train" and test_path:
            return sentences(Path(test_path).read_text("utf-8"))
        all_sentences = sentences(Path(path).read_text("utf-8"))
        held_out = 0 if test_path else max(1, len(all_sentences) // 10)
        start = len(all_sentences) - held_out
        return all_sentences[:start] if split == "train" else all_sentences[start:]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = context_sizes[split]
        if path:
            window = segments(split)[index : index + count + 2]
        else:
            window = generate.draw(
                lambda stream: _story(stream, count + 2),
                key=lambda lines: str(lines[: count + 1]),
                stream=generate.rng("next_segment", split, seed, index),
                split=split,
            )
        question = " ".join(window[:count]) + " "
        if generate.rng("middle", split, seed, index).random() < middle:
            question += f"... {' '.join(window[count + 1 :])}\n"
        prompt = extract.fill(template, question)
        return generate.user_problem("next_segment", question, prompt, window[count])

    task = Task(
        name="next_segment",
        problem=problem,
        reward=text.closeness(metric or ("f1" if path else "exact_match"), answer_format),
        gold=lambda problem: extract.write_answer(answer_format, problem.answer),
        sizes={s: max(0, len(segments(s)) - n) for s, n in context_sizes.items()} if path else {},
        alphabet=None if path else generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def sentences(raw: str) -> list[str]:
    """The sentences of a text, by its full stops, exclamation and question marks."""
    return [s.strip() for s in _SENTENCE.findall(" ".join(raw.split())) if s.strip()]


def _story(stream: random.Random, length: int) -> list[str]:
    """Sentences that count on in steps."""
    name, thing = stream.choice(("Ann", "Bo", "Cy", "Di")), stream.choice(("figs", "nuts", "eggs"))
    start, step = stream.randrange(50), stream.randint(1, 9)
    lines = [f"{name} has {start} {thing} and takes {step} more each day."]
    return lines + [f"On day {d} there are {start + d * step} {thing}." for d in range(1, length)]
