"""Delethink: think in chunks, and carry over only the end of the last into the next.

Paper: Aghajohari et al. 2025, "The Markovian Thinker"
Idea: the cost of attention grows with the square of a chain of thought. Reset the context after a
fixed number of tokens to the question and the last few of them. RL teaches the policy to write down
what it will need later. Cost is linear, memory is constant, and a chain of thought may be longer at
test time than in training.
Formula: chunk k sees `q` and the last m tokens of chunk k - 1 and adds `C - m`; one advantage for
all tokens of all chunks, each under its own chunk's context
Claim: with chunks of 8K, a 1.5B model thinks up to 24K and is as good as or better than RL on whole
contexts; it continues to improve beyond that at test time, where the other stays where it was.
Reading: `config()` carries 10 of 16 tokens and the effect 2 of 6; the paper's `m` is `C / 2`
(recalled). Tokens weigh alike. `jaxrl eval` thinks in chunks too, in more of them with a larger
`--max-new-tokens`. The ablation has one context. In the effect, answers of up to 21 tokens are
judged, training has answers of at most 10, and demonstrations are no longer than a chunk, so that
only the method has seen contexts as long as it needs. The best baseline has one context too. In the
task `whole demonstrations`, they are as long as the walks.
Source: McGill-NLP/the-markovian-thinker@447883966523770182efaeddef5326735c0a2c97
verl/experimental/agent_loop/delethink_agent_loop.py:68
Fidelity: partial: the first chunk's beginning is not kept, the loss was not compared
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.tries import Chunks

METHOD = Method(rollout={"chunks": Chunks(size=160, carry=100)})
EXAMPLE = Example(
    {
        "task_args": {"digits": 1, "terms": 5, "operators": "+", "worked": True, "slips": 0.65},
        "rollout": {"max_new_tokens": 48, "chunks": Chunks(size=16, carry=10)},
    }
)
"""Sums of five digits, worked out: the end of the work is all that matters."""
