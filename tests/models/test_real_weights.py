"""Models that people use, against transformers reading the same file."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.data.text import tokenizers
from jaxrl.models import catalog, decoder, head, load

pytestmark = [pytest.mark.slow, pytest.mark.parity, pytest.mark.timeout(1800)]

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):",
    "Once upon a time, in a small village,",
    "The three primary colours are",
    "In 1969, the first humans",
    "To make a cup of tea, first",
    "The opposite of hot is",
    "SELECT name FROM users WHERE",
    "My favourite animal is the",
    "Photosynthesis is the process by which",
    "The largest planet in the solar system",
    "2 + 2 = 4, and 3 + 5 =",
    "Die Hauptstadt von Deutschland ist",
    "A good night's sleep",
    "The stock market fell today because",
    "Dear Sir or Madam,",
    "import numpy as np\n",
    "Shakespeare wrote many plays, including",
    "The meaning of life is",
]
TEXT = """The history of the lighthouse is older than that of the harbour it serves. Before
there were charts worth the name, sailors steered by fires that were lit on headlands, and the men
who tended them were paid in grain. A tower came later, and with it a keeper, a lamp that burned
oil, and a ledger in which every passing ship was written down. The ledger survives: 412 pages, in
eleven hands, from 1781 to 1902. On most days it says nothing but the wind."""
NEW = 64


class Real(NamedTuple):
    config: Any
    params: Any
    tokenizer: tokenizers.Tokenizer
    torch: Any
    torch_tokenizer: Any


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m"])
def real(request):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    try:
        path = catalog.locate(request.param)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    theirs_tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    config, params = load.load(request.param)
    return Real(config, params, tokenizers.load(path), theirs.eval(), theirs_tokenizer)


@pytest.mark.exact("token ids of real models equal those of transformers")
def test_ids(real):
    for text in [*PROMPTS, TEXT, "  a\n\n\tb  ", "日本語 🙂 naïve"]:
        expected = real.torch_tokenizer(text, add_special_tokens=False)["input_ids"]
        assert real.tokenizer.encode(text) == expected, text


@functools.partial(jax.jit, static_argnums=0)
def _greedy(config, params, tokens, length):
    """Continuations [B, NEW] of prompts [B, P] padded on the right."""
    params, (rows, width) = decoder.unstack(params), tokens.shape
    room = width + NEW
    step = functools.partial(decoder.extend, config, params, window=room)

    def pick(hidden):
        logits = head.logits(hidden, decoder.unembedding(params), softcap=config.logit_softcap)
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    index = jnp.arange(width)
    hidden, cache = step(
        tokens,
        jnp.where(index < length[:, None], index, room),
        decoder.empty_cache(config, rows, room),
    )

    def advance(carry, i):
        token, cache = carry
        hidden, cache = step(token[:, None], (length + i)[:, None], cache)
        return (pick(hidden[:, 0]), cache), token

    first = pick(hidden[jnp.arange(rows), length - 1])
    _, out = jax.lax.scan(advance, (first, cache), jnp.arange(NEW))
    return out.T


@pytest.mark.exact("greedy continuations of real models equal those of transformers")
def test_greedy_continuations(real):
    import torch

    prompts = [real.tokenizer.prompt(text) for text in PROMPTS]
    length = np.array([len(p) for p in prompts], np.int32)
    tokens = np.zeros((len(prompts), length.max()), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    ours = np.asarray(_greedy(real.config, real.params, tokens, length))
    for row, prompt in enumerate(prompts):
        with torch.no_grad():
            out = real.torch.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=-1,  # past the end of a text both continue
            )
        np.testing.assert_array_equal(ours[row], out[0, len(prompt) :].numpy(), PROMPTS[row])


@pytest.mark.exact("perplexity of real models equals that of transformers to 1e-3")
def test_perplexity(real):
    import torch

    ids = np.array(real.tokenizer.prompt(TEXT), np.int32)[None]
    count = ids.shape[1]
    hidden = jax.jit(decoder.hidden, static_argnums=0)(
        real.config, real.params, ids, np.arange(count)[None], np.full((1, count), count)
    )
    logp, _ = head.token_logprobs(
        hidden[0, :-1],
        decoder.unembedding(real.params),
        ids[0, 1:],
        softcap=real.config.logit_softcap,
        chunk=64,
    )
    with torch.no_grad():
        labels = torch.tensor(ids, dtype=torch.long)
        theirs = float(real.torch(labels, labels=labels).loss.exp())
    assert float(jnp.exp(-logp.mean())) == pytest.approx(theirs, rel=1e-3)
