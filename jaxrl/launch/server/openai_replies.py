"""The OpenAI protocol, the way out: completions to JSON, whole or in pieces."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Sequence

import numpy as np

from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.server.engine import Scored
from jaxrl.launch.server.openai import Call, Json
from jaxrl.sampling import support
from jaxrl.sampling.requests import truncates
from jaxrl.types import Completion

_OPEN = "<tool_call>"
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def text_of(tokenizer: Tokenizer, completion: Completion) -> str:
    """The text to show: no stop string, and nothing that more tokens could still change."""
    text = tokenizer.decode(completion.tokens.tolist())
    stops = completion.request.stop
    ends = [at for s in stops if (at := text.find(s)) >= 0]
    if ends:
        return text[: min(ends)]
    if completion.finished:
        return text
    return _without_partial(text.rstrip("\ufffd"), stops)  # half a character


def _without_partial(text: str, words: Sequence[str]) -> str:
    """The text without an end that may become one of the words."""
    starts = (n for word in words for n in range(1, len(word)) if text.endswith(word[:n]))
    return text[: len(text) - max(starts, default=0)]


def text_and_calls(
    call: Call, tokenizer: Tokenizer, completion: Completion
) -> tuple[str, list[Json]]:
    """The text so far, and the calls of tools that an ended completion makes, which it leaves out.

    Calls are read in the form of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}
    </tool_call>`. A text with a call that is not of this form stays text.
    """
    text = text_of(tokenizer, completion)
    if not call.tools:
        return text, []
    if not completion.finished:
        before, opened, _ = text.partition(_OPEN)
        return before if opened else _without_partial(text, [_OPEN]), []
    calls = tool_calls(text)
    if not calls:
        return text, []
    return text.partition(_OPEN)[0].rstrip(), calls[:1] if call.one_call else calls


def tool_calls(text: str) -> list[Json]:
    """The calls in a text, in the protocol's form; none where one of them cannot be read."""
    calls = []
    for block in _BLOCK.findall(text):
        try:
            called = json.loads(block)
            name, arguments = called["name"], called.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return []
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return []
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls.append(
            {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
        )
    return calls


def reason(completion: Completion, calls: Sequence[Json] = ()) -> str | None:
    """Why it ended, in the protocol's words."""
    if not completion.finished:
        return None
    if calls:
        return "tool_calls"
    return "stop" if completion.stopped else "length"


def choice(call: Call, tokenizer: Tokenizer, completion: Completion, scored: Scored | None) -> Json:
    """One choice of a response that is not streamed.

    Args:
      call: that it answers.
      tokenizer: of the model.
      completion: of one of its requests.
      scored: log-probabilities of the prompt, where they are asked for.
    """
    if call.of_tokens:
        return _generated(call, completion)
    text, calls = text_and_calls(call, tokenizer, completion)
    out: Json = {
        "index": _index(call, completion),
        "finish_reason": reason(completion, calls),
        "logprobs": _logprobs(call, tokenizer, completion, 0, scored),
    }
    if call.token_ids:
        out["token_ids"] = completion.tokens.tolist()
    if call.chat:
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {**out, "message": message}
    out |= _prompt_ids(call, completion)
    return {**out, "text": _echoed(call, completion) + text}


def _generated(call: Call, completion: Completion) -> Json:
    """A choice of `/inference/v1/generate`: token ids, their log-probabilities, and where the
    server keeps them the ids that each token was drawn among."""
    ids = completion.tokens.tolist()
    out: Json = {
        "index": _index(call, completion),
        "finish_reason": reason(completion),
        "token_ids": ids,
        "logprobs": None,
    }
    if call.top is not None:
        pairs = zip(ids, completion.logp.tolist(), strict=True)
        content = [{"token": f"token_id:{i}", "logprob": _finite(p)} for i, p in pairs]
        out["logprobs"] = {"content": content}
    request = completion.request
    is_restricted = truncates(request) or request.constraint is not None
    if completion.support is not None and is_restricted:
        out["sampling_mask"] = support.token_ids(completion.support)
    return out


def new_id(call: Call) -> str:
    """A name for a response."""
    kind = "gen" if call.of_tokens else "chatcmpl" if call.chat else "cmpl"
    return f"{kind}-{secrets.token_hex(12)}"


class Pieces:
    """What of each choice of a stream has been sent."""

    def __init__(self, call: Call, tokenizer: Tokenizer) -> None:
        self._call, self._tokenizer = call, tokenizer
        self._sent: dict[int, tuple[int, int]] = {}  # characters and tokens by request

    def next(self, completion: Completion, scored: Scored | None = None) -> Json | None:
        """The choice of the next chunk, of what is new; None where nothing is."""
        call, name = self._call, completion.request.id
        text, calls = text_and_calls(call, self._tokenizer, completion)
        first = name not in self._sent
        characters, tokens = self._sent.get(name, (0, 0))
        if len(text) <= characters and not completion.finished:
            return None
        self._sent[name] = max(characters, len(text)), len(completion.tokens)
        new = text[characters:]
        out: Json = {
            "index": _index(call, completion),
            "finish_reason": reason(completion, calls),
            "logprobs": _logprobs(
                call, self._tokenizer, completion, tokens, scored if first else None
            ),
        }
        if call.token_ids:
            out["token_ids"] = completion.tokens[tokens:].tolist()
        if not call.chat:
            out |= _prompt_ids(call, completion) if first else {}
            return {**out, "text": (_echoed(call, completion) if first else "") + new}
        delta: Json = {"content": new} | ({"role": "assistant"} if first else {})
        if calls:
            delta["tool_calls"] = [{"index": i, **tool_call} for i, tool_call in enumerate(calls)]
        return {**out, "delta": delta}


def envelope(call: Call, name: str, model: str, created: int, choices: Sequence[Json]) -> Json:
    """A response or a chunk around its choices.

    Where token ids are asked for, those of the prompt stand where vLLM puts them: here for a chat,
    and beside the choice for a completion.
    """
    if call.of_tokens:
        return {"request_id": name, "model": model, "choices": list(choices)}
    kind = "chat.completion" if call.chat else "text_completion"
    if call.chat and call.stream:
        kind += ".chunk"
    body: Json = {"id": name, "object": kind, "created": created, "model": model}
    if call.stream and call.usage:
        body["usage"] = None
    messages = [choice.get("message") or choice["delta"] for choice in choices if call.chat]
    if call.token_ids and any("role" in message for message in messages):  # not in later chunks
        body["prompt_token_ids"] = list(call.requests[0].prompt)
    return {**body, "choices": list(choices)}


def usage(call: Call, completions: Sequence[Completion], cached: int | None = None) -> Json:
    """Tokens read and written; of the prompts of all requests, `cached` were in a prefix cache."""
    prompt = sum(len(r.prompt) for r in call.requests) // call.n
    completion_tokens = sum(len(c.tokens) for c in completions)
    details = {"cached_tokens": (cached or 0) // call.n}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        **({} if cached is None else {"prompt_tokens_details": details}),
    }


def _index(call: Call, completion: Completion) -> int:
    return completion.request.id - call.requests[0].id


def _prompt_ids(call: Call, completion: Completion) -> Json:
    return {"prompt_token_ids": list(completion.request.prompt)} if call.token_ids else {}


def _echoed(call: Call, completion: Completion) -> str:
    return "" if call.echo is None else call.echo[_index(call, completion)]


def _logprobs(
    call: Call, tokenizer: Tokenizer, c: Completion, start: int, scored: Scored | None
) -> Json | None:
    """Of the tokens from `start` on, under the distribution they were sampled from, and, where it
    was scored, of the prompt before them, untempered."""
    if call.top is None:
        return None
    tokens, logp = c.tokens[start:].tolist(), c.logp[start:].tolist()
    best = _best(c.top_ids, c.top_logp, start, len(tokens))
    if scored is not None:
        prompt = c.request.prompt
        tokens, logp = [*prompt, *tokens], [None, *scored.logp.tolist(), *logp]
        top = (a[:, : call.top] for a in (scored.top_ids, scored.top_logp))
        best = [None, *_best(*top, 0, len(prompt) - 1), *best]
    spelled = [tokenizer.decode([t]) for t in tokens]
    if not call.chat:
        return {
            "tokens": spelled,
            "token_logprobs": [None if v is None else _finite(v) for v in logp],
            # The best of tokens that are spelled alike, such as parts of characters.
            "top_logprobs": [None if row is None else _texts(tokenizer, row) for row in best],
        }
    return {
        "content": [
            _entry(tokenizer, token, value)
            | {"top_logprobs": [_entry(tokenizer, t, p) for t, p in row]}
            for token, value, row in zip(tokens, logp, best, strict=True)
        ]
    }


def _entry(tokenizer: Tokenizer, token: int, logp: float) -> Json:
    return {
        "token": tokenizer.decode([token]),
        "logprob": _finite(logp),
        "bytes": list(tokenizer.bytes_of(token)),
    }


def _finite(logp: float) -> float:
    """JSON has no infinities; the protocol's own floor is -9999."""
    return float(logp) if math.isfinite(logp) else -9999.0


def _texts(tokenizer: Tokenizer, row: Sequence[tuple[int, float]]) -> dict[str, float]:
    """The most likely tokens by their texts, the best of those that are spelled alike."""
    return {tokenizer.decode([token]): logp for token, logp in reversed(row)}


def _best(
    ids: np.ndarray | None,
    logp: np.ndarray | None,
    start: int,
    count: int,
) -> list[list[tuple[int, float]]]:
    """The most likely tokens at each of `count` positions."""
    if ids is None or logp is None:
        return [[] for _ in range(count)]
    return [
        [
            (t, float(p))
            for t, p in zip(row.tolist(), values, strict=True)
            if t >= 0 and p > float("-inf")
        ]
        for row, values in zip(ids[start:], logp[start:], strict=True)
    ]
