"""Tools that come along: a calculator, an interpreter, a search engine, a database, a dictionary.

Each function makes a tool for one episode. What an episode's calls did is remembered by its own
tools alone, so an episode that is played again from its actions comes to the same state.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl.data.environments.search.glossary import WORDS
from jaxrl.data.environments.tools.definition import Tool, tool
from jaxrl.data.environments.work.calculator import CALCULATOR
from jaxrl.data.rewards.programs import queries
from jaxrl.data.sandbox import runner
from jaxrl.data.sources import records

SQL_S = queries.WALL_S + queries.START_S
"""Limit of a query, with its process."""
_DONE = 86
"""Status of an interpreter that has run its last call to the end."""
_SHELL = f"""
import ast, atexit, io, json, os, random, sys, threading, traceback

class Shown(io.TextIOWrapper):  # not what threads of earlier calls write
    def write(self, text):
        return len(text) if threading.current_thread() in earlier else super().write(text)

def show(out, err):
    os.dup2(out, 1)
    os.dup2(err, 2)

seed, cells = json.load(sys.stdin)
random.seed(seed)
names, earlier = {{"__name__": "__main__"}}, set()
out, err, quiet = os.dup(1), os.dup(2), os.open(os.devnull, os.O_WRONLY)
show(quiet, quiet)
for n, cell in enumerate(cells):
    if n == len(cells) - 1:
        atexit.register(show, quiet, quiet)  # before what earlier calls have registered
        earlier.update(set(threading.enumerate()) - {{threading.main_thread()}})
        show(out, err)
    written = open(1, "wb", 0, closefd=False)
    sys.stdout = Shown(written, "utf-8", sys.__stdout__.errors, write_through=True)
    try:
        tree = ast.parse(cell)
        value = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if value is not None:
            shown = eval(compile(ast.Expression(value.value), "<cell>", "eval"), names)
            if shown is not None:
                print(repr(shown))
    except BaseException as error:
        print("".join(traceback.format_exception_only(error)).strip())
sys.exit({_DONE})
"""


def calculator() -> Tool:
    """Sums, differences, products and quotients."""
    return CALCULATOR


_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]{9,}")


def python(limits: runner.Limits = runner.Limits(), seed: int = 0) -> Tool:
    """A Python interpreter in the sandbox, in which variables stay from call to call.

    Each call runs the code of the calls before it again, and then its own, in a fresh sandbox:
    nothing runs between calls, and no interpreter is left behind. What the earlier code writes,
    with its threads, processes and exit handlers, is not shown again. So that all runs of a
    code are alike, hashes are fixed, `random` begins with the seed, and an address in the output,
    as of a function, is `0x0`. Clocks and `os.urandom` are not fixed.

    Args:
      limits: of a call, with those before it.
      seed: of the module `random`.
    """
    cells: list[str] = []

    def run(code: str) -> str:
        """Runs Python code, and gives what it prints and the value of its last line.

        Variables stay from call to call.

        Args:
          code: one or more lines of Python.
        """
        outcome = runner.run(
            [sys.executable, *runner.ALIKE, "shell.py"],
            files={"shell.py": _SHELL},
            stdin=json.dumps([seed, [*cells, code]]),
            limits=limits,
        )
        if outcome.end == "timeout":
            raise ValueError(f"it took more than {limits.wall_s:g} s and was undone")
        if outcome.status != _DONE:
            raise ValueError(f"it ended the interpreter and was undone\n{outcome.stderr[-500:]}")
        cells.append(code)
        return _ADDRESS.sub("0x0", outcome.stdout)

    return tool(run, name="python")


def search(corpus: str, count: int = 3) -> Tool:
    """A search engine over passages of text, by BM25.

    Args:
      corpus: file of records, see `jaxrl.data.sources.records`, each with a `text`.
      count: passages that a call gives.

    Raises:
      ValueError: the package `bm25s` is not installed.
    """
    lookup = _index(corpus)

    def run(query: str) -> str:
        """Finds passages of text.

        Args:
          query: words to look for.
        """
        return "\n\n".join(lookup(query, count)) or "nothing found"

    return tool(run, name="search")


@functools.lru_cache(maxsize=4)
def _index(corpus: str) -> Callable[[str, int], list[str]]:
    return ranked(tuple(record["text"] for record in records.read(corpus)))


def need_bm25() -> None:
    """Refuse a search without its package.

    Raises:
      ValueError: the package `bm25s` is not installed.
    """
    if importlib.util.find_spec("bm25s") is None:
        raise ValueError("the tool search needs bm25s; pip install 'jaxrl[tools]'")


def ranked(texts: Sequence[str]) -> Callable[[str, int], list[str]]:
    """`(query, count) -> passages` of these, by BM25.

    Passages come best first, equally good ones in the order of `texts`.

    Raises:
      ValueError: the package `bm25s` is not installed.
    """
    need_bm25()
    import bm25s  # optional

    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def look(query: str, count: int) -> list[str]:
        words = bm25s.tokenize(query, return_ids=False, show_progress=False)[0]
        scores = index.get_scores(words) if words else []
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [texts[i] for i in order[:count] if scores[i] > 0]

    return look


def sql(script: str) -> Tool:
    """Read-only queries on a database.

    Args:
      script: file of the SQL statements that make the database.
    """
    return database(Path(script).read_text(encoding="utf-8"))


def database(script: str) -> Tool:
    """Read-only queries on the database that SQL statements make."""

    def run(query: str) -> str:
        """Runs a read-only SQL query and gives its rows as JSON, a line each.

        Args:
          query: in the SQL of SQLite.
        """
        try:
            rows = queries.execute_apart(script, query)
        except queries.QueryError as error:
            raise ValueError(str(error)) from error
        return "\n".join(json.dumps(row, default=str) for row in rows) or "no rows"

    return tool(run, name="sql")


def dictionary(file: str = "") -> Tool:
    """Meanings of words.

    Args:
      file: a JSON object of words and their meanings; empty: a few words of arithmetic, statistics
        and geography.

    Raises:
      ValueError: the file is something else.
    """
    meanings = _meanings(file) if file else WORDS

    def run(word: str) -> str:
        """Says what a word means.

        Args:
          word: to look up, in any case.
        """
        key = word.strip().lower()
        if key not in meanings:
            near = difflib.get_close_matches(key[:80], meanings, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"the dictionary has no word {word[:80]!r}{hint}")
        return meanings[key]

    return tool(run, name="dictionary")


@functools.lru_cache(maxsize=4)
def _meanings(file: str) -> dict[str, str]:
    try:
        meanings = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError:
        meanings = None
    if not isinstance(meanings, dict) or not all(
        isinstance(meaning, str) for meaning in meanings.values()
    ):
        raise ValueError(
            f"dictionary={file!r}: give a file with a JSON object of words and meanings"
        )
    return {word.strip().lower(): meaning for word, meaning in meanings.items()}
