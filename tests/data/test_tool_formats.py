"""Tool calls as each family of models writes them."""

import json
import re
import time
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data.environments.tools import definition, formats
from jaxrl.data.environments.tools.formats import Call, Malformed

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

    known = [
        definition.tool(add),
        definition.tool(lambda: "noon", name="now", description="The time."),
    ]
    assert definition.results(known, formats.canonical(form, right)) == ["1 x, {y}", "noon"]
    (result,) = definition.results(known, formats.canonical(form, wrong))
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
    assert said == f"Let me see.\n{formats.write_call(TWO)}"
    final = "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>4"
    assert formats.canonical(FORMATS["harmony"], final) == "4"


@pytest.mark.parametrize("name", [each.name for each in formats.FORMATS])
def test_nothing_that_a_policy_writes_raises(name):
    deep = "[" * 9999
    for text in [*sum(WRITTEN.values(), ()), deep, f"<tool_call>{deep}", f"[f(a={deep})]", ""]:
        FORMATS[name].read(text)
        FORMATS[name].read(text[: len(text) // 2])


PIECES = sorted(
    {*"()[]{}\"'\\:;,=.\n1a", "\\ud800", "NaN", "1e999", "```", "<think>", "</think>"}
    | set(re.findall(r"<[^>]+>|\[[A-Z_]+\]|[\w.]+|```\w*", " ".join(sum(WRITTEN.values(), ()))))
)
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.just(()))
LITERALS = st.recursive(
    st.one_of(
        KEYS,
        st.floats(),
        st.complex_numbers(),
        st.just(...),
        st.sampled_from(["\ud800", "</tool_call>"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(KEYS, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=6,
)


def check(form, text):
    """A turn is read, and its calls come to an environment as they were read."""
    calls = form.read(text)[1]
    assert all(json.loads(json.dumps(c.arguments)) == c.arguments for c in calls if valid(c))
    assert all(json.dumps(c.arguments, ensure_ascii=False).encode() for c in calls if valid(c))
    if form is not formats.HERMES and "<" not in form.read(text)[0]:
        again = formats.HERMES.read(formats.canonical(form, text))[1]
        assert [c for c in again if valid(c)] == [c for c in calls if valid(c)]
        assert len(again) == len(calls)


def valid(call):
    return isinstance(call, Call)


@pytest.mark.parametrize("form", formats.FORMATS, ids=lambda form: form.name)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=30).map("".join))
def test_any_text_is_read(form, text):
    check(form, text)


@settings(max_examples=100, deadline=None)
@given(LITERALS)
def test_a_call_with_any_literal_is_read_or_malformed(value):
    """As Python and as JSON, in every format that has the one or the other."""
    python = "[f(x=VALUE), g(y=1)]".replace("VALUE", repr(value))
    for name in ("llama", "gemma"):
        check(FORMATS[name], python)
        first, second = FORMATS[name].read(python)[1]
        assert second == Call("g", {"y": 1}) and (not valid(first) or first.name == "f")
    try:
        inner = json.dumps(value)
    except (TypeError, ValueError):
        inner = repr(value)
    for name, (right, _) in WRITTEN.items():
        form = FORMATS[name.split()[0]]
        text = right.replace('"x, {y}"', inner).replace("x, {y}", inner)
        check(form, text)


@pytest.mark.parametrize(
    "value",
    ["{1, 2}", "b'a'", "1j", "...", "{[]: 1}", "{1: 2}", "x", "'\\ud800'", "1e999", "-'a'"],
)
@pytest.mark.parametrize("lead", ["", "[" * 70, "0x" + "f" * 5000 + ","])
def test_what_json_cannot_hold_makes_a_call_malformed(value, lead):
    for name in ("llama", "gemma"):
        (bad,) = FORMATS[name].read(f"[f(x=[{lead}{value}{']' * lead.count('[')}])]")[1]
        assert isinstance(bad, Malformed) and bad.text


def schema(properties, **more):
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ({"type": "string"}, "2024", "2024"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "two\n\nlines\n", "two\n\nlines\n"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"type": "integer"}, "2024", 2024),
        ({"type": "integer"}, "2.0", 2.0),
        ({"type": "integer"}, "2.5", "2.5"),
        ({"type": "integer"}, "9" * 400, int("9" * 400)),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "2024", "2024"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"type": ["string", "integer"]}, "7", 7),
        ({"$ref": "#/$defs/Year"}, "2024", "2024"),
        ({"$ref": "#/$defs/Loop"}, "2024", 2024),
        ({}, "2024", 2024),
        (None, "2024", 2024),
        (None, "x: y", "x: y"),
        (7, "2024", 2024),
        ({"type": [[]], "enum": 3, "anyOf": [3]}, "2024", 2024),
    ],
)
def test_a_value_without_a_type_has_that_of_its_schema(kind, text, value):
    form = FORMATS["qwen_coder"]
    defs = {"Year": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}
    tool = schema({} if kind is None else {"x": kind}, **{"$defs": defs})
    turn = (
        f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )
    (call,) = form.read(turn, (schema({"x": {"type": "null"}}) | {"function": {}}, tool))[1]
    assert call == Call("f", {"x": value}) and type(call.arguments["x"]) is type(value)


