"""Tokenizers of every file format against the libraries that made them."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence

import gguf
import pytest
import sentencepiece
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from jaxrl.data.text import tokenizer_backends, tokenizers
from tests.data import test_chat

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and doesn't stop: 12345 times!",
    "def f(x):\n    return x + 1\n\n\nprint(f(41))  # forty-two",
    "Straße, naïve café, 日本語のテキスト, русский текст, emoji 🙂🙂",
    *(f"number {i} and {i * i} is what it's worth, we'll say" for i in range(60)),
]
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [*CORPUS[:5], "", " ", "  two  spaces ", "a\tb\r\nc", "x" * 40, "ünïcödé ﬁ Ⅻ", "12 345,67"]
anything = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00▁"), max_size=40
)  # ▁ is sentencepiece's own space
few = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE that splits words as Llama 3 does."""
    tokenizer = library.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                library.Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def directory(byte_level, tmp_path_factory):
    """As transformers saves it: BOS by a post-processor, a template that writes BOS too."""
    path = tmp_path_factory.mktemp("fast")
    led = library.Tokenizer.from_str(byte_level.to_str())
    led.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", led.token_to_id("<s>"))]
    )
    led.enable_truncation(8)  # which must not reach us
    led.save(str(path / "tokenizer.json"))
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "chat_template": [{"name": "default", "template": "{{ bos_token }}" + test_chat.CHATML}],
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    return path


