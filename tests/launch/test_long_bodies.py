"""Bodies of a megabyte: what is wrong with one is found in little time."""

import dataclasses
import json
import time

import pytest

from jaxrl.data.text import tokenizers
from jaxrl.launch.server import openai

HELLO = {"role": "user", "content": "Hello"}


def filled(each):
    """As many as make a megabyte."""
    return [each] * ((1 << 20) // (len(json.dumps(each)) + 2))


def said(**message):
    return {"messages": [{"role": "user"} | message]}


BODIES = {
    "texts": {"prompt": filled("a")},
    "ids": {"prompt": filled(1)},
    "lists of ids": {"prompt": filled([1])},
    "lists of lists": {"prompt": filled([[1]])},
    "texts and ids": {"prompt": [1, *filled("a")]},
    "stops": {"prompt": "a", "stop": filled("a")},
    "stops that are none": {"prompt": "a", "stop": filled(1)},
    "biases": {"prompt": "a", "logit_bias": {str(n): 1 for n in range(1 << 16)}},
    "names": {"prompt": "a", "metadata": {str(n): 1 for n in range(1 << 16)}},
    "fields": {"prompt": "a"} | {str(n): 1 for n in range(1 << 16)},
    "messages that are none": {"messages": filled(1)},
    "messages without a role": {"messages": filled({})},
    "contents that are none": {"messages": filled({"role": "user", "content": 1})},
    "parts that are none": said(content=filled(1)),
    "parts of another type": said(content=filled({"type": "x", "text": ""})),
    "calls that are none": said(tool_calls=filled(1)),
    "calls of nothing": said(tool_calls=filled({"function": 1})),
    "tools that are none": {"messages": [HELLO], "tools": filled(1)},
    "tools without a name": {"messages": [HELLO], "tools": filled({"type": "function"})},
    "arguments of the template": {
        "messages": [HELLO], "chat_template_kwargs": {str(n): 1 for n in range(1 << 16)}
    },
}  # fmt: skip


@pytest.mark.sample(4, broad=5)
@pytest.mark.parametrize("name", BODIES)
def test_what_is_wrong_with_a_long_body_is_found_in_little_time(name):
    """While it is looked for, no other caller is served. Some of these took 20 seconds."""
    body = BODIES[name]
    tokenizer = tokenizers.characters("Helo a")
    tokenizer = dataclasses.replace(tokenizer, chat=lambda messages, tools: [1])
    limits = {"max_prompt_tokens": 64, "max_new_tokens": 16}
    start = time.thread_time()
    with pytest.raises(ValueError, match=r"body|prompt"):
        openai.parse(body, tokenizer, chat="messages" in body, **limits)
    assert time.thread_time() - start < 3
