"""Requests on the host: prefixes, the features they need, and checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import sampling
from jaxrl.sampling.drafts import DraftModel
from jaxrl.sampling.logits import Guide
from jaxrl.sampling.slots import Features
from jaxrl.types import Completion, Prefix, Request, Source


def forced(tokens: Sequence[int], source: Source = Source.FORCED) -> Prefix:
    """A prefix of response tokens that the policy did not choose."""
    zeros = np.zeros(len(tokens), np.float32)
    marks = np.full(len(tokens), source, np.int8)
    return Prefix(np.array(tokens, np.int32), zeros, zeros, zeros.astype(np.int32), marks)


def parts(completion: Completion) -> Prefix:
    """The arrays of a completion, as the prefix of a longer response."""
    c = completion
    source = np.zeros(len(c.tokens), np.int8) if c.source is None else c.source
    return Prefix(c.tokens, c.logp, c.entropy, c.version, source, c.support)


def resume(completion: Completion) -> Request:
    """The request that continues an unfinished completion.

    Tokens depend on the request's id and their position alone, so under the same key and weights
    the continuation is the one that was interrupted. Each token keeps its source, log-probability
    and policy version; top log-probabilities are not carried over.
    """
    prefix = parts(completion) if len(completion.tokens) else None
    return dataclasses.replace(completion.request, prefix=prefix)


def for_training(completion: Completion) -> Completion:
    """The completion as it is trained on: under its request's `scoring_prompt`, if it has one.

    Log-probabilities stay those of the distribution that was sampled from, under the other prompt.
    """
    request = completion.request
    if request.scoring_prompt is None:
        return completion
    request = dataclasses.replace(request, prompt=request.scoring_prompt, scoring_prompt=None)
    return dataclasses.replace(completion, request=request)


def start_of(request: Request) -> tuple[int, ...]:
    """The tokens that are prefilled before sampling starts."""
    if request.prefix is None:
        return request.prompt
    return (*request.prompt, *request.prefix.tokens.tolist())


def turn_start(request: Request) -> int:
    """The start position of the turn that a request samples or continues."""
    if request.prefix is None:
        return len(request.prompt)
    non_policy_indices = np.flatnonzero(request.prefix.source != Source.POLICY)
    return len(request.prompt) + (int(non_policy_indices[-1]) + 1 if len(non_policy_indices) else 0)


def limit_of(request: Request) -> int:
    """The length at which the turn that a request samples is cut off, its prompt included."""
    max_length = len(request.prompt) + request.max_new_tokens
    if not request.turn_tokens:
        return max_length
    return min(max_length, turn_start(request) + request.turn_tokens)


def truncates(request: Request) -> bool:
    """Whether top-k, top-p or min-p may leave some tokens out of a draw."""
    return bool(request.top_k or request.top_p < 1 or request.min_p)


def features_of(requests: Sequence[Request], least: Features = Features()) -> Features:
    """The features that these requests need, and at least those of `least`."""
    biases = max((len(r.logit_bias) for r in requests), default=0)
    return Features(
        truncate=least.truncate or any(map(truncates, requests)),
        penalize=least.penalize or any(r.repetition_penalty != 1 for r in requests),
        biases=max(least.biases, round_up(biases, 4) if biases else 0),
        top=max([least.top, *(r.top_logprobs for r in requests)]),
        support=least.support,
    )


def settings_of(
    requests: Sequence[Request], vocab_size: int, rows: int, biases: int
) -> sampling.Sampling:
    """Settings of `rows` slots, the first of which hold `requests`."""

    def column(name: str, dtype: Any) -> np.ndarray:
        return np.array([getattr(r, name) for r in requests] + [0] * (rows - len(requests)), dtype)

    ids = np.full((rows, biases), vocab_size, np.int32)
    bias = np.zeros((rows, biases), np.float32)
    for row, r in enumerate(requests):
        for i, (token, value) in enumerate(r.logit_bias):
            ids[row, i], bias[row, i] = token, value
    return sampling.Sampling(
        temperature=column("temperature", np.float32),
        top_k=column("top_k", np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        repetition_penalty=column("repetition_penalty", np.float32),
        bias_ids=ids,
        bias=bias,
    )


def check_requests(
    config: DecoderConfig, requests: Sequence[Request], *, max_length: int | None = None
) -> None:
    """Refuse requests that the model, or a cache of `max_length` tokens, cannot serve.

    Raises:
      ValueError: names the request, the field, its value and the remedy.
    """
    for r in requests:
        _check_lengths(config, r, max_length)
        _check_tokens(config, r)
        _check_settings(config, r)


def check_guide(config: DecoderConfig, guide: Guide) -> None:
    """Refuse a guide whose models have another vocabulary than the policy.

    Raises:
      ValueError: names the vocabulary sizes.
    """
    for model in guide.models:
        if model.vocab_size != config.vocab_size:
            raise ValueError(
                f"guide: a model has vocab_size={model.vocab_size}, the policy "
                f"{config.vocab_size}; their logits can only be combined over one vocabulary"
            )
    if len(guide.models) != len(guide.params):
        raise ValueError(
            f"guide: {len(guide.models)} models with {len(guide.params)} sets of parameters; "
            "give one set for each model"
        )


def check_drafts(
    config: DecoderConfig, name: str, layers: int, draft: DraftModel | None, world: Any
) -> None:
    """Refuse drafts that cannot be made or verified.

    Args:
      config: the policy's shape.
      name: `SamplerConfig.drafts`, of some kind.
      layers: `SamplerConfig.draft_layers`.
      draft: the model that drafts; None: none does.
      world: of episodes that are played within the decode loop; None: there are none.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    if world is not None:
        raise ValueError(
            f"sampler.drafts={name!r}: episodes within the decode loop are sampled a "
            "token at a time; set it to 'none'"
        )
    if name == "layers" and config.num_layers == 1:
        raise ValueError(
            "sampler.drafts='layers': the policy has one layer, so there are no first layers of it "
            "to draft with; set it to 'lookup' or 'none'"
        )
    if name == "layers" and not 0 < layers < config.num_layers:
        raise ValueError(
            f"sampler.draft_layers={layers}: the policy has {config.num_layers} layers; set it to "
            f"1 to {config.num_layers - 1}"
        )
    if (name == "model") != (draft is not None):
        raise ValueError(
            f"sampler.drafts={name!r}, and draft={draft and draft.model}: a model drafts with "
            "drafts='model', and with it alone; set both"
        )
    if draft is not None and _spelled(draft.model) != _spelled(config):
        raise ValueError(
            f"draft: the model has {_spelled(draft.model)} tokens, the policy {_spelled(config)}; "
            "take a model of the same tokenizer"
        )


