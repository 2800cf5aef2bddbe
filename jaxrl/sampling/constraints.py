"""Constrained output: which tokens may come next in a text that matches a schema or a grammar.

The tokens are those after which some text of the grammar is still possible, whichever tokens it is
made of; an end token is among them where the text matches. So a constrained draw is the plain one,
restricted to texts that match so far and renormalised token by token. The masks come from the
package llguidance (the extra `constrained`), on the host, between two steps of decoding.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl import json_file
from jaxrl.mesh import mesh
from jaxrl.sampling import decode, support
from jaxrl.sampling.work import Setup, Work
from jaxrl.types import Kind, OutputConstraint, Request

if TYPE_CHECKING:  # whose libraries the sampler does not need
    from jaxrl.data.text.tokenizers import Tokenizer

MOST_CHARACTERS = 32_768
"""Of a schema, an expression or a grammar, or of all choices together."""
MOST_CHOICES = 1_000
MOST_CONTAINERS = 1_000
"""Objects and arrays of a schema. The package recurses over what refers to each other, and a few
thousand exhaust the stack, which ends the process."""
MOST_OPERATORS = 600
"""Of a grammar or of all expressions of a schema, for the same reason: `|*+?({` and, of a grammar,
the rules."""
_KEPT = 64
"""Constraints that are kept compiled."""
_LOCAL_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SPACES = {"whitespace_pattern": r"[ \t\r\n]{0,16}", "lenient": False}
"""Options of JSON: white space between tokens ends, so that a weak policy does not write it for
ever; a keyword that is not enforced is an error."""
_HEADER = '%llguidance {"no_forcing": true}\n'
"""Without it, a text that can continue in one way alone has one token next, though several begin
it."""


class Matcher(NamedTuple):
    """A constraint and how much of a text it has read."""

    state: Any
    """An `llguidance.LLMatcher`, which changes in place."""
    end: int
    """The token that is allowed in its masks where the text may end."""


Matchers = Callable[[OutputConstraint], Matcher]
"""Begins to match a constraint; a ValueError that says what is wrong with it, and where."""


def matchers(tokenizer: Tokenizer) -> Matchers:
    """What begins to match constraints of texts of this tokenizer, for `Setup.matchers`.

    The vocabulary is read at the first constraint, and compiled constraints are kept.
    """

    @functools.cache
    def table() -> Any:
        return _table(tokenizer)

    @functools.lru_cache(_KEPT)
    def compiled(constraint: OutputConstraint) -> Any:
        return _compiled(_grammar(constraint), constraint, table())

    def begin(constraint: OutputConstraint) -> Matcher:
        return Matcher(compiled(constraint).deep_copy(), tokenizer.eos_ids[0])

    return begin


def choices(texts: Sequence[str]) -> OutputConstraint:
    """One of these texts."""
    return OutputConstraint("choice", json.dumps(list(texts)))


def tools(schemas: Mapping[str, Any], *, required: bool, many: bool) -> OutputConstraint:
    """Calls of tools in the form of Hermes and Qwen, whose arguments match their JSON schemas.

    Args:
      schemas: of the arguments, by the names of the tools.
      required: nothing but calls, one at least; or else any text, with calls in it or without.
      many: several calls, or at most one.
    """
    calls = {"schemas": schemas, "required": required, "many": many}
    return OutputConstraint("tools", json.dumps(calls))


SUFFIXES: Mapping[str, Kind] = {
    ".json": "json_schema", ".regex": "regex", ".choices": "choice", ".lark": "grammar",
}  # fmt: skip
"""What a file holds, by the end of its name; choices are its lines."""


def of_file(path: str) -> OutputConstraint:
    """The constraint that a file holds.

    Raises:
      ValueError: its name ends in none of `SUFFIXES`, or it cannot be read as text.
    """
    kind = SUFFIXES.get(Path(path).suffix)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no constraint can be read: {error}") from error
    if kind == "json_schema" or kind == "grammar":
        return OutputConstraint(kind, text)
    if kind == "regex":
        return OutputConstraint(kind, text.removesuffix("\n"))
    if kind == "choice":
        return choices([line for line in text.splitlines() if line])
    raise ValueError(f"{path}: its name must end in one of {', '.join(SUFFIXES)}")


def of_value(value: Any) -> OutputConstraint | None:
    """The constraint that a problem has; None where it has none.

    Args:
      value: None, or an object of one entry, such as {"regex": "[0-9]+"}, or its JSON.

    Raises:
      ValueError: it is something else.
    """
    if value is None or value == "":
        return None
    entry = _parsed("constraint", value) if isinstance(value, str) else value
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((kind, content),) = entry.items()
        text = content if isinstance(content, str) else json.dumps(content)
        for file_kind in SUFFIXES.values():
            if file_kind == kind:
                return OutputConstraint(file_kind, text)
    raise ValueError(
        f"constraint={str(value)!r:.100}: make it an object of one entry, {{KIND: VALUE}}, with "
        f"KIND one of {', '.join(SUFFIXES.values())}"
    )


def check(setup: Setup, request: Request) -> None:
    """Refuse the constraint of a request, which has one, that the sampler cannot keep.

    Raises:
      ValueError: naming the request, what is wrong, and where.
    """
    assert request.constraint is not None
    if setup.matchers is None or not setup.stop_ids:
        missing = "matchers, see jaxrl.sampling.constraints" if setup.stop_ids else "an end token"
        raise ValueError(f"request {request.id}: its constraint needs {missing}")
    if setup.world is not None:
        raise ValueError(
            f"request {request.id}: nothing is constrained within the decode loop; set "
            "rollout.on_device to False"
        )
    setup.matchers(request.constraint)


def allowed(setup: Setup, work: Work, active: Sequence[int]) -> np.ndarray | None:
    """The tokens [S, W] uint32 that slots may draw next, for `decode`; None: none is constrained.

    Args:
      setup: of the work.
      work: whose matchers are begun where they are not yet.
      active: slots that decode.
    """
    rows = {i: seat for i in active if (seat := work.seat(i)).request.constraint is not None}
    if not rows:
        return None
    mask = np.zeros((len(work.seats), support.words(setup.config.vocab_size)), np.uint32)
    for i, seat in rows.items():
        assert setup.matchers is not None and seat.request.constraint is not None
        if seat.matcher is None:
            seat.matcher = setup.matchers(seat.request.constraint)
            seat.matcher.state.consume_tokens(seat.read)
        mask[i] = next_tokens(seat.matcher, mask.shape[1], setup.stop_ids)
    return mask


def read(work: Work, active: Sequence[int]) -> None:
    """Hand the last token of slots to their matchers."""
    rows = [i for i in active if work.seat(i).matcher is not None]
    last = mesh.fetch(decode.last_tokens(work.state))
    for i in rows:
        work.seat(i).matcher.state.consume_token(int(last[i]))


def next_tokens(matcher: Matcher, words: int, stop_ids: Sequence[int]) -> np.ndarray:
    """The tokens [W] uint32 that may come next, in the form of `jaxrl.sampling.support`.

    Where none may, as after a text that does not match or beyond a limit of the package, the end
    tokens are left.

    Args:
      matcher: has read the text so far.
      words: W.
      stop_ids: tokens that end a text.
    """
    mask = np.zeros(words, np.uint32)
    if not matcher.state.is_stopped():
        bits = np.frombuffer(matcher.state.compute_bitmask(), np.uint32)[:words]
        if not matcher.state.is_error():
            mask[: len(bits)] = bits
    ends = bool(mask[matcher.end // 32] >> np.uint32(matcher.end % 32) & 1)
    at, values = np.array(stop_ids) // 32, np.uint32(1) << np.array(stop_ids, np.uint32) % 32
    np.bitwise_and.at(mask, at, ~values)
    if ends or not mask.any():
        np.bitwise_or.at(mask, at, values)
    return mask


def _library() -> Any:
    """The package llguidance."""
    try:
        import llguidance
    except ImportError as error:
        raise ValueError(
            "constrained output needs the package llguidance; pip install 'jaxrl[constrained]'"
        ) from error
    return llguidance


class _Vocabulary(NamedTuple):
    """A vocabulary, as the package reads one."""

    eos_token_id: int
    bos_token_id: None
    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    encode: Callable[[str], list[int]]

    def __call__(self, text: str) -> list[int]:
        """The text's tokens; the package asks for them where a grammar has one text alone."""
        return self.encode(text)


