"""Schemas of tools from outside: what a call may be, whatever the schema and the arguments are."""

import http.server
import threading
import time

import pytest

from jaxrl.data.environments.tools import definition
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.environments.tools.formats import Call, write_call


def answer(parameters, arguments):
    """What the policy reads after a call of a tool with such a schema."""
    made = Tool("t", "a tool", parameters, lambda **given: "ran")
    assert made.schema["function"]["parameters"]["type"] == "object"
    return definition.results([made], write_call(Call("t", arguments)))[0]


def of(schema, **more):
    return {"properties": {"x": schema}, **more}


UNCHECKED = {
    "a pattern of JavaScript": (of({"type": "string", "pattern": "^\\p{L}+$"}), {"x": "a"}),
    "a group of JavaScript": (of({"type": "string", "pattern": "^(?<y>a)$"}), {"x": "b"}),
    "names by a pattern": (
        {"patternProperties": {"^\\p{L}+$": {"type": "string"}}, "additionalProperties": False},
        {"x": "a"},
    ),
    "evaluated names by a pattern": (
        {"patternProperties": {"^\\p{L}+$": {}}, "unevaluatedProperties": False},
        {"x": "a"},
    ),
    "a definition that is not there": (of({"$ref": "#/definitions/X"}), {"x": "a"}),
    "a definition elsewhere": (of({"$ref": "other.json#/X"}), {"x": "a"}),
    "a dynamic definition elsewhere": (of({"$dynamicRef": "other.json#X"}), {"x": "a"}),
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_what_cannot_be_checked_here_is_left_to_the_tool(name):
    """The rest of the schema is checked."""
    parameters, arguments = UNCHECKED[name]
    assert answer(parameters, arguments) == "ran"
    more = dict(parameters, required=["z"])
    assert answer(more, arguments) == "error: 'z' is a required property"


def test_an_argument_may_be_named_as_a_keyword():
    named = {"pattern": {"type": "string"}, "$ref": {"type": "integer"}}
    strict = {"properties": named, "required": ["pattern"], "additionalProperties": False}
    assert answer(strict, {"pattern": "a", "$ref": 1}) == "ran"
    assert answer(strict, {"pattern": 1}) == "error: 1 is not of type 'string'"
    assert answer(strict, {"pattern": "a", "other": 1}).startswith("error: Additional properties")


@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-04/schema#"}])
def test_a_schema_of_an_older_draft_is_read_as_one(dialect):
    """OpenAPI 3.0 writes draft 4, and tools that are made of it do not say so."""
    above = of({"type": "number", "minimum": 0, "exclusiveMinimum": True}, **dialect)
    assert answer(above, {"x": 1}) == "ran"
    assert answer(above, {"x": 0}).startswith("error: 0 is less than or equal to the minimum")


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (of({"type": "int"}), r"properties\.x\.type: 'int' is not"),
        (of({"type": 3}), r"properties\.x\.type"),
        (of(5), r"properties\.x: 5 is not"),
        ({"properties": [{}]}, r"properties: \[\{\}\] is not"),
        ({"required": "x"}, "required: 'x' is not"),
        ({"$schema": ["x"]}, r"\$schema"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "required": []}, "required"),
        (None, "None"),
        ([], "list"),
    ],
)
def test_what_is_no_schema_is_refused_when_it_is_offered(parameters, why):
    made = Tool("my_tool", "", parameters, lambda **given: "ran")
    with pytest.raises(ValueError, match=f"tool 'my_tool': .*no JSON schema.*{why}"):
        _ = made.schema


def nested(depth, leaf):
    return leaf if not depth else [nested(depth - 1, leaf)]


LIST = {"type": "array", "items": {"$ref": "#/$defs/n"}}
TWICE = of({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"anyOf": [LIST, LIST | {"maxItems": 9}]}}})
LOOP = of({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"$ref": "#/$defs/n"}}})
INVOLVED = {
    "a number that no float can hold": (of({"multipleOf": 0.5}), 10**400),
    "a large fraction": (of({"multipleOf": 1e-300}), 1e300),
    "many branches": (TWICE, nested(40, "a")),
    "a definition of itself": (LOOP, 1),
    "items that must differ": (of({"uniqueItems": True}), [*map(list, zip(range(20000))), 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", INVOLVED)
def test_arguments_that_cannot_be_checked_are_an_error_that_the_policy_reads(name):
    parameters, value = INVOLVED[name]
    start = time.monotonic()
    assert answer(parameters, {"x": value}).startswith("error: ")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("depth", range(0, 40, 3))
def test_the_depth_of_the_stack_changes_no_error(depth):
    """The package that holds references panics where the stack ends within it."""
    if depth:
        return test_the_depth_of_the_stack_changes_no_error(depth - 1)
    return test_arguments_that_cannot_be_checked_are_an_error_that_the_policy_reads(
        "a definition of itself"
    )


def test_a_slow_pattern_holds_nothing_up():
    """A pattern may take exponential time, and no other thread runs meanwhile."""
    start = time.monotonic()
    slow, text = "^([a-z0-9]+)+$", "a" * 60 + "!"
    assert answer(of({"type": "string", "pattern": slow}), {"x": text}) == "ran"
    assert answer({"patternProperties": {slow: {}}}, {text: 1}) == "ran"
    names = {"patternProperties": {slow: {}}, "additionalProperties": False}
    assert answer(names, {text: 1}) == "ran"
    assert answer({"propertyNames": {"pattern": slow}}, {text: 1}) == "ran"
    assert time.monotonic() - start < 5


def test_nothing_outside_the_schema_is_read(tmp_path):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, *args):
            pass

    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/internal"
        for place in (address, file.as_uri()):
            assert answer(of({"$ref": place}), {"x": 1}) == "ran"
            assert answer(of({"$ref": "a"}, **{"$id": place}), {"x": 1}) == "ran"
            assert answer(of({"$dynamicRef": place}), {"x": 1}) == "ran"
            other = Tool("t", "", of({}, **{"$schema": place}), lambda **given: "ran")
            assert definition.results([other], write_call(Call("t", {"x": 1}))) == ["ran"]
        server.shutdown()
    assert not asked