def _spelled(model: DecoderConfig) -> int:
    return model.spelled or model.vocab_size


def _check_lengths(config: DecoderConfig, r: Request, max_length: int | None) -> None:
    if not r.prompt:
        raise ValueError(f"request {r.id}: prompt is empty; give it at least one token (BOS)")
    prefix_size = 0 if r.prefix is None else len(r.prefix.tokens)
    if r.max_new_tokens <= prefix_size:
        raise ValueError(
            f"request {r.id}: max_new_tokens={r.max_new_tokens}; ask for {prefix_size + 1} or more"
            + (f", as the prefix has {prefix_size}" if prefix_size else "")
        )
    total = len(r.prompt) + r.max_new_tokens
    if total > config.max_positions:
        raise ValueError(
            f"request {r.id}: {len(r.prompt)} prompt tokens + max_new_tokens="
            f"{r.max_new_tokens} exceed max_positions={config.max_positions} of the model; "
            "shorten the prompt or ask for fewer tokens"
        )
    if max_length is not None and total > max_length:
        raise ValueError(
            f"request {r.id}: {len(r.prompt)} prompt tokens + max_new_tokens={r.max_new_tokens} "
            f"exceed max_length={max_length}; raise it, or ask for fewer tokens"
        )


def _check_tokens(config: DecoderConfig, r: Request) -> None:
    for name, tokens in {
        "prompt": r.prompt,
        "prefix": () if r.prefix is None else r.prefix.tokens.tolist(),
        "logit_bias": [token for token, _ in r.logit_bias],
    }.items():
        for token in (min(tokens), max(tokens)) if tokens else ():
            if not 0 <= token < config.vocab_size:
                raise ValueError(
                    f"request {r.id}: {name} has token {token}, which is outside the model's "
                    f"vocabulary of {config.vocab_size}; use the tokenizer that belongs to the "
                    "model"
                )
    if not r.logit_bias:
        return
    if any(not b < math.inf for _, b in r.logit_bias):  # nan compares False
        raise ValueError(
            f"request {r.id}: logit_bias={r.logit_bias}: a bias must be finite, or -inf to forbid"
        )
    forbidden = {token for token, bias in r.logit_bias if bias == -math.inf}
    if len(forbidden) == config.vocab_size:
        raise ValueError(f"request {r.id}: logit_bias forbids every token; allow at least one")


def _check_settings(config: DecoderConfig, r: Request) -> None:
    accepted = {
        "temperature": (0 <= r.temperature < math.inf, "0 for greedy, or positive"),
        "top_k": (r.top_k >= 0, "0 for all tokens, or positive"),
        "top_p": (0 < r.top_p <= 1, "above 0 and at most 1"),
        "min_p": (0 <= r.min_p <= 1, "between 0 and 1"),
        "repetition_penalty": (0 < r.repetition_penalty < math.inf, "positive, 1 for none"),
        "top_logprobs": (0 <= r.top_logprobs <= config.vocab_size, "0 to the vocabulary's size"),
        "stop": (all(r.stop), "strings of one character or more"),
        "turn_tokens": (r.turn_tokens >= 0, "0 for no budget of its own, or positive"),
    }
    for name, (fits, remedy) in accepted.items():
        if not fits:
            raise ValueError(f"request {r.id}: {name}={getattr(r, name)!r}; make it {remedy}")
