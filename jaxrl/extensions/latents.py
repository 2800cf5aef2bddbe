"""Plans before the lines of a given text, trained as latent variables (RA3).

Some texts are imitated with the plans that the policy has put before their lines. In the others the
plans are trained by RL, for how much they raise the likelihood of the text.

Paper: Zhang et al. 2025, "Learning to Reason as Action Abstractions with Scalable Mid-Training RL"
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.data.types import Problem, Score
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.random_streams import GroupStream
from jaxrl.rollout import programs
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.programs import Fork, Part, Program, Row, Sample, Wanted
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.sampling.requests import forced
from jaxrl.training import packing
from jaxrl.types import Completion, Params, Request, Source, TrainState


@dataclasses.dataclass(frozen=True)
class LatentsConfig:
    """Where latents stand, what they cost, and how often the text behind them is imitated."""

    imitated: float = 0.5
    """Share of the texts that are imitated with their latents, the M step; with the others, the
    latents are trained by RL, the E step."""
    stay: float = 0.5
    """Probability in the prior that a line keeps the latent of the line before."""
    beta: float = 1.0
    """Weight of the divergence from the prior."""
    keep: str = "-"
    """The character that keeps the latent; any other one announces a new latent."""
    domain: str = "text"
    """Of the problems whose solutions are texts. In all others, the policy writes the lines too."""
    line: str = "="
    """Ends a line."""


def latents(settings: LatentsConfig) -> Extension:
    """Plans before the lines of texts: sampled, imitated with the text, rewarded by the bound.

    Problems of the domain `settings.domain` are texts, whose solution is given line by line. The
    others are answered as ever. A plan is one token.

    Paper: Zhang et al. 2025, "Learning to Reason as Action Abstractions with Scalable Mid-Training
      RL"
    """

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        return bounded(ctx, settings, state.params, experience)

    return Extension(
        program=lambda program: planned(settings, program),
        reward=reward,
        provides={"extra_prompt_tokens": lambda config: config.rollout.max_new_tokens},
    )


def imitated_groups(settings: LatentsConfig, seed: Sequence[int], count: int) -> np.ndarray:
    """Which of `count` groups are imitated, bool [count]; equal for equal seeds."""
    return np.random.default_rng([*seed, GroupStream.IMITATED]).random(count) < settings.imitated


def bound(
    given: jax.Array,
    kept: jax.Array,
    *,
    line: jax.Array,
    slot: jax.Array,
    announced: jax.Array,
    stay: float,
    choices: int,
    beta: float = 1.0,
) -> jax.Array:
    """The bound of a text's log-likelihood by latents before its lines, less that without them.

    The prior keeps the latent of the line before with the probability `stay`, and else draws one of
    `choices`. So each new latent costs about `log(choices / (1 - stay))`, and keeping next to
    nothing.

    Formula: `sum_line (log p(x_t | z) - log p(x_t)) - beta sum_slot (log q(z_t) - log prior(z_t))`

    Args:
      given: [N, T] log-probability of each token of the text with its latents.
      kept: [N, T] the same where every slot keeps the latent, which tells nothing.
      line: [N, T] bool, tokens of the text.
      slot: [N, T] bool, latents; `given` is log q there.
      announced: [N, T] bool, the slots with a new latent.
      stay: probability of the prior, between 0 and 1.
      choices: number of latents.
      beta: weight of the divergence from the prior.

    Returns:
      [N] float32, nats.
    """
    prior = jnp.where(announced, math.log((1 - stay) / choices), math.log(stay))
    gain = jnp.where(line, given - kept, 0.0)
    return jnp.sum(gain - beta * jnp.where(slot, given - prior, 0.0), axis=-1)


def planned(settings: LatentsConfig, inner: Program) -> Program:
    """Rows of a text with the policy's plans; those of other problems are the inner program's."""

    def program(
        ctx: programs.Context, problem: Problem, first_id: int
    ) -> Generator[Wanted, Any, list[Row]]:
        if problem.domain != settings.domain:
            return (yield from inner(ctx, problem, first_id))
        imitated = bool(imitated_groups(settings, [ctx.seed, first_id], 1)[0])
        requests = programs.requests(ctx, problem, first_id)
        return (
            yield Fork([texts(ctx, settings, problem, request, imitated) for request in requests])
        )

    return program


def texts(
    ctx: programs.Context,
    settings: LatentsConfig,
    problem: Problem,
    request: Request,
    imitated: bool,
) -> Part:
    """The task's own solution with the policy's plans, trained on whole if it is imitated.

    Where the policy would end the text, the plan is kept, and it is not trained there.
    """
    ends, keep = ctx.tokenizer.eos_ids, ctx.tokenizer.encode(settings.keep)
    done = programs.EMPTY
    for line in lines(ctx.task.gold(problem), settings.line):
        prefix = done if len(done.tokens) else None
        sample = yield Sample(dataclasses.replace(request, turn_tokens=1, prefix=prefix))
        plan = programs.parts(sample)
        if int(plan.tokens[-1]) in ends:
            plan = programs.join([done, forced(keep)])
        done = programs.join([plan, forced(ctx.tokenizer.encode(line))])
    done = programs.join([done, forced(ends[:1])])
    source = np.full(len(done.tokens), Source.EXPERT, np.int8) if imitated else done.source
    completion = Completion(request, *done[:4], True, source)
    return (yield from programs.graded(ctx, problem, completion))


def lines(text: str, end: str) -> list[str]:
    """The lines of a text, each with the character that ends it; what follows the last one belongs
    to the line before."""
    *pieces, last = text.split(end)
    if not pieces:
        return [last]
    return [line + end for line in pieces[:-1]] + [pieces[-1] + end + last]


def plans(tokens: Sequence[int], end: int) -> list[bool]:
    """Which tokens of a text are plans: the first of each line."""
    marks = [True]
    for before in tokens[:-1]:
        marks.append(before == end and not marks[-1])
    last = len(marks) - 1 - marks[::-1].index(True)
    if last and end not in tokens[last + 1 :]:  # no line follows
        marks[last] = False
    return marks


def bounded(
    ctx: Context, settings: LatentsConfig, params: Params, experience: Experience
) -> Experience:
    """The experience with the bound as the reward of texts; the task's is kept as the part `task`.

    Args:
      ctx: of the run.
      settings: of the latents.
      params: the policy before the step's updates.
      experience: N completions.
    """
    size = len(experience.texts) // len(experience.problems)
    problems = [problem for problem in experience.problems for _ in range(size)]
    places = [n for n, problem in enumerate(problems) if problem.domain == settings.domain]
    if not places:
        return experience
    completions = [experience.completions[n] for n in places]
    values = bounds(ctx, settings, params, completions)
    scores = list(experience.scores)
    for n, value in zip(places, values, strict=True):
        old = scores[n]
        if not old.error:
            scores[n] = Score(float(value), {**old.parts, "task": old.value})
    return experience._replace(scores=scores)


def bounds(
    ctx: Context, settings: LatentsConfig, params: Params, completions: Sequence[Completion]
) -> np.ndarray:
    """[N] the bound of each text with its plans, see `bound`."""
    tokenizer, config = ctx.policy.tokenizer, ctx.config
    keep = tokenizer.encode(settings.keep)[0]
    ends = tokenizer.encode(settings.line)[0]
    plan_completions, keep_completions, slots = [], [], []
    for c in completions:
        slot = np.array(plans(c.tokens.tolist(), ends))
        slots.append(np.concatenate([np.zeros(len(c.request.prompt), bool), slot]))
        plan_completions.append(programs.written_by_expert(c.request, c.tokens))
        keep_completions.append(
            programs.written_by_expert(c.request, np.where(slot, keep, c.tokens))
        )
    length = round_up(max(len(slot) for slot in slots), config.packing.bucket)
    slot = np.stack([np.pad(row, (0, length - len(row))) for row in slots])
    count = len(plan_completions)
    batch = packing.trajectory(
        [*plan_completions, *keep_completions], [0.0] * 2 * count, range(2 * count), length=length
    )
    logp = mesh.fetch(ctx.score(params, placement.pack_scored(batch, config)))
    text = np.asarray(batch.action_mask[:count]) & ~slot
    value = bound(
        jnp.asarray(logp[:count]),
        jnp.asarray(logp[count:]),
        line=text,
        slot=slot,
        announced=slot & (np.asarray(batch.tokens[:count]) != keep),
        stay=settings.stay,
        choices=tokenizer.vocab_size - 1,
        beta=settings.beta,
    )
    return np.asarray(value)
