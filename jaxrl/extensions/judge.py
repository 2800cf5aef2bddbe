"""A language model that judges, as the reward of a run: by a rubric, or by comparing answers.

The judge is a model or run of ours on the mesh, or the policy itself (self-rewarding). It writes
nothing: its verdict is how probable it finds `Yes` against `No`, or `A` against `B`, as the next
token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from jaxrl.config import Config
from jaxrl.data.rewards import group
from jaxrl.data.rewards.judged import rubrics
from jaxrl.data.rewards.judged.questions import boundary, comparison, question
from jaxrl.data.rewards.judged.rubrics import Criterion, Rubric
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.types import Problem, Score, Task
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.models import lora
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import Adapters, LoraConfig
from jaxrl.rollout import comparisons, policy, tasks
from jaxrl.rollout.experience import Experience
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import packing, tries
from jaxrl.training.logprobs import make_score
from jaxrl.types import Params, TrainState


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
    """A language model's verdicts in place of the task's reward."""

    rubric: str = ""
    """YAML file of a rubric, see docs/own-data.md; its `judges` are not asked. A `pairwise` judge
    needs none: what is better it has learned from preferences."""
    model: str = ""
    """Model or run that judges; empty: the policy itself, as it is at each step."""
    pairwise: bool = False
    """Compare answers of a group with each other; the reward is the mean probability of being
    the better one. Else each answer is judged by itself."""
    opponents: int = 2
    """Of a `pairwise` judge: other answers of the group that each is compared with."""
    anchor: Literal["", "gold"] = ""
    """Of a `pairwise` judge: `gold` compares each answer with the task's own solution, or where it
    has none with the reference answer, in place of the group's other answers."""
    task_weight: float = 0.0
    """Weight of the task's own reward, which is added."""
    weight: float = 1.0
    """Of the verdict; with 0 it is the part `judge` alone, which `renormalise` may take."""


class Opened(NamedTuple):
    """A judge on the mesh."""

    params: Params
    tokenizer: Tokenizer
    score: Callable[..., jax.Array]
    longest: int
    """Tokens that it has positions for."""
    adapted: tuple[LoraConfig, Adapters] | None = None
    """How and by what the judge differs from the policy's frozen base, which is then held once:
    `params` are of one step."""


def judge(settings: JudgeConfig) -> Extension:
    """The judge's verdicts replace the task's scores, which are kept as the part `task`.

    Evaluations report the mean verdict as `judge`, but of comparisons within a group, whose mean is
    one half.

    Paper: Zhang et al. 2024, "Generative Verifiers: Reward Modeling as Next-Token Prediction"; Yuan
    et al. 2024, "Self-Rewarding Language Models"; Xu et al. 2025, "A Unified Pairwise Framework for
    RLHF: Bridging Generative Reward Modeling and Policy Optimization" (the anchor)
    """
    opened: list[Opened] = []
    rubric: list[Rubric] = []

    def check(config: Config) -> None:
        if not settings.rubric and not settings.pairwise:
            raise ValueError("judge.rubric is empty; name a rubric with --judge.rubric FILE.yaml")
        configured_rubric = _rubric(settings)
        if settings.model:
            policy.require_text(
                policy.describe(policy.config_of(settings.model))[0], settings.model
            )
        tasks.require_sampling(config, "judge")
        tasks.require_no_selection(config, "judge")
        if settings.anchor and not settings.pairwise:
            raise ValueError(
                f"judge.anchor={settings.anchor!r} without judge.pairwise: answers are judged by "
                "themselves; add --judge.pairwise, or leave the anchor out"
            )
        if not settings.pairwise:
            return
        if configured_rubric and (
            any(
                criterion.veto or criterion.weight < 0
                for criterion in configured_rubric.criteria.values()
            )
            or configured_rubric.interactions
        ):
            raise ValueError(
                f"judge.pairwise with vetoes, negative weights or interactions in "
                f"{settings.rubric}: answers are compared as a whole; leave these out"
            )
        if not settings.anchor and not 0 < settings.opponents < config.rollout.group_size:
            raise ValueError(
                f"judge.opponents={settings.opponents} with rollout.group_size="
                f"{config.rollout.group_size}: use from 1 to one less than the group's size"
            )

    def verdicts(ctx: Context, state: TrainState, experience: Experience) -> list[Score]:
        if not rubric:
            rubric.append(_rubric(settings))
        if not opened:
            opened.append(_open(ctx, settings.model, state))
        judge_model = _in_step(ctx, opened[0], bool(settings.model), state)
        if settings.anchor:
            task = tasks.of_config(ctx.config)
            answers = [_gold(task.of(problem), problem) for problem in experience.problems]
            return anchored(ctx.config, judge_model, rubric[0], experience, answers)
        if settings.pairwise:
            return compared(ctx.config, judge_model, rubric[0], experience, settings.opponents)
        return marked(ctx.config, judge_model, rubric[0], experience)

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        judge_scores = verdicts(ctx, state, experience)
        return experience._replace(
            scores=[
                _combined(settings, *pair)
                for pair in zip(experience.scores, judge_scores, strict=True)
            ]
        )

    def measure(ctx: Context, state: TrainState, experience: Experience) -> dict[str, float]:
        if settings.pairwise and not settings.anchor:
            return {}
        values = [s.value for s in verdicts(ctx, state, experience) if s.error is None]
        return {"judge": float(np.mean(values))} if values else {}

    return Extension(check=check, reward=reward, measure=measure)


