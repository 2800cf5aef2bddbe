"""docs/methods.md: every method, what it needs, its source, and the outcome on a user's file.

`python -m jaxrl.launch.listing.methods_table > docs/methods.md` writes the page.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

from jaxrl.config import Config
from jaxrl.data.rewards import named
from jaxrl.data.tasks import file
from jaxrl.launch import needs, recipes
from jaxrl.launch.settings import short

HEAD = """# Methods on your own data

Every method of the literature that jaxrl has, what it needs of you, where its formula comes from,
and what happens with three kinds of data. `jaxrl train NAME --model MODEL --data FILE --reward
REWARD` trains one. What a method lacks is refused before anything is loaded, and the message has
the flag. `jaxrl show NAME ... --check` says it without training, and `jaxrl recipes --for FILE`
lists the methods for a file. A plain file has the columns prompt and answer, with numbers as
answers; the other one has solutions, facts and harmful requests as well, and domains for methods
that need them. The last column is of the other file with two rewards, one of them a judge, or of
the environment of the recipe's small run. Parameters are those of an environment that a method's
stages set, such as the noise of a search engine. Values of a column are looked for in at most
100,000 rows, evenly spaced where the file has more.

| need | flag |
|---|---|
"""
_CASES = ("plain file", "with solutions and domains", "with a judge or an environment")


def rows() -> list[dict[str, str]]:
    """One object a method: its name, needs, source, fidelity, and what happens on each file."""
    recipe_rows = {str(row["name"]): row for row in recipes.rows()}
    out = []
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder))
        for name, row in recipe_rows.items():
            method = recipes.method_in(recipes.module(name))
            if method is None:
                continue
            out.append(
                {
                    "method": name,
                    "family": str(row["family"]),
                    "needs": ", ".join(needs.titles(method)),
                    "source": str(row.get("source", "")),
                    "fidelity": str(row.get("fidelity", "")),
                    **{
                        case: min(map(_outcome, configs), key=len)
                        for case, configs in cases(name, *files).items()
                    },
                }
            )
    return out


def write_files(folder: Path) -> tuple[str, str]:
    """Write the plain file and the other one; their paths."""
    plain, rich = folder / "plain.jsonl", folder / "rich.jsonl"
    plain.write_text("\n".join(json.dumps(_row(i)) for i in range(24)))
    rich.write_text("\n".join(json.dumps({**_row(i), **_beside(i)}) for i in range(24)))
    return str(plain), str(rich)


def page() -> str:
    """The page."""
    flags = "".join(f"| {need} | {flag} |\n" for need, flag in needs.FLAGS.items())
    listed = rows()
    titles = list(listed[0])
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [f"| {' | '.join(_cell(row[title]) for title in titles)} |" for row in listed]
    return f"{HEAD}{flags}\n" + "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(index: int) -> dict[str, object]:
    return {"prompt": f"What is {index} + 1?", "answer": index + 1}


def _beside(index: int) -> dict[str, object]:
    return {
        "solution": f"{index} + 1 = {index + 1}",
        "kind": "abc"[index % 3],
        "facts": ["One is a number."],
        "harmful": index % 2,
    }


def cases(name: str, plain_file: str, rich_file: str) -> dict[str, list[Config]]:
    """The configs of a method by kind of data; several where any of them may be used.

    Args:
      name: of the recipe.
      plain_file, rich_file: with a few columns and with many.
    """
    example = recipes.load(name)
    config = recipes.load(name, "any")
    rewards = ["number", *recipes.module(name).METHOD.rewards]
    judged = [*rewards, "judge?url=http://localhost:8000/v1&model=judge"]
    plain = {"path": plain_file, "rewards": _written(rewards)}
    rich = {**plain, "path": rich_file, "solution_column": "solution"}
    if "domains" in recipes.module(name).METHOD.needs:
        rich["domain_column"] = "kind"
    judge_args = {**rich, "rewards": _written(judged)}
    return {
        _CASES[0]: [_on_file(config, plain)],
        _CASES[1]: [_on_file(config, rich)],
        _CASES[2]: [
            _on_file(config, judge_args),
            dataclasses.replace(config, task="retrieval", task_args={}, wrapper=""),
            dataclasses.replace(config, task=example.task, task_args={}, wrapper=""),
        ],
    }


def _written(specs: list[str]) -> str:
    return named.to_json([named.parse(text) for text in specs])


def _on_file(config: Config, args: dict[str, str]) -> Config:
    column = args.get("domain_column", "")
    domains = file.domains(args["path"], column) if column else {}
    return short.on_file(config, args, domains)


def _outcome(config: Config) -> str:
    """`method kept`, or what it is refused for."""
    try:
        needs.check(config)
    except needs.Refused as error:
        return f"refused for: {', '.join(error.needs)}"
    return "method kept"


if __name__ == "__main__":
    print(page(), end="")
