"""The OpenAI protocol: JSON bodies to requests, completions to JSON.

https://platform.openai.com/docs/api-reference/completions and .../chat. Beyond it, a body may have
`top_k`, `min_p` and `repetition_penalty`, a raw prompt may be token ids, and `return_token_ids`
adds the ids that the policy chose to each choice, so that nobody has to encode its text again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jinja2
import jsonschema

from data.tokenizers import Tokenizer
from jaxrl import search
from jaxrl.types import Completion, Request

Json = dict[str, Any]
TOP_LOGPROBS, BIASES = 20, 64

_STOPS = {
    "anyOf": [{"type": "string"}, {"type": "array", "maxItems": 4, "items": {"type": "string"}}]
}
_SHARED: Json = {
    "model": {"type": "string"},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 10},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 0},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "presence_penalty": {"const": 0},
    "frequency_penalty": {"const": 0},
    "n": {"type": "integer", "minimum": 1, "maximum": 64},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "stop": _STOPS,
    "stream": {"type": "boolean"},
    "user": {"type": "string"},
    "return_token_ids": {"type": "boolean"},
    "logit_bias": {
        "type": "object",
        "maxProperties": BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
COMPLETION_SCHEMA: Json = {
    "type": "object",
    "required": ["prompt"],
    "additionalProperties": False,
    "properties": {
        **_SHARED,
        "prompt": {"anyOf": [{"type": "string"}, _IDS]},
        "logprobs": {"type": "integer", "minimum": 0, "maximum": TOP_LOGPROBS},
    },
}
CHAT_SCHEMA: Json = {
    "type": "object",
    "required": ["messages"],
    "additionalProperties": False,
    "properties": {
        **_SHARED,
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
            },
        },
        "tools": {"type": "array", "items": {"type": "object"}},
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": TOP_LOGPROBS},
    },
}


class Call(NamedTuple):
    """A body, understood."""

    requests: list[Request]
    chat: bool
    stream: bool
    top: int | None
    """Alternatives asked for at each token; None: no log-probabilities at all."""
    token_ids: bool


def parse(
    body: Any,
    tokenizer: Tokenizer,
    *,
    chat: bool,
    max_prompt_tokens: int,
    max_new_tokens: int,
) -> Call:
    """Understand a JSON body.

    Raises:
      ValueError: names what is wrong and how to put it right.
    """
    body = {k: v for k, v in body.items() if v is not None} if isinstance(body, dict) else body
    _check(body, CHAT_SCHEMA if chat else COMPLETION_SCHEMA)
    prompt = _chat_prompt(body, tokenizer) if chat else _raw_prompt(body, tokenizer)
    if len(prompt) > max_prompt_tokens:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens, more than {max_prompt_tokens}; shorten "
            "it, or start the server with a greater --max-prompt-tokens"
        )
    budget = body.get("max_completion_tokens", body.get("max_tokens"))
    if budget is None:
        budget = max_new_tokens if chat else min(16, max_new_tokens)
    if budget > max_new_tokens:
        raise ValueError(
            f"max_tokens={budget} is more than {max_new_tokens}; ask for fewer, or start "
            "the server with a greater --max-new-tokens"
        )
    top = body.get("logprobs")
    if chat:
        top = body.get("top_logprobs", 0) if top else None
    if top is not None and body.get("stream"):
        raise ValueError("logprobs are not streamed; leave out stream or logprobs")
    stop = body.get("stop", ())
    # Streams of one seed are neighbours; a body without a seed gets a random one.
    first = body["seed"] * 64 if "seed" in body else secrets.randbelow(2**26) * 64
    shared = Request(
        id=0,
        prompt=prompt,
        max_new_tokens=budget,
        temperature=float(body.get("temperature", 1.0)),
        top_k=body.get("top_k", 0),
        top_p=float(body.get("top_p", 1.0)),
        min_p=float(body.get("min_p", 0.0)),
        repetition_penalty=float(body.get("repetition_penalty", 1.0)),
        logit_bias=tuple((int(t), float(b)) for t, b in body.get("logit_bias", {}).items()),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        top_logprobs=top or 0,
    )
    return Call(
        requests=search.copies(shared, body.get("n", 1), first_id=first),
        chat=chat,
        stream=body.get("stream", False),
        top=top,
        token_ids=body.get("return_token_ids", False),
    )


def _check(body: Any, schema: Json) -> None:
    errors = jsonschema.Draft202012Validator(schema).iter_errors(body)
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
        raise ValueError(f"body{where}: {error.message[:300]}")


def _raw_prompt(body: Json, tokenizer: Tokenizer) -> tuple[int, ...]:
    prompt = body["prompt"]
    return tuple(tokenizer.prompt(prompt) if isinstance(prompt, str) else prompt)


def _chat_prompt(body: Json, tokenizer: Tokenizer) -> tuple[int, ...]:
    if tokenizer.chat is None:
        raise ValueError("this model has no chat template; use /v1/completions")
    try:
        return tuple(tokenizer.chat(body["messages"], body.get("tools")))
    except jinja2.TemplateError as error:
        raise ValueError(f"messages: the chat template refuses them: {error}") from error


def text_of(tokenizer: Tokenizer, completion: Completion) -> str:
    """The text to show: no stop string, and nothing that more tokens could still change."""
    text = tokenizer.decode(completion.tokens.tolist())
    stops = completion.request.stop
    ends = [at for s in stops if (at := text.find(s)) >= 0]
    if ends:
        return text[: min(ends)]
    if completion.finished:
        return text
    text = text.rstrip("\ufffd")  # half a character
    begun = (n for s in stops for n in range(1, len(s)) if text.endswith(s[:n]))
    return text[: len(text) - max(begun, default=0)]


def reason(completion: Completion) -> str | None:
    """Why it ended, in the protocol's words."""
    if not completion.finished:
        return None
    return "stop" if completion.stopped else "length"


