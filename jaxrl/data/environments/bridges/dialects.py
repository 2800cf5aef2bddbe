"""Three protocols in which programs ask a model: what they send, and what they are answered.

`chat` is OpenAI's chat completions, `responses` its Responses, `messages` Anthropic's Messages. A
request is read as messages and tools; sampling parameters in it are read and have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxrl.data.environments import Token
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.text import messages

Json = dict[str, Any]


class Said(NamedTuple):
    """A message of a conversation, in no protocol. Equal ones are the same message."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each call of a tool; arguments as JSON with sorted keys."""


class Asked(NamedTuple):
    """A request, understood."""

    messages: tuple[Said, ...]
    tools: tuple[Json, ...] = ()
    """Their JSON schemas, in the form of chat completions."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    logprobs: bool = False
    usage: bool = False
    """Whether a stream of chat is to end with the tokens read and written."""
    token_ids: bool = False
    """Whether each choice is to have `token_ids`, those that the policy chose."""
    after: str = ""
    """Id of the response that this request continues; empty: `messages` has all."""
    instructions: int = 0
    """Of the messages, how many at the beginning a request that continues this one leaves out."""
    model: str = ""
    """Is repeated in the answer."""


class Answer(NamedTuple):
    """What a request is answered."""

    number: int
    """Of the turn; ids are made of it, so that an episode that is played again has the same."""
    text: str
    calls: tuple[Call, ...]
    tokens: tuple[Token, ...]
    stop: str | None = None
    """The string of `Asked.stop` that ended the turn; None: none did."""
    cut: bool = False
    """Whether the turn reached its budget of tokens: no stop token and no string ended it."""
    read: int = 0
    """Tokens of the context that the turn was written in."""

    @property
    def ending(self) -> Literal["calls", "cut", "string", "turn"]:
        """Why the answer ends where it does; calls that can be read come first, as a program acts
        on them."""
        if self.calls:
            return "calls"
        if self.cut:
            return "cut"
        return "turn" if self.stop is None else "string"

    @property
    def said(self) -> Said:
        """The message that a program is expected to send back when it continues."""
        return Said(
            "assistant", self.text, tuple((c.name, _sorted(c.arguments)) for c in self.calls)
        )


class Dialect(NamedTuple):
    """A protocol."""

    read: Callable[[Json], Asked]
    """Raises ValueError, TypeError, KeyError or AttributeError where the body is no request."""
    whole: Callable[[Asked, Answer], Json]
    pieces: Callable[[Asked, Answer], Iterator[tuple[str, Json]]]
    """Name and data of server-sent events; those without a name have an empty one."""
    end: str = ""
    """Data of a last event; empty: none."""


def text(message: Said) -> str:
    """A message as environments have it, its calls within what it says."""
    calls = [write_call(Call(name, _value(arguments))) for name, arguments in message.calls]
    return "\n".join([*filter(None, [message.content]), *calls]) if calls else message.content


def _value(arguments: str) -> Any:
    """The arguments of a call; a text that is no JSON stays as it is."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _sorted(arguments: Any) -> str:
    """Arguments of a call, however they are spelled; a text that is no JSON stays as it is."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
    return json.dumps(arguments, sort_keys=True)


def _text(content: Any) -> str:
    """The text of a content, which may be in parts, in the one form of messages."""
    if isinstance(content, str):
        return content
    parts = [{**part, "type": part["type"]} for part in _list(content)]  # protocols name the type
    return messages.normal({"role": "user", "content": parts}, strict=False)["content"]


def _list(value: Any) -> Sequence[Any]:
    """A list of a body, which may be left out."""
    if not isinstance(value, list | None):
        raise TypeError(f"{value!r:.100} is no list")
    return value or []


def _stops(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(_list(value))


def _schemas(functions: Sequence[Json], parameters: str = "parameters") -> tuple[Json, ...]:
    """Schemas of tools in the one form; `parameters` is what a protocol calls those of a tool."""
    fields = ("name", "description", "parameters", "strict")
    schemas = ({**function, "parameters": function.get(parameters)} for function in functions)
    plain = [{k: schema[k] for k in fields if schema.get(k) is not None} for schema in schemas]
    return tuple(messages.tools(plain) or ())


def _read_chat(body: Json) -> Asked:
    if body.get("n", 1) not in (None, 1):
        raise ValueError(f"n={body['n']}: an episode has one answer; leave it out")
    conversation = []
    for message in body["messages"]:
        functions = [call["function"] for call in _list(message.get("tool_calls"))]
        if message.get("function_call"):
            functions.append(message["function_call"])
        calls = tuple((function["name"], _sorted(function["arguments"])) for function in functions)
        content = _text(message.get("content")) or _text(message.get("refusal"))
        role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
        conversation.append(Said(role, content, calls))
    offered = [tool["function"] for tool in _list(body.get("tools"))]
    offered += _list(body.get("functions"))
    return Asked(
        tuple(conversation),
        _schemas(offered if body.get("tool_choice") != "none" else ()),
        _stops(body.get("stop")),
        bool(body.get("stream")),
        bool(body.get("logprobs")),
        bool((body.get("stream_options") or {}).get("include_usage")),
        bool(body.get("return_token_ids")),
        model=str(body.get("model", "")),
    )


def _read_responses(body: Json) -> Asked:
    prompt = body["input"]
    items = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _list(prompt)
    lead = _text(body.get("instructions"))
    conversation = [Said("system", lead)] if lead else []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            conversation.append(Said(role, _text(item["content"])))
        elif kind == "function_call":
            call = (item["name"], _sorted(item["arguments"]))
            last = (
                conversation[-1] if conversation and conversation[-1].role == "assistant" else None
            )
            if last is None:
                conversation.append(Said("assistant", "", (call,)))
            else:
                conversation[-1] = last._replace(calls=(*last.calls, call))
        elif kind == "function_call_output":
            conversation.append(Said("tool", _text(item["output"])))
        elif kind != "reasoning":
            raise ValueError(f"input of type {kind!r} is not read; send messages and tool calls")
    after = body.get("previous_response_id")
    return Asked(
        tuple(conversation),
        _schemas([t for t in _list(body.get("tools")) if body.get("tool_choice") != "none"]),
        stream=bool(body.get("stream")),
        logprobs="message.output_text.logprobs" in (body.get("include") or ()),
        after="" if after is None else after,
        instructions=int(bool(lead)),
        model=str(body.get("model", "")),
    )


def _read_messages(body: Json) -> Asked:
    lead = _text(body.get("system"))
    conversation = [Said("system", lead)] if lead else []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content)
        texts = [b for b in blocks if b["type"] not in ("tool_use", "tool_result", "thinking")]
        calls = [b for b in blocks if b["type"] == "tool_use"]
        tool_calls = tuple((call["name"], _sorted(call["input"])) for call in calls)
        results = [b for b in blocks if b["type"] == "tool_result"]
        conversation += [Said("tool", _text(result.get("content"))) for result in results]
        if texts or tool_calls or not results:
            conversation.append(Said(message["role"], _text(texts), tool_calls))
    refused = (body.get("tool_choice") or {}).get("type") == "none"
    return Asked(
        tuple(conversation),
        _schemas([] if refused else _list(body.get("tools")), "input_schema"),
        _stops(body.get("stop_sequences")),
        bool(body.get("stream")),
        model=str(body.get("model", "")),
    )


def _call_id(answer: Answer, i: int) -> str:
    return f"call_{answer.number}_{i}"


def _logprob(token: Token) -> Json:
    spelled = list(token.text.encode("utf-8", "replace"))
    return {"token": token.text, "logprob": token.logp, "bytes": spelled, "top_logprobs": []}


def _chat_choice(request: Asked, answer: Answer, name: str) -> Json:
    message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
    if name == "delta":
        del message["refusal"]
    if answer.calls:
        calls = [
            {
                "id": _call_id(answer, i),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for i, call in enumerate(answer.calls)
        ]
        if name == "delta":
            calls = [{"index": i, **call} for i, call in enumerate(calls)]
        message |= {"content": answer.text or None, "tool_calls": calls}
    out: Json = {"index": 0, name: message, "logprobs": None}
    if request.logprobs:
        out["logprobs"] = {"content": [_logprob(token) for token in answer.tokens]}
    if request.token_ids:
        out["token_ids"] = [token.id for token in answer.tokens]
    reasons = {"calls": "tool_calls", "cut": "length"}
    return out | {"finish_reason": reasons.get(answer.ending, "stop")}


def _chat_envelope(request: Asked, answer: Answer, kind: str, choices: Sequence[Json]) -> Json:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": 0,
        "model": request.model,
        "choices": list(choices),
    }


def _chat_usage(answer: Answer) -> Json:
    read, count = answer.read, len(answer.tokens)
    return {"prompt_tokens": read, "completion_tokens": count, "total_tokens": read + count}


def _chat(request: Asked, answer: Answer) -> Json:
    choices = [_chat_choice(request, answer, "message")]
    completion = _chat_envelope(request, answer, "chat.completion", choices)
    return completion | {"usage": _chat_usage(answer)}


def _chat_pieces(request: Asked, answer: Answer) -> Iterator[tuple[str, Json]]:
    choice = _chat_choice(request, answer, "delta")
    end: Json = {"index": 0, "delta": {}, "finish_reason": choice.pop("finish_reason")}
    parts = [([{**choice, "finish_reason": None}], None), ([end], None)]
    if request.usage:
        parts.append(([], _chat_usage(answer)))
    for choices, usage in parts:
        piece = _chat_envelope(request, answer, "chat.completion.chunk", choices)
        yield "", piece | ({"usage": usage} if request.usage else {})


def _status(answer: Answer) -> str:
    return "incomplete" if answer.ending == "cut" else "completed"


def _output(request: Asked, answer: Answer) -> list[Json]:
    """The items of a response."""
    items: list[Json] = []
    if answer.text or not answer.calls:
        part: Json = {"type": "output_text", "text": answer.text, "annotations": []}
        part["logprobs"] = [_logprob(t) for t in answer.tokens] if request.logprobs else []
        head = {"type": "message", "id": f"msg_{answer.number}", "role": "assistant"}
        items.append({**head, "status": _status(answer), "content": [part]})
    for i, call in enumerate(answer.calls):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{answer.number}_{i}",
                "call_id": _call_id(answer, i),
                "name": call.name,
                "arguments": json.dumps(call.arguments),
                "status": "completed",
            }
        )
    return items


def _responses(request: Asked, answer: Answer) -> Json:
    read, count, cut = answer.read, len(answer.tokens), answer.ending == "cut"
    return {
        "id": f"resp_{answer.number}",
        "object": "response",
        "created_at": 0,
        "status": _status(answer),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": request.model,
        "output": _output(request, answer),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + count,
        },
    }


def _response_pieces(request: Asked, answer: Answer) -> Iterator[tuple[str, Json]]:
    response = _responses(request, answer)
    empty_response = {**response, "status": "in_progress", "incomplete_details": None, "output": []}
    events = [("response.created", {"response": empty_response})]
    for at, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": at}
        text = item["type"] == "message"
        started = {
            **item,
            "status": "in_progress",
            **({"content": []} if text else {"arguments": ""}),
        }
        events.append(("response.output_item.added", {"output_index": at, "item": started}))
        if text:
            (part,), inner = item["content"], {**place, "content_index": 0}
            text_fields = {**inner, "logprobs": part["logprobs"]}
            bare = {**part, "text": "", "logprobs": []}
            events += [
                ("response.content_part.added", {**inner, "part": bare}),
                ("response.output_text.delta", {**text_fields, "delta": part["text"]}),
                ("response.output_text.done", {**text_fields, "text": part["text"]}),
                ("response.content_part.done", {**inner, "part": part}),
            ]
        else:
            arguments = item["arguments"]
            done = {**place, "name": item["name"], "arguments": arguments}
            events += [
                ("response.function_call_arguments.delta", {**place, "delta": arguments}),
                ("response.function_call_arguments.done", done),
            ]
        events.append(("response.output_item.done", {"output_index": at, "item": item}))
    events.append((f"response.{response['status']}", {"response": response}))
    for number, (name, data) in enumerate(events):
        yield name, {"type": name, "sequence_number": number, **data}


def _messages(request: Asked, answer: Answer) -> Json:
    blocks: list[Json] = []
    if answer.text or not answer.calls:
        blocks.append({"type": "text", "text": answer.text})
    for i, call in enumerate(answer.calls):
        used = {"id": _call_id(answer, i), "name": call.name, "input": call.arguments}
        blocks.append({"type": "tool_use", **used})
    reasons = {"calls": "tool_use", "cut": "max_tokens", "string": "stop_sequence"}
    return {
        "id": f"msg_{answer.number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": blocks,
        "stop_reason": reasons.get(answer.ending, "end_turn"),
        "stop_sequence": answer.stop if answer.ending == "string" else None,
        "usage": {"input_tokens": answer.read, "output_tokens": len(answer.tokens)},
    }


def _message_pieces(request: Asked, answer: Answer) -> Iterator[tuple[str, Json]]:
    message = _messages(request, answer)
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    started = {**message, "content": [], **dict.fromkeys(ended)}
    yield "message_start", {"type": "message_start", "message": started}
    for at, block in enumerate(message["content"]):
        if block["type"] == "text":
            bare: Json = {"type": "text", "text": ""}
            delta: Json = {"type": "text_delta", "text": block["text"]}
        else:
            bare = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        for name, data in (("start", {"content_block": bare}), ("delta", {"delta": delta})):
            event = f"content_block_{name}"
            yield event, {"type": event, "index": at, **data}
        yield "content_block_stop", {"type": "content_block_stop", "index": at}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": message["usage"]}
    yield "message_stop", {"type": "message_stop"}


DIALECTS: Mapping[str, Dialect] = {
    "chat/completions": Dialect(_read_chat, _chat, _chat_pieces, "[DONE]"),
    "responses": Dialect(_read_responses, _responses, _response_pieces),
    "messages": Dialect(_read_messages, _messages, _message_pieces),
}
"""By the end of their path."""
