"""Vocabularies of tiktoken.model and tekken.json against the library tiktoken."""

import base64
import json
import random

import pytest
import tokenizers as library

from jaxrl.data import rank_files
from jaxrl.data.gguf import gguf_fields
from jaxrl.data.text import tokenizer_files, tokenizers
from jaxrl.data.text.tokenizer_backends import byte_letters
from tests.models import byte_tokenizer

PATTERN = (
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
"""Of Kimi K2."""
SPECIAL = ("[BOS]", "[EOS]", "<|im_end|>")
TEXTS = [
    *tokenizer_files.PROBES,
    "",
    " a",
    "x" * 20,
    "12 345,67",
    "日本語 Kimi's CAN'T naïve\r\n\n  ",
]


def ranks():
    """A vocabulary as tiktoken has one: bytes by byte value, then merges in order."""
    trained = library.Tokenizer(library.models.BPE())
    split = library.pre_tokenizers.Split(library.Regex("|".join(PATTERN)), behavior="isolated")
    to_letters = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.pre_tokenizer = library.pre_tokenizers.Sequence([split, to_letters])
    trainer = library.trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([*TEXTS, *(f"aab ab aaab {i}{i}" for i in range(99))], trainer)
    spelled = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    tokens = [bytes(byte_letters()[letter] for letter in token) for token in spelled]
    tokens.sort(key=lambda token: (len(token) > 1, token if len(token) == 1 else b""))
    return {token: rank for rank, token in enumerate(tokens)}


RANKS = ranks()


def tiktoken_directory(directory, joined=True):
    """Kimi's files: ranks, a program with the pattern, special tokens in tokenizer_config.json."""
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())
    (directory / "tiktoken.model").write_bytes(b"".join(lines))
    pattern = f"'|'.join([{', '.join(map(repr, PATTERN))}])" if joined else repr("|".join(PATTERN))
    (directory / "tokenization_kimi.py").write_text(
        f"raise SystemExit('never run')\nclass TikTokenTokenizer:\n    pat_str = {pattern}\n"
    )
    added = {
        str(len(RANKS) + 2 * i): {"content": token, "special": True}
        for i, token in enumerate(SPECIAL)
    }
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return {token["content"]: int(i) for i, token in added.items()}


def tekken(directory, count=10, **config):
    rows = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in RANKS.items()
    ]
    names = ("<unk>", "<s>", "</s>", "[INST]")
    special = [{"rank": i, "token_str": token, "is_control": True} for i, token in enumerate(names)]
    config = {
        "pattern": "|".join(PATTERN), "default_vocab_size": len(RANKS) + count,
        "default_num_special_tokens": count, "version": "v7", **config,
    }  # fmt: skip
    fields = {"config": config, "vocab": rows, "special_tokens": special}
    (directory / "tekken.json").write_text(json.dumps(fields))
    return {token: i for i, token in enumerate(names)}


def oracle(special, shift=0):
    tiktoken = pytest.importorskip("tiktoken")
    shifted = {token: rank + shift for token, rank in RANKS.items()}
    return tiktoken.Encoding(
        "test", pat_str="|".join(PATTERN), mergeable_ranks=shifted, special_tokens=special
    )


def texts(count):
    rng = random.Random(0)
    letters = "aabb ab  AB'sé日本12,.\n\r\t🙂"
    yield from TEXTS
    yield from ("".join(rng.choices(letters, k=rng.randrange(40))) for _ in range(count))


@pytest.mark.parity
@pytest.mark.exact("tokens of tiktoken.model and tekken.json are those of tiktoken")
@pytest.mark.parametrize("layout", ["joined", "one text", "tekken"])
def test_tokens_are_those_of_tiktoken(layout, tmp_path):
    is_tekken = layout == "tekken"
    special = tekken(tmp_path) if is_tekken else tiktoken_directory(tmp_path, layout == "joined")
    ours, theirs = tokenizers.load(tmp_path), oracle(special, 10 if is_tekken else 0)
    for text in texts(300):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == text
    for token, i in special.items():
        assert ours.encode(f"a{token}b") == theirs.encode(f"a{token}b", allowed_special="all")
        assert i in ours.encode(token) and ours.plain(token) == theirs.encode_ordinary(token)


