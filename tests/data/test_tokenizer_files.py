"""Tokenizers written to GGUF metadata and to Hugging Face files: the same ids everywhere."""

from __future__ import annotations

import io
import json

import gguf
import pytest
import sentencepiece
import tokenizers as library

from jaxrl.data.gguf import gguf_fields
from jaxrl.data.text import tokenizer_files, tokenizers
from tests.models import byte_tokenizer

CORPUS = [
    *tokenizer_files.PROBES,
    *(f"number {i} and {i * i} is what it's worth, we'll say" for i in range(60)),
]
TEXTS = [*tokenizer_files.PROBES, "", " a", "x" * 20, "12 345,67"]


def _gguf(fields, path):
    writer = gguf.GGUFWriter(path, "llama")
    for field in fields:
        writer.add_key_value(field.key, field.value, field.kind, field.inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def _sentencepiece(kind, symbols=()):
    """A sentencepiece model of 600 pieces, as Llama 2's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type=kind,
        vocab_size=600,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=list(symbols),
        minloglevel=2,
    )
    return model.getvalue()


def _spaced(directory):
    """A directory with a sentencepiece BPE."""
    (directory / "tokenizer.model").write_bytes(_sentencepiece("bpe"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))
    return 600


def _bytes(directory):
    byte_tokenizer.write(directory)
    return byte_tokenizer.SIZE


@pytest.mark.exact("a tokenizer keeps its ids through GGUF and the files of Hugging Face")
@pytest.mark.parametrize("make", [_bytes, _spaced])
def test_ids_are_kept(make, tmp_path):
    first, last = tmp_path / "first", tmp_path / "last"
    for directory in (first, last):
        directory.mkdir()
    size = make(first)
    path = _gguf(gguf_fields.read(first, size + 3), tmp_path / "a.gguf")
    tokenizer_files.from_gguf(path, last)
    ours, between, back = (tokenizers.load(p) for p in (first, path, last))
    assert ours.bos_id == between.bos_id == back.bos_id
    assert set(ours.eos_ids) == set(between.eos_ids) == set(back.eos_ids)
    for text in TEXTS:
        ids = ours.encode(text)
        assert between.encode(text) == back.encode(text) == ids
        assert back.decode(ids) == ours.decode(ids)
    again = gguf_fields.read(path, size + 3)
    assert {f.key: f.value for f in again} == {
        f.key: f.value for f in gguf_fields.read(first, size + 3)
    }


KIND = gguf.GGUFValueType
HOSTILE = (
    (-1, KIND.INT32, None), (10**9, KIND.UINT32, None), (2**63, KIND.UINT64, None),
    (float("nan"), KIND.FLOAT32, None), ("x", KIND.STRING, None), ("\x1b[2J", KIND.STRING, None),
    (True, KIND.BOOL, None), ([1, 2], KIND.ARRAY, KIND.INT32), ([0.5], KIND.ARRAY, KIND.FLOAT32),
    (["a", "b"], KIND.ARRAY, KIND.STRING), ([""] * 1000, KIND.ARRAY, KIND.STRING),
    ([float("nan")] * 5, KIND.ARRAY, KIND.FLOAT32),
)  # fmt: skip
READ = (
    "model", "pre", "tokens", "token_type", "merges", "scores", "eos_token_id", "bos_token_id",
    "unknown_token_id", "add_bos_token", "add_space_prefix",
)  # fmt: skip


@pytest.mark.parametrize("make", [_bytes, _spaced])
def test_metadata_of_any_value_is_read_or_refused_by_its_name(make, tmp_path):
    size = make(tmp_path)
    fields, refused = gguf_fields.read(tmp_path, size + 3), 0
    names = [*(f"tokenizer.ggml.{name}" for name in READ), "tokenizer.chat_template"]
    for name in names:
        others = [field for field in fields if field.key != name]
        changes = [[], *([type(fields[0])(name, *value)] for value in HOSTILE)]
        for change in changes:
            path = _gguf([*others, *change], tmp_path / "a.gguf")
            try:
                tokenizers.load(path).encode("hello world")
            except ValueError as error:
                assert str(path) in str(error)
                assert name in str(error) or "no tokenizer can be read" in str(error)
                refused += 1
    assert refused > 80


def test_a_tokenizer_of_characters(tmp_path):
    tokenizer_files.from_alphabet("0+ \n<", tmp_path)
    ours, theirs = tokenizers.characters("0+ \n<"), tokenizers.load(tmp_path)
    for text in ("0+0", " \n", "<<"):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode([*ours.encode(text), 0]) == text
    assert (theirs.vocab_size, theirs.eos_ids) == (ours.vocab_size, ours.eos_ids)


def test_tokenizers_that_gguf_does_not_know(tmp_path):
    tokenizer_files.from_alphabet("01", tmp_path)
    with pytest.raises(ValueError, match="type 'WordLevel' is not written to GGUF"):
        gguf_fields.read(tmp_path, 3)
    byte_tokenizer.write(tmp_path)
    fast = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.pre_tokenizer = library.pre_tokenizers.Whitespace()
    fast.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="splits words in none of the ways"):
        gguf_fields.read(tmp_path, byte_tokenizer.SIZE)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "bare"])
def test_a_sentencepiece_model_in_transformers(kind, named, tmp_path):
    """Whatever its tokenizer_config.json says, AutoTokenizer gives the ids of sentencepiece."""
    transformers = pytest.importorskip("transformers")
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "tokenizer.model").write_bytes(_sentencepiece(kind))
    if named:
        fields = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
        (source / "tokenizer_config.json").write_text(json.dumps(fields))
    tokenizer_files.copy(source, out)
    ours, theirs = tokenizers.load(source), transformers.AutoTokenizer.from_pretrained(out)
    again = tokenizers.load(out)
    for text in ("hello world", " two  spaces", "naïve 12", "fox</s>", "日本🙂", ""):
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ids == ours.encode(text) == again.encode(text)
    assert theirs("fox").input_ids == [1, *ours.encode("fox")] == again.prompt("fox")
    assert (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)
    assert again.eos_ids == ours.eos_ids and again.bos_id == ours.bos_id


@pytest.mark.parametrize("lengths", [[2], [2, 4], range(2, 9), [2, 4, 8, 16]])
def test_pieces_of_several_spaces(lengths):
    """Pieces that a user defined are found among spaces, the longest first."""
    made = _sentencepiece("bpe", ["\u2581" * n for n in lengths])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=made)
    fast = tokenizer_files.from_sentencepiece(theirs)
    for n in range(40):
        for text in (f"fox{' ' * n}over", f"{' ' * n}the", f"\n{' ' * n}"):
            ids = theirs.encode(text)
            assert fast.encode(text, add_special_tokens=False).ids == ids
            assert fast.decode(ids) == theirs.decode(ids)


def test_a_sentencepiece_model_that_is_not_rebuilt_keeps_its_class(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "tokenizer.model").write_bytes(_sentencepiece("bpe", ["\u2581" * 3]))
    with pytest.warns(UserWarning, match="could not be rebuilt"):
        tokenizer_files.copy(source, out)
    assert not (out / "tokenizer.json").exists()
    written = json.loads((out / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "LlamaTokenizer"
