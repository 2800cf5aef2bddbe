"""Tool calls as each format writes them, for turns that are given as environments read them.

A function takes what a turn says beside its calls, the calls, and the chat template, as some
formats have two ways.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.data.environments.tools.calls import Call, dumps


def qwen_coder(text: str, calls: Sequence[Call], template: str) -> str:
    """Functions and parameters as tags; texts are bare."""

    def write_call(call: Call) -> str:
        parameters = "".join(
            f"<parameter={name}>\n{value if isinstance(value, str) else dumps(value)}\n"
            "</parameter>\n"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"

    return "\n".join([*filter(None, [text]), *map(write_call, calls)])


def llama(text: str, calls: Sequence[Call], template: str) -> str:
    """JSON with `parameters`; after a tag where it is not all."""
    objects = [dumps({"name": c.name, "parameters": c.arguments}) for c in calls]
    return f"{text}<|python_tag|>{'; '.join(objects)}" if text or len(objects) > 1 else objects[0]


def gemma(text: str, calls: Sequence[Call], template: str) -> str:
    """A Python list; a block of code where it is not all."""

    def write_call(call: Call) -> str:
        arguments = (f"{name}={value!r}" for name, value in call.arguments.items())
        return f"{call.name}({', '.join(arguments)})"

    code = ", ".join(map(write_call, calls))
    if not text:
        return f"[{code}]"
    return f"{text}\n```tool_code\n{code.replace('`', chr(92) + 'x60')}\n```"


def function_gemma(text: str, calls: Sequence[Call], template: str) -> str:
    """`call:NAME{key:<escape>text<escape>,key:1}`."""

    def value(argument: object) -> str:
        if isinstance(argument, str):
            return f"<escape>{argument}<escape>"
        if isinstance(argument, dict):
            return "{" + ",".join(f"{key}:{value(entry)}" for key, entry in argument.items()) + "}"
        if isinstance(argument, list):
            return f"[{','.join(map(value, argument))}]"
        return dumps(argument)

    call_texts = (
        f"<start_function_call>call:{c.name}{value(c.arguments)}<end_function_call>" for c in calls
    )
    return text + "".join(call_texts)


def mistral(text: str, calls: Sequence[Call], template: str) -> str:
    """A JSON list; or a name, `[ARGS]` and JSON, of each."""
    if "[ARGS]" not in template:
        objects = [{"name": c.name, "arguments": c.arguments} for c in calls]
        return f"{text}[TOOL_CALLS]{dumps(objects)}"

    def write_call(number: int, call: Call) -> str:
        name = f"[CALL_ID]{number:09}" if "[CALL_ID]" in template else ""
        return f"[TOOL_CALLS]{call.name}{name}[ARGS]{dumps(call.arguments)}"

    return text + "".join(map(write_call, range(len(calls)), calls))


def deepseek(text: str, calls: Sequence[Call], template: str) -> str:
    """JSON after the name, in a fence before V3.1."""

    def write_call(call: Call) -> str:
        arguments, separator = dumps(call.arguments), "<｜tool▁sep｜>"
        if "```json" in template:
            inside = f"function{separator}{call.name}\n```json\n{arguments}\n```"
        else:
            inside = f"{call.name}{separator}{arguments}"
        return f"<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>"

    return f"{text}<｜tool▁calls▁begin｜>{''.join(map(write_call, calls))}<｜tool▁calls▁end｜>"


def harmony(text: str, calls: Sequence[Call], template: str) -> str:
    """A message a call on the commentary channel; what is said on the final one."""
    messages = [
        f"<|channel|>commentary to=functions.{c.name} <|constrain|>json<|message|>"
        f"{dumps(c.arguments)}<|call|>"
        for c in calls
    ]
    channel = "commentary" if calls else "final"
    first = [f"<|channel|>{channel}<|message|>{text}" + "<|end|>" * bool(calls)] * bool(text)
    return "<|start|>assistant".join([*first, *messages])
