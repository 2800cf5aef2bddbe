"""Chat templates: conversations to text, by the model's own Jinja program in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]


def compile_template(template: str, special: dict[str, str]) -> Callable[[Sequence[Message]], str]:
    """A renderer of conversations up to the start of the next assistant turn.

    Args:
      template: Jinja source, as in `tokenizer_config.json` or GGUF metadata.
      special: names the template may use, such as `bos_token`.

    Returns:
      render(messages) -> text, special tokens spelled out.
    """

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    compiled = environment.from_string(template)

    def render(messages: Sequence[Message]) -> str:
        return compiled.render(messages=messages, add_generation_prompt=True, **special)

    return render
