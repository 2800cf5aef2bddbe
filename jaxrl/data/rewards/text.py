"""How close two texts are: each metric is (prediction, reference) -> score in [0, 1]."""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxrl.data.rewards import references
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU, CHRF

Metric = Callable[[str, str], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact(prediction: str, reference: str) -> float:
    """1 if the texts are equal but for white space at the ends."""
    return float(prediction.strip() == reference.strip())


def exact_match(prediction: str, reference: str) -> float:
    """SQuAD exact match: equal after case, punctuation, articles and spacing are normalised."""
    return float(normalise(prediction) == normalise(reference))


def f1(prediction: str, reference: str) -> float:
    """SQuAD F1 of normalised words: `2 p r / (p + r)` of their multisets."""
    return _f_measure(normalise(prediction).split(), normalise(reference).split())


def prefix(prediction: str, reference: str) -> float:
    """1 if the prediction's normalised words are the reference's first, half of them at least.

    The relaxed match of RLPT (Li et al. 2025): who continues a text cannot know where it was cut.
    The half is ours: without it, the word that most sentences begin with would be right for all.
    """
    words, reference_words = normalise(prediction).split(), normalise(reference).split()
    return float(words == reference_words[: len(words)] and 2 * len(words) >= len(reference_words))


def bleu(prediction: str, reference: str) -> float:
    """Sentence BLEU (Papineni et al. 2002) by sacrebleu, effective order, over 100."""
    return min(_bleu().sentence_score(prediction, [reference]).score / 100.0, 1.0)


def chrf(prediction: str, reference: str) -> float:
    """Sentence chrF (Popović 2015) by sacrebleu, over 100."""
    return min(_chrf().sentence_score(prediction, [reference]).score / 100.0, 1.0)


def rouge_n(prediction: str, reference: str, n: int = 1) -> float:
    """ROUGE-N F-measure (Lin 2004) of lower-case alphanumeric words, unstemmed."""
    return _f_measure(_grams(_words(prediction), n), _grams(_words(reference), n))


def rouge_l(prediction: str, reference: str) -> float:
    """ROUGE-L F-measure: by the longest common subsequence of words."""
    left, right = _words(prediction), _words(reference)
    if not left or not right:
        return float(left == right)
    return 2 * _common(left, right) / (len(left) + len(right))


def edit_similarity(prediction: str, reference: str) -> float:
    """1 - Levenshtein distance / the longer length; 1 for two empty texts."""
    longest = max(len(prediction), len(reference))
    return 1.0 - edit_distance(prediction, reference) / longest if longest else 1.0


def edit_distance(left: str, right: str) -> int:
    """Levenshtein: fewest insertions, deletions and substitutions of characters.

    By the bits of long integers (Myers 1999, in the form of Hyyrö 2003): a row of the table is two
    numbers, whose bits say where it goes up and down by one.
    """
    if not left:
        return len(right)
    places = _places(left)
    last, all_ = 1 << (len(left) - 1), (1 << len(left)) - 1
    up, down, distance = all_, 0, len(left)
    for character in right:
        equal = places.get(character, 0)
        across = (((equal & up) + up) ^ up) | equal | down
        rises, falls = down | (all_ & ~(across | up)), across & up
        distance += bool(rises & last) - bool(falls & last)
        rises, falls = (rises << 1 | 1) & all_, falls << 1 & all_
        up, down = falls | (all_ & ~(across | rises)), rises & across
    return distance


METRICS: dict[str, Metric] = {
    "exact": exact,
    "exact_match": exact_match,
    "f1": f1,
    "prefix": prefix,
    "bleu": bleu,
    "chrf": chrf,
    "rouge_1": rouge_n,
    "rouge_2": lambda prediction, reference: rouge_n(prediction, reference, 2),
    "rouge_l": rouge_l,
    "edit": edit_similarity,
}
"""The metrics by name."""


def metric(name: str) -> Metric:
    """The metric called `name`.

    Raises:
      ValueError: no such metric.
    """
    if name not in METRICS:
        raise ValueError(f"metric={name!r}: choose one of {', '.join(METRICS)}")
    return METRICS[name]


def closeness(name: str, answer_format: str = "text", longest: int = 10_000) -> Reward:
    """Reward of a completion's answer by its closeness to `problem.answer`.

    Args:
      name: of the metric.
      answer_format: see `jaxrl.data.sources.extract`.
      longest: characters scored; an answer over it scores 0, so that no metric is made to crawl.
    """
    measure, find = metric(name), extract.extractor(answer_format)

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        if answer is None or len(answer) > longest:
            return Score(0.0, {name: 0.0, "format": 0.0})
        value = measure(answer, references.text(problem.answer))
        return Score(value, {name: value, "format": 1.0})

    return reward


def normalise(text: str) -> str:
    """Lower case, no punctuation, no English articles, single spaces, canonical Unicode."""
    text = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence, by the bits of a long integer (Hyyrö 2004)."""
    places = _places(left)
    all_ = (1 << len(left)) - 1
    row = all_
    for item in right:
        matched = row & places.get(item, 0)
        row = ((row + matched) | (row - matched)) & all_
    return len(left) - row.bit_count()


def _places(items: Sequence[str]) -> dict[str, int]:
    """For each item, the bits of the places where it stands."""
    places: dict[str, int] = {}
    for i, item in enumerate(items):
        places[item] = places.get(item, 0) | 1 << i
    return places


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _grams(words: list[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def _f_measure(left: list, right: list) -> float:
    if not left or not right:
        return float(left == right)
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right))


@functools.cache
def _bleu() -> BLEU:
    from sacrebleu.metrics import BLEU  # half a second, which only those who use it need take

    return BLEU(effective_order=True)


@functools.cache
def _chrf() -> CHRF:
    from sacrebleu.metrics import CHRF

    return CHRF()
