"""Constrained output of the server and of `jaxrl sample`."""

import dataclasses
import json
import re

import jsonschema
import pytest

from jaxrl.data.text import chat
from jaxrl.data.text.tokenizers import characters
from jaxrl.launch import cli
from jaxrl.launch.inspect.sample import SampleConfig, constraint_of
from jaxrl.launch.server import formats
from tests.launch.test_serve import actor, events, post, send, serving

LETTERS = '\n !"<>_/{}[],:.-+\\' + "abcdefghijklmnopqrstuvwxyz0123456789"
HERMES = (
    "{% for m in messages %}{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %} {% endfor %}"
)
USER = [{"role": "user", "content": "hi"}]
SWITCH = {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
    "additionalProperties": False,
}  # fmt: skip
needs_llguidance = pytest.mark.extra


def tool(name, strict=None, parameters=SWITCH):
    function = {"name": name, "parameters": parameters}
    return {"type": "function", "function": function | ({"strict": strict} if strict else {})}


TOOLS = [tool("set"), tool("unset")]


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("llguidance")
    policy = actor(LETTERS)
    render = chat.compile_template(HERMES, {})
    tokenizer = dataclasses.replace(policy.tokenizer, render=render, template=HERMES)
    model = dataclasses.replace(policy.model, max_positions=256)
    limits = {"max_new_tokens": 160, "max_body_bytes": 65536}
    with serving(policy._replace(tokenizer=tokenizer, model=model), **limits) as made:
        yield made


def is_switch(text):
    jsonschema.validate(json.loads(text), SWITCH)
    return True


WAYS = {
    "json_object": ({"response_format": {"type": "json_object"}}, None),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SWITCH}}},
        is_switch,
    ),
    "json": ({"structured_outputs": {"json": SWITCH}}, is_switch),
    "json text": ({"guided_json": json.dumps(SWITCH)}, is_switch),
    "regex": ({"guided_regex": "[a-c]{2,4}!"}, re.compile("[a-c]{2,4}!").fullmatch),
    "structured regex": ({"structured_outputs": {"regex": "a{3}"}}, "aaa".__eq__),
    "choice": ({"guided_choice": ["yes", "no"]}, {"yes", "no"}.__contains__),
    "grammar": ({"guided_grammar": 'start: "a" start? "b"'}, None),
}  # fmt: skip


@needs_llguidance
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_answers_match(server, path):
    first = {"messages": USER} if "chat" in path else {"prompt": "hi"}
    for name, (fields, fits) in WAYS.items():
        body = {**first, **fields, "seed": 3, "n": 2, "max_tokens": 100}
        choices = post(server, path, **body)["choices"]
        for choice in choices:
            text = choice["message"]["content"] if "chat" in path else choice["text"]
            if choice["finish_reason"] == "stop" and fits is not None:
                assert fits(text), (name, text)
        assert fits is None or any(c["finish_reason"] == "stop" for c in choices), name


@needs_llguidance
def test_calls_that_are_required_or_strict(server):
    def answer(**fields):
        got = post(server, "/v1/chat/completions", messages=USER, seed=1, **fields)
        return got["choices"][0]["message"], got["choices"][0]["finish_reason"]

    single = {"parallel_tool_calls": False, "tools": TOOLS}
    message, reason = answer(tool_choice="required", **single)
    (call,) = message["tool_calls"]
    assert call["function"]["name"] in ("set", "unset") and reason == "tool_calls"
    assert is_switch(call["function"]["arguments"]) and message["content"] is None
    named = {"type": "function", "function": {"name": "unset"}}
    message, _ = answer(tool_choice=named, tools=TOOLS)
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "unset" and is_switch(call["function"]["arguments"])
    body = {"messages": USER, "seed": 1, "tool_choice": named, "tools": TOOLS, "stream": True}
    chunks = events(send(server, "POST", "/v1/chat/completions", body)[1])
    streamed = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [c["function"]["arguments"] for c in streamed] == [call["function"]["arguments"]]
    message, _ = answer(tools=[tool("set", strict=True)], max_tokens=20)
    assert "tool_calls" not in message or is_switch(
        message["tool_calls"][0]["function"]["arguments"]
    )


@needs_llguidance
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "json_schema.type: 'x' is not valid",
        ),
        ({"guided_regex": "("}, "regex: "),
        ({"guided_regex": "é"}, "no text that can be made of the vocabulary"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "x: y"}, "grammar: "),
        ({"guided_json": {"$ref": "http://127.0.0.1:1/x"}}, "json_schema.$ref"),
        ({"guided_json": "{"}, "json_schema: it is no JSON"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "and guided_regex: each"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tool_choice": "required", "tools": []}, "needs tools"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
            "tool_choice names 'x'; tools has ['set', 'unset']",
        ),
        ({"tool_choice": "required", "tools": TOOLS, "guided_regex": "a"}, "and tool_choice"),
        (
            {"tools": [tool("set", strict=True, parameters={"type": "array"})]},
            "tools.set.parameters.type='array'",
        ),
        (
            {"tools": [tool("set", strict=True, parameters={"properties": {"a": {"type": "x"}}})]},
            "tools.set.properties.a.type",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_place(server, fields, message):
    body = {"messages": USER, "max_tokens": 2, **fields}
    status, answer = send(server, "POST", "/v1/chat/completions", body)
    assert status == 400 and message in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{{ messages[1].tool_calls.x.y }}"]
)
def test_calls_take_a_template_whose_calls_can_be_read(template):
    tokenizer = characters(LETTERS)
    render = chat.compile_template(template, {})
    for other in (tokenizer, dataclasses.replace(tokenizer, render=render, template=template)):
        assert not formats.writes_hermes(other)
        for fields in (
            {"tool_choice": "required", "tools": TOOLS},
            {"tools": [tool("set", strict=True)]},
        ):
            with pytest.raises(ValueError, match=r"takes a chat template that writes calls as"):
                formats.constraint(fields, other)
    assert formats.constraint({"tools": TOOLS}, tokenizer) is None
    strict = {"tools": [tool("set", strict=True)], "tool_choice": "none"}
    assert formats.constraint(strict, tokenizer) is None


def test_flags_of_sample(tmp_path):
    schema, grammar = tmp_path / "s.json", tmp_path / "g.lark"
    schema.write_text('{"type": "boolean"}')
    grammar.write_text('start: "a"')
    for flags, expected in (
        ({}, None),
        ({"json_schema": '{"type": "null"}'}, ("json_schema", '{"type": "null"}')),
        ({"json_schema": str(schema)}, ("json_schema", '{"type": "boolean"}')),
        ({"regex": "a+"}, ("regex", "a+")),
        ({"choice": ("a", "b")}, ("choice", '["a", "b"]')),
        ({"grammar": str(grammar)}, ("grammar", 'start: "a"')),
    ):
        assert constraint_of(SampleConfig(**flags)) == expected


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--regex", "a", "--choice", "b"], "regex and choice"),
        (["--json-schema", "no-such-file.json"], "no-such-file.json"),
        (["--env", "keydoor", "--regex", "a"], "regex='a' with env"),
    ],
)
def test_sample_refuses_in_one_line(flags, says, capsys):
    assert cli.main(["sample", "smollm2-135m", *flags]) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.strip().splitlines()) == 1
