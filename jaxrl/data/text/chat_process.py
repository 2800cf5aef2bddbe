"""Renders a chat template in a process of its own, which `jaxrl.data.text.chat` starts.

A template is a program that came with a model. The sandbox keeps it from everything but time and
memory, which this process bounds: memory here, time by the parent, who ends it. It talks in lines
of JSON and imports jinja2 alone, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

MEMORY_BYTES = 1 << 30
LONGEST = 1 << 24
"""Characters of a rendered text."""
OPEN, CLOSE = "\U000f0000", "\U000f0001"
"""Private use: what a generation block wrote stands between them."""


def compiled(source: str) -> Callable[[dict[str, Any]], str]:
    """A template, as transformers would compile it."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag `{% generation %}`, by which a template marks what the assistant writes."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{OPEN}{caller()}{CLOSE}"

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.globals["raise_exception"] = refuse
    # Jinja's own filter escapes HTML
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    template = environment.from_string(source)

    def render(given: dict[str, Any]) -> str:
        template.globals["strftime_now"] = datetime.fromisoformat(given["now"]).strftime
        return template.render(given["variables"])

    return render


def answer(request: dict[str, Any], render: Callable[[dict[str, Any]], str]) -> dict[str, str]:
    """The reply to the parent: the text, or the kind and message of an error."""
    try:
        text = render(request)
        if len(text) > LONGEST:
            return {"error": "", "message": f"it makes more than {LONGEST} characters"}
        return {"text": text}
    except Exception as error:  # of an unknown program
        kind = type(error).__name__
        return {"error": kind, "message": f"{kind}: {str(error)[:1000]}"}


def main() -> None:
    """Answer the lines of standard input; the first is the template."""
    with contextlib.suppress(ValueError, OSError):  # some systems have no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    first = json.loads(sys.stdin.readline())
    sys.path += first["paths"]
    import jinja2  # noqa: F401  # so that its time is not the first render's

    render = None
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            render = render or compiled(first["template"])
        except Exception as error:
            reply = {"error": type(error).__name__, "message": str(error)[:1000]}
        else:
            reply = answer(request, render)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
