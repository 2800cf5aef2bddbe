"""What a run trains on: rows of a file, domains, and the choice of prompts among them."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Rows of a file that a run learns from, in place of what it samples; see docs/fine-tuning.md.

    Conversations are written by the model's chat template, and so are texts under `rollout.chat`.
    """

    path: str = ""
    """File of the rows, or a folder or a glob, see `jaxrl.data.sources.records`; --data FILE is the
    same."""
    kinds: tuple[str, ...] = ()
    """Kinds of rows that the objective learns from, see `jaxrl.data.sources.rows`. The recipe sets
    them; a run without kinds samples its completions."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """Columns of the file, where they have names of their own, e.g. --data.columns.prompt
    question. A path such as extra_info.question reaches into a column; an empty name leaves a
    column of the file out."""
    eval_path: str = ""
    """File of the rows to evaluate on; --eval-data FILE is the same. Empty: a share of `path`."""
    eval_share: float = 0.05
    """Share of the prompts that is held out, by a hash of the prompt; at most `eval.problems`."""
    comparisons: bool = False
    """Ask of each preference which answer is better, in both orders, so that a language model
    learns to answer with `A` or `B`. The recipe `pairwise_reward` sets it."""
    batch_size: int = 16
    """Rows per step; of preferences, pairs; of comparisons, questions."""
    max_tokens: int = 1024
    """Longest sequence, prompt and answer together, in tokens."""
    long_rows: Literal["truncate", "drop", "error", "split"] = "truncate"
    """How a row over `max_tokens` is treated: `truncate` leaves out tokens at its end, and the row
    if nothing to learn is left of it; `drop` leaves out the row; `error` stops and names it;
    `split`, for texts, makes several rows of it, so that no token is lost."""
    cache_reference: bool = False
    """Compute the reference policy's log-probabilities of all rows once, before the first step, and
    keep them in the run directory, in place of a copy of the policy and its forward pass in every
    step."""
    epochs: int = 0
    """Passes over the rows, after which the last batch ends early; --epochs N sets it, and `steps`
    with it. 0: `steps` says how long a run is, and batches run on over the ends of epochs."""
    noise: float = 0.0
    """NEFTune: length of uniform noise that is added to embeddings in training; 5 is usual. It is
    divided by the square root of a sequence's tokens times the width."""
    bad_rows: Literal["error", "skip"] = "error"
    """How a row that cannot be used, or that the tokenizer or the chat template refuses, is
    treated: `error` stops and names its line; `skip` leaves it out and counts it."""


@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """Chooses prompts by the rewards they got before, in this run or in an earlier one."""

    choose: str = ""
    """Function that chooses the prompts of a step, such as `difficulty_targeted` or `gain`; empty
    takes prompts in the order of the data."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Keyword arguments of `choose`, e.g. --curriculum.args.target 0.5."""
    prompts: int = 1024
    """Number of prompts to choose from: the first of the train split."""
    window: int = 8
    """Number of visits remembered per prompt."""
    retain: float = 1.0
    """Share of the prompts, the hardest, that is kept every `retain_every` batches, above 0 and up
    to 1; the others are not chosen again (DRIVE). 1 keeps all."""
    retain_every: int = 50
    """Batches between two such selections."""
    history: str = ""
    """Directory of an earlier run of this task; its prompts are ranked once, by how that run
    answered them. Empty: none."""
    score: str = "historical_variance"
    """Function that ranks the prompts of `history`, such as `learning_impact` (LIMR)."""
    keep: int = 1
    """Number of prompts of `history` to keep, highest score first."""


@dataclasses.dataclass(frozen=True)
class Domain:
    """One of several tasks that a run trains on."""

    task: str = "arithmetic"
    """Name of a task, as in `Config.task`."""
    args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task."""
    weight: float = 1.0
    """Share of the prompts, relative to the other domains' weights."""
    max_new_tokens: int = 0
    """Longest completion for its problems, in tokens, at most the rollout's; 0 uses the
    rollout's."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Chooses its prompts."""


@dataclasses.dataclass(frozen=True)
class BanditConfig:
    """A bandit that adapts the shares of the domains to the training signal."""

    weigh: str = ""
    """Bandit that multiplies the domains' weights: `sec`, `dump` or `dads`; empty keeps the weights
    fixed."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Keyword arguments of `weigh`, e.g. --bandit.args.temperature 0.5."""
    signal: Literal["advantage", "reward"] = "advantage"
    """Reward of the bandit for each completion: `advantage` is the absolute advantage in units of
    its group's standard deviation (SEC, DUMP); `reward` is the completion's reward (dads)."""
    rate: float = 0.5
    """Smoothing factor of the moving average of a domain's signal, above 0 and up to 1."""
    window: int = 64
    """Number of completions remembered per domain."""
    history: str = ""
    """Directory of an earlier run of these domains; domains with more prompts that it always failed
    get a greater share (SwS). Empty: none."""
