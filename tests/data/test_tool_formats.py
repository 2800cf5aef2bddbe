"""Tool calls as each family of models writes them."""

import json

import pytest

from jaxrl.data.environments import formats, tools
from jaxrl.data.environments.formats import Call, Malformed

ONE = Call("add", {"a": 1, "b": "x, {y}"})
TWO = Call("now", {})
WRITTEN = {
    "hermes": (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x, {y}"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<tool_call>\n{add}\n</tool_call>",
    ),
    "qwen_coder": (
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx, {y}\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
        "</tool_call>",
        "<tool_call>\nadd\n</tool_call>",
    ),
    "llama": (
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": "x, {y}"}}; '
        '{"name": "now", "parameters": {}}',
        '<|python_tag|>{"name": "add"',
    ),
    "llama pythonic": ('[add(a=1, b="x, {y}"), now()]', "[add(1)]"),
    "gemma": ('[add(a=1, b="x, {y}"), now()]', "[add(a=b)]"),
    "gemma code": ('```tool_code\nadd(a=1, b="x, {y}"), now()\n```', "```tool_code\nadd(\n```"),
    "function_gemma": (
        "<start_function_call>call:add{a:1,b:<escape>x, {y}<escape>}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        "<start_function_call>call:add{a:<escape>1}<end_function_call>",
    ),
    "mistral": (
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": "x, {y}"}}, '
        '{"name": "now", "arguments": {}}]',
        "[TOOL_CALLS][{",
    ),
    "mistral args": (
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "x, {y}"}[TOOL_CALLS]now[CALL_ID]1[ARGS]{}',
        "[TOOL_CALLS]add[ARGS]{",
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 1, "b": "x, {y}"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        "<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add",
    ),
    "deepseek 3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": "x, {y}"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>[1]<｜tool▁call▁end｜>",
    ),
    "harmony": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.add <|constrain|>json<|message|>{"a": 1, "b": "x, {y}"}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.now json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{<|call|>",
    ),
}
FORMATS = {each.name: each for each in formats.FORMATS}


@pytest.mark.parametrize("name", WRITTEN)
def test_calls_are_read(name):
    form = FORMATS[name.split()[0]]
    right, wrong = WRITTEN[name]
    assert form.read(right)[1] == [ONE, TWO]
    (bad,) = form.read(wrong)[1]
    assert isinstance(bad, Malformed)
    assert form.read("It is 4 [1] {2}.") == ("It is 4 [1] {2}.", [])

    def add(a: int, b: str) -> str:
        """Both."""
        return f"{a} {b}"

    known = [tools.tool(add), tools.tool(lambda: "noon", name="now", description="The time.")]
    assert tools.results(known, formats.canonical(form, right)) == ["1 x, {y}", "noon"]
    (result,) = tools.results(known, formats.canonical(form, wrong))
    assert result.startswith("error: ")


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("hermes", "{{ '<tool_call>' }}"),
        ("hermes", None),
        ("qwen_coder", "<tool_call>\n<function="),
        ("llama", "<|start_header_id|> <|eot_id|> <|python_tag|>"),
        ("mistral", "[INST] [TOOL_CALLS]"),
        ("deepseek", "<｜tool▁call▁begin｜>"),
        ("gemma", "<start_of_turn>model"),
        ("function_gemma", "<start_of_turn><start_function_call>"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_a_template_chooses_its_format(name, marks):
    assert formats.of_template(marks).name == name


def test_what_a_turn_says_beside_its_calls():
    text = 'Let me see. [TOOL_CALLS][{"name": "now", "arguments": {}}]'
    said = formats.canonical(FORMATS["mistral"], text)
    assert said == f"Let me see.\n{formats.written(TWO)}"
    final = "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>4"
    assert formats.canonical(FORMATS["harmony"], final) == "4"


@pytest.mark.parametrize("name", [each.name for each in formats.FORMATS])
def test_nothing_that_a_policy_writes_raises(name):
    deep = "[" * 9999
    for text in [*sum(WRITTEN.values(), ()), deep, f"<tool_call>{deep}", f"[f(a={deep})]", ""]:
        FORMATS[name].read(text)
        FORMATS[name].read(text[: len(text) // 2])


def test_a_function_is_a_tool():
    def add(a: int, b: list[float], how: str = "fast") -> str:
        """Adds numbers.

        Args:
          a: the first.
          b: the others,
            any number of them.
          how: fast or slow.
        """
        return str(a + sum(b))

    made = tools.tool(add)
    assert (made.name, made.description) == ("add", "Adds numbers.")
    assert made.parameters["properties"]["b"] == {
        "type": "array",
        "items": {"type": "number"},
        "description": "the others, any number of them.",
    }
    assert made.parameters["required"] == ["a", "b"]

    def call(**arguments):
        return tools.results([made], formats.written(Call("add", arguments)))[0]

    assert call(a=1, b=[2, 3.5]) == "6.5"
    assert call(a="1", b=[]).startswith("error: '1' is not of type 'integer'")
    assert call(a=1, b=[], c=1).startswith("error: ")
    assert "b" in call(a=1)
    assert json.loads(json.dumps(made.schema))["function"]["name"] == "add"
    with pytest.raises(ValueError, match="annotate its argument 'x'"):
        tools.tool(lambda x: x, name="f", description="")
