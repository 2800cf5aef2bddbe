"""P5 with a decoder alone and three of its five families: recommendation as text, in templates.

Paper: Geng et al. 2022, "Recommendation as Language Processing (RLP): A Unified Pretrain,
Personalized Prompt & Predict Paradigm (P5)"
Idea: write every task of a recommender as text, by many templates that are filled in with a user's
and an item's name: ratings, what is bought next, explanations. Train one model on all of them by
next-token prediction. It then answers templates that it has not seen.
Formula: `-log pi(y | template(user, item))`, summed over tasks and templates
Claim: one model is good at all tasks, and without training at new prompts and items as well.
Reading: as in the authors' code, each task has several templates, and a new one of what is bought
next is held out. Direct recommendation and reviews are left out, and histories are one item long.
Users and items are made up: what a user buys next is of their taste, which ratings tell too. The
ablation is trained on what is bought next alone, so it sees three times as many of these texts; the
family's baseline that is not the method itself is the same arm. New items are not tried. In the
task `many texts`, it has 256 of them in place of 64.
Source: jeykigung/P5@1fa28ba7bb3946da94677013cc88e392cfc760ca src/modeling_p5.py:255
Fidelity: partial: three of five families of tasks
"""

from collections.abc import Callable
from random import Random

from jaxrl.config import Domain, WarmStartConfig
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Score, Task
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

USERS, KINDS, SHELVES = 24, 4, 6
TEMPLATES = ("{user} {item} {task}?", "{task} {item} {user}?", "{item} {task} {user}?")
"""The last is not among the training prompts of `bought`, whose held-out prompts have no other."""

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
            name: Domain(f"{__name__}:{name}") for name in ("rating", "explanation", "bought")
        },
        "warm_start": WarmStartConfig(),
    }
)
"""Three tasks in templates, imitated from a random initialisation."""


def rating() -> Task:
    """Whether an item is of a user's taste: `u07 i12 r?` to `y`."""
    return _task("r", lambda taste, kind, shelf: "ny"[kind == taste])


def explanation() -> Task:
    """An item's kind, which is why it is liked: `u07 i12 e?` to `k2`."""
    return _task("e", lambda taste, kind, shelf: f"k{kind}")


def bought() -> Task:
    """What is bought next, of a user's taste and from the next shelf: `u07 i12 b?` to `i19`."""

    def item(taste: int, kind: int, shelf: int) -> str:
        return f"i{taste * SHELVES + (shelf + 1) % SHELVES:02}"

    return _task("b", item, unseen=True)


def _task(letter: str, answer: Callable[[int, int, int], str], *, unseen: bool = False) -> Task:
    """Pairs of a user and an item, with the answer to a user's taste and an item's place."""
    tastes = [generate.rng("taste", user).randrange(KINDS) for user in range(USERS)]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("p5", letter, split, seed, index)

        def draw(stream: Random) -> tuple[int, int]:
            return stream.randrange(USERS), stream.randrange(KINDS * SHELVES)

        user, item = generate.draw(draw, key=str, stream=stream, split=split)
        templates = TEMPLATES[-1:] if split == "test" else TEMPLATES[:-1]
        template = stream.choice(templates if unseen else TEMPLATES)
        prompt = template.format(user=f"u{user:02}", item=f"i{item:02}", task=letter)
        return Problem(prompt, prompt, answer(tastes[user], *divmod(item, SHELVES)))

    def reward(problem: Problem, completion: str) -> Score:
        return Score(float(completion.strip() == problem.answer))

    task = Task(
        name=letter,
        problem=problem,
        reward=reward,
        gold=lambda problem: problem.answer,
        splits=("train", "test"),
        alphabet="".join(sorted({*"0123456789 ?uirebkyn"})),
        pure=True,
    )
    return task
