"""The OpenAI protocol, the way in: JSON bodies to requests.

https://platform.openai.com/docs/api-reference/completions and .../chat. Beyond it, a body may have
`top_k`, `min_p`, `repetition_penalty`, `chat_template_kwargs` and vLLM's fields of constrained
output (`jaxrl.launch.server.formats`), and `return_token_ids` adds the
ids that the policy chose to each choice, and those of the prompt, so that no text need be encoded
again. `/inference/v1/generate` is vLLM's, of token ids alone. Fields that say nothing about the
text (`user`, `metadata`, `store` and their like) are read and have no effect.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jsonschema

from jaxrl.data.text import messages
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.server import formats
from jaxrl.sampling import search
from jaxrl.types import Request

Json = dict[str, Any]
TOP_LOGPROBS, BIASES, CHOICES, STOPS = 20, 64, 64, 16
_ERRORS = 8
"""Of a body with more, the best of the first ones is told: to find all of them takes seconds."""
COLDEST = 1e-3
"""A temperature below it is greedy: logits divided by less are not finite."""

_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_STOP: Json = {"type": "string", "minLength": 1, "maxLength": 256}
_SHARED: Json = {
    "model": _TEXT,
    "max_tokens": {"type": "integer", "minimum": 0},
    "temperature": {"type": "number", "minimum": 0, "maximum": 10},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 10},
    "presence_penalty": {"type": "number"},
    "frequency_penalty": {"type": "number"},
    "n": {"type": "integer", "minimum": 1, "maximum": CHOICES},
    "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "stop": {**_STOP, "type": ["string", "array"], "maxItems": STOPS, "items": _STOP},
    "stream": _FLAG,
    "stream_options": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"include_usage": _FLAG, "include_obfuscation": _FLAG},
    },
    "return_token_ids": _FLAG,
    "logit_bias": {
        "type": "object",
        "maxProperties": BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    **formats.FIELDS,
    # These say nothing about the text.
    "user": _TEXT,
    "metadata": {"type": "object", "additionalProperties": _TEXT},
    "store": _FLAG,
    "service_tier": _TEXT,
    "safety_identifier": _TEXT,
    "prompt_cache_key": _TEXT,
}
COMPLETION_SCHEMA: Json = {
    "type": "object",
    "required": ["prompt"],
    "additionalProperties": False,
    "properties": {
        **_SHARED,
        "prompt": {},  # see `_prompts`
        "logprobs": {"type": "integer", "minimum": 0, "maximum": TOP_LOGPROBS},
        "echo": _FLAG,
        "best_of": {"type": "integer", "minimum": 1},
        "suffix": {"const": ""},
    },
}
_TOOL_CALL: Json = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": _TEXT,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {"name": _TEXT, "arguments": {"type": ["string", "object"]}},
        },
    },
}
_PART: Json = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", kind],
            "properties": {"type": {"const": kind}, kind: _TEXT},
        }
        for kind in ("text", "refusal")
    ]
}
_MESSAGE: Json = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": _TEXT,
        "content": {"type": ["string", "null", "array"], "items": _PART},
        "name": {"type": ["string", "null"]},
        "tool_call_id": {"type": ["string", "null"]},
        "tool_calls": {"type": ["null", "array"], "items": _TOOL_CALL},
        "reasoning_content": {"type": ["string", "null"]},
        "reasoning": {"type": ["string", "null"]},
        "thinking": {"type": ["string", "null"]},
    },
    "anyOf": [
        {"required": ["content"]},
        {"required": ["tool_calls"]},
    ],
}
_TOOL: Json = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": _TEXT,
                "description": _TEXT,
                "parameters": {"type": "object"},
            },
        },
    },
}
_TEMPLATES_OWN = ("messages", "tools", "documents", "add_generation_prompt")
CHAT_SCHEMA: Json = {
    "type": "object",
    "required": ["messages"],
    "additionalProperties": False,
    "properties": {
        **_SHARED,
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "tools": {"type": "array", "items": _TOOL},
        "tool_choice": formats.TOOL_CHOICE,
        "parallel_tool_calls": _FLAG,
        "modalities": {"const": ["text"]},
        "max_completion_tokens": {"type": "integer", "minimum": 0},
        "logprobs": _FLAG,
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": TOP_LOGPROBS},
        "reasoning_effort": _TEXT,
        "chat_template_kwargs": {
            "type": "object",
            "maxProperties": 16,
            "propertyNames": {
                "pattern": "^[A-Za-z_][A-Za-z_0-9]*$",
                "not": {"enum": list(_TEMPLATES_OWN)},
            },
        },
    },
}
_SAMPLING = (
    "max_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "n", "seed", "stop", "logit_bias", "structured_outputs", "logprobs",
)  # fmt: skip
"""Parameters of `/inference/v1/generate` that are fields of a completion."""
GENERATE_SCHEMA: Json = {
    "type": "object",
    "required": ["token_ids"],
    "additionalProperties": False,
    "properties": {
        "model": _TEXT,
        "token_ids": {"type": "array", "minItems": 1},
        "sampling_params": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                **{name: COMPLETION_SCHEMA["properties"][name] for name in _SAMPLING},
                "top_k": {"type": "integer", "minimum": -1, "maximum": 2**31 - 1},
                "stop_token_ids": {"type": "array", "maxItems": BIASES},
                "min_tokens": {"const": 0}, "ignore_eos": {"const": False},
                # These say nothing about the tokens.
                "skip_special_tokens": _FLAG, "detokenize": _FLAG,
                "routed_experts_prompt_start": {"type": "integer"},
            },
        },
        "stream": {"const": False}, "return_token_ids": _FLAG, "request_id": _TEXT,
        "cache_salt": _TEXT, "priority": {"type": "integer"},
    },
}  # fmt: skip


class Call(NamedTuple):
    """A body, understood."""

    requests: list[Request]
    """In the order of the choices."""
    n: int
    """Choices of each prompt."""
    chat: bool
    stream: bool
    top: int | None
    """Alternatives asked for at each token; None: no log-probabilities at all."""
    token_ids: bool
    echo: tuple[str, ...] | None
    """The text of each request's prompt, where it is to be given back."""
    usage: bool
    """Whether a stream ends with the tokens read and written."""
    tools: bool
    """Whether calls of tools are looked for in the text."""
    one_call: bool
    """Whether at most one of them is wanted."""
    model: str = ""
    """That is asked for; empty: none is named."""
    of_tokens: bool = False
    """Whether it came to `/inference/v1/generate`, and the reply has token ids and no text."""


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
    schema = CHAT_SCHEMA if chat else COMPLETION_SCHEMA
    _check(body, schema)
    for name, value in body.items():  # JSON has 1.0 for 1
        if schema["properties"][name].get("type") == "integer":
            body[name] = int(value)
    _check_together(body)
    raw_prompts = [] if chat else _prompts(body["prompt"], max_prompt_tokens)
    prompts = [_chat_prompt(body, tokenizer)] if chat else _raw_prompts(raw_prompts, tokenizer)
    for prompt in prompts:
        _check_length("messages" if chat else "prompt", prompt, max_prompt_tokens)
    n = body.get("n", 1)
    if len(prompts) * n > CHOICES:
        raise ValueError(
            f"n={n} for each of {len(prompts)} prompts: more than {CHOICES} choices; ask for fewer"
        )
    shared = dataclasses.replace(
        _shared(body, chat, max_new_tokens), constraint=formats.constraint(body, tokenizer)
    )
    # Streams of one seed are neighbours; a body without a seed gets a random one.
    seed = body["seed"] % 2**31 if "seed" in body else secrets.randbelow(2**26)
    requests = [
        request
        for i, prompt in enumerate(prompts)
        for request in search.copies(
            dataclasses.replace(shared, prompt=prompt), n, first_id=seed * CHOICES + i * n
        )
    ]
    top = body.get("logprobs")
    if chat:
        top = body.get("top_logprobs", 0) if top else None
    echo = body.get("echo", False)
    return Call(
        requests=[dataclasses.replace(r, top_logprobs=top or 0) for r in requests],
        n=n,
        chat=chat,
        stream=body.get("stream", False),
        top=top,
        token_ids=body.get("return_token_ids", False),
        echo=_texts(raw_prompts, n, tokenizer) if echo else None,
        usage=body.get("stream_options", {}).get("include_usage", False),
        tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
        one_call=not body.get("parallel_tool_calls", True),
        model=body.get("model", ""),
    )


