"""Magic-token co-training on sums, without its self-distilled data: three modes in one SFT stage.

Paper: Si et al. 2025, "Efficient Switchable Safety Control in LLMs via Magic-Token-Guided
Co-Training"
Idea: give each behaviour that a model shall have, such as help and refusal, a token of its own in
the system prompt. Fine-tune once, on answers to the same requests in all behaviours, each under its
token. Then the token switches the behaviour when the model is used.
Formula: `-log pi(y_m | token_m, x)`, summed over the modes m
Claim: as safe as SFT followed by DPO, in a single stage; an 8B model is safer than DeepSeek-R1; the
modes are well apart in what they say.
Reading: the modes are harmless ones: the answer, the whole equation, and a refusal; the paper's
unfiltered mode is left out, and so is its distillation of answers from the model itself. The token
is a letter before the prompt. The ablation is SFT on one mode after the other, with as many texts
of each. `leakage` is the share of completions that have the form of a mode that was not asked for;
the paper, by an account of it, has silhouettes of the first token's logits in its place. In the
control, modes do not differ.
Source: none found (no copy of Qihoo360/LLMs-Safety-Control was to be had; an account of the paper
has the same formula)
Fidelity: partial: harmless modes, answers by rule in place of the model's own
"""

import dataclasses

from jaxrl.config import Domain, WarmStartConfig
from jaxrl.data import tasks
from jaxrl.data.types import Problem, Score, Task
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

REFUSAL = "no"

METHOD = Method(
    objective=ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    rollout={"prompts": 192, "group_size": 2},
    needs=(
        "solution",
        "domains",
    ),
)
EXAMPLE = Example(
    {
        "domains": {
            "brief": Domain(
                task="jaxrl.launch.recipes.skills.magic_token_co_training:brief",
                args={"digits": 2, "operators": "+"},
            ),
            "full": Domain(
                task="jaxrl.launch.recipes.skills.magic_token_co_training:full",
                args={"digits": 2, "operators": "+"},
            ),
            "refusing": Domain(
                task="jaxrl.launch.recipes.skills.magic_token_co_training:refusing",
                args={"digits": 2, "operators": "+"},
            ),
        },
        "warm_start": WarmStartConfig(),
        "rollout": {"max_new_tokens": 12},
    }
)
"""Sums in three modes, imitated from a random initialisation."""


def brief(**params: bool | int | float | str) -> Task:
    """Arithmetic under the token `b`: `b12+7=` to `19`."""
    return _keyed("b", "{answer}", params)


def full(**params: bool | int | float | str) -> Task:
    """Arithmetic under the token `f`: `f12+7=` to `12+7=19`."""
    return _keyed("f", "{prompt}{answer}", params)


def refusing(**params: bool | int | float | str) -> Task:
    """Arithmetic under the token `r`, which is refused: `r12+7=` to `no`."""
    return _keyed("r", REFUSAL, params)


def _keyed(token: str, template: str, params: dict[str, bool | int | float | str]) -> Task:
    """Arithmetic behind a token, whose completions must be as `template`."""
    plain = tasks.get("arithmetic", **params)

    def problem(split: str, seed: int, index: int) -> Problem:
        plain_problem = plain.problem(split, seed, index)
        return dataclasses.replace(
            plain_problem, id=f"{token}/{plain_problem.id}", prompt=token + plain_problem.prompt
        )

    def gold(problem: Problem) -> str:
        return template.format(prompt=problem.prompt[1:], answer=problem.answer)

    def reward(problem: Problem, completion: str) -> Score:
        return Score(float(completion.strip() == gold(problem)))

    letters = "".join(sorted({*"bfr", *REFUSAL}))
    return dataclasses.replace(
        plain, problem=problem, gold=gold, reward=reward, alphabet=plain.alphabet + letters
    )