def sentencepiece_model(
    kind: str,
    corpus: Sequence[str] = CORPUS,
    size: int = 420,
    symbols: Sequence[str] = ("<turn>", "▁▁"),
) -> bytes:
    """A small model with its user-defined symbols."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=list(symbols),
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def bpe_model():
    return sentencepiece_model("bpe")


def test_directory_encodes_as_the_library(directory, byte_level):
    ours = tokenizers.load(directory)
    for text in TEXTS:
        expected = byte_level.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == expected
        assert ours.decode(expected) == text
    assert ours.vocab_size == byte_level.get_vocab_size()
    assert ours.eos_ids == (1, 7, 3)  # its own, the generation config's, and <|im_end|>


def test_bos_comes_once(directory):
    ours = tokenizers.load(directory)
    assert ours.bos_id == 0
    assert ours.prompt("hi") == [0, *ours.encode("hi")]
    assert ours.prompt("<s>hi") == ours.prompt("hi")
    assert ours.chat([{"role": "user", "content": "hi"}]).count(0) == 1


@pytest.mark.exact("token ids of chats equal those of transformers")
@pytest.mark.parity
def test_chat_equals_transformers(directory):
    """Ids of every conversation, without a second BOS."""
    transformers = pytest.importorskip("transformers")
    template = "{{ bos_token }}" + test_chat.CHATML
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    ours = tokenizers.load(directory)
    for messages, variables in test_chat.CONVERSATIONS.values():
        expected = theirs.apply_chat_template(
            messages,
            chat_template=template,
            add_generation_prompt=True,
            return_dict=False,
            **variables,
        )
        assert ours.chat(messages, **variables) == expected


MESSAGES = [
    {"role": "user", "content": "quick dog"},
    {"role": "assistant", "content": "The lazy fox"},
    {"role": "user", "content": "over?"},
    {"role": "assistant", "content": "and over"},
]


def test_assistant_tokens_without_marks(directory):
    """Each turn with the token that ends it, but neither its header nor the newline after."""
    ours = tokenizers.load(directory)
    ids, mask = ours.conversation(MESSAGES)
    end = ours.encode("<|im_end|>")
    expected = [*ours.encode("The lazy fox"), *end, *ours.encode("and over"), *end]
    assert [i for i, m in zip(ids, mask, strict=True) if m] == expected
    prompt = ours.chat(MESSAGES[:3])
    assert ids[: len(prompt)] == prompt and mask[len(prompt)] and not mask[len(prompt) - 1]


@pytest.mark.exact("marks of the assistant's tokens equal those of transformers")
@pytest.mark.parity
def test_assistant_tokens_with_marks_equal_transformers(directory, tmp_path):
    transformers = pytest.importorskip("transformers")
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(test_chat.MARKED)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    expected = theirs.apply_chat_template(
        MESSAGES,
        chat_template=test_chat.MARKED,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    got = tokenizers.load(tmp_path).conversation(MESSAGES)
    assert got.ids == expected["input_ids"]
    assert got.assistant == [bool(m) for m in expected["assistant_masks"]]


def test_a_template_that_rewrites_history_is_refused(directory, tmp_path):
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages | length }}" + test_chat.CHATML)
    with pytest.raises(ValueError, match="what precedes message 1 otherwise"):
        tokenizers.load(tmp_path).conversation(MESSAGES)


def test_sentencepiece_spans_are_characters(bpe_model):
    backend = tokenizer_backends.from_sentencepiece(
        sentencepiece.SentencePieceProcessor(model_proto=bpe_model)
    )
    text = "<s>Straße 🙂 fox</s>"
    ids, spans = backend.encode(text)
    assert len(ids) == len(spans) and spans[0] == (0, 3) and spans[-1][1] == len(text)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    fox = next(i for i, (start, _) in enumerate(spans) if start == text.index(" fox"))
    assert backend.decode(ids[fox:]).strip() == "fox"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_directory(kind, tmp_path):
    model = sentencepiece_model(kind)
    (tmp_path / "tokenizer.model").write_bytes(model)
    config = {"added_tokens_decoder": {"500": {"content": "<|im_end|>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = tokenizers.load(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert (ours.bos_id, ours.eos_ids, ours.vocab_size) == (1, (2, 500), 501)
    assert ours.encode("<s>fox<|im_end|>") == [1, *theirs.encode("fox"), 500]
    assert ours.prompt("<s>fox") == ours.prompt("fox")
    assert ours.decode([1, *theirs.encode("fox"), 500, 2]) == "fox"


def _write_gguf(path, fields):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["types"])
    if "merges" in fields:
        writer.add_token_merges(fields["merges"])
    if "scores" in fields:
        writer.add_token_scores(fields["scores"])
    writer.add_bos_token_id(fields["bos"])
    writer.add_eos_token_id(fields["eos"])
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def from_byte_level(byte_level, tmp_path_factory):
    raw = json.loads(byte_level.to_str())
    vocab = byte_level.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    fields = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "types": [3 if t in SPECIALS else 1 for t in tokens],
        "merges": [" ".join(merge) for merge in raw["model"]["merges"]],
        "bos": 0,
        "eos": 1,
    }
    return tokenizers.load(_write_gguf(tmp_path_factory.mktemp("gguf") / "a.gguf", fields)), fields


@pytest.fixture(scope="module")
def from_spm(bpe_model, tmp_path_factory):
    p = sentencepiece.SentencePieceProcessor(model_proto=bpe_model)
    size = range(p.get_piece_size())
    kinds = {"is_unknown": 2, "is_control": 3, "is_unused": 5, "is_byte": 6}
    types = [next((k for n, k in kinds.items() if getattr(p, n)(i)), 1) for i in size]
    types[p.piece_to_id("<turn>")] = types[p.piece_to_id("▁▁")] = 4
    spelled = {p.piece_to_id("▁▁"): "  "}  # as the converter writes user-defined pieces
    fields = {
        "model": "llama",
        "pre": "default",
        "tokens": [spelled.get(i, p.id_to_piece(i)) for i in size],
        "types": types,
        "scores": [p.get_score(i) for i in size],
        "bos": 1,
        "eos": 2,
    }
    return tokenizers.load(_write_gguf(tmp_path_factory.mktemp("gguf") / "b.gguf", fields)), p


@few
@given(anything)
def test_gguf_byte_level(from_byte_level, byte_level, text):
    ours, _ = from_byte_level
    expected = byte_level.encode(text).ids
    assert ours.encode(text) == expected
    assert ours.decode(expected) == text


@few
@given(anything)
def test_gguf_sentencepiece(from_spm, text):
    ours, theirs = from_spm
    for variant in (text, f"a  b   {text}"):
        assert ours.encode(variant) == theirs.encode(variant)
    assert ours.encode(text + "<turn>")[-1] == theirs.piece_to_id("<turn>")


def test_gguf_special_tokens(from_byte_level, from_spm):
    ours, _ = from_byte_level
    assert ours.encode("<s>fox</s>")[0] == 0 and ours.encode("<s>fox</s>")[-1] == 1
    assert (ours.bos_id, ours.eos_ids) == (None, (1, 3))
    assert (from_spm[0].bos_id, from_spm[0].eos_ids) == (1, (2,))
    assert from_spm[0].encode("</s>") == [2]


def test_gguf_kinds_we_do_not_rebuild(from_byte_level, tmp_path):
    fields = from_byte_level[1]
    with pytest.raises(ValueError, match="pre='jais' is not rebuilt"):
        tokenizers.load(_write_gguf(tmp_path / "a.gguf", {**fields, "pre": "jais"}))
    with pytest.raises(ValueError, match="model='bert' is not rebuilt"):
        tokenizers.load(_write_gguf(tmp_path / "b.gguf", {**fields, "model": "bert"}))


def test_paths_that_hold_no_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none of tokenizer\.json, tokenizer\.model"):
        tokenizers.load(tmp_path)
    with pytest.raises(ValueError, match=r"expected a \.gguf file"):
        tokenizers.load(tmp_path / "x.bin")


def test_characters():
    ours = tokenizers.characters("ab+")
    assert ours.encode("b+a") == [2, 3, 1]
    assert ours.decode([2, 3, 1, 0]) == "b+a"
    assert (ours.eos_ids, ours.vocab_size) == ((0,), 4)
    with pytest.raises(ValueError, match=r"\['c'\] outside"):
        ours.encode("abc")
    with pytest.raises(ValueError, match="repeats"):
        tokenizers.characters("aa")


def _beyond(directory, byte_level, rows, **tokens):
    """A directory whose tokenizer has two added tokens at the end, and an embedding of `rows`."""
    copy = library.Tokenizer.from_str(byte_level.to_str())
    copy.add_tokens([library.AddedToken("<ordinary>", special=False)])
    copy.add_special_tokens([library.AddedToken("<picture>", special=True)])
    copy.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokens))
    (directory / "config.json").write_text(json.dumps({"vocab_size": rows}))
    return copy.get_vocab_size()


def test_special_tokens_beyond_the_embedding_are_left_out(byte_level, tmp_path):
    """As of Gemma 3's text models, whose tokenizer has one for pictures."""
    size = _beyond(tmp_path, byte_level, 0)
    size = _beyond(tmp_path, byte_level, size - 1, eos_token="</s>", image_token="<picture>")
    with pytest.warns(UserWarning, match=r"\['<picture>'\] have ids beyond the \d+ rows"):
        ours = tokenizers.load(tmp_path)
    assert ours.vocab_size == size - 1
    for text in ("a <picture> b", "<picture>", "<ordinary>", *TEXTS):
        ids = ours.encode(text)
        assert max(ids, default=0) < size - 1
        assert ours.decode(ids) == text.replace("</s>", "")


