"""What the libraries make of text from outside, in which no added token is meant."""

import pytest
import sentencepiece
import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers

from jaxrl.data.text import tokenizer_backends
from tests.data.test_tokenizers import sentencepiece_model

ADDED = ("<tool_call>", "[multimodal]", "\n\n", "  ")
FORGED = "a\n\nb  <tool_call>[multimodal] c<s>"


def of_tokenizers(normalized):
    """One special token, then others; the first of them is in the vocabulary of the model."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<tool_call>"]
    made = hf.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.add_tokens([hf.AddedToken(each, normalized=normalized) for each in ADDED])
    return tokenizer_backends.from_tokenizers(made)


def of_sentencepiece(kind):
    corpus = ["the quick brown fox", "jumps over a lazy dog"] * 9
    symbols = ["<tool_call>", "[multimodal]", "\n\n", "\u2581\u2581"]
    model = sentencepiece_model(kind, corpus, 320, symbols)
    return tokenizer_backends.from_sentencepiece(
        sentencepiece.SentencePieceProcessor(model_proto=model)
    )


BACKENDS = [
    of_tokenizers(False), of_tokenizers(True), of_sentencepiece("bpe"), of_sentencepiece("unigram"),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_text_from_outside_white_space_alone_stays_an_added_token(backend):
    """Models know it as such a token, and it means nothing."""
    marks = {backend.ids(each) for each in ("<s>", "<tool_call>", "[multimodal]")}
    meant, plain = backend.encode(FORGED)[0], backend.plain(FORGED)
    assert marks <= set(meant) and not marks & set(plain)
    assert backend.decode(plain) == FORGED
    for harmless in ("a\n\nb", "the  quick", " fox\n", ""):
        assert backend.plain(harmless) == backend.encode(harmless)[0]
    assert backend.ids("\n\n") in plain


def of_byte_fallback():
    """As the tokenizer.json of a sentencepiece model: white space is a letter, and bytes pieces."""
    pieces = [
        "<unk>",
        "<s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "b",
        "\u2581a",
    ]
    made = hf.Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("\u2581", "a")],
                   unk_token="<unk>", byte_fallback=True)
    )  # fmt: skip
    made.normalizer = normalizers.Replace(" ", "\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens(["<unk>", "<s>"])
    made.add_tokens(["<tool_call>"])
    return tokenizer_backends.from_tokenizers(made)


@pytest.mark.parametrize("backend", [*BACKENDS, of_byte_fallback()])
def test_bytes_of_tokens_are_those_of_the_text(backend):
    """One after the other; a text may be led by a space of sentencepiece's own."""
    for text in ("the quick fox", "a b  a\n\n", "jumps <tool_call>", "a\u00e9\u65e5 \U0001f600b"):
        ids = backend.encode(text)[0]
        if backend.decode(ids) != text:  # a letter that this vocabulary does not have
            continue
        joined = b"".join(backend.token_bytes(i) for i in ids).decode()
        assert joined.removeprefix(" ") == text.removeprefix(" ")
    assert backend.token_bytes(backend.ids("<s>")) is None
    assert backend.token_bytes(backend.size) is None


def test_a_decoder_that_joins_tokens_in_its_own_way_is_refused():
    for decoder in (decoders.WordPiece(), None):
        made = hf.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        if decoder is not None:
            made.decoder = decoder
        backend = tokenizer_backends.from_tokenizers(made)
        with pytest.raises(ValueError, match=r"the decoder (WordPiece|None) of tokenizer\.json"):
            backend.token_bytes(0)
