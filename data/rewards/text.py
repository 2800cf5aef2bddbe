"""How close two texts are: each metric is (prediction, reference) -> score in [0, 1]."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

from sacrebleu.metrics import BLEU, CHRF

from data import extract
from data.types import Problem, Reward, Score

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
    """1 if the prediction's normalised words are the first of the reference's, one at least if any.

    The relaxed match of RLPT (Li et al. 2025): who continues a text cannot know where it was cut.
    """
    words, whole = normalise(prediction).split(), normalise(reference).split()
    return float(words == whole[: len(words)] and bool(words) == bool(whole))


def bleu(prediction: str, reference: str) -> float:
    """Sentence BLEU (Papineni et al. 2002) by sacrebleu, effective order, over 100."""
    return min(_BLEU.sentence_score(prediction, [reference]).score / 100.0, 1.0)


def chrf(prediction: str, reference: str) -> float:
    """Sentence chrF (Popović 2015) by sacrebleu, over 100."""
    return min(_CHRF.sentence_score(prediction, [reference]).score / 100.0, 1.0)


def rouge_n(prediction: str, reference: str, n: int = 1) -> float:
    """ROUGE-N F-measure (Lin 2004) of lower-case alphanumeric words, unstemmed."""
    return _f_measure(_grams(_words(prediction), n), _grams(_words(reference), n))


def rouge_l(prediction: str, reference: str) -> float:
    """ROUGE-L F-measure: by the longest common subsequence of words."""
    left, right = _words(prediction), _words(reference)
    if not left or not right:
        return float(left == right)
    row = [0] * (len(right) + 1)
    for a in left:
        diagonal = 0
        for j, b in enumerate(right, 1):
            diagonal, row[j] = row[j], diagonal + 1 if a == b else max(row[j], row[j - 1])
    common = row[-1]
    return 2 * common / (len(left) + len(right))


def edit_similarity(prediction: str, reference: str) -> float:
    """1 - Levenshtein distance / the longer length; 1 for two empty texts."""
    longest = max(len(prediction), len(reference))
    return 1.0 - edit_distance(prediction, reference) / longest if longest else 1.0


def edit_distance(left: str, right: str) -> int:
    """Levenshtein: fewest insertions, deletions and substitutions of characters."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


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
      answer_format: see `data.extract`.
      longest: characters judged; an answer over it scores 0, so that no metric is made to crawl.
    """
    measure, find = metric(name), extract.extractor(answer_format)

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        if answer is None or len(answer) > longest:
            return Score(0.0, {name: 0.0, "format": 0.0})
        value = measure(answer, str(problem.answer))
        return Score(value, {name: value, "format": 1.0})

    return reward


def normalise(text: str) -> str:
    """Lower case, no punctuation, no English articles, single spaces, canonical Unicode."""
    text = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _grams(words: list[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def _f_measure(left: list, right: list) -> float:
    if not left or not right:
        return float(left == right)
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right))


_BLEU = BLEU(effective_order=True)
_CHRF = CHRF()