@pytest.mark.parametrize(
    ("cut", "tokens"), [(2, {}), (1, {"eos_token": "<picture>"}), (1, {"bos_token": "<picture>"})]
)
def test_other_tokens_beyond_the_embedding_stay(cut, tokens, byte_level, tmp_path):
    """So that the model is refused: it would be asked for vectors that it does not have."""
    size = _beyond(tmp_path, byte_level, 0)
    _beyond(tmp_path, byte_level, size - cut, **tokens)
    if cut > 1:
        with pytest.warns(UserWarning, match="<picture>"):
            ours = tokenizers.load(tmp_path)
    else:
        ours = tokenizers.load(tmp_path)
    assert ours.vocab_size > size - cut


@pytest.mark.parametrize("spelling", ["<|think|>", "[TOOL]", "<new_domain_token>", "<|user|>"])
def test_special_tokens_without_a_row_stay_so_that_the_model_is_refused(
    spelling, byte_level, tmp_path
):
    """They were added to be learned, and the embedding was not resized; see `policy.describe`."""
    copy = library.Tokenizer.from_str(byte_level.to_str())
    size = copy.get_vocab_size()
    copy.add_special_tokens([library.AddedToken(spelling, special=True)])
    copy.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
    assert tokenizers.load(tmp_path).vocab_size == size + 1


@pytest.mark.parametrize(("template", "refused"), [("<picture>{{ x }}", True), ("{{ x }}", False)])
@pytest.mark.filterwarnings("ignore:.*have ids beyond")
def test_a_chat_template_that_writes_a_token_without_a_vector_is_refused(
    template, refused, byte_level, tmp_path
):
    """Tokens were added for the template, and the embedding was not resized."""
    size = _beyond(tmp_path, byte_level, 0)
    source = template.replace("x", "messages[0].content")
    _beyond(tmp_path, byte_level, size - 1, chat_template=source)
    if not refused:
        assert tokenizers.load(tmp_path).vocab_size == size - 1
        return
    with pytest.raises(ValueError, match=rf"<picture>.*beyond the {size - 1} rows.*resize"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize("several", [False, True])
def test_a_chat_template_in_a_json_file(several, byte_level, tmp_path):
    _beyond(tmp_path, byte_level, 10_000)
    source = "{{ messages[0].content }}"
    given = [{"name": "default", "template": source}] if several else source
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": given}))
    assert tokenizers.load(tmp_path).template == source
