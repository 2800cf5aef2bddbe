"""Reward functions of the user's own: found by name or file, called with what they ask for.

A function is `module:name`, `FILE.py:name`, or a Python callable of this session, see `keep`. The
name may be that of a class whose objects are called; one is made, without arguments. The function's
parameters say what it is given:

    score(completion, answer)          the text, and columns of the row by name
    score(completions, answer)         all completions of a prompt at once, as lists (as in TRL)
    score(problem, completion)         the `Problem` itself
    score(prompts, completions, **rest)  as TRL calls it: of a chat prompt both are messages
    score(data_source, solution_str, ground_truth, extra_info)   as verl calls it
    score(queries, prompts, labels)    as OpenRLHF calls it: prompts with their completions
    async def score(...)               any of these

It returns a number, a dict of parts, or a `Score`; with `completions`, a list of these. None says
that the reward is not for this row. Texts in a dict are kept for the log.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.data.sandbox import processes
from jaxrl.data.tasks import is_function
from jaxrl.data.types import Problem, Reward, Score, exact_sum

SESSION = "jaxrl_session"
"""Name of the module in `sys.modules` that holds callables of this session, see `keep`."""

Scores = list[Score] | Awaitable[list[Score]]
Scorer = Callable[[Problem, Sequence[str]], Scores]
"""Scores completions of one problem, in order."""

_FILE = re.compile(r"(.+\.py):([^\W\d]\w*)", re.DOTALL)
_TEXT_NAMES = ("completion", "completions", "solution_str", "queries")
"""Names of a parameter that is the completion, or what holds it."""
_GIVEN = ("completion", "completions", "prompt", "prompts", "answer", "ground_truth", "problem")
_TOTALS = ("score", "reward")


def is_file(reference: str) -> bool:
    """Whether a reference is written as `FILE.py:function`."""
    return _FILE.fullmatch(reference) is not None


def absolute(reference: str) -> str:
    """`FILE.py:function` with the file's whole path; any other reference as it is."""
    match = _FILE.fullmatch(reference)
    return f"{Path(match[1]).resolve()}:{match[2]}" if match else reference


