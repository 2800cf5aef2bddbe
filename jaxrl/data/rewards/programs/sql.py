"""SQL scored by what it returns, on databases the model has not seen.

Queries run as `jaxrl.data.rewards.programs.queries` says. Score them in a pool, as all untrusted
work.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping

from jaxrl.data.rewards.programs.queries import QueryError, execute
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score


def same_result(weights: Mapping[str, float] | None = None) -> Reward:
    """1 if the query gives the rows of `problem.answer`, a query, on every one of its databases.

    `problem.metadata["databases"]` are scripts; with more than one, a query that hits the right
    rows by luck or by constants fails. Row order counts if the reference orders. A reference that
    gives no row on any of them is an error: it would tell a right query from hardly any other.

    Args:
      weights: of the partial rewards of Reasoning-SQL (Pourreza et al. 2025), by part: `correct`,
        `syntax` (it runs), `schema` (Jaccard index of the tables and columns named) and `ngram`
        (Jaccard index of its bigrams); the reward is their weighted mean. None counts `correct`
        alone. The paper weights 3, 1, 1, 1.
    """
    unknown = set(weights or ()) - {"correct", "syntax", "schema", "ngram"}
    if unknown:
        raise ValueError(f"weights has {sorted(unknown)}; choose correct, syntax, schema, ngram")

    def reward(problem: Problem, completion: str) -> Score:
        query = extract.fenced(completion, "sql") or extract.plain(completion) or ""
        matches, runs = [], True
        try:
            expectations = [execute(s, problem.answer) for s in problem.metadata["databases"]]
        except QueryError as error:
            return Score(None, error=f"gold: {problem.id!r}: {error}")
        if not any(expectations):
            return Score(None, error=f"gold: {problem.id!r}: the reference gives no row")
        databases = problem.metadata["databases"]
        for script, expected in zip(databases, expectations, strict=True):
            try:
                matches.append(_equal(execute(script, query), expected, problem.answer))
            except QueryError:
                runs = False
                break
        names = set(_words(databases[0].partition("INSERT")[0])) - _SQL
        parts = {
            "correct": float(runs and all(matches)),
            "syntax": float(runs),
            "schema": _jaccard(set(_words(query)) & names, set(_words(problem.answer)) & names),
            "ngram": _jaccard(_bigrams(query), _bigrams(problem.answer)),
        }
        weighing = weights or {"correct": 1.0}
        value = sum(w * parts[name] for name, w in weighing.items()) / sum(weighing.values())
        return Score(value, parts)

    return reward


def _equal(rows: list[tuple], expected: list[tuple], reference: str) -> bool:
    ordered = re.search(r"\border\s+by\b", reference, re.IGNORECASE)
    return rows == expected if ordered else Counter(rows) == Counter(expected)


_SQL = {"create", "table", "integer", "text", "real", "primary", "key", "references"}


def _words(sql: str) -> list[str]:
    return re.findall(r"[a-z_][a-z_0-9]*|[0-9.]+|[^\s\w]", sql.lower())


def _bigrams(sql: str) -> set[tuple[str, str]]:
    return set(itertools.pairwise(_words(sql)))


def _jaccard(left: set, right: set) -> float:
    return len(left & right) / len(left | right) if left | right else 1.0