def choice(call: Call, tokenizer: Tokenizer, completion: Completion, text: str) -> Json:
    """One choice of a response that is not streamed."""
    out: Json = {
        "index": completion.request.id - call.requests[0].id,
        "finish_reason": reason(completion),
        "logprobs": None if call.top is None else _logprobs(call, tokenizer, completion),
    }
    if call.token_ids:
        out["token_ids"] = completion.tokens.tolist()
    if call.chat:
        return {**out, "message": {"role": "assistant", "content": text}}
    return {**out, "text": text}


def piece(call: Call, completion: Completion, text: str, *, first: bool) -> Json:
    """One choice of a streamed chunk: the text that is new."""
    out: Json = {
        "index": completion.request.id - call.requests[0].id,
        "finish_reason": reason(completion),
    }
    if call.chat:
        return {**out, "delta": {"content": text, **({"role": "assistant"} if first else {})}}
    return {**out, "text": text}


def envelope(call: Call, name: str, model: str, created: int, choices: Sequence[Json]) -> Json:
    """What a response or a chunk is sent in."""
    kind = "chat.completion" if call.chat else "text_completion"
    if call.chat and call.stream:
        kind += ".chunk"
    body = {"id": name, "object": kind, "created": created, "model": model}
    return {**body, "choices": list(choices)}


def usage(call: Call, completions: Sequence[Completion]) -> Json:
    """Tokens read and written."""
    prompt = len(call.requests[0].prompt)
    written = sum(len(c.tokens) for c in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def _logprobs(call: Call, tokenizer: Tokenizer, c: Completion) -> Json:
    """The policy's own log-probabilities, under the distribution it sampled from."""
    spelled = [tokenizer.decode([t]) for t in c.tokens.tolist()]
    best: list[list[tuple[str, float]]] = [[] for _ in spelled]
    if c.top_ids is not None:
        best = [
            [
                (tokenizer.decode([t]), float(logp))
                for t, logp in zip(ids.tolist(), row, strict=True)
                if logp > float("-inf")
            ]
            for ids, row in zip(c.top_ids, c.top_logp, strict=True)
        ]
    if not call.chat:
        return {
            "tokens": spelled,
            "token_logprobs": c.logp.tolist(),
            "top_logprobs": [dict(row) for row in best],
        }
    return {
        "content": [
            {
                "token": token,
                "logprob": float(logp),
                "top_logprobs": [{"token": t, "logprob": p} for t, p in row],
            }
            for token, logp, row in zip(spelled, c.logp, best, strict=True)
        ]
    }