def _table(tokenizer: Tokenizer) -> Any:
    """The vocabulary as the package reads it."""
    library = _library()

    def spelled(token: int) -> bytes | None:
        if token in tokenizer.eos_ids:
            return None
        if tokenizer.token_bytes is None:
            return tokenizer.decode([token]).encode() or None
        return tokenizer.token_bytes(token) or None

    table = [spelled(token) for token in range(tokenizer.vocab_size)]
    special = [i for i, value in enumerate(table) if value is None]
    # the package knows a special token by its first byte, which is in no text
    entries = [b"\xff[%d]" % i if value is None else value for i, value in enumerate(table)]
    end = tokenizer.eos_ids[0]
    vocabulary = _Vocabulary(end, None, entries, special, tokenizer.encode)
    return library.LLTokenizer(library.TokenizerWrapper(vocabulary), eos_token=end)


def _compiled(grammar: str, constraint: OutputConstraint, table: Any) -> Any:
    """The matcher of a grammar, at its start.

    Raises:
      ValueError: the package cannot compile it.
    """
    library = _library()
    limits = library.LLParserLimits(verbose_errors=False)
    state = library.LLMatcher(table, _HEADER + grammar, log_level=0, limits=limits)
    bits = b""
    if not state.is_error():
        bits = state.compute_bitmask()  # the dear one, which later copies share
    error = state.get_error()
    if not error and any(bits):
        return state
    empty = not error or "NoExtension" in error
    why = "no text that can be made of the vocabulary matches it" if empty else _brief(error)
    raise ValueError(f"{constraint.kind}: {why}")


def _brief(message: str) -> str:
    """What the package says of an error, without the grammar that was made of the constraint."""
    lines = (line for line in message.splitlines() if not re.match(r"\s*(\d+ )?\|", line))
    text = " ".join(" ".join(lines).split())
    return re.sub(r"^(at )?\d+\(\d+\): ", "", text).strip(" ^")[:300]