def parse_generate(
    body: Any, tokenizer: Tokenizer, *, max_prompt_tokens: int, max_new_tokens: int
) -> Call:
    """Understand a body of `/inference/v1/generate`.

    Raises:
      ValueError: see `parse`; or it ends at tokens that do not end the model's texts.
    """
    body = {k: v for k, v in body.items() if v is not None} if isinstance(body, dict) else body
    if isinstance(body, dict) and isinstance(body.get("sampling_params"), dict):
        params = body["sampling_params"]
        body["sampling_params"] = {k: v for k, v in params.items() if v is not None}
    _check(body, GENERATE_SCHEMA)
    params = body.get("sampling_params", {})
    if unknown := [i for i in params.get("stop_token_ids", []) if i not in tokenizer.eos_ids]:
        raise ValueError(
            f"sampling_params.stop_token_ids: {unknown!r:.200} do not end this model's texts; send "
            f"{list(tokenizer.eos_ids)!r:.200}, or the text as stop"
        )
    completion = {name: params[name] for name in _SAMPLING if name in params}
    completion |= {"prompt": body["token_ids"], "top_k": max(0, params.get("top_k", 0))}
    completion |= {"model": body["model"]} if "model" in body else {}
    sizes = {"max_prompt_tokens": max_prompt_tokens, "max_new_tokens": max_new_tokens}
    call = parse(completion, tokenizer, chat=False, **sizes)
    return call._replace(of_tokens=True, token_ids=True)


PATHS = {
    "/v1/completions": functools.partial(parse, chat=False),
    "/v1/chat/completions": functools.partial(parse, chat=True),
    "/inference/v1/generate": parse_generate,
}
"""Where completions are asked for, and what understands the body."""


