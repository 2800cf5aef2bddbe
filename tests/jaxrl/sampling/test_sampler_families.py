"""Greedy decoding equals the uncached argmax, and records the trainer's log-probabilities."""

from __future__ import annotations

import jax
import pytest

from jaxrl.models import decoder
from jaxrl.models.checkpoints import hf_config
from jaxrl.sampling import sampler
from jaxrl.types import Request
from tests.jaxrl import sampler_oracle as oracle
from tests.models import tiny

QUICK = ("qwen3", "gemma2", "deepseek-v3")  # norms on heads; windows and caps; latents and experts


@pytest.mark.sample(3)
@pytest.mark.exact("greedy decoding of every family equals the uncached argmax")
@pytest.mark.parity
@pytest.mark.parametrize(
    "variant",
    [v if v in QUICK else pytest.param(v, marks=pytest.mark.slow) for v in tiny.VARIANTS],
)
def test_greedy_equals_uncached_argmax(variant):
    transformers = pytest.importorskip("transformers")
    name, arguments = tiny.VARIANTS[variant]
    config = hf_config.read(getattr(transformers, name)(**arguments).to_dict())
    params = decoder.init(config, jax.random.key(0))
    items = [
        Request(i, tuple(range(3 + i, 5 + 4 * i)), 24, temperature=float(i > 3)) for i in range(6)
    ]
    done = sampler.generate(
        config,
        decoder.unstack(params),
        items,
        stop_ids=[2],
        key=oracle.KEY,
        sampler=sampler.SamplerConfig(slots=8, chunk=8),
    )
    assert oracle.recorded_as_recomputed(list(done), params, config) > 40
