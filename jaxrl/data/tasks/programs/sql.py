"""Text-to-SQL on generated SQLite databases."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from jaxrl.data.rewards.programs import queries, sql
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task


class _World(NamedTuple):
    """Two tables: things, and records of amounts that refer to them."""

    thing: str
    group: str
    number: str
    groups: tuple[str, ...]
    record: str
    amount: str


_WORLDS = (
    _World("customers", "city", "age", ("Oslo", "Lima", "Riga", "Perth"), "orders", "total"),
    _World("players", "team", "height", ("Reds", "Blues", "Greens"), "matches", "points"),
    _World("books", "genre", "pages", ("poetry", "crime", "history"), "loans", "days"),
    _World("trucks", "depot", "mileage", ("north", "south", "east"), "trips", "distance"),
)
_LEVELS = 5
_ATTEMPTS = 200


def task(level: int = 2, databases: int = 2, partial: bool = False, template: str = "") -> Task:
    """Questions about two tables.

    Args:
      level: hardest kind of question in train and test, of 1 filter, 2 aggregate, 3 group, 4 join,
        5 join and group; the ood split asks the next kind.
      databases: that a query must be right on, none of them shown. The reference gives other rows
        on each, so that with two or more no constant is right.
      partial: the partial rewards of Reasoning-SQL, by the paper's weights 3, 1, 1, 1.
      template: prompt with `{question}` in it; empty is the question alone.
    """
    if not 1 <= level < _LEVELS:
        raise ValueError(f"level={level}: must be from 1 to {_LEVELS - 1}")
    if databases < 1:
        raise ValueError(f"databases={databases}: at least 1 is needed")
    template = template or "{question}"

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("sql", split, seed, index)
        levels = (level + 1,) if split == "ood" else range(1, level + 1)
        world, question, query, bound = generate.draw(
            lambda stream: _draw(stream, stream.choice(levels)),
            key=lambda sample: sample[1],
            stream=stream,
            split=split,
        )
        schema = _schema(world)
        prompt = template.replace(
            "{question}", f"{schema}\n{question}\nAnswer with one SQLite query and nothing else."
        )
        scripts = _databases(stream, schema, world, bound, query, databases)
        return generate.user_problem("sql", question, prompt, query, databases=scripts)

    task = Task(
        name="sql",
        problem=problem,
        reward=sql.same_result(
            {"correct": 3, "syntax": 1, "schema": 1, "ngram": 1} if partial else None
        ),
        gold=lambda problem: problem.answer,
        alphabet=generate.ASCII,
        description=__doc__,
    )
    return task


def _schema(w: _World) -> str:
    return (
        f"CREATE TABLE {w.thing} (id INTEGER PRIMARY KEY, name TEXT, {w.group} TEXT, "
        f"{w.number} INTEGER);\nCREATE TABLE {w.record} (id INTEGER PRIMARY KEY, "
        f"{w.thing}_id INTEGER REFERENCES {w.thing}, {w.amount} INTEGER);"
    )


def _draw(stream: random.Random, level: int) -> tuple[_World, str, str, int]:
    """World, question, query, and the number it compares with."""
    w = stream.choice(_WORLDS)
    bound, group = stream.randint(20, 80), stream.choice(w.groups)
    sign, side = stream.choice([(">", "above"), ("<", "below")])
    join = f"{w.thing} t JOIN {w.record} r ON r.{w.thing}_id = t.id"
    kind, total = stream.choice(
        [("sum", "SUM"), ("largest value", "MAX"), ("smallest value", "MIN")]
    )
    questions = {
        1: [
            (f"Which names of {w.thing} have {w.number} {side} {bound}?",
             f"SELECT name FROM {w.thing} WHERE {w.number} {sign} {bound}"),
            (f"Which names of {w.thing} with {w.group} '{group}' have {w.number} {side} {bound}?",
             f"SELECT name FROM {w.thing} WHERE {w.group} = '{group}' "
             f"AND {w.number} {sign} {bound}"),
        ],
        2: [
            (f"How many {w.thing} have {w.number} {side} {bound}?",
             f"SELECT COUNT(*) FROM {w.thing} WHERE {w.number} {sign} {bound}"),
            (f"What is the {kind} of {w.amount} in {w.record} where it is {side} {bound}?",
             f"SELECT {total}({w.amount}) FROM {w.record} WHERE {w.amount} {sign} {bound}"),
        ],
        3: [
            (f"For each {w.group}, how many {w.thing} have {w.number} {side} {bound}? Leave out "
             "groups without any.",
             f"SELECT {w.group}, COUNT(*) FROM {w.thing} WHERE {w.number} {sign} {bound} "
             f"GROUP BY {w.group}"),
        ],
        4: [
            (f"For each of the {w.record} with {w.amount} {side} {bound}, give the name of its "
             f"{w.thing} row and its {w.amount}.",
             f"SELECT t.name, r.{w.amount} FROM {join} WHERE r.{w.amount} {sign} {bound}"),
        ],
        5: [
            (f"For each {w.group} of {w.thing}, what is the {kind} of {w.amount} over its "
             f"{w.record} with {w.amount} {side} {bound}? Leave out groups without any.",
             f"SELECT t.{w.group}, {total}(r.{w.amount}) FROM {join} "
             f"WHERE r.{w.amount} {sign} {bound} GROUP BY t.{w.group}"),
        ],
    }  # fmt: skip
    question, query = stream.choice(questions[level])
    return w, question, query, bound


def _databases(
    stream: random.Random, schema: str, w: _World, bound: int, query: str, count: int
) -> list[str]:
    """Scripts of databases on which the query gives different rows."""
    scripts: list[str] = []
    results: list[Any] = []
    for _ in range(_ATTEMPTS):
        script = schema + _rows(stream, w, bound, edges=not scripts)
        rows = sorted(queries.execute(script, query))
        if rows and rows not in results:
            scripts.append(script)
            results.append(rows)
        if len(scripts) == count:
            return scripts
    raise ValueError(f"databases={count}: {query!r} has fewer results; use fewer databases")


def _rows(stream: random.Random, w: _World, bound: int, edges: bool) -> str:
    """Data with values on and next to the bound in every group: near misses show.

    Args:
      edges: whether amounts have those values too. Where all have them, a largest value below the
        bound is always the one next to it.
    """
    edge = [bound - 1, bound, bound + 1]
    far_numbers = [n for n in range(1, 100) if n not in edge]
    numbers = [(g, n) for g in w.groups for n in [*edge, stream.randint(1, 99)]]
    extra_count = stream.randrange(9)
    numbers += [(stream.choice(w.groups), stream.randint(1, 99)) for _ in range(extra_count)]
    stream.shuffle(numbers)
    things = [(i, f"{_name(stream)}{i}", g, n) for i, (g, n) in enumerate(numbers, 1)]
    amounts = [(i, n) for i, *_ in things for n in _amounts(stream, edge, far_numbers, edges)]
    stream.shuffle(amounts)
    records = [(i, thing, n) for i, (thing, n) in enumerate(amounts, 1)]
    return "".join(_insert(table, rows) for table, rows in [(w.thing, things), (w.record, records)])


def _amounts(
    stream: random.Random, edge: list[int], far_numbers: list[int], edges: bool
) -> list[int]:
    return [*(edge if edges else []), *stream.sample(far_numbers, stream.randint(1, 3))]


def _name(stream: random.Random) -> str:
    return "".join(stream.choice(p) for p in ("BDKLMN", "aeiou", "dlmnr", "aeiou"))


def _insert(table: str, rows: list[tuple[Any, ...]]) -> str:
    values = ", ".join(f"({', '.join(map(repr, row))})" for row in rows)
    return f"\nINSERT INTO {table} VALUES {values};"
