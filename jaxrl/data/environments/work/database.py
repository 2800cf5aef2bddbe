"""Questions about a database whose tables are not described, with SQL to look into it."""

from __future__ import annotations

import dataclasses
import random
import re

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.tools import definition, toolbox
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_NUMBER = re.compile(r"-?[0-9]+")
_NAMES = {
    "place": ("shop", "depot", "branch", "office"),
    "sale": ("sale", "trade", "receipt", "deal"),
    "amount": ("amount", "sum_paid", "total", "price"),
    "city": ("city", "town", "location"),
}
_CITIES = ("Lima", "Oslo", "Kyoto", "Perth", "Quito", "Bern", "Turin", "Cork")


@dataclasses.dataclass
class _Desk:
    answer: int
    tool: Tool
    left: int
    """Turns with calls that are left."""


def task(
    places: int = 3, rows: int = 20, ood_places: int | None = None, calls: int = 6,
    role: str = "tool",
) -> Task:  # fmt: skip
    """Sums over two joined tables, whose names and columns have to be found out first.

    The tool `sql` reads the database, `sqlite_master` with its tables included. The last whole
    number of a turn without a call is the answer.

    Args:
      places: that the database has in train and test, from 2 to 8.
      rows: of sales.
      ood_places: in the ood split; None means 2 more than `places`.
      calls: turns with calls that an episode may have; one more ends it without reward.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    ood_places = places + 2 if ood_places is None else ood_places
    if not 2 <= places < ood_places <= len(_CITIES):
        raise ValueError(
            f"places={places}, ood_places={ood_places}: need 2 <= places < ood_places <= "
            f"{len(_CITIES)}"
        )
    if rows < 1 or calls < 1:
        raise ValueError(f"rows={rows}, calls={calls} must be positive")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_places if split == "ood" else places
        stream = generate.rng("database", split, seed, index)
        names, cities, sales, city = generate.draw(
            lambda stream: _drawn(stream, count, rows), key=repr, stream=stream, split=split
        )
        script, query = _script(names, cities, sales), _query(names, city)
        answer = sum(amount for place, amount in sales if cities[place] == city)
        question = f"What is the total of all {names['sale']}s in {city}?"
        return generate.user_problem(
            "database", script, question, answer, script=script, query=query
        )

    def begin(problem: Problem, seed: int) -> tuple[_Desk, Opening]:
        tool = toolbox.database(problem.metadata["script"])
        messages = ({"role": "user", "content": problem.prompt},)
        return _Desk(problem.answer, tool, calls), Opening(messages, tools=(tool.schema,))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        looked = "SELECT sql FROM sqlite_master"
        queries = (looked, problem.metadata["query"])
        query_calls = (write_call(Call("sql", {"query": query})) for query in queries)
        return (*query_calls, str(problem.answer))

    def step(desk: _Desk, action: str) -> Reply:
        outputs = definition.outcomes([desk.tool], action)
        parts = {"failed": float(sum(outcome.failed for outcome in outputs))}
        if outputs and desk.left:
            desk.left -= 1
            messages = (
                {"role": role, "content": definition.joined([outcome.text for outcome in outputs])},
            )
            return Reply(messages, parts=parts, calls=len(outputs))
        numbers = [] if outputs else _NUMBER.findall(extract.spoken(action))
        correct = bool(numbers) and numbers[-1] == str(desk.answer)
        parts |= {"correct": float(correct)}
        return Reply(reward=float(correct), parts=parts, done=True, calls=len(outputs))

    task = Task(
        name="database",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII,
        description=__doc__,
        turns=Environment(
            begin,
            step,
            roles=(role,),
            gold=gold,
            tools=True,
            seconds=lambda problem, action: toolbox.SQL_S * max(1, definition.count(action)),
        ),
    )
    return task


def _drawn(
    stream: random.Random, places: int, rows: int
) -> tuple[dict[str, str], list[str], list[tuple[int, int]], str]:
    names = {kind: stream.choice(choices) for kind, choices in _NAMES.items()}
    cities = stream.sample(_CITIES, places)
    sales = [(stream.randrange(places), stream.randint(5, 99)) for _ in range(rows)]
    return names, cities, sales, stream.choice(cities)


def _script(names: dict[str, str], cities: list[str], sales: list[tuple[int, int]]) -> str:
    place, sale = names["place"], names["sale"]
    lines = [
        f"CREATE TABLE {place} (id INTEGER, {names['city']} TEXT);",
        f"CREATE TABLE {sale} (id INTEGER, {place}_id INTEGER, {names['amount']} INTEGER);",
    ]
    lines += [f"INSERT INTO {place} VALUES ({i}, '{city}');" for i, city in enumerate(cities)]
    lines += [f"INSERT INTO {sale} VALUES ({i}, {at}, {n});" for i, (at, n) in enumerate(sales)]
    return "\n".join(lines)


def _query(names: dict[str, str], city: str) -> str:
    place, sale = names["place"], names["sale"]
    return (
        f"SELECT SUM({names['amount']}) FROM {sale} JOIN {place} ON {place}.id = {place}_id "
        f"WHERE {names['city']} = '{city}'"
    )
