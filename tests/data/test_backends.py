"""What the libraries make of text from outside, in which no added token is meant."""

import pytest
import sentencepiece
import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers

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


@pytest.mark.parametrize(
    "backend",
    [
        of_tokenizers(False),
        of_tokenizers(True),
        of_sentencepiece("bpe"),
        of_sentencepiece("unigram"),
    ],
)
def test_in_text_from_outside_white_space_alone_stays_an_added_token(backend):
    """Models know it as such a token, and it means nothing."""
    marks = {backend.ids(each) for each in ("<s>", "<tool_call>", "[multimodal]")}
    meant, plain = backend.encode(FORGED)[0], backend.plain(FORGED)
    assert marks <= set(meant) and not marks & set(plain)
    assert backend.decode(plain) == FORGED
    for harmless in ("a\n\nb", "the  quick", " fox\n", ""):
        assert backend.plain(harmless) == backend.encode(harmless)[0]
    assert backend.ids("\n\n") in plain
