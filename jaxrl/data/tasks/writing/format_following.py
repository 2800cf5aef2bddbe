"""Format following: write a text that meets several checkable constraints at once.

After Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models" (IFEval).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl.data.rewards.judged import rubrics
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

WORDS = (
    "river", "stone", "light", "garden", "window", "music", "winter", "bread", "silver", "forest",
    "paper", "ocean", "bridge", "candle", "market", "summer", "letter", "island", "shadow", "bell",
)  # fmt: skip

MARKS = ("constraints", "variety", "length")
"""What a rubric may have as criteria."""


class Constraint(NamedTuple):
    """A demand on a text."""

    ask: Callable[[Any], str]
    """Its wording, from its parameter."""
    holds: Callable[[str, Any], bool]
    """(text, parameter) -> whether the text meets it."""


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", text)


CONSTRAINTS: dict[str, Constraint] = {
    "words": Constraint(lambda n: f"use exactly {n} words", lambda text, n: len(_words(text)) == n),
    "lines": Constraint(
        lambda n: f"write exactly {n} lines", lambda text, n: len(text.strip().splitlines()) == n
    ),
    "bullets": Constraint(
        lambda _: "start every line with '- '",
        lambda text, _: all(line.startswith("- ") for line in text.strip().splitlines()),
    ),
    "case": Constraint(
        lambda case: f"use {case} case letters only",
        lambda text, case: text == (text.lower() if case == "lower" else text.upper()),
    ),
    "keyword": Constraint(
        lambda parameter: f"use the word '{parameter[0]}' exactly {parameter[1]} times",
        lambda text, parameter: (
            [w.lower() for w in _words(text)].count(parameter[0]) == parameter[1]
        ),
    ),
    "without": Constraint(
        lambda letter: f"do not use the letter '{letter}'",
        lambda text, letter: letter not in text.lower(),
    ),
    "last": Constraint(
        lambda word: f"make '{word}' the last word",
        lambda text, word: [w.lower() for w in _words(text)][-1:] == [word],
    ),
    "comma": Constraint(lambda _: "use no comma", lambda text, _: "," not in text),
}


def task(
    constraints: int = 2,
    longest: int = 12,
    partial: bool = True,
    ood_constraints: int | None = None,
    template: str = "",
    rubric: str = "",
) -> Task:
    """Requests with random constraints; the whole completion, thoughts apart, must meet them.

    Args:
      constraints: how many at once in train and test.
      longest: words that the word constraint may ask for.
      partial: the reward is the share of constraints met, 0 for a text off the topic;
        if not, 1 for all of them, else 0.
      ood_constraints: constraints in the ood split; None means one more than `constraints`.
      template: prompt with `{question}` in it; empty is the question alone.
      rubric: in place of `partial`, JSON of a rubric that makes the reward of three marks, each
        a share: `constraints` that are met, `variety`, words that differ from those before them,
        and `length`, words of `longest`. See `jaxrl.data.rewards.judged.rubrics`.
    """
    graded = rubrics.parse(json.loads(rubric), "rubric") if rubric else None
    if graded and not graded.criteria.keys() <= set(MARKS):
        raise ValueError(f"rubric={rubric!r}: criteria may be {', '.join(MARKS)}")
    ood_constraints = constraints + 1 if ood_constraints is None else ood_constraints
    if not 1 <= constraints < ood_constraints <= len(CONSTRAINTS):
        raise ValueError(
            f"constraints={constraints}, ood_constraints={ood_constraints}: need 1 <= constraints "
            f"< ood_constraints <= {len(CONSTRAINTS)}"
        )
    if longest < 8:
        raise ValueError(f"longest={longest}: must be 8 or more")
    template = template or "{question}"

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_constraints if split == "ood" else constraints
        topic, requirements = generate.draw(
            lambda stream: _draw(stream, count, longest),
            key=str,
            stream=generate.rng("format_following", split, seed, index),
            split=split,
        )
        demands = "; ".join(CONSTRAINTS[name].ask(value) for name, value in requirements.items())
        prompt = extract.fill(template, f"Write about a {topic}, naming it: {demands}.")
        return generate.user_problem(
            "format_following", f"{topic}{requirements}", prompt, requirements, topic=topic
        )

    def reward(problem: Problem, completion: str) -> Score:
        text = extract.plain(completion)
        if text is None or problem.metadata["topic"] not in _words(text.lower()):
            return Score(0.0, {"topic": 0.0, **dict.fromkeys(problem.answer, 0.0)})
        met = {name: float(CONSTRAINTS[name].holds(text, v)) for name, v in problem.answer.items()}
        share = sum(met.values()) / len(met)
        if graded:
            words = _words(text.lower())
            marks = {
                "constraints": share,
                "variety": len(set(words)) / len(words),
                "length": min(len(words) / longest, 1.0),
            }
            score = rubrics.total(graded, graded.criteria, marks)
            return Score(score.value, {"topic": 1.0, **score.parts, **met})
        return Score(share if partial else float(share == 1.0), {"topic": 1.0, **met})

    task = Task(
        name="format_following",
        problem=problem,
        reward=reward,
        gold=lambda problem: write(problem.metadata["topic"], problem.answer),
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def write(topic: str, wanted: Mapping[str, Any]) -> str:
    """A text that names the topic and meets the constraints."""
    keyword, times = wanted.get("keyword", ("", 0))
    last = wanted.get("last", "")
    filler = next(w for w in ("go", "sit", "ah", "my") if wanted.get("without", "-") not in w)
    end = [last] if last else []
    body = [topic] + [keyword] * times
    body += [filler] * (wanted.get("words", wanted.get("lines", 1) + 8) - len(body) - len(end))
    body = body[: wanted["words"] - len(end)] if "words" in wanted else body
    words = body + end
    lines = wanted.get("lines", 1)
    rows = [words[i : i + 1] for i in range(lines - 1)] + [words[lines - 1 :]]
    text = "\n".join(("- " if "bullets" in wanted else "") + " ".join(row) for row in rows)
    return text.upper() if wanted.get("case") == "upper" else text


def _draw(stream: random.Random, count: int, longest: int) -> tuple[str, dict[str, Any]]:
    topic, keyword, last = stream.sample(WORDS, 3)
    absent = sorted(set("bcdefghjklmnopqrtuvwxyz") - set(topic + keyword + last))
    values = {
        "words": stream.randint(6, longest),
        "lines": stream.randint(2, 4),
        "bullets": True,
        "case": stream.choice(["lower", "upper"]),
        "keyword": (keyword, stream.randint(1, 2)),
        "without": stream.choice(absent),
        "last": last,
        "comma": True,
    }
    return topic, {name: values[name] for name in stream.sample(sorted(values), count)}