def load(reference: str) -> Callable[..., Any]:
    """The function `module:name` or `FILE.py:name`; its module is imported.

    Raises:
      ValueError: no such file, module or function, or an import that fails; with the reason.
    """
    match = _FILE.fullmatch(reference)
    module_name, _, name = reference.rpartition(":")
    if not match and not is_function(reference):
        raise ValueError(f"reward {reference!r}: write FILE.py:function or module:function")
    if match:
        module, name = _module(Path(match[1]).resolve()), match[2]
    else:
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            hint = (
                "; it was a function of the Python session that started the run: call "
                "jaxrl.train there again"
                if module_name == SESSION
                else ""
            )
            raise ValueError(f"reward {reference!r}: {_told(error)}{hint}") from error
    function = getattr(module, name, None)
    if not callable(function):
        public = [n for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"]
        raise ValueError(
            f"reward {reference!r}: there is no function {name!r}; it has "
            f"{', '.join(public) or 'none'}"
        )
    return _instance(function, reference) if inspect.isclass(function) else function


@functools.cache
def _instance(kind: type, reference: str) -> Callable[..., Any]:
    """The object of a class, such as a reward of ms-swift; one for all calls.

    Raises:
      ValueError: its objects cannot be called, or it needs arguments.
    """
    if not any("__call__" in vars(parent) for parent in kind.__mro__):
        raise ValueError(f"reward {reference!r} is a class whose objects cannot be called")
    try:
        return kind()
    except Exception as error:
        raise ValueError(
            f"reward {reference!r} is a class, and {kind.__name__}() fails: {_told(error)}; make "
            f"the object in the file, as in `scorer = {kind.__name__}(...)`, and name that"
        ) from error


@functools.cache
def _module(path: Path) -> types.ModuleType:
    if not path.exists():
        raise ValueError(f"reward {str(path)!r}: there is no such file")
    name = f"jaxrl_file_{hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for the modules beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"reward {str(path)!r} cannot be imported: {_told(error)}") from error
    return module


def keep(function: Callable[..., Any]) -> str:
    """A reference to a callable.

    A function of an importable module is named as `module:function`, so that scoring processes
    import it. Any other, such as a lambda or a function of a notebook, is kept in this process,
    which must score with it itself.
    """
    name, module = getattr(function, "__name__", "reward"), getattr(function, "__module__", None)
    if module not in (None, "__main__") and getattr(sys.modules.get(module), name, 0) is function:
        return f"{module}:{name}"
    session = sys.modules.setdefault(SESSION, types.ModuleType(SESSION))
    name = name if name.isidentifier() else "reward"
    free = next(
        n for n in (name, *(f"{name}_{i}" for i in range(2, 10_000)))
        if getattr(session, n, function) is function
    )  # fmt: skip
    setattr(session, free, function)
    return f"{SESSION}:{free}"


def in_session(reference: str) -> bool:
    """Whether a reference names a callable that only this process has."""
    return reference.startswith(f"{SESSION}:")


def takes_group(function: Callable[..., Any]) -> bool:
    """Whether a function scores all completions of a prompt at once."""
    names = inspect.signature(function).parameters.keys()
    return "completions" in names or {"queries", "labels"} <= names


def setup_of(references: Sequence[str]) -> Callable[[], None] | None:
    """Calls the functions `setup()` of the modules of functions; None where there is none."""
    modules = {getattr(load(reference), "__module__", "") for reference in references}
    names = [getattr(sys.modules.get(module), "setup", None) for module in modules]
    # a function that takes something is for something else
    calls = [f for f in names if inspect.isfunction(f) and not inspect.signature(f).parameters]

    def call() -> None:
        for function in calls:
            function()

    return call if calls else None


def columns(reference: str, row_columns: Collection[str]) -> set[str]:
    """The columns of a row that a function is given, of `row_columns`."""
    parameters = inspect.signature(load(reference)).parameters
    if "problem" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return set(row_columns)
    return set(row_columns) & parameters.keys()


def scorer(
    reference: str, columns: Collection[str], args: Mapping[str, Any] | None = None
) -> Scorer:
    """A function of the user's own as a scorer.

    Args:
      reference: see `load`.
      columns: names of the columns of a row, which problems carry in `metadata["row"]`.
      args: keyword arguments of the function.

    Raises:
      ValueError: it cannot be loaded, or has a parameter that nothing is known for.
    """
    function, args = load(reference), dict(args or {})
    grouped, text_name, names = _parameters(reference, function, columns, args)
    as_trl = grouped and names is None

    def arguments_of(problem: Problem, texts: Sequence[str]) -> dict[str, Any]:
        row = problem.metadata.get("row", {})
        values = {"ground_truth": problem.answer, "labels": problem.answer, **row}
        values |= {"prompt": problem.prompt, "answer": problem.answer}
        if grouped:
            values["prompts"] = problem.prompt
            chat = as_trl and problem.metadata.get("conversational")
            if chat:
                values["prompts"] = [dict(turn) for turn in problem.messages or ()]
            values = {name: [value] * len(texts) for name, value in values.items()}
            values["completions"] = [_turn(text) for text in texts] if chat else list(texts)
            values["queries"] = [problem.prompt + text for text in texts]
        else:
            values[text_name] = texts[0]
        if not (grouped and "problem" in row):  # as TRL, which knows columns alone
            values["problem"] = problem
        arguments = values if names is None else {n: values[n] for n in names if n in values}
        return arguments | args

    def scored(texts: Sequence[str], value: Any) -> list[Score]:
        if not grouped:
            return [score(value)]
        if isinstance(value, Mapping) and "rewards" in value:  # as OpenRLHF
            value = value["rewards"]
        if isinstance(value, str | Mapping | Score) or not hasattr(value, "__len__"):
            raise TypeError(f"returned {value!r:.80}; return a list with a score per completion")
        if len(value) != len(texts):
            raise ValueError(f"returned {len(value)} scores for {len(texts)} completions")
        return [score(reward) for reward in value]

    def failed(texts: Sequence[str], error: BaseException) -> list[Score]:
        if isinstance(error, MemoryError):  # the pool replaces a worker that reports this kind
            return [Score(None, error=processes.failure(error))] * len(texts)
        return [Score(None, error=f"exception: {_told(error, function)}")] * len(texts)

    async def later(texts: Sequence[str], value: Awaitable[Any]) -> list[Score]:
        try:
            return scored(texts, await value)
        except (Exception, SystemExit) as error:
            return failed(texts, error)

    def ask(problem: Problem, texts: Sequence[str]) -> Scores:
        try:
            value = function(**arguments_of(problem, texts))
            return later(texts, value) if inspect.isawaitable(value) else scored(texts, value)
        except (Exception, SystemExit) as error:
            return failed(texts, error)

    return ask if grouped else one_by_one(ask)


def _turn(text: str) -> list[dict[str, str]]:
    """A completion as TRL has it where the prompt is a conversation."""
    return [{"role": "assistant", "content": text}]


def one_by_one(ask: Scorer) -> Scorer:
    """A scorer of single completions as one of several."""

    def scores(problem: Problem, texts: Sequence[str]) -> Scores:
        score_lists = [ask(problem, [text]) for text in texts]
        if not any(map(inspect.isawaitable, score_lists)):
            return [text_score for score_list in score_lists for text_score in score_list]

        async def later() -> list[Score]:
            ready = await asyncio.gather(*map(awaited, score_lists))
            return [text_score for score_list in ready for text_score in score_list]

        return later()

    return scores


def of_reward(reward: Reward) -> Scorer:
    """A reward of `jaxrl.data.types` as a scorer."""

    async def later(value: Awaitable[Score]) -> list[Score]:
        return [await value]

    def ask(problem: Problem, texts: Sequence[str]) -> Scores:
        value = reward(problem, texts[0])
        return later(value) if inspect.isawaitable(value) else [value]

    return one_by_one(ask)


async def awaited(value: Any) -> Any:
    """What a value is, or what it will be."""
    return await value if inspect.isawaitable(value) else value


def score(value: Any) -> Score:
    """What a reward function returned, as a score.

    A number is the reward. A dict holds parts: the reward is its `score` or `reward`, or else the
    sum of all parts; its texts are kept for the log. None is a score that `abstains`.

    Raises:
      TypeError: anything else.
      ValueError: a number that is not finite.
    """
    if isinstance(value, Score):
        return value
    if value is None:
        return Score(None, error=f"{_ABSTAINS} returned None; return a number")
    if isinstance(value, Mapping):
        texts = {str(name): part for name, part in value.items() if isinstance(part, str)}
        numbers = {n: part for n, part in value.items() if not isinstance(part, str | None)}
        for name in (name for name in _TOTALS if name in value and name not in numbers):
            if value[name] is not None:
                raise TypeError(f"returned {name}={value[name]!r:.80}; return a number")
            if not numbers.keys() & {*_TOTALS}:
                return score(None)
        if not numbers:
            raise TypeError(f"returned {value!r:.80}; return a dict with a number in it")
        parts = {str(name): _number(part) for name, part in numbers.items()}
        total = next((parts.pop(name) for name in _TOTALS if name in parts), None)
        return Score(exact_sum(parts.values()) if total is None else total, parts, texts=texts)
    return Score(_number(value))


_ABSTAINS = "none:"


def abstains(score: Score) -> bool:
    """Whether a function said that it is not for this row, by returning None."""
    return score.error is not None and score.error.startswith(_ABSTAINS)


def _number(value: Any) -> float:
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"returned {value!r:.80}; return a number, a dict of numbers, or a Score")
    return float(value)