def marked(config: Config, opened: Opened, rubric: Rubric, experience: Experience) -> list[Score]:
    """Scores by a rubric: each mark is the probability of `Yes`.

    Args:
      config: of the run.
      opened: the judge.
      rubric: what it judges by.
      experience: N completions.

    Returns:
      N scores from 0 to 1; an error where the judge cannot read the question.
    """
    problems = _asked(experience)
    row_criteria = [_criteria(rubric, problem) for problem in problems]
    mark = _mark(config, experience.texts)
    questions = [
        question(criterion.text, problem, text, mark)
        for problem, text, criteria in zip(problems, experience.texts, row_criteria, strict=True)
        if not isinstance(criteria, Score)
        for criterion in criteria.values()
    ]
    probabilities = iter(preferences(config, opened, questions, ("Yes", "No")))

    def score_of(criteria: dict[str, Criterion] | Score) -> Score:
        if isinstance(criteria, Score):
            return criteria
        marks = {name: float(next(probabilities)) for name in criteria}
        if any(map(np.isnan, marks.values())):
            return _UNREADABLE
        return rubrics.total(rubric, criteria, marks)

    return [score_of(criteria) for criteria in row_criteria]


def compared(
    config: Config, opened: Opened, rubric: Rubric | None, experience: Experience, opponents: int
) -> list[Score]:
    """Scores by comparisons within a group, each made in both orders.

    Args:
      config: of the run.
      opened: the judge.
      rubric: its criteria say what a good answer is; None: the judge has learned it.
      experience: N completions, in groups of G.
      opponents: answer i of a group meets answers i + 1, ..., i + opponents (modulo G).

    Returns:
      N scores: the mean probability of being the better answer, of the comparisons that the judge
      can read; an error where it can read none.
    """
    texts = experience.texts
    size = len(texts) // len(experience.problems)
    row_criteria = [_criteria(rubric, problem) for problem in _asked(experience)]
    pairs = [
        (n, n - n % size + (n % size + step) % size)
        for n in range(len(texts))
        if not isinstance(row_criteria[n], Score)
        for step in range(1, opponents + 1)
    ]
    opponent_texts = [(n, texts[opponent]) for n, opponent in pairs]
    wins = _wins(config, opened, experience, row_criteria, opponent_texts, _mark(config, texts))
    won: list[list[float]] = [[] for _ in texts]
    for (n, opponent), win in zip(pairs, wins, strict=True):
        if not np.isnan(win):  # one that cannot be read says nothing of the other either
            won[n].append(win)
            won[opponent].append(1 - win)
    means = [float(np.mean(row_wins)) if row_wins else np.nan for row_wins in won]
    return [
        criteria if isinstance(criteria, Score) else _UNREADABLE if np.isnan(mean) else Score(mean)
        for criteria, mean in zip(row_criteria, means, strict=True)
    ]


