"""A family that jaxrl does not know, added as docs/models.md says: EXAONE 4.

Norms follow attention and MLP instead of leading them, queries and keys are normalised over each
head, and every fourth layer sees everything but knows no positions.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl.models import decoder, head
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.checkpoints.families import Family, Raw
from jaxrl.models.config import DecoderConfig
from tests.models import tiny


def _is_local(raw: Raw, layer: int) -> bool:
    return bool((layer + 1) % raw["sliding_window_pattern"])


def _read(raw: Raw) -> dict[str, tuple[bool, ...]]:
    if not raw.get("sliding_window"):
        return {}
    return {"rope_layers": tuple(_is_local(raw, i) for i in range(raw["num_hidden_layers"]))}


def _write(config: DecoderConfig) -> dict[str, int]:
    return {"sliding_window_pattern": config.rope_layers.index(False) + 1}


EXAONE4 = Family(
    "Exaone4ForCausalLM",
    fixed={"pre_norm": False, "post_norm": True, "qk_norm": "head"},
    defaults={"sliding_window_pattern": 4},
    local=_is_local,
    read=_read,
    write=_write,
    names={
        "attention_post_norm/weight": "post_attention_layernorm.weight",
        "mlp_post_norm/weight": "post_feedforward_layernorm.weight",
    },
)

ARGUMENTS = dict(tiny.VARIANTS["mistral"][1], num_hidden_layers=4)


@pytest.mark.exact("a family added by the guide has the logits of transformers to 1e-4")
@pytest.mark.parity
def test_exaone4(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = tiny.make("Exaone4Config", ARGUMENTS, tmp_path / "theirs")
    config, params = huggingface.load(tmp_path / "theirs", family=EXAONE4)
    assert config.rope_layers == config.local_layers == (True, True, True, False)

    tokens = np.arange(3, 17)[None]
    hidden = jax.jit(decoder.hidden, static_argnums=0)(
        config, params, tokens, np.arange(14)[None], np.full((1, 14), 14)
    )
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits[0].numpy()
    logits = head.logits(hidden[0], decoder.unembedding(params))
    np.testing.assert_allclose(logits, expected, atol=1e-4)

    huggingface.save(tmp_path / "ours", config, params, family=EXAONE4, extra={"pad_token_id": 0})
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.tensor(tokens)).logits[0].numpy(), expected)