def _parameters(
    reference: str, function: Callable[..., Any], columns: Collection[str], args: Mapping[str, Any]
) -> tuple[bool, str, list[str] | None]:
    """Whether the function takes a group, the name of its text, and its names (None: any)."""
    parameters = inspect.signature(function).parameters
    named_parameters = [
        p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    names = {*_GIVEN, *columns, *args}
    free = [p for p in named_parameters if p.name not in names and p.default is p.empty]
    text_parameter = next((n for n in _TEXT_NAMES if n in parameters and n not in columns), None)
    names |= {text_parameter} - {None}
    if "completion_ids" in parameters and "completion_ids" not in names:
        raise ValueError(
            f"reward {reference!r} asks for 'completion_ids': token ids are not given; use the "
            "completion, which is text"
        )
    if "queries" in parameters:
        names |= {"labels"}
    free = [p for p in free if p.name not in names]
    has_text = text_parameter is not None
    text_name = "completion" if has_text or not free else free.pop(0).name
    if text_parameter == "solution_str":
        text_name = text_parameter
    if positional := [p.name for p in named_parameters if p.kind is p.POSITIONAL_ONLY]:
        raise ValueError(f"reward {reference!r}: {positional[0]!r} has no name; remove the '/'")
    if free:
        raise ValueError(
            f"reward {reference!r} asks for {free[0].name!r}, which is no column of the data; it "
            f"can ask for completion (or completions), prompt, answer, problem and the columns "
            f"{', '.join(sorted(columns)) or '(none)'}"
        )
    for name in args:
        if name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ValueError(f"reward {reference!r} takes no argument {name!r}")
    if (
        not has_text
        and text_name not in parameters
        and "problem" not in parameters
        and named_parameters
    ):
        raise ValueError(
            f"reward {reference!r} never sees the completion; give it a parameter `completion`"
        )
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return (
        takes_group(function),
        text_name,
        None if any_name else [p.name for p in named_parameters],
    )


def _told(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Where in the user's own file an error arose, and what it is, in one line."""
    kind = f"{type(error).__name__}: {error}".splitlines()[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    source_file = getattr(getattr(function, "__code__", None), "co_filename", None)
    at = next((f for f in reversed(frames) if f.filename == source_file), None)
    if at is None and source_file is not None:
        return f"{getattr(function, '__name__', 'reward')} {kind}"
    if at is None:
        at = next((f for f in reversed(frames) if not f.filename.startswith("<")), None)
    if at is None or "importlib" in at.filename:
        return kind
    return f"{Path(at.filename).name}, line {at.lineno}, in {at.name}: {kind}"
