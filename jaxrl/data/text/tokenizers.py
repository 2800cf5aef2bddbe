"""Tokenizers, as records of functions."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from jaxrl import gguf_file
from jaxrl.data import rank_files
from jaxrl.data.gguf import gguf_vocab
from jaxrl.data.text import chat, marking, tokenizer_backends, tokenizer_limits
from jaxrl.data.text.marking import Conversation, Ends
from jaxrl.data.text.messages import Message
from jaxrl.data.text.tokenizer_backends import Backend

_LONGEST = 1 << 20
"""Characters of a chat template; the longest in use have some ten thousand."""
_PLACEHOLDER = re.compile("image|img|picture|vision|video|audio|speech", re.IGNORECASE)
"""Special tokens that stand for pictures and sound."""

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
)
"""Tokens that end a turn or a text wherever a vocabulary has them. Where it has `<|return|>`,
`<|end|>` ends no more than one of the messages of a turn."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back."""

    encode: Callable[[str], list[int]]
    """Text to ids, adding no special token. A ValueError where the tokenizer cannot encode it."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, leaving special tokens out."""
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    """Leads a raw text; None if the model has no such token or wants none."""
    chat: Callable[..., list[int]] | None = None
    """`chat(messages, tools=None, **variables)`: ids of the prompt for the next assistant turn;
    None without a template. Variables are the template's own, such as `enable_thinking`."""
    conversation: Callable[..., Conversation] | None = None
    """`conversation(messages, tools=None, *, start=0, **variables)`: a whole conversation, to learn
    from; None without a template. See `jaxrl.data.text.marking`."""
    plain: Callable[[str], list[int]] | None = None
    """Text to ids, none of them special, whatever the text spells out; None: as `encode`."""
    render: chat.Render | None = None
    """The chat template, to text; see `jaxrl.data.text.chat`. None without one."""
    template: str | None = None
    """Source of the chat template; None without one."""
    spelled: Callable[[Sequence[int]], str] | None = None
    """Ids to text, special tokens spelled out; None: as `decode`."""

    piece: Callable[[int], str | None] = lambda token: None
    """A token as the vocabulary writes it; None where that is not known."""

    token_bytes: Callable[[int], bytes | None] | None = None
    """The bytes that a token adds to a text; None: it adds none, as a special token, or has no
    place in the vocabulary. A ValueError where a tokenizer.json joins its tokens in a way of its
    own. Absent: the text that it decodes to by itself."""

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character."""
        return tokenizer_backends.bytes_of(self.decode([token]), self.piece(token))

    def prompt(self, text: str) -> list[int]:
        """Ids of a raw-text prompt, led by BOS once if the model has one."""
        ids = self.encode(text)
        if self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]


def with_variables(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer with values of variables of its chat template, such as `enable_thinking`.

    Raises:
      ValueError: there is no template, or it never names the variable.
    """
    if not variables:
        return tokenizer
    if tokenizer.template is None:
        raise ValueError("rollout.template_args is set, but this model has no chat template")
    for name in variables:
        if not re.search(rf"\b{re.escape(name)}\b", tokenizer.template):
            raise ValueError(
                f"rollout.template_args.{name}: the chat template has no variable {name!r}"
            )
    words = {"true": True, "false": False}  # as a command line may write them
    values = {name: words.get(str(value).lower(), value) for name, value in variables.items()}
    functions = ("chat", "conversation", "render")
    bound = {name: functools.partial(getattr(tokenizer, name), **values) for name in functions}
    return dataclasses.replace(tokenizer, **bound)


def characters(alphabet: str) -> Tokenizer:
    """One id a character; id 0 is EOS."""
    if len(set(alphabet)) != len(alphabet):
        raise ValueError(f"alphabet={alphabet!r} repeats a character; list each once")
    ids = {c: i + 1 for i, c in enumerate(alphabet)}

    def encode(text: str) -> list[int]:
        unknown = sorted(set(text) - ids.keys())
        if unknown:
            raise ValueError(f"text {text!r} has {unknown} outside the alphabet {alphabet!r}")
        return [ids[c] for c in text]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(alphabet[i - 1] for i in tokens if i)

    def token_bytes(token: int) -> bytes | None:
        return alphabet[token - 1].encode() if 0 < token <= len(alphabet) else None

    return Tokenizer(encode, decode, len(alphabet) + 1, eos_ids=(0,), token_bytes=token_bytes)


def load(path: str | Path) -> Tokenizer:
    """The tokenizer that comes with a model.

    Args:
      path: a GGUF file, or a directory with `tokenizer.json`, or else a sentencepiece
        `tokenizer.model`, a `tiktoken.model` or a `tekken.json`.

    Raises:
      FileNotFoundError: a directory with neither.
      ValueError: a GGUF vocabulary we do not rebuild, or another kind of file.
    """
    path = Path(path)
    is_gguf = path.suffix == ".gguf"
    if is_gguf or path.is_dir():
        try:
            tokenizer = from_gguf(path) if is_gguf else from_directory(path)
            tokenizer.encode("a")  # which builds what the file describes
            return tokenizer
        except BaseException as error:
            if not _of_file(error) or str(path) in str(error):
                raise
            kind = type(error).__name__
            raise ValueError(f"{path}: no tokenizer can be read: {kind}: {error}") from error
    raise ValueError(f"tokenizer path {str(path)!r}: expected a .gguf file or a directory")