def anchored(
    config: Config,
    opened: Opened,
    rubric: Rubric | None,
    experience: Experience,
    answers: Sequence[str | None],
) -> list[Score]:
    """Scores by comparisons with one answer to each problem, each made in both orders.

    Args:
      config: of the run.
      opened: the judge.
      rubric: its criteria say what a good answer is; None: the judge has learned it.
      experience: N completions, in groups of G.
      answers: N / G anchors, one of each problem; None where there is none.

    Returns:
      N scores: the probability of being better than the anchor.
    """
    texts = experience.texts
    size = len(texts) // len(experience.problems)
    row_criteria = [
        _criteria(rubric, problem) if answers[n // size] is not None else _NO_ANCHOR
        for n, problem in enumerate(_asked(experience))
    ]
    anchors = [
        (n, answers[n // size])
        for n, criteria in enumerate(row_criteria)
        if not isinstance(criteria, Score)
    ]
    mark = _mark(config, [*texts, *(anchor for _, anchor in anchors)])
    wins = iter(_wins(config, opened, experience, row_criteria, anchors, mark))

    def score_of(criteria: dict[str, Criterion] | Score) -> Score:
        if isinstance(criteria, Score):
            return criteria
        win = float(next(wins))
        return _UNREADABLE if np.isnan(win) else Score(win)

    return [score_of(criteria) for criteria in row_criteria]


def _wins(
    config: Config,
    opened: Opened,
    experience: Experience,
    row_criteria: Sequence[dict[str, Criterion] | Score],
    pairs: Sequence[tuple[int, str]],
    mark: str,
) -> np.ndarray:
    """[M] of completion and other answer: how probable the completion is the better one."""
    problems, texts = _asked(experience), experience.texts
    questions = [
        comparison(
            [criterion.text for criterion in row_criteria[n].values()], problems[n], *order, mark
        )
        for n, answer in pairs
        for order in ((texts[n], answer), (answer, texts[n]))
    ]
    first = preferences(config, opened, questions, comparisons.LETTERS).reshape(-1, 2)
    return group.either_order(first[:, 0], first[:, 1])


def preferences(
    config: Config, opened: Opened, questions: Sequence[str], answers: tuple[str, str]
) -> np.ndarray:
    """[N] probability of the first of two answers against the second, as the next token.

    What questions begin alike with, as those of the criteria of one completion, is computed once.

    Args:
      config: of the run, for packing.
      opened: the judge.
      questions: N texts, asked as a user's message where the model has a chat template.
      answers: two texts whose first tokens differ.

    Returns:
      [N] float32; nan where the question is too long, or has characters that are not known.

    Raises:
      ValueError: the answers begin with the same token, or cannot be encoded.
    """
    first, second = comparisons.first_tokens(opened.tokenizer, answers)
    probabilities = np.full(len(questions), np.nan, np.float32)
    prompts = {n: ids for n, q in enumerate(questions) if (ids := _encoded(opened, q)) is not None}
    if not prompts:
        return probabilities
    longest = max(map(len, prompts.values())) + 2
    room, row_length = 2 * longest, config.packing.row_length
    if not 0 < row_length < longest:  # else `pack_scored` makes room
        per_device = config.packing.micro_batch_tokens // jax.sharding.get_mesh().size
        room = max(longest, min(room, row_length or per_device))
    joined = tries.join([*prompts.values()], (first, second), room)
    length = round_up(max(len(sequence.tokens) for sequence in joined), config.packing.bucket)
    tokens = np.zeros((len(questions), length), np.int32)
    parent, mask = np.full_like(tokens, -1), np.zeros(tokens.shape, bool)
    ends = np.zeros((len(prompts), 2), np.int32)
    for row, sequence in enumerate(joined):
        tokens[row, : len(sequence.tokens)] = sequence.tokens
        parent[row, : len(sequence.parent)] = sequence.parent
        for n, end in sequence.ends.items():
            mask[row, end : end + 2], ends[n] = True, (row, end)
    batch = packing.scored(tokens, mask, parent)
    logp = mesh.fetch(opened.score(opened.params, placement.pack_scored(batch, config)))
    row, end = ends.T
    probabilities[list(prompts)] = 1 / (1 + np.exp(logp[row, end + 1] - logp[row, end]))
    return probabilities


_NO_ANCHOR = Score(None, error="gold: the problem has neither a solution nor a reference answer")
_UNREADABLE = Score(None, error="judge: it cannot read the completion, by length or characters")


def _rubric(settings: JudgeConfig) -> Rubric | None:
    if not settings.rubric:
        return None
    return rubrics.parse(rubrics.load(settings.rubric), settings.rubric)


def _gold(task: Task, problem: Problem) -> str | None:
    """The task's solution, or else the reference answer; None where there is neither."""
    if task.gold is not None:
        return task.gold(problem)
    return None if problem.answer is None else str(problem.answer)


def _criteria(rubric: Rubric | None, problem: Problem) -> dict[str, Criterion] | Score:
    """What a problem's completions are judged by, or why they cannot be."""
    if rubric is None:
        return {}
    try:
        return rubrics.criteria(rubric, problem)
    except ValueError as error:
        return Score(None, error=f"gold: {error}")


def _encoded(opened: Opened, text: str) -> Sequence[int] | None:
    try:
        ids = comparisons.encode_question(opened.tokenizer, text)
    except ValueError:  # characters outside an alphabet
        return None
    return ids if len(ids) < opened.longest else None


def _open(ctx: Context, model: str, state: TrainState) -> Opened:
    if not model:
        shape, tokenizer = ctx.policy.model, ctx.policy.tokenizer
        return Opened(
            state.params, tokenizer, make_score(shape, temperature=1.0), shape.max_positions
        )
    config = dataclasses.replace(
        policy.config_of(model), compute_dtype=ctx.config.compute_dtype, mesh=ctx.config.mesh
    )
    shape, tokenizer = policy.describe(config)
    rest = (tokenizer, make_score(shape, temperature=1.0), shape.max_positions)
    if adapted := _beside_policy(ctx, model, shape, state):
        return Opened({}, *rest, adapted)
    return Opened(policy.first_params(config, shape, jax.sharding.get_mesh()), *rest)


def _beside_policy(
    ctx: Context, model: str, shape: DecoderConfig, state: TrainState
) -> tuple[LoraConfig, Adapters] | None:
    """The adapters of a run that judges, where their base is the frozen one of the policy.

    Bases are compared bit by bit, as the policy holds its own. None: they differ, or the judge or
    the policy has no adapters.
    """
    if not (ctx.config.lora.rank and policy.is_run(model)):
        return None
    params, adapters, _ = policy.restored(model, shape, jax.sharding.get_mesh())
    if not adapters.rank:
        return None
    small, base = lora.detach(params)
    alike = placement.equal_params(lora.detach(state.params)[1], base)
    return (adapters, small) if alike else None


def _in_step(ctx: Context, opened: Opened, is_model: bool, state: TrainState) -> Opened:
    """A judge whose parameters are of this step's state: the policy, or adapters on its base."""
    if not is_model:
        return opened._replace(params=state.params)
    if opened.adapted is None:
        return opened
    config, adapters = opened.adapted
    base = lora.detach(state.params)[1]
    return opened._replace(params=lora.attach(ctx.policy.model, base, adapters, config))


def _combined(settings: JudgeConfig, task: Score, verdict: Score) -> Score:
    if task.error or verdict.error:
        return task if task.error else verdict
    parts = {**verdict.parts, "task": task.value, "judge": verdict.value}
    value = settings.weight * verdict.value + settings.task_weight * task.value
    return Score(value, parts)


def _asked(experience: Experience) -> list[Problem]:
    size = len(experience.texts) // len(experience.problems)
    return [problem for problem in experience.problems for _ in range(size)]


def _mark(config: Config, texts: Sequence[str]) -> str:
    return boundary(config.seed, texts)
