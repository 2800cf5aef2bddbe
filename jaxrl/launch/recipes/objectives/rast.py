"""RAST: what RL changed in a small model is added to a large one at every token, untrained.

Paper: Ouyang et al. 2025, "RAST: Reasoning Activation in LLMs via Small-model Transfer"
Idea: RL moves few tokens, and moves them alike in models of all sizes. So train a small one, and at
decoding add the difference of its logits, trained less untrained, to those of the large one.
Formula: `logits = large + lambda (small_RL - small)`
Claim: large base models gain on mathematics, now and then more than by RL of their own, at a small
part of the memory.
Reading: lambda is 1, as in the authors' script. `config()` trains the small model and `steered`
guides the sampler of the large one; it is proxy-tuning (Liu et al. 2024) with RL in the place of
tuning. The ablation is the large model as it is; beside it stand other lambdas, and RL of the large
model.
Source: ozyyshr/RAST@75d1e55bbcc4bcf3dc3e1f339622d7a1fae6055b
vllm/vllm/contrast_decode/contrast_decode_worker.py:542-545
Fidelity: verified against code
"""

from jaxrl.config import FreshModel
from jaxrl.launch.method import Example, Method
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling.logits import Guide, proxy_tuning
from jaxrl.types import Params

METHOD = Method(needs=("runs",))
EXAMPLE = Example(
    {"fresh": FreshModel(hidden_size=64, intermediate_size=192, num_heads=2, num_kv_heads=2)}
)
"""The quickstart with a model of a quarter of the size."""


def steered(small: DecoderConfig, tuned: Params, untuned: Params, strength: float = 1.0) -> Guide:
    """What `sampler.generate` takes as `guide` for a large model of the same vocabulary.

    Args:
      small: the small model's shape.
      tuned, untuned: its parameters after and before RL, each as from `decoder.unstack`.
      strength: lambda.
    """
    return Guide(proxy_tuning, strength, (small, small), (tuned, untuned))