def from_gguf(path: Path) -> Tokenizer:
    """The tokenizer embedded in a GGUF file."""
    fields = gguf_file.header(path).fields
    meta = gguf_vocab.metadata(fields)
    pieces, eos, bos = meta["tokens"], meta["eos_token_id"], meta.get("bos_token_id")
    leads = meta.get("add_bos_token", meta["model"] == "llama")
    return _assemble(
        gguf_vocab.read(meta),
        eos_ids=[eos],
        bos_id=bos if leads else None,
        template=fields.get("tokenizer.chat_template"),
        special={"eos_token": pieces[eos], "bos_token": "" if bos is None else pieces[bos]},
    )


def _of_file(error: BaseException) -> bool:
    """Whether an error, which may have no message for the user, is of a file's values.

    The package tokenizers raises bare exceptions, and panics where it has no check.
    """
    if isinstance(error, OSError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def from_directory(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory.

    A placeholder of pictures or sound beyond the embedding of the config.json beside it is left
    out, with a warning: Gemma's text models have no vector for theirs. Another token that was added
    without a row of the embedding stays, and the model is refused where it is opened.
    """
    config = _read_json(directory / "tokenizer_config.json")
    special = special_tokens(directory)
    bos = special.get("bos_token")
    ends = {bos, special.get("eos_token")}
    rows, left = _read_json(directory / "config.json").get("vocab_size"), list[str]()
    if (file := directory / "tokenizer.json").exists():
        tokenizer_limits.check(file)
        fast = tokenizers.Tokenizer.from_file(str(file))
        fast, left = _without_beyond(fast, directory, rows, ends)
        backend = tokenizer_backends.from_tokenizers(fast)
        leads = bos is not None and fast.encode("a").ids[:1] == [backend.ids(bos)]
        leads |= bool(config.get("add_bos_token"))
    elif (file := directory / "tokenizer.model").exists():
        decoder = config.get("added_tokens_decoder", {})
        beyond = [
            _spelling(token)
            for i, token in decoder.items()
            if rows is not None and int(i) >= rows and _is_placeholder(token)
        ]
        left = _warned(directory, rows, [token for token in beyond if token not in ends])
        added = {token: i for token, i in added_tokens(config).items() if token not in left}
        slow = sentencepiece.SentencePieceProcessor(model_file=str(file))
        backend = tokenizer_backends.from_sentencepiece(slow, added)
        leads = config.get("add_bos_token", True)
        if bos is None and slow.bos_id() >= 0:
            bos = slow.id_to_piece(slow.bos_id())
        if slow.eos_id() >= 0:
            special.setdefault("eos_token", slow.id_to_piece(slow.eos_id()))
    elif vocabulary := rank_files.read(directory, added_tokens(config)):
        special = {**vocabulary.names, **special}
        bos = special.get("bos_token")
        fast, left = _without_beyond(rank_files.tokenizer(vocabulary), directory, rows, ends)
        backend = tokenizer_backends.from_tokenizers(fast)
        leads = config.get("add_bos_token", "bos_token" in vocabulary.names)
    else:
        raise FileNotFoundError(
            f"{directory} holds no tokenizer: none of tokenizer.json, tokenizer.model, "
            "tiktoken.model and tekken.json"
        )
    generation = _read_json(directory / "generation_config.json").get("eos_token_id") or []
    eos = [generation] if isinstance(generation, int) else generation
    if "eos_token" in special:
        end = backend.ids(special["eos_token"])
        if end is None:
            raise ValueError(
                f"{directory}: eos_token={special['eos_token']!r} of its tokenizer_config.json is "
                "no token of the vocabulary; correct it there"
            )
        eos = [end, *eos]
    tokenizer = _assemble(
        backend,
        eos_ids=eos,
        bos_id=backend.ids(bos) if leads and bos else None,
        template=template(directory),
        special={"bos_token": bos or "", **special},
    )
    _check_beyond(directory, tokenizer, rows, left)
    return tokenizer


def added_tokens(config: Mapping[str, Any]) -> dict[str, int]:
    """The tokens that tokenizer_config.json adds, and their ids."""
    decoder = config.get("added_tokens_decoder", {})
    return {text: int(i) for i, token in decoder.items() if (text := _spelling(token)) is not None}


def _is_placeholder(token: Any) -> bool:
    """Whether an added token of tokenizer_config.json stands for a picture or a sound."""
    return bool(token.get("special") and _PLACEHOLDER.search(_spelling(token)))


def _check_beyond(
    directory: Path, tokenizer: Tokenizer, rows: int | None, left: Sequence[str]
) -> None:
    """Refuse a chat template that writes tokens which the embedding has no row for."""
    if not left or tokenizer.render is None:
        return
    import jinja2

    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello"}]
    try:
        text = tokenizer.render(turns).text
    except jinja2.TemplateError:  # each conversation says so of itself
        return
    if used := [token for token in left if token in text]:
        raise ValueError(
            f"{directory}: the chat template writes {used}, whose ids are beyond the {rows} rows "
            "of the embedding; resize the embedding of the model to its tokenizer and save both "
            "(resize_token_embeddings in transformers)"
        )


def _without_beyond(
    fast: tokenizers.Tokenizer, directory: Path, rows: int | None, ends: set[str | None]
) -> tuple[tokenizers.Tokenizer, Sequence[str]]:
    """The tokenizer without special added tokens whose ids the embedding has no row for; these."""
    added = fast.get_added_tokens_decoder().items()
    beyond = [
        token.content
        for i, token in added
        if rows is not None
        and i >= rows
        and token.special
        and _PLACEHOLDER.search(token.content)
        and token.content not in ends
    ]
    if not beyond:
        return fast, []
    left = _warned(directory, rows, beyond)
    state = json.loads(fast.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in left]
    vocabulary = state["model"].get("vocab")
    if isinstance(vocabulary, dict):
        state["model"]["vocab"] = {t: i for t, i in vocabulary.items() if t not in left}
    return tokenizers.Tokenizer.from_str(json.dumps(state)), left


def _warned(directory: Path, rows: int | None, beyond: Sequence[str]) -> Sequence[str]:
    """The tokens, named in a warning if there are any."""
    if beyond:
        warnings.warn(
            f"{directory}: the tokens {list(beyond)} have ids beyond the {rows} rows of the "
            "embedding; the model cannot read them, so texts that spell them are read as text",
            stacklevel=4,
        )
    return beyond


def special_tokens(directory: Path) -> dict[str, str]:
    """Spellings of `bos_token`, `eos_token` and so on of a Hugging Face directory."""
    config = _read_json(directory / "tokenizer_config.json")
    return {
        name: spelling
        for name, value in (_read_json(directory / "special_tokens_map.json") | config).items()
        if name.endswith("_token") and isinstance(spelling := _spelling(value), str)
    }


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _spelling(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def template(directory: Path) -> str | None:
    """The chat template of a Hugging Face directory, if it has one."""
    source = _template(directory)
    if source is not None and len(source) > _LONGEST:
        raise ValueError(
            f"{directory}: its chat template has {len(source)} characters, more than {_LONGEST}; "
            "take the model of another source"
        )
    return source


def _template(directory: Path) -> str | None:
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        source = _read_json(directory / name).get("chat_template")
        if isinstance(source, list):  # several by name
            source = next((t["template"] for t in source if t["name"] == "default"), None)
        if source is not None:
            return source
    return None


def _assemble(
    backend: Backend,
    *,
    eos_ids: Iterable[int],
    bos_id: int | None,
    template: str | None,
    special: dict[str, str],
) -> Tokenizer:
    render = chat.compile_template(template, special) if template is not None else None
    ends = dict.fromkeys([*eos_ids, *(i for t in END_TOKENS if (i := backend.ids(t)) is not None)])
    if render is not None and not any(backend.spelled([i]) in template for i in ends):
        ends |= dict.fromkeys(_turn_end(render, backend, ends))
    earlier = tuple(ends)  # what may end a turn that another follows
    if backend.ids("<|return|>") is not None:
        ends.pop(backend.ids("<|end|>"), None)
    plain = Tokenizer(
        encode=lambda text: backend.encode(text)[0],
        decode=backend.decode,
        vocab_size=backend.size,
        eos_ids=tuple(ends),
        bos_id=bos_id,
        plain=backend.plain,
        spelled=backend.spelled,
        piece=backend.piece,
        token_bytes=backend.token_bytes,
    )
    if render is None:
        return plain

    def prompt(messages: Sequence[Message], tools: Any = None, **variables: Any) -> list[int]:
        text = render(messages, tools, add_generation_prompt=True, **variables).text
        return backend.encode(text)[0]

    ended = Ends(plain.eos_ids, earlier)
    conversation = functools.partial(marking.conversation, render, backend, ended)
    return dataclasses.replace(
        plain, chat=prompt, conversation=conversation, render=render, template=template
    )


_PROBE = "\ue002"


def _turn_end(render: chat.Render, backend: Backend, ends: Collection[int]) -> tuple[int, ...]:
    """The special token that a template writes after a turn of the assistant, if it is no end yet.

    A template may end turns with a token of its own, which neither `eos_token` nor
    generation_config.json names.
    """
    import jinja2

    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": _PROBE}]
    try:
        after = render([*turns, turns[0]]).text.partition(_PROBE)[2]
    except jinja2.TemplateError:
        return ()
    ids = backend.encode(after)[0]
    if ids and ids[0] not in ends and not backend.decode(ids[:1]):
        return (ids[0],)
    return ()