def _shared(body: Json, chat: bool, max_new_tokens: int) -> Request:
    """What all requests of a body have in common."""
    field = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    budget = body.get(field)
    if budget is None:
        budget = max_new_tokens if chat else min(16, max_new_tokens)
    if budget > max_new_tokens:
        raise ValueError(
            f"{field}={budget} is more than {max_new_tokens}; ask for fewer, or start the server "
            "with a greater --max-new-tokens"
        )
    if chat and budget == 0:
        raise ValueError(f"{field}=0 leaves nothing to answer with; ask for 1 or more")
    temperature, stop = float(body.get("temperature", 1.0)), body.get("stop", ())
    return Request(
        id=0,
        prompt=(),
        max_new_tokens=budget,
        temperature=temperature if temperature >= COLDEST else 0.0,
        top_k=body.get("top_k", 0),
        top_p=float(body.get("top_p", 1.0)),
        min_p=float(body.get("min_p", 0.0)),
        repetition_penalty=float(body.get("repetition_penalty", 1.0)),
        logit_bias=tuple((int(t), float(b)) for t, b in body.get("logit_bias", {}).items()),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _check(body: Any, schema: Json) -> None:
    errors = jsonschema.Draft202012Validator(schema).iter_errors(body)
    error = jsonschema.exceptions.best_match(itertools.islice(errors, _ERRORS))
    if error is not None:
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
        raise ValueError(f"body{where[:200]}: {error.message[:300]}")


def _check_together(body: Json) -> None:
    """What a schema of single fields cannot say, or says badly."""
    for name in ("presence_penalty", "frequency_penalty"):
        if body.get(name, 0) != 0:
            raise ValueError(f"{name}={body[name]} is not served; use repetition_penalty, or 0")
    if body.get("best_of", 1) not in (1, body.get("n", 1)):
        raise ValueError(
            f"best_of={body['best_of']} with n={body.get('n', 1)} is not served; leave it out and "
            "choose among n choices yourself"
        )
    if "stream_options" in body and not body.get("stream"):
        raise ValueError("stream_options is of streams alone; set stream, or leave it out")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise ValueError("top_logprobs goes with logprobs=true; set it, or leave top_logprobs out")


def _check_length(name: str, ids: Sequence[Any], most: int) -> None:
    if len(ids) > most:
        raise ValueError(
            f"{name}: {len(ids)} tokens, more than {most}; shorten it, or start the server with a "
            "greater --max-prompt-tokens"
        )


def _prompts(field: Any, max_prompt_tokens: int) -> list[str] | list[list[float]]:
    """Texts or lists of ids. Lengths come first: a long list takes seconds to look through."""
    is_batch = isinstance(field, list) and isinstance(next(iter(field), None), str | list)
    prompts = field if is_batch else [field]
    if len(prompts) > CHOICES:
        raise ValueError(f"prompt: {len(prompts)} prompts, more than {CHOICES}; send fewer")
    kind = type(prompts[0])
    if kind not in (str, list) or any(type(prompt) is not kind for prompt in prompts):
        raise ValueError(
            f"prompt={field!r:.200} is neither a text nor a list of token ids, nor a list of "
            "one of these kinds"
        )
    if kind is list:
        for ids in prompts:
            _check_length("prompt", ids, max_prompt_tokens)
            for i in ids:  # JSON has 1.0 for 1
                if type(i) not in (int, float) or not 0 <= i < 2**31 or i != int(i):
                    raise ValueError(f"prompt: {i!r:.100} is no token id; send whole numbers")
    return prompts


def _raw_prompts(
    prompts: list[str] | list[list[float]], tokenizer: Tokenizer
) -> list[tuple[int, ...]]:
    try:
        token_ids = [
            tuple(tokenizer.prompt(p)) if isinstance(p, str) else tuple(map(int, p))
            for p in prompts
        ]
    except Exception as error:  # whatever a tokenizer makes of a text that is none
        raise ValueError(f"prompt: {str(error)[:300]}") from error
    if not all(token_ids):
        raise ValueError("prompt: it is empty; give it at least one token")
    return token_ids


def _texts(prompts: list[str] | list[list[float]], n: int, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The text of the prompt of each choice."""
    texts = [p if isinstance(p, str) else tokenizer.decode(list(map(int, p))) for p in prompts]
    return tuple(text for text in texts for _ in range(n))


def _chat_prompt(body: Json, tokenizer: Tokenizer) -> tuple[int, ...]:
    if tokenizer.chat is None:
        raise ValueError("messages: this model has no chat template; use /v1/completions")
    offered = None if body.get("tool_choice") == "none" else body.get("tools")
    variables = dict(body.get("chat_template_kwargs", {}))
    if "reasoning_effort" in body:
        variables["reasoning_effort"] = body["reasoning_effort"]
    try:
        turns = [messages.normal(message, strict=False) for message in body["messages"]]
        prompt = tuple(tokenizer.chat(turns, messages.tools(offered), **variables))
    except Exception as error:  # a template may fail in any way on what it did not foresee
        raise ValueError(
            f"messages: the chat template refuses them: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    if not prompt:
        raise ValueError("messages: the chat template makes no text of them; add one with content")
    return prompt