@pytest.mark.parametrize(
    "inside",
    [
        "<parameter=x>\n1",
        "<parameter=x>\n1\n<parameter=y>\n2\n</parameter>",
        "<parameter=x>\n1\n</parameter>\n<parameter=y>\n2",
        "<parameter=x>\n1\n</parameter>\nand\n",
        "<parameter=>\n1\n</parameter>",
        "<parameter x>1</parameter>",
    ],
)
def test_no_parameter_is_left_out(inside):
    for end in ("</function></tool_call>", "</tool_call>", ""):
        (bad,) = FORMATS["qwen_coder"].read(f"<tool_call><function=f>{inside}{end}")[1]
        assert isinstance(bad, Malformed)


UNITS = [
    "to=a ", "a ", "a.", " ", "x=1,", "f(x=1),", "{}", '{"name":1};', "-", ") ", "},", '{"a":',
    "<parameter=a>", "<parameter=a>1</parameter>", "```tool_code\n", "```tool_code ", "```",
    "call:f{", "a:", "\n```json\n", "x<｜tool▁sep｜>", "<|channel|>final", "<|message|>",
    "<|channel|>commentary to=a", "[TOOL_CALLS]f[ARGS]", "<tool_call>", "</think>", "<escape>",
]  # fmt: skip


@pytest.mark.parametrize("form", formats.FORMATS, ids=lambda form: form.name)
def test_work_is_linear_in_the_length_of_a_turn(form):
    """All take a second together; what is quadratic takes a minute for one of them."""
    opens = WRITTEN[form.name][0].split("1")[0]
    begun = time.monotonic()
    for unit in UNITS:
        for start in ("", "[f(x=", opens):
            form.read(start + unit * (100_000 // len(unit)))
    assert time.monotonic() - begun < 30


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

    made = definition.tool(add)
    assert (made.name, made.description) == ("add", "Adds numbers.")
    assert made.parameters["properties"]["b"] == {
        "type": "array",
        "items": {"type": "number"},
        "description": "the others, any number of them.",
    }
    assert made.parameters["required"] == ["a", "b"]

    def call(**arguments):
        return definition.results([made], formats.write_call(Call("add", arguments)))[0]

    assert call(a=1, b=[2, 3.5]) == "6.5"
    assert call(a="1", b=[]).startswith("error: '1' is not of type 'integer'")
    assert call(a=1, b=[], c=1).startswith("error: ")
    assert "b" in call(a=1)
    assert json.loads(json.dumps(made.schema))["function"]["name"] == "add"
    with pytest.raises(ValueError, match="annotate its argument 'x'"):
        definition.tool(lambda x: x, name="f", description="")


def called(tool, **arguments):
    return definition.results([tool], formats.write_call(Call(tool.name, arguments)))[0]


@pytest.mark.parametrize(
    ("hint", "given", "got"),
    [
        (int, 2.0, 2),
        (int, 2, 2),
        (int, 1e300, int(1e300)),
        (float, 2, 2.0),
        (int | float, 2.0, 2.0),
        (int | str, 2.0, 2),
        (int | None, 2.0, 2),
        (Literal[1, 2], 2.0, 2),
        (bool, True, True),
        (str, "2.0", "2.0"),
        (list[int], [1.0, 2], [1, 2]),
        (list[int] | None, [1.0], [1]),
        (list[list[float]], [[1]], [[1.0]]),
        (dict[str, int], {"a": 3.0}, {"a": 3}),
        (tuple[int, float], [1.0, 1], [1, 1.0]),
        (dict, {"a": 3.0}, {"a": 3.0}),
    ],
)
def test_numbers_have_the_type_of_the_schema(hint, given, got):
    """`2.0` is an integer to a schema, and is none to Python."""

    def show(x) -> str:
        """Shows."""
        return repr(x)

    show.__annotations__["x"] = hint
    assert called(definition.tool(show), x=given) == repr(got)


@pytest.mark.parametrize(
    ("hint", "given"), [(int, 2.5), (int, True), (float, 10**400), (bool, 1.0)]
)
def test_a_number_that_is_none_of_the_schema_is_an_error(hint, given):
    def show(x) -> str:
        """Shows."""
        return repr(x * 2)

    show.__annotations__["x"] = hint
    assert called(definition.tool(show), x=given).startswith("error: ")


def test_a_tool_gives_text():
    def count(text: str) -> int:
        """Counts."""
        return len(text)

    with pytest.raises(ValueError, match=r"tool 'count' returns <class 'int'>; return a text"):
        definition.tool(count)
    del count.__annotations__["return"]
    with pytest.raises(TypeError, match="tool 'count' gave a int, 3; return a text"):
        called(definition.tool(count), text="abc")


def test_arguments_that_a_tool_does_not_take_are_an_error():
    """Its schema may be loose, and no call ends an episode."""
    loose = definition.Tool("f", "", {}, lambda x, y="": x + y)
    assert called(loose, x="a") == "a" and called(loose, x="a", y="b") == "ab"
    assert called(loose).startswith("error: ") and called(loose, x="a", z=1).startswith("error: ")


def test_malformed_calls_are_counted():
    """Not those that a tool refuses, nor a result that begins like an error."""

    def say(what: str) -> str:
        """Says."""
        if what == "no":
            raise ValueError("no")
        return what

    made = definition.tool(say)
    turn = (
        "".join(
            map(
                formats.write_call,
                [
                    Call("say", {"what": "error"}),
                    Call("say", {"what": "no"}),
                    Call("say", {}),
                    Call("shout", {}),
                    Malformed("say"),
                ],
            )
        )
        + "<tool_call>{"
    )
    assert all(each.startswith("error") for each in definition.results([made], turn))
    assert len(definition.results([made], turn)) == 6 and definition.malformed(turn) == 2


@pytest.mark.parametrize("name", WRITTEN)
def test_calls_in_a_thought_are_none(name):
    form, (right, wrong) = FORMATS[name.split()[0]], WRITTEN[name]
    for text in (right, wrong):
        for turn in (f"<think>{text}", f"<think>a</think><think>{text}", f"{text}<think>"):
            assert form.read(turn) == (turn, []) and not definition.results([], turn)
            assert formats.canonical(form, turn) == turn.strip() or form.name == "hermes"
        said, calls = form.read(f"<think>{text}</think>{right}")
        assert calls == [ONE, TWO] and said.startswith(f"<think>{text}</think>")
        assert formats.HERMES.read(formats.canonical(form, f"{text}</think>{right}"))[1] == calls


TEMPLATES = {"mistral": ["", "[ARGS]", "[CALL_ID][ARGS]"], "deepseek": ["", "```json"]}
SPELLINGS = [
    pytest.param(form, template, id=f"{form.name} {template}".strip())
    for form in formats.FORMATS
    for template in TEMPLATES.get(form.name, [""])
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")) | st.sampled_from(PIECES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)  # fmt: skip


@pytest.mark.parametrize(("form", "template"), SPELLINGS)
@settings(max_examples=40, deadline=None)
@given(value=JSON, said=st.sampled_from(["", "Let me see."]), both=st.booleans())
def test_a_call_is_written_as_it_is_read(form, template, value, said, both):
    """It is refused where the format has no way to write it."""
    calls = [Call("f", {"x": value})] + [Call("g.h", {})] * both
    given = "\n".join([*filter(None, [said]), *map(formats.write_call, calls)])
    kind = {"type": "string"} if isinstance(value, str) else {}
    shown = [schema({"x": kind})]
    try:
        turn = formats.to_template_form(form, given, shown, template)
    except ValueError as error:
        assert form.name in str(error) and form.name in ("qwen_coder", "function_gemma", "gemma")
        assert any(each in repr(value) for each in ("<", "e", "[", "{", "\\"))
        return
    assert form.read(turn, shown)[1] == calls
    read = formats.canonical(form, turn, shown)
    assert read == given or (form.name == "harmony" and said)
    assert formats.to_template_form(form, "<tool_call>{", (), template) == "<tool_call>{"


@pytest.mark.parametrize(("form", "template"), SPELLINGS)
def test_what_a_solution_says_is_read_again(form, template):
    for said in ("42", "two\n\nlines"):
        assert form.read(formats.to_template_form(form, said, (), template))[0] == said
