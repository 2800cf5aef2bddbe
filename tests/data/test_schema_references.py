"""A schema of data is read by itself: no reference opens a file or an address."""

import http.server
import threading

import pytest

from jaxrl.data.rewards import schema
from jaxrl.data.types import Problem

PROBLEM = Problem("p", "?", None)


@pytest.fixture
def asked():
    """The address of a server, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", paths
    server.shutdown()
    server.server_close()


@pytest.mark.sample(5, broad=4)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("draft", ["", "http://json-schema.org/draft-04/schema#",
                                   "https://json-schema.org/draft/2019-09/schema"])  # fmt: skip
@pytest.mark.parametrize("where", ["address", "file", "data"])
def test_references_out_of_a_schema_are_not_followed(asked, tmp_path, keyword, draft, where):
    address, paths = asked
    (tmp_path / "secret.json").write_text('{"const": "SECRET"}')
    target = {
        "address": f"{address}/schema",
        "file": (tmp_path / "secret.json").as_uri(),
        "data": 'data:application/json,{"const": "SECRET"}',
    }[where]
    for wanted in (
        {keyword: target},
        {"$id": target, keyword: "other.json"},
        {"properties": {"a": {"allOf": [{keyword: target}]}}},
    ):
        if draft:
            wanted["$schema"] = draft
        score = schema.json_schema(wanted)(PROBLEM, '{"a": 1}')
        assert score.value != 1 or keyword != "$ref"
        assert where == "data" or "SECRET" not in str(score)
        if score.error:
            assert score.error.startswith("gold: the schema refers to")
    assert not paths


def test_references_within_a_schema_are_followed():
    wanted = {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}
    reward = schema.json_schema(wanted)
    assert [reward(PROBLEM, text).value for text in ("[1, 2]", '["a"]')] == [1, 0]
