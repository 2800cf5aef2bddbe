"""Translation scored by BLEU: into a small made-up language, or between the columns of a file."""

from __future__ import annotations

import functools
import random

from jaxrl.data.rewards import text
from jaxrl.data.sources import extract, generate, records
from jaxrl.data.types import Problem, Task

_NOUNS = ("dog", "king", "child", "bird", "farmer", "stone", "boat", "cook", "wolf", "nurse")
_VERBS = ("sees", "finds", "helps", "follows", "carries", "paints")
_ADJECTIVES = ("red", "old", "small", "quiet", "happy", "cold")
_SYLLABLES = tuple(c + v for c in "ptkmnslr" for v in "aiou")


def task(
    adjectives: float = 0.5,
    clauses: int = 1,
    ood_clauses: int | None = None,
    metric: str = "bleu",
    path: str = "",
    test_path: str = "",
    source: str = "source",
    target: str = "target",
    answer_format: str = "text",
    template: str = "",
) -> Task:
    """Sentences and their translations; 1 for the reference itself, else by closeness to it.

    In the made-up language the verb comes last, adjectives follow their noun, and the dictionary
    of each sentence, other for every problem, stands in the prompt.

    Args:
      adjectives: how likely a made-up noun has one.
      clauses: of a made-up sentence in train and test, joined by "and".
      ood_clauses: the same for the ood split; None means one more than `clauses`.
      metric: see `jaxrl.data.rewards.text`: bleu, chrf, ...
      path: of parallel records for the train split (see `jaxrl.data.sources.records`); empty makes
        them up.
      test_path: of records for the test split; without it, a file has only a train split.
      source: the field of a record to translate.
      target: the field with its translation.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    ood_clauses = clauses + 1 if ood_clauses is None else ood_clauses
    if not 1 <= clauses < ood_clauses:
        raise ValueError(
            f"clauses={clauses}, ood_clauses={ood_clauses}: need 1 <= clauses < ood_clauses"
        )
    if not 0 <= adjectives <= 1:
        raise ValueError(f"adjectives={adjectives} must be in [0, 1]")
    template = template or extract.INSTRUCTIONS[extract.checked(answer_format)]
    files = {"train": path} | ({"test": test_path} if test_path else {}) if path else {}
    read = functools.cache(records.read)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        if files:
            record = read(files[split])[index]
            where = f"{files[split]}, record {index}"
            sentence = records.field(record, source, where)
            reference = records.field(record, target, where)
            question = f"Translate: {sentence}"
        else:
            stream = generate.rng("translation", split, seed, index)
            count = ood_clauses if split == "ood" else clauses
            sentence, glosses, reference = generate.draw(
                lambda stream: _draw(stream, count, adjectives),
                key=lambda sample: sample[0],
                stream=stream,
                split=split,
            )
            question = (
                f"Dictionary: {glosses}. The verb comes last and adjectives follow their noun. "
                f"Translate, leaving out 'the': {sentence}"
            )
        prompt = extract.fill(template, question)
        return generate.user_problem("translation", sentence, prompt, reference)

    task = Task(
        name="translation",
        problem=problem,
        reward=text.closeness(metric, answer_format),
        gold=lambda problem: extract.write_answer(answer_format, problem.answer),
        splits=tuple(files) or ("train", "test", "ood"),
        sizes={split: len(read(file)) for split, file in files.items()},
        alphabet=None if files else generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def _draw(stream: random.Random, clauses: int, adjectives: float) -> tuple[str, str, str]:
    """A sentence, its dictionary, its translation."""
    english: list[list[str]] = []
    foreign: list[list[str]] = []
    for _ in range(clauses):
        subject, thing = stream.sample(_NOUNS, 2)
        phrases = [
            [*([stream.choice(_ADJECTIVES)] if stream.random() < adjectives else []), noun]
            for noun in (subject, thing)
        ]
        verb = stream.choice(_VERBS)
        english.append(["the", *phrases[0], verb, "the", *phrases[1]])
        foreign.append([*phrases[0][::-1], *phrases[1][::-1], verb])
    words = sorted({w for clause in foreign for w in clause} | ({"and"} if clauses > 1 else set()))
    syllables = stream.sample([a + b for a in _SYLLABLES for b in _SYLLABLES], len(words))
    gloss = dict(zip(words, syllables, strict=True))
    translated = [" ".join(gloss[w] for w in clause) for clause in foreign]
    return (
        " and ".join(map(" ".join, english)),
        ", ".join(f"{word}={gloss[word]}" for word in words),
        (f" {gloss['and']} " if clauses > 1 else "").join(translated),
    )