def test_ends_and_beginnings(tmp_path):
    special = tiktoken_directory(tmp_path)
    kimi = tokenizers.load(tmp_path)
    assert (kimi.eos_ids[0], kimi.bos_id) == (special["[EOS]"], None)
    assert kimi.vocab_size == len(RANKS) + 5  # gaps between special tokens stay
    (tmp_path / "tiktoken.model").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    tekken(tmp_path)
    mistral = tokenizers.load(tmp_path)
    assert (mistral.eos_ids[0], mistral.bos_id) == (2, 1)
    assert mistral.prompt("a") == [1, *mistral.encode("a")]
    assert mistral.spelled([7]) == "<SPECIAL_7>" and mistral.decode([7]) == ""


def test_a_vocabulary_may_be_cut_short(tmp_path):
    """`default_vocab_size` counts the special tokens, and the rows beyond are not used."""
    tekken(tmp_path, default_vocab_size=310)
    assert tokenizers.load(tmp_path).vocab_size == 310


@pytest.mark.parity
@pytest.mark.parametrize("write", [tiktoken_directory, tekken])
def test_an_export_holds_an_equal_tokenizer_json(write, tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir(), copy.mkdir()
    write(source)
    tokenizer_files.copy(source, copy)
    fast = library.Tokenizer.from_file(str(copy / "tokenizer.json"))
    ours = tokenizers.load(source)
    for text in texts(50):
        assert fast.encode(text, add_special_tokens=False).ids == ours.encode(text)
    again = tokenizers.load(copy)
    assert (again.eos_ids, again.bos_id) == (ours.eos_ids, ours.bos_id)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(copy)
    assert theirs("naïve 日本", add_special_tokens=False).input_ids == ours.encode("naïve 日本")


def test_no_gguf_is_written_of_them(tmp_path):
    tiktoken_directory(tmp_path)
    with pytest.raises(ValueError, match=r"--to hf"):
        gguf_fields.read(tmp_path, 700)


DAMAGE = {
    "no program": (lambda d: (d / "tokenization_kimi.py").unlink(), "tokenization_"),
    "computed pattern": (
        lambda d: (d / "tokenization_kimi.py").write_text("pat_str = make()"), "tokenization_",
    ),
    "no Python": (lambda d: (d / "tokenization_kimi.py").write_text("(" * 5000), "tokenization_"),
    "no base64": (lambda d: (d / "tiktoken.model").write_text("* 0\n"), "tiktoken.model:1"),
    "no rank": (lambda d: (d / "tiktoken.model").write_text("YQ==\n"), "tiktoken.model:1"),
    "few": (lambda d: (d / "tiktoken.model").write_text("YQ== 0\n"), "255 of the 256 bytes"),
    "empty": (lambda d: (d / "tiktoken.model").write_text(""), "is no vocabulary"),
    "twice": (
        lambda d: (d / "tiktoken.model").write_bytes(
            (d / "tiktoken.model").read_bytes() + base64.b64encode(b"zzz") + b" 0\n"
        ), "different numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused_with_the_place(name, tmp_path):
    damage, text = DAMAGE[name]
    tiktoken_directory(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=text):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"config": {}}', '{"config": 1, "vocab": 2, "special_tokens": 3}', "[" * 9999],
)
def test_damaged_files_of_mistral_are_refused(content, tmp_path):
    (tmp_path / "tekken.json").write_text(content)
    with pytest.raises(ValueError, match=r"tekken\.json"):
        tokenizers.load(tmp_path)


def test_tokenizer_json_goes_first(tmp_path):
    tiktoken_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    byte_tokenizer.write(tmp_path)
    assert tokenizers.load(tmp_path).vocab_size == byte_tokenizer.SIZE
    assert rank_files.read(tmp_path, {}) is not None
