"""A patient with hidden findings: ask for some of them, then name the disease.

What is known of diseases is the same for all patients: how often each has each finding. A question
is worth what the finding adds to the probability of the right diagnosis, by its Shapley value.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import string

import numpy as np

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

DISEASES, FINDINGS = 6, 8
_TYPICAL = ("++......", "+-+.....", "+--.....", "-..+....", "-..-+...", "-..--...")
"""Of each disease: findings that are likely, unlikely, and as likely as not."""
_CHANCES = {"+": 0.95, "-": 0.05, ".": 0.5}
IMPORTANCE = ("shapley", "uniform")
_ASKED = string.ascii_lowercase[:FINDINGS]
_NAMED = string.ascii_uppercase[-DISEASES:]


@dataclasses.dataclass
class _Patient:
    disease: str
    findings: tuple[int, ...]
    weights: tuple[float, ...]
    known: set[int]
    left: int
    """Questions that are left."""
    asked: int = 0
    gained: float = 0.0


def task(
    questions: int = 3,
    known: int = 1,
    importance: str = "shapley",
    temperature: float = 2.0,
) -> Task:
    """Patients in symbols, after ProMed's consultations.

    `c+` is a patient with finding c, as far as is known. A turn is one symbol: a letter asks for a
    finding, and is answered with + or -; a capital names the disease and ends the episode. What was
    known already, or is no finding, is answered with a question mark.

    A question that brings a new finding earns its weight; all weights of a patient sum to 1. The
    right disease earns 1.

    Args:
      questions: that may be asked; the turn after them has to name the disease.
      known: findings that are known from the start, in train and test; the ood split has none.
      importance: shapley: weights are the softmax of what each finding adds to the
        log-probability of the disease, averaged over the orders in which findings may become known;
        uniform: every finding weighs the same.
      temperature: of the softmax, in nats.
    """
    if importance not in IMPORTANCE:
        raise ValueError(f"importance={importance!r}: choose one of {', '.join(IMPORTANCE)}")
    if questions < 1 or not 1 <= known < FINDINGS:
        raise ValueError(
            f"questions={questions}, known={known}: need questions >= 1 and 1 <= known < {FINDINGS}"
        )
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be above 0")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)

        def draw(stream: random.Random) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
            disease = stream.randrange(DISEASES)
            findings = tuple(int(stream.random() < p) for p in chances()[disease])
            known_findings = stream.sample(range(FINDINGS), 0 if split == "ood" else known)
            return disease, findings, tuple(sorted(known_findings))

        stream = generate.rng("diagnosis", split, seed, index)
        disease, findings, known_findings = generate.draw(
            draw, key=repr, stream=stream, split=split
        )
        prompt = "".join(f"{_ASKED[j]}{'-+'[findings[j]]}" for j in known_findings) or "?"
        equal = (1 / FINDINGS,) * FINDINGS
        weights = weighed(disease, findings, temperature) if importance == "shapley" else equal
        return generate.user_problem(
            "diagnosis", f"{disease}/{findings}/{known_findings}", prompt, _NAMED[disease],
            findings=findings, known=known_findings, weights=weights,
        )  # fmt: skip

    def begin(problem: Problem, seed: int) -> tuple[_Patient, Opening]:
        metadata = problem.metadata
        known_findings = set(metadata["known"])
        patient = _Patient(
            problem.answer, metadata["findings"], metadata["weights"], known_findings, questions
        )
        return patient, Opening(({"role": "user", "content": problem.prompt},))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        metadata = problem.metadata
        open_ = [j for j in range(FINDINGS) if j not in metadata["known"]]
        best = sorted(open_, key=lambda j: -metadata["weights"][j])[:questions]
        return (*(_ASKED[j] for j in best), problem.answer)

    task = Task(
        name="diagnosis",
        problem=problem,
        reward=unscored,
        alphabet=f"{_ASKED}{_NAMED}+-?\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def step(patient: _Patient, action: str) -> Reply:
    """A question, or the diagnosis, which ends the episode and earns 1 where it is right."""
    is_diagnosis = action in tuple(_NAMED)
    if is_diagnosis or not patient.left:
        right = action == patient.disease
        return Reply(reward=float(right), parts=_parts(patient, right), done=True)
    patient.left -= 1
    patient.asked += 1
    finding = _ASKED.index(action) if action in tuple(_ASKED) else None
    if finding is None or finding in patient.known:
        return Reply(({"role": "user", "content": "?"},), 0.0, _parts(patient, False))
    patient.known.add(finding)
    gain = patient.weights[finding]
    patient.gained += gain
    message = {"role": "user", "content": "-+"[patient.findings[finding]]}
    return Reply((message,), gain, _parts(patient, False))


def _parts(patient: _Patient, right: bool) -> dict[str, float]:
    return {"correct": float(right), "asked": float(patient.asked), "gained": patient.gained}


@functools.cache
def chances() -> np.ndarray:
    """How often a disease has a finding, [DISEASES, FINDINGS].

    The first finding tells two halves of the diseases apart, two others tell apart those of one
    half, two more those of the other half, and the last three say nothing.
    """
    return np.array([[_CHANCES[sign] for sign in row] for row in _TYPICAL])


@functools.lru_cache(maxsize=1 << 12)
def weighed(disease: int, findings: tuple[int, ...], temperature: float) -> tuple[float, ...]:
    """The weight of each finding of a patient: a softmax of Shapley values over a temperature."""
    values = shapley(worth(disease, findings)) / temperature
    raised = np.exp(values - values.max())
    return tuple(map(float, raised / raised.sum()))


def worth(disease: int, findings: tuple[int, ...]) -> np.ndarray:
    """The log-probability of the disease, in nats, for each set of known findings.

    Diseases are equally likely before anything is known.

    Args:
      disease: of the patient.
      findings: of the patient, 0 or 1 each.

    Returns:
      [2^n] float64; finding j is known in the sets whose place has bit j.
    """
    present = np.array(findings, bool)
    log_likelihoods = np.log(np.where(present, chances(), 1 - chances()))
    logits = _members(len(findings)) @ log_likelihoods.T
    return logits[:, disease] - np.logaddexp.reduce(logits, axis=1)


def shapley(worth: np.ndarray) -> np.ndarray:
    """What each of n players adds to a coalition, averaged over all orders of joining.

    `phi_j = sum_(S without j) |S|! (n - |S| - 1)! / n! (v(S + j) - v(S))` (Shapley 1953)

    Args:
      worth: [2^n], of each coalition; player j is in those whose place has bit j.

    Returns:
      [n] float64, in units of `worth`; the sum is what all add to none.
    """
    players = len(worth).bit_length() - 1
    members = _members(players)
    orders = _orders(players)[members.sum(axis=1).astype(int)]
    without = [np.flatnonzero(members[:, j] == 0) for j in range(players)]
    return np.array(
        [np.sum(orders[s] * (worth[s | 1 << j] - worth[s])) for j, s in enumerate(without)]
    )


@functools.cache
def _members(players: int) -> np.ndarray:
    """[2^n, n]: 1 where the coalition has the player."""
    return (np.arange(1 << players)[:, None] >> np.arange(players) & 1).astype(float)


@functools.cache
def _orders(players: int) -> np.ndarray:
    """[n + 1]: share of orders in which a player joins just this coalition, by its size."""
    shares = [1 / players]
    for size in range(1, players):
        shares.append(shares[-1] * size / (players - size))
    return np.array([*shares, 0.0])
