"""Dynamic control: the weights of several rewards are in the prompt; no sentence-level decoder.

Paper: Li et al. 2024, "Learning to Generate Research Idea with Dynamic Control"
Idea: novelty, feasibility and effectiveness pull an idea into different directions, and which of
them counts more is the user's to say. Have a reward model for each, let a control in the prompt
weigh them, and train one policy for all weights.
Formula: `r = sum_k w_k r_k(x, y)`, w the weights that the prompt states
Claim: novelty, feasibility and effectiveness are balanced dynamically; the abstract has no figure.
Reading: the abstract has the controls and not the formula; weights in the prompt are ours, and so
is GRPO. Rewards are the user's, two or more; behind each prompt stands a weight for each, in tenths
of 1, as in `Weights: short 0.3, right 0.7`, which are drawn for the prompt and take the place of
those of `--reward`. To use the policy, end the prompt so. The toy's rewards are by rule: the shares
of letters that are written as they are, in capitals and 13 places on. In the effect, symbols have a
code in each of three styles. The statistic is the reward at one of the three weights. The ablation
has even weights whatever the prompt says; a baseline is a policy that trains on that one weight
alone. In the task `weights not followed`, styles of demonstrations are random.
Source: none found (du-nlp-lab/LDC has scripts for the data alone; the abstract was read)
Fidelity: own formula
"""

import codecs
import itertools
from collections.abc import Callable, Sequence

from jaxrl.data.rewards import combine
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Reward, Score, Task, exact_sum
from jaxrl.launch.method import Example, Method

STYLES: dict[str, Callable[[str], str]] = {
    "plain": str, "capital": str.upper, "turned": lambda text: codecs.encode(text, "rot13"),
}  # fmt: skip
LETTERS = "abcdefghijklm"

LENGTH = 4
"""Letters of a problem."""
WEIGHTS = ((0.7, 0.2, 0.1), (0.1, 0.7, 0.2), (0.2, 0.1, 0.7))
"""Rows of weights of the three rewards; a prompt names one."""
TENTHS = 10  # parts of 1 that weights of the user's rewards are made of
_HEAD = "\n\nWeights: "


def style(name: str) -> Reward:
    """The share of letters that are in a style; 0 for a text of another length."""

    def reward(problem: Problem, completion: str) -> Score:
        target = STYLES[name](problem.answer)
        fits = sum(a == b for a, b in zip(target, completion, strict=False))
        return Score(fits / len(target) if len(completion) == len(target) else 0.0)

    return reward


def style_weights(problem: Problem) -> dict[str, float]:
    """The weights of the styles that the prompt states."""
    row = WEIGHTS[int(problem.prompt[0])]
    return dict(zip(STYLES, map(float, row), strict=True))


def task() -> Task:
    """Letters after the row of `WEIGHTS`, such as `0:bdak=`; solutions have styles at random."""

    def problem(split: str, seed: int, index: int) -> Problem:
        stream = generate.rng("tradeoffs", split, seed, index)
        prompt = generate.draw(
            lambda s: f"{s.randrange(len(WEIGHTS))}:{''.join(s.choices(LETTERS, k=LENGTH))}=",
            key=str, stream=stream, split=split,
        )  # fmt: skip
        return generate.user_problem("tradeoffs", prompt, prompt, prompt[2:-1])

    def gold(problem: Problem) -> str:
        stream = generate.rng("styles", problem.id)
        return "".join(stream.choice([*STYLES.values()])(letter) for letter in problem.answer)

    reward = combine.heads({name: style(name) for name in STYLES}, style_weights)
    return Task("tradeoffs", problem, reward, gold, alphabet=generate.ASCII, pure=True)


def weights_line(problem_id: str, names: Sequence[str]) -> str:
    """The line after a prompt: weights of rewards, drawn evenly from all tenths that add up to 1.

    Args:
      problem_id: of the problem, which always has the same weights.
      names: of the rewards.
    """
    stream = generate.rng("controls", problem_id)
    bars = sorted(stream.sample(range(TENTHS + len(names) - 1), len(names) - 1))
    ends = [-1, *bars, TENTHS + len(names) - 1]
    tenths = [end - start - 1 for start, end in itertools.pairwise(ends)]
    return _HEAD + ", ".join(f"{name} {n / TENTHS}" for name, n in zip(names, tenths, strict=True))


def weighted_sum(reward: Reward) -> Reward:
    """`sum_k w_k r_k`, with the weights that the prompt ends with.

    Args:
      reward: of several; their values are parts of its score. Those that do not apply to a problem
        leave their weight to the others.
    """

    def value(problem: Problem, completion: str, scores: list[Score]) -> Score:
        parts = scores[0].parts
        entries = problem.prompt.rpartition(_HEAD)[2].split(", ")
        weights = {name: float(text) for name, _, text in (w.rpartition(" ") for w in entries)}
        weights = {name: weight for name, weight in weights.items() if name in parts}
        total = exact_sum(weights.values())
        if not total:
            return Score(0.0, parts)
        return Score(exact_sum(w * parts[name] for name, w in weights.items()) / total, parts)

    return combine.join([reward], value)


METHOD = Method(
    wrapper=f"{__name__}:weighted_sum",
    wrapper_args={"states": f"{__name__}:weights_line"},
    needs=("rewards",),
)
EXAMPLE = Example({"task": f"{__name__}:task", "task_args": {}, "wrapper": "", "wrapper_args": {}})
"""The quickstart on letters, with the weights in the prompt."""
