"""The bundled tools, and tasks that are given some."""

import json

import pytest

from jaxrl.data import scoring, tasks
from jaxrl.data.environments import Turn, formats, play, toolbox, tools
from jaxrl.data.environments.formats import Call


def called(tool, **arguments):
    return tools.results([tool], formats.written(Call(tool.name, arguments)))[0]


def test_python_keeps_its_variables():
    made = toolbox.python()
    assert called(made, code="x = 20\ndef f(n): return n + x\nprint('made')") == "made\n"
    assert called(made, code="f(1)\nf(22)") == "42\n"
    assert called(made, code="y = f(None)").startswith("TypeError")
    assert called(made, code="x + 1") == "21\n"
    assert called(made, code="import os; os._exit(3)").startswith("error: it ended the interpreter")
    assert called(made, code="open('/etc/passwd', 'w')").startswith(("PermissionError", "OSError"))
    assert called(made, code="x") == "20\n"
    assert called(toolbox.python(), code="x").startswith("NameError")
    assert called(made, code=1).startswith("error: 1 is not of type")


def test_search_finds_passages(tmp_path):
    pytest.importorskip("bm25s")
    corpus = tmp_path / "corpus.jsonl"
    texts = ["Paris is the capital of France.", "Rome is the capital of Italy.", "Cats sleep."]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = toolbox.search(str(corpus), count=1)
    assert called(made, query="capital of Italy") == texts[1]
    assert called(made, query="zebra") == "nothing found" == called(made, query="")


def test_sql_reads_a_database(tmp_path):
    script = tmp_path / "made.sql"
    script.write_text("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    made = toolbox.sql(str(script))
    assert called(made, query="SELECT * FROM t ORDER BY a DESC") == '[2, "y"]\n[1, "x"]'
    assert called(made, query="SELECT * FROM t WHERE a > 9") == "no rows"
    assert called(made, query="DROP TABLE t").startswith("error: ")


def test_a_task_with_tools():
    """Calls are answered, malformed ones too; the turn without one is scored by the task."""
    made = tasks.get("with_tools", name="arithmetic", args='{"digits": 2}', calls=2)
    assert made.turns and made.pure and "ood" in made.splits
    problem = made.problem("train", 0, 0)
    inner = tasks.get("arithmetic", digits=2)
    player = play.Player(made)
    call = formats.written(Call("calculator", {"expression": "2+3"}))
    broken = "<tool_call>2+3"

    def played(*actions):
        said = [player.answer(Turn(0, problem, 0))]
        for n in range(len(actions)):
            said.append(player.answer(Turn(0, problem, 0, actions[: n + 1], tuple(said))))
        return said

    opening, five, bad, last = played(call, broken, inner.gold(problem))
    assert opening.tools[0]["function"]["name"] == "calculator"
    assert five.messages == ({"role": "tool", "content": "5"},) and five.calls == 1
    assert "error" in bad.messages[0]["content"] and bad.parts["malformed"] == 1 == bad.calls
    assert last.reward == 1.0 and last.done and not last.calls
    assert played(call, call, call)[-1][1:4:2] == (0.0, True)
    with scoring.Pool(made, 0, 1.0, None, None) as pool:
        assert pool.act(Turn(1, problem, 0)).result() == opening


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"name": "keydoor"}, "one by one"),
        ({"tools": "hammer"}, "'hammer' is none of"),
        ({"tools": "search"}, "name the file"),
        ({"calls": 0}, "allow one"),
    ],
)
def test_tools_that_cannot_be_given_are_refused(params, why):
    with pytest.raises(ValueError, match=why):
        tasks.get("with_tools", **params)
