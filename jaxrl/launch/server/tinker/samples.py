"""Samples for clients, by the sampler of `jaxrl train`.

What is sampled depends on the weights, the prompt, the seed and the settings alone, never on what
else is sampled at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.server import engine
from jaxrl.launch.server.openai import CHOICES, COLDEST
from jaxrl.launch.server.tinker import bodies, wire
from jaxrl.launch.server.tinker.ledger import number_of
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import sampler, search
from jaxrl.types import Completion, Params, Request


def setup_of(
    model: DecoderConfig,
    tokenizer: Tokenizer,
    context: int,
    layout: sampler.SamplerConfig,
    stop_ids: Sequence[int] | None,
) -> sampler.Setup:
    """The sampler's setup.

    Args:
      model: the decoder's shape.
      tokenizer: of the model.
      context: most tokens of a sequence.
      layout: of memory.
      stop_ids: tokens that end a sequence; None: the model's own.
    """
    ends = tokenizer.eos_ids if stop_ids is None else stop_ids
    return sampler.Setup(
        model,
        jax.random.key(0),
        tuple(ends),
        context,
        context,
        layout,
        text=tokenizer.decode,
        lean=True,
    )


def requests_of(body: bodies.Sample, context: int) -> list[Request]:
    """The sampler's requests for a body."""
    settings, prompt = body.sampling_params, body.prompt.tokens
    seed = settings.seed
    if seed is None:
        seed = number_of(f"{body.sampling_session_id}:{body.seq_id}")
    first = Request(
        0,
        prompt=prompt,
        max_new_tokens=settings.max_tokens or context - len(prompt),
        temperature=0.0 if settings.temperature < COLDEST else settings.temperature,
        stop=bodies.stops(settings.stop)[0],
    )
    return search.copies(first, body.num_samples, first_id=seed % 2**31 * CHOICES)


def together(jobs: Sequence[bodies.Sample]) -> list[list[int]]:
    """Places of jobs that can be sampled at once: no two of them of one seed."""
    rounds: list[tuple[set[int | str], list[int]]] = []
    for i, body in enumerate(jobs):
        seed = body.sampling_params.seed
        name = f"{body.sampling_session_id}:{body.seq_id}" if seed is None else ""
        number = number_of(name) if seed is None else seed % 2**31
        for numbers, places in rounds:
            if number not in numbers:
                numbers.add(number)
                places.append(i)
                break
        else:
            rounds.append(({number}, [i]))
    return [places for _, places in rounds]


def sample(setup: sampler.Setup, params: Params, jobs: Sequence[bodies.Sample]) -> list[bytes]:
    """Answers to jobs, none of which has another's seed.

    Args:
      setup: as from `setup_of`.
      params: as from `policy.sampling_params`.
      jobs: with the stop tokens of the setup.
    """
    owner, requests = dict[int, int](), list[Request]()
    for i, body in enumerate(jobs):
        mine = requests_of(body, setup.max_length)
        owner |= {request.id: i for request in mine}
        requests += mine
    work = sampler.Work()
    sampler.submit(setup, work, requests)
    done: list[list[Completion]] = [[] for _ in jobs]
    while work:
        for completion in sampler.advance(setup, params, work):
            done[owner[completion.request.id]].append(completion)
    return [
        _answer(setup, params, body, sorted(completions, key=lambda c: c.request.id))
        for body, completions in zip(jobs, done, strict=True)
    ]


def _answer(
    setup: sampler.Setup, params: Params, body: bodies.Sample, completions: Sequence[Completion]
) -> bytes:
    prompt_logprobs = None
    if body.prompt_logprobs:
        scored = engine.score(setup, params, body.prompt.tokens)
        prompt_logprobs = np.concatenate([[np.nan], scored.logp]).astype(np.float32)
    return wire.write_samples([(c.tokens, c.logp, c.stopped) for c in completions], prompt_logprobs)
