"""Rewards by name, several of them added up: what `--reward` takes.

A specification is `[NAME=]REWARD[?argument=value&...][*WEIGHT][ if COLUMN=VALUE]`, with REWARD the
name of one of `BUNDLED`, `FILE.py:function`, `module:function` or `rubric:FILE.yaml`:

    number                                 the last number of the completion is the answer
    my_reward.py:score                     a function of your own, see
    `jaxrl.data.scoring.user_functions` style=my_reward.py:style?strict=1*0.5  its part named
    `style`, with half the weight judge?url=http://localhost:8000/v1&model=qwen
    number if kind=math                    for rows whose column `kind` is `math`, and no others
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import unquote

from jaxrl.data.rewards import group, math, references, schema, shape, text, verbatim, verifier
from jaxrl.data.rewards.judged import judge, rubrics
from jaxrl.data.scoring import user_functions
from jaxrl.data.sources import extract
from jaxrl.data.types import LOGGED, Problem, Reward, Score, exact_sum


class Spec(NamedTuple):
    """One reward of a sum."""

    name: str
    """Of its part in the log."""
    function: str
    """A name of `BUNDLED`, `FILE.py:function` or `module:function`."""
    weight: float = 1.0
    args: Mapping[str, Any] = {}
    column: str = ""
    """Of the row, which must be `value` for the reward to count; empty: it counts always."""
    value: str = ""

    def applies(self, problem: Problem) -> bool:
        """Whether the reward counts for a problem."""
        row = problem.metadata.get("row", problem.metadata)
        return not self.column or str(row.get(self.column)) == self.value


class Rewards(NamedTuple):
    """Rewards added up, as a task needs them."""

    reward: Reward
    """Where `grouped`, its text is a JSON list of completions, see `jaxrl.data.rewards.group`."""
    grouped: bool
    pure: bool
    slow: bool
    """Whether one of them waits for others, as a judge does, or is a function of the user's own, so
    that running out of time is an error and not a reward of 0."""
    seconds: float | None
    """Longest time that they allow themselves."""
    environment: tuple[str, ...]
    """Environment variables that they read."""
    setup: Callable[[], None] | None
    """Calls `setup()` of the modules of functions, where they have one."""


def number() -> Reward:
    """1 if the last number of the completion is the answer; part `format`: there is a number.

    Of an answer in the format of GSM8K, what follows `####` counts.
    """

    def reward(problem: Problem, completion: str) -> Score:
        answer = extract.last_number(completion)
        expected = extract.number(str(problem.answer).rpartition("####")[2])
        if expected is None:
            return Score(None, error=f"gold: the answer {problem.answer!r:.80} is not a number")
        right = answer is not None and _value(answer) == _value(expected)
        return Score(float(right), {"correct": float(right), "format": float(answer is not None)})

    return references.any_of(reward)


def exact(answer_format: str = "text") -> Reward:
    """1 if the answer is the reference, see `verbatim.is_answer`.

    Args:
      answer_format: where the answer is in the completion, see `jaxrl.data.sources.extract`.
    """
    find = extract.extractor(answer_format)

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        right = answer is not None and verbatim.is_answer(answer, references.text(problem.answer))
        return Score(float(right))

    return references.answered(references.final(reward))


def contains() -> Reward:
    """1 if the completion contains the answer, its numbers and words whole; see `verbatim`."""

    def reward(problem: Problem, completion: str) -> Score:
        answer = references.text(problem.answer)
        return Score(float(verbatim.contains(extract.spoken(completion), answer)))

    return references.answered(references.final(reward))


def equivalent(answer_format: str = "boxed") -> Reward:
    """1 if the answer means the same as the reference, see `math.equivalent`.

    Args:
      answer_format: where the answer is in the completion, see `jaxrl.data.sources.extract`.
    """
    return references.any_of(references.final(math.equivalent(answer_format)))


def closeness(name: str, answer_format: str = "text", longest: int = 10_000) -> Reward:
    """A text metric of the completion's answer and the reference, see `text.closeness`.

    Args:
      name: of the metric.
      answer_format: where the answer is in the completion, see `jaxrl.data.sources.extract`.
      longest: characters scored; an answer over it scores 0.
    """
    return references.answered(text.closeness(name, answer_format, longest))


def nothing() -> Reward:
    """0 for every completion, of a run whose signal comes from elsewhere, such as a teacher."""
    return lambda problem, completion: Score(0.0)


def by_judge(
    url: str, model: str, key_variable: str = "", cache: str = "", criteria: str = ""
) -> Reward:
    """A judging model behind an OpenAI-compatible address.

    Args:
      url: such as http://localhost:8000/v1.
      model: its name there.
      key_variable: environment variable that holds the key.
      cache: a SQLite file of replies.
      criteria: what deserves the full mark; empty: agreement with the answer.
    """
    endpoint = judge.Endpoint(url, model, key_variable=key_variable, cache=cache)
    if criteria:
        return judge.rubric(endpoint, {"quality": (1.0, criteria)})
    return judge.correctness(endpoint)


def by_verifier(
    url: str, model: str, key_variable: str = "", cache: str = "", answer_format: str = "boxed"
) -> Reward:
    """A model that compares answers, behind an OpenAI-compatible address (General-Reasoner).

    Args:
      url: such as http://localhost:8000/v1.
      model: its name there.
      key_variable: environment variable that holds the key.
      cache: a SQLite file of replies.
      answer_format: where the answer is in the completion, see `jaxrl.data.sources.extract`.
    """
    endpoint = judge.Endpoint(url, model, key_variable=key_variable, cache=cache)
    return verifier.by_model(endpoint, answer_format)


def by_rubric(rubric: Mapping[str, Any]) -> Reward:
    """The judges of a rubric.

    Args:
      rubric: plain values, see `rubrics.load`; on the command line, `rubric:FILE.yaml` reads them.
    """
    return rubrics.by_endpoints(rubrics.parse(rubric))


BUNDLED: dict[str, Callable[..., Reward]] = {
    "number": number,
    "exact": exact,
    "contains": contains,
    "math": equivalent,
    "closeness": closeness,
    "nearness": math.near,
    "think_format": schema.think_answer,
    "pattern": schema.pattern,
    "json": schema.json_schema,
    "overlong": shape.overlong,
    "repetition": shape.repetition,
    "judge": by_judge,
    "rubric": by_rubric,
    "verifier": by_verifier,
    "none": nothing,
}
"""Name to the function that makes the reward from its arguments."""

_LARGEST_EXPONENT = 400
JUDGED = {"judge", "rubric", "verifier"}
COMPARED = {"number", "nearness", "exact", "contains", "math", "closeness", "verifier"}
"""Those that compare with the answer of the row."""
_PURE = {
    "number", "nearness", "exact", "contains", "none", "overlong", "repetition", "think_format",
}  # fmt: skip


def parse(text: str) -> Spec:
    """A specification as it is written on the command line; a file's path becomes absolute.

    Raises:
      ValueError: it names no reward.
    """
    name, rest = "", text.strip()
    if name_match := re.match(r"([^\W\d]\w*)=", rest):
        name, rest = name_match[1], rest[name_match.end() :]
    column = value = ""
    if condition := re.search(r"\s+if\s+([^=\s]+)=(.*)$", rest):
        column, value, rest = condition[1], condition[2].strip(), rest[: condition.start()]
    weight = 1.0
    if weighed := re.search(r"\*\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)$", rest):
        weight, rest = float(weighed[1]), rest[: weighed.start()]
    function, _, query = rest.strip().partition("?")
    args = _arguments(query)
    if function.startswith("rubric:") and function.endswith((".yaml", ".yml")):
        args["rubric"] = rubrics.load(function.removeprefix("rubric:"))
        function = "rubric"
    if function not in BUNDLED and ":" not in function:
        hint = (
            f"write {function}:FUNCTION"
            if function.endswith(".py")
            else _nearest(function, BUNDLED)
        )
        raise ValueError(f"--reward {text!r}: no reward {function!r}; {hint}")
    name = name or function.rpartition(":")[2]
    return Spec(name, user_functions.absolute(function), weight, args, column, value)


def to_json(specs: Sequence[Spec]) -> str:
    """Specifications as one text, for a parameter of a task."""
    plain = [[s.name, s.function, s.weight, dict(s.args)] for s in specs]
    conditions = [[s.column, s.value] if s.column else [] for s in specs]
    return json.dumps(
        [[*fields, *condition] for fields, condition in zip(plain, conditions, strict=True)]
    )


def read(text: str) -> list[Spec]:
    """What `to_json` wrote.

    Raises:
      ValueError: anything else, or two rewards of one name.
    """
    try:
        specs = [
            Spec(str(n), str(f), float(w), dict(a), *map(str, condition))
            for n, f, w, a, *condition in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"rewards={text!r:.80}: must be a JSON list of [name, reward, weight, arguments]; on "
            "the command line, --reward writes it"
        ) from error
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1 or name in LOGGED:
            raise ValueError(f"reward {name!r}: give each a name of its own, as in NAME={name}")
    return specs


def columns(specs: Sequence[Spec], known: Collection[str]) -> set[str]:
    """The columns of a row that rewards read, of those that it has."""
    column_names = {spec.column for spec in specs if spec.column}
    for spec in specs:
        if spec.function not in BUNDLED:
            column_names |= user_functions.columns(spec.function, known)
        elif spec.function in JUDGED:
            column_names |= set(known)  # a rubric may name any
    return column_names & set(known)


def combined(specs: Sequence[Spec], columns: Collection[str]) -> Rewards:
    """The weighted sum of rewards.

    Args:
      specs: one or more.
      columns: names of the columns that functions may ask for.

    Raises:
      ValueError: a reward that does not exist, or takes other arguments.
    """
    scorers = [_scorer(spec, columns) for spec in specs]
    grouped = any(
        spec.function not in BUNDLED
        and user_functions.takes_group(user_functions.load(spec.function))
        for spec in specs
    )

    for spec in specs:
        if spec.column and spec.column not in columns:
            raise ValueError(
                f"reward {spec.name!r}: `if {spec.column}={spec.value}`, but the rows have no such "
                f"column; they have {', '.join(sorted(columns)) or 'none'}"
            )

    def total(chosen: Sequence[int], score_lists: Sequence[Sequence[Score]]) -> list[Score]:
        applied = [specs[n] for n in chosen]
        several_rewards = len(specs) > 1
        return [_sum(applied, scores, several_rewards) for scores in zip(*score_lists, strict=True)]

    def scores(problem: Problem, texts: Sequence[str]) -> user_functions.Scores:
        chosen = [n for n, spec in enumerate(specs) if spec.applies(problem)]
        if not chosen:
            why = f"gold: no reward applies to {problem.id!r}; add one without `if`"
            return [Score(None, error=why)] * len(texts)
        results = [scorers[n](problem, texts) for n in chosen]
        if not any(map(inspect.isawaitable, results)):
            return total(chosen, results)

        async def later() -> list[Score]:
            return total(chosen, await asyncio.gather(*map(user_functions.awaited, results)))

        return later()

    def reward(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        texts = json.loads(completion) if grouped else [completion]
        pick = group.together if grouped else (lambda text_scores: text_scores[0])
        text_scores = scores(problem, texts)
        if not inspect.isawaitable(text_scores):
            return pick(text_scores)

        async def later() -> Score:
            return pick(await text_scores)

        return later()

    judged = [spec for spec in specs if spec.function in JUDGED]
    keys = {str(end.get("key_variable", "")) for spec in judged for end in _endpoints(spec)} - {""}
    session = any(user_functions.in_session(spec.function) for spec in specs)
    return Rewards(
        reward=reward,
        grouped=grouped,
        pure=session or all(spec.function in _PURE for spec in specs),
        slow=any(spec.function in JUDGED or spec.function not in BUNDLED for spec in specs),
        seconds=judge.Endpoint("", "").total_s if judged else None,
        environment=tuple(sorted({"OPENAI_API_KEY", *keys} if judged else keys)),
        setup=user_functions.setup_of(
            [spec.function for spec in specs if spec.function not in BUNDLED]
        ),
    )


def _endpoints(spec: Spec) -> list[Mapping[str, Any]]:
    """The arguments of the judges that a reward asks."""
    if spec.function in ("judge", "verifier"):
        return [spec.args]
    judges = dict(spec.args.get("rubric", {})).get("judges", {})
    return list(judges.values())


def _scorer(spec: Spec, columns: Collection[str]) -> user_functions.Scorer:
    if spec.function not in BUNDLED:
        return user_functions.scorer(spec.function, columns, spec.args)
    make = BUNDLED[spec.function]
    parameters = inspect.signature(make).parameters
    for name in spec.args:
        if name not in parameters:
            raise ValueError(
                f"reward {spec.function!r} takes no argument {name!r}; {_nearest(name, parameters)}"
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in spec.args:
            raise ValueError(
                f"reward {spec.function!r} needs {name!r}: --reward '{spec.function}?{name}=...'"
            )
    return user_functions.of_reward(make(**spec.args))


def _sum(specs: Sequence[Spec], scores: Sequence[Score], several_rewards: bool) -> Score:
    """The weighted sum; where a run has several, their values and parts are parts of it."""
    pairs = [(s, r) for s, r in zip(specs, scores, strict=True) if not user_functions.abstains(r)]
    if several_rewards and not pairs:
        return Score(None, error="none: every reward returned None; one must return a number")
    if several_rewards:  # None leaves a reward out for this row
        specs, scores = zip(*pairs, strict=True)
    for spec, score in zip(specs, scores, strict=True):
        if score.error is not None:
            kind, _, reason = score.error.partition(": ")
            message = f"{spec.name}: {reason}" if several_rewards else reason
            return Score(None, error=f"{kind}: {message}")
    if not several_rewards:
        (score,) = scores
        return Score(specs[0].weight * score.value, score.parts, texts=score.texts)
    parts: dict[str, float] = {}
    texts = {
        f"{s.name}/{k}": text
        for s, r in zip(specs, scores, strict=True)
        for k, text in r.texts.items()
    }
    for spec, score in zip(specs, scores, strict=True):
        parts[spec.name] = score.value
        parts |= {f"{spec.name}/{name}": value for name, value in score.parts.items()}
    value = exact_sum(s.weight * r.value for s, r in zip(specs, scores, strict=True))
    return Score(value, parts, texts=texts)


def _value(number: str) -> Fraction | str:
    """The number exactly, as floats round neighbours and very small or large ones to one value."""
    _, _, exponent = number.lower().partition("e")
    try:
        if len(exponent) > 5 or abs(int(exponent or 0)) > _LARGEST_EXPONENT:
            return number  # its digits would take too much memory
        over, _, under = number.partition("/")
        return Fraction(over) / Fraction(under or 1)
    except (ValueError, ZeroDivisionError):
        return number


def _arguments(query: str) -> dict[str, Any]:
    """`argument=value&...`, with %XX as in an address; a + is a plus, as patterns have it."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    return {unquote(name): _argument(unquote(value)) for name, _, value in pairs}


def _argument(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _nearest(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names) or 'none'}; or FILE.py:function"