def _grammar(constraint: OutputConstraint) -> str:
    """The constraint as a grammar of the package, in its dialect of Lark.

    Raises:
      ValueError: what is wrong, and where.
    """
    kind, text = constraint
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"{kind}: {len(text)} characters, more than {MOST_CHARACTERS}; make it shorter"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{kind}: character {error.start} is half of a surrogate pair; leave it out"
        ) from error
    if not text:
        raise ValueError(f"{kind}: it is empty; leave it out, or write one")
    if kind == "json_schema":
        return f"start: %json {_json(_parsed(kind, text), kind)}\n"
    if kind == "regex":
        _check_operators(kind, text, "|*+?({")
        if (len(text) - len(text.rstrip("\\"))) % 2:
            raise ValueError("regex: it ends with a backslash; write two for the character itself")
        return f"start: /{_library().regex_to_lark(text, '')}/\n"
    if kind == "choice":
        return f"start: /{_any_of(_parsed(kind, text))}/\n"
    if kind == "tools":
        return _calls(**_parsed(kind, text))
    _check_operators(kind, text, "|*+?({:")
    if "%llguidance" in text:
        raise ValueError("grammar: %llguidance sets options of the library; leave it out")
    return text


def _parsed(kind: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{kind}: it is no JSON: {str(error)[:200]}") from error
    if json_file.is_deep(value):
        raise ValueError(f"{kind}: its objects and arrays stand too deep in each other")
    return value


def _check_operators(kind: str, text: str, operators: str) -> None:
    if (count := sum(map(text.count, operators))) > MOST_OPERATORS:
        raise ValueError(
            f"{kind}: {count} of the characters {operators}, more than {MOST_OPERATORS}; simplify "
            "it"
        )


def _any_of(texts: Any) -> str:
    """A regular expression of one of some texts."""
    if not (isinstance(texts, list) and texts and all(isinstance(t, str) and t for t in texts)):
        raise ValueError("choice: give a list of texts of one character or more")
    if len(texts) > MOST_CHOICES:
        raise ValueError(f"choice: {len(texts)} choices, more than {MOST_CHOICES}; give fewer")
    plain = re.compile("[0-9A-Za-z]")
    return "|".join(
        "".join(c if plain.fullmatch(c) else f"\\x{{{ord(c):x}}}" for c in text) for text in texts
    )


def _json(schema: Any, where: str) -> str:
    """A JSON schema as it stands in a grammar, once it has been looked through.

    Raises:
      ValueError: it is no schema, refers to another document, or is too large.
    """
    import jsonschema  # here, as sampling without a schema does not need it

    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError(f"{where}: a JSON schema is an object, and not {str(schema)[:100]!r}")
    containers, patterns = 0, list[str]()
    for path, value in _walk(schema, where):
        containers += 1
        entries = value.items() if isinstance(value, dict) else ()
        for key, child in entries:
            if key in _LOCAL_REFERENCES and isinstance(child, str) and not child.startswith("#"):
                raise ValueError(
                    f"{path}.{key}: {child[:100]!r} is of another document, which is never "
                    "fetched; put what it names into $defs, and refer to it by #/$defs/NAME"
                )
            patterns += [child] if key == "pattern" and isinstance(child, str) else []
            patterns += child if key == "patternProperties" and isinstance(child, dict) else []
    if containers > MOST_CONTAINERS:
        raise ValueError(
            f"{where}: {containers} objects and arrays, more than {MOST_CONTAINERS}; simplify it"
        )
    _check_operators(f"{where}: patterns", "".join(patterns), "|*+?({")
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"{_place(where, error.absolute_path)}: {error.message[:300]}") from error
    return json.dumps(schema | {"x-guidance": _SPACES})


def _place(where: str, path: Sequence[str | int]) -> str:
    return where + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)[:200]


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All objects and arrays of a value, with their places."""
    if isinstance(value, dict | list):
        yield path, value
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(child, _place(path, [key]))


def _calls(schemas: Mapping[str, Any], required: bool, many: bool) -> str:
    """The grammar of `tools`."""
    rules = []
    for n, (name, schema) in enumerate(schemas.items()):
        begin = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
        arguments = _json(schema, f"tools.{name}")
        rules.append(f'call_{n}: {begin} args_{n} "}}"\nargs_{n}: %json {arguments}\n')
    body = 'body: "\\n" one "\\n</tool_call>"\n'
    any_call = "one: " + " | ".join(f"call_{n}" for n in range(len(rules))) + "\n"
    if required:
        again = ' ("\\n" call)*' if many else ""
        start = f'start: call{again}\ncall: "<tool_call>" body\n'
    else:
        again = "start" if many else "PLAIN"
        start = (
            f"start: PLAIN | before body {again}\n"
            "before[lazy]: /[\\s\\S]*<tool_call>/\n"
            "PLAIN: /[\\s\\S]*/ & ~/[\\s\\S]*<tool_call>[\\s\\S]*/\n"
        )
    return start + body + any_call + "".join(rules)
