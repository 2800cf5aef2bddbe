"""Tokenizers, as records of functions."""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import tokenizers

from jaxrl import gguf_file
from jaxrl.data import backends, chat, gguf_vocab, tokenizer_limits
from jaxrl.data.backends import Backend
from jaxrl.data.chat import Message

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


class Conversation(NamedTuple):
    """A whole conversation as tokens."""

    ids: list[int]
    assistant: list[bool]
    """Which of them the assistant wrote, the token that ends its turn included."""


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
    """`conversation(messages, tools=None, **variables)`: a whole conversation, to learn from; None
    without a template."""
    plain: Callable[[str], list[int]] | None = None
    """Text to ids, none of them special, whatever the text spells out; None: as `encode`."""
    render: chat.Render | None = None
    """The chat template, to text; see `jaxrl.data.chat`. None without one."""
    template: str | None = None
    """Source of the chat template; None without one."""
    spelled: Callable[[Sequence[int]], str] | None = None
    """Ids to text, special tokens spelled out; None: as `decode`."""

    def prompt(self, text: str) -> list[int]:
        """Ids of a raw-text prompt, led by BOS once if the model has one."""
        ids = self.encode(text)
        if self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]


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

    return Tokenizer(encode, decode, len(alphabet) + 1, eos_ids=(0,))


def load(path: str | Path) -> Tokenizer:
    """The tokenizer that comes with a model.

    Args:
      path: a GGUF file, or a directory with `tokenizer.json` or else a sentencepiece
        `tokenizer.model`.

    Raises:
      FileNotFoundError: a directory with neither.
      ValueError: a GGUF vocabulary we do not rebuild, or another kind of file.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        return from_gguf(path)
    if path.is_dir():
        return from_directory(path)
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


def from_directory(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory."""
    config = _read_json(directory / "tokenizer_config.json")
    special = special_tokens(directory)
    bos = special.get("bos_token")
    if (file := directory / "tokenizer.json").exists():
        tokenizer_limits.check(file)
        fast = tokenizers.Tokenizer.from_file(str(file))
        backend = backends.from_tokenizers(fast)
        leads = bos is not None and fast.encode("a").ids[:1] == [backend.ids(bos)]
        leads |= bool(config.get("add_bos_token"))
    elif (file := directory / "tokenizer.model").exists():
        decoder = config.get("added_tokens_decoder", {})
        added = {_spelling(token): int(i) for i, token in decoder.items()}
        slow = sentencepiece.SentencePieceProcessor(model_file=str(file))
        backend = backends.from_sentencepiece(slow, added)
        leads = config.get("add_bos_token", True)
        if bos is None and slow.bos_id() >= 0:
            bos = slow.id_to_piece(slow.bos_id())
        if slow.eos_id() >= 0:
            special.setdefault("eos_token", slow.id_to_piece(slow.eos_id()))
    else:
        raise FileNotFoundError(f"{directory} holds neither tokenizer.json nor tokenizer.model")
    generation = _read_json(directory / "generation_config.json").get("eos_token_id") or []
    eos = [generation] if isinstance(generation, int) else generation
    if "eos_token" in special:
        eos = [backend.ids(special["eos_token"]), *eos]
    return _assemble(
        backend,
        eos_ids=eos,
        bos_id=backend.ids(bos) if leads and bos else None,
        template=template(directory),
        special={"bos_token": bos or "", **special},
    )


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
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    given = _read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(given, list):  # several by name
        given = next((t["template"] for t in given if t["name"] == "default"), None)
    return given


def _assemble(
    backend: Backend,
    *,
    eos_ids: Iterable[int],
    bos_id: int | None,
    template: str | None,
    special: dict[str, str],
) -> Tokenizer:
    ends = dict.fromkeys([*eos_ids, *(i for t in END_TOKENS if (i := backend.ids(t)) is not None)])
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
    )
    if template is None:
        return plain
    render = chat.compile_template(template, special)

    def prompt(messages: Sequence[Message], tools: Any = None, **variables: Any) -> list[int]:
        text = render(messages, tools, add_generation_prompt=True, **variables).text
        return backend.encode(text)[0]

    def conversation(
        messages: Sequence[Message], tools: Any = None, **variables: Any
    ) -> Conversation:
        text, generated = render(messages, tools, **variables)
        ids, spans = backend.encode(text)
        if generated is not None:
            inside = [any(s < end and e > start for start, end in generated) for s, e in spans]
            return Conversation(ids, inside)
        assistant = [False] * len(ids)
        starts = [start for start, _ in spans]
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            lead = render(messages[:turn], tools, add_generation_prompt=True, **variables).text
            if not text.startswith(lead):
                raise ValueError(
                    f"the chat template writes what precedes message {turn} otherwise once more "
                    "follows it, so the assistant's tokens cannot be distinguished; train on "
                    "conversations that end with the turn to learn"
                )
            first = bisect.bisect_left(starts, len(lead))
            closing = ends if turn == len(messages) - 1 else earlier
            last = next((i for i in range(first, len(ids)) if ids[i] in closing), len(ids) - 1)
            assistant[first : last + 1] = [True] * (last + 1 - first)
        return Conversation(ids, assistant)

    return dataclasses.replace(
        plain, chat=prompt, conversation=conversation, render=render, template=template
    )
