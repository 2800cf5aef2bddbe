"""The bundled tools, and tasks that are given some."""

import contextlib
import dataclasses
import functools
import http.server
import json
import threading

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import Turn, play
from jaxrl.data.environments.tools import definition, formats, toolbox
from jaxrl.data.environments.tools.formats import Call
from jaxrl.data.environments.work import router
from jaxrl.data.environments.wrappers import with_tools
from jaxrl.data.sandbox import runner
from jaxrl.data.scoring import pool as scoring
from tests.data.test_bundled_environments import SEARCHED, installed, optional


def called(tool, **arguments):
    return definition.results([tool], formats.write_call(Call(tool.name, arguments)))[0]


def test_python_keeps_its_variables():
    made = toolbox.python()
    assert called(made, code="x = 20\ndef f(n): return n + x\nprint('made')") == "made\n"
    assert called(made, code="f(1)\nf(22)") == "42\n"
    assert called(made, code="y = f(None)").startswith("TypeError")
    assert called(made, code="x + 1") == "21\n"
    assert called(made, code="import os; os._exit(3)").startswith("error: it ended the interpreter")
    assert called(made, code="x") == "20\n"
    assert called(toolbox.python(), code="x").startswith("NameError")
    assert called(made, code=1).startswith("error: 1 is not of type")


@pytest.mark.skipif(runner.strongest().kind != "bubblewrap", reason="needs bubblewrap")
def test_python_writes_nothing_outside(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    for path, mode in ((str(outside), "w"), ("/etc/passwd", "a")):
        said = called(toolbox.python(), code=f"open({path!r}, {mode!r})")
        assert said.startswith(("PermissionError", "OSError", "FileNotFoundError"))
    assert outside.read_text() == "kept"


REPEATS = [
    "s = {f'w{i}' for i in range(50)}\nprint(s, [hash(w) for w in sorted(s)])",
    "import random\nrandom.random(), random.sample(range(1000), 9), random.Random('x').random()",
    "def f(): pass\nf, object(), (i for i in s)",
    "print(sorted(s)[:3], random.gauss(0, 1))\ns.add('x'); list(s)",
]


def test_python_repeats_itself():
    """In interpreters of their own, whatever the calls show but clocks and the system's chances."""
    makes = [toolbox.python, toolbox.python, functools.partial(toolbox.python, seed=1)]
    one, two, other = ([called(made, code=c) for c in REPEATS] for made in (m() for m in makes))
    assert one == two and not any("Error" in each for each in one)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, True, False]


SHOWN = {
    "another process": ("import os; os.system('echo hi')", "hi\n0\n"),
    "a process that goes on": ("import os; os.system('(sleep 0.3; echo hi) &'); 1", "1\n"),
    "the descriptor": ("import os; os.write(1, b'hi')", "hi2\n"),
    "a thread": (
        "import threading, time\n"
        "def late():\n    time.sleep(0.3)\n    print('hi')\n"
        "threading.Thread(target=late).start()",
        "hi\n",
    ),
    "the exit": ("import atexit; atexit.register(print, 'hi')\n1", "1\nhi\n"),
    "an object": ("class A:\n    def __del__(self): print('hi')\na = A()", ""),
    "the error stream": ("import sys; print('hi', file=sys.stderr)", ""),
    "a closed stream": ("import sys\nprint('hi'); sys.stdout.close()", "hi\n"),
}


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("name", SHOWN)
def test_what_an_earlier_call_has_shown_is_not_shown_again(name):
    code, shown = SHOWN[name]
    made = toolbox.python()
    assert called(made, code=code).startswith(shown)
    assert called(made, code="import time\ntime.sleep(0.6)\n1 + 1") == "2\n"
    assert called(made, code="print('x')\nlen('abc')") == "x\n3\n"
    assert "hi" not in called(made, code="import os; os._exit(3)")


def test_output_is_in_the_order_in_which_it_was_written():
    made = toolbox.python()
    asked = "print('x'); os.system('echo y'); print('z', end=''); os.write(1, b'w\\n')"
    assert called(made, code=f"import os\n{asked}\nNone") == "x\ny\nzw\n"
    assert called(made, code="print('a'); os.system('echo b'); print('c')") == "a\nb\nc\n"
    thread = (
        "import threading\nt = threading.Thread(target=print, args=('t',))\nt.start(); t.join()"
    )
    for _ in range(2):
        assert called(made, code=f"print('x')\n{thread}\nprint('y')") == "x\nt\ny\n"


@pytest.mark.parametrize("status", (0, 3))
def test_a_call_that_ends_the_interpreter_is_undone(status):
    made = toolbox.python()
    called(made, code="x = 1")
    said = called(made, code=f"x = 2\nimport os; os._exit({status})")
    assert said.startswith("error: it ended the interpreter")
    assert called(made, code="x") == "1\n"


def test_the_seed_of_an_episode_is_that_of_its_tools():
    task = tasks.get("with_tools", name="arithmetic", tools="python")
    problem = task.problem("train", 0, 0)
    drawn = formats.write_call(Call("python", {"code": "import random\nrandom.random()"}))

    def said(seed):
        bench, _ = task.turns.begin(problem, seed)
        return task.turns.step(bench, drawn).messages[0]["content"]

    assert said(3) == said(3) != said(4)


def test_a_result_is_an_error_where_its_tool_says_so():
    """Whatever its text begins with; a policy cannot make one of what it asks for."""

    def echo(text: str) -> str:
        """Says it."""
        if text == "raise":
            raise ValueError("no")
        return text

    made = [definition.tool(echo)]
    asked = [formats.write_call(Call("echo", {"text": t})) for t in ("error: none", "raise", "a")]
    asked += [formats.write_call(Call("no", {})), "<tool_call>2+3"]
    found = definition.outcomes(made, "\n".join(asked))
    assert [each.failed for each in found] == [False, True, False, True, True]
    assert [each.text for each in found] == definition.results(made, "\n".join(asked))


@pytest.mark.parametrize("call", [Call("long", {}), Call("short", {}), Call("no", {})])
def test_many_and_long_results_are_cut_off_and_void_no_episode(call):
    """Else a policy could void an episode that goes badly, by calling often."""
    made = [
        definition.tool(lambda: "x" * 5000, name="long"),
        definition.tool(lambda: "y", name="short"),
    ]
    world = with_tools.environment(tasks.get("arithmetic"), lambda seed: made)
    task = dataclasses.replace(tasks.get("arithmetic"), turns=world)
    player, problem = play.Player(task), task.problem("train", 0, 0)
    opening = player.answer(Turn(0, problem, 0))
    several = formats.write_call(call) * 2000
    reply = player.answer(Turn(0, problem, 0, (several,), (opening,)))
    (said,) = reply.messages
    assert reply.error is None and reply.calls == 2000
    assert len(said["content"]) <= play.LONGEST
    if call.name != "short":
        assert said["content"].endswith(" more characters]")
    (one,) = definition.results(made, formats.write_call(Call("long", {})))
    assert one == "x" * 4000 + "\n[1000 more characters]"


def test_a_turn_makes_some_calls_and_the_policy_is_told_of_the_others():
    ran = []

    def run(n: int) -> str:
        """Runs."""
        ran.append(n)
        return "ran"

    made = [definition.tool(run)]
    texts = definition.results(
        made, "\n".join(formats.write_call(Call("run", {"n": n})) for n in range(1000))
    )
    assert ran == [*range(definition.MOST_CALLS)] and len(texts) == 1000
    assert set(texts[: len(ran)]) == {"ran"}
    assert set(texts[len(ran) :]) == {f"error: a turn may make {len(ran)} calls; this is one more"}


LIMITED = {
    "with_tools": {"tools": "python,calculator"},
    "repository": {},
    "database": {},
    "retrieval": {"instructions": True, "latency": 0.5},
    "geography": {"latency": 0.5},
}


@pytest.mark.parametrize("name", [*sorted(LIMITED.keys() - SEARCHED.keys()), *optional(SEARCHED)])
def test_the_limit_of_a_turn_is_bounded_however_many_calls_it_has(name):
    """Else a policy could keep a worker for hours."""
    if name in SEARCHED:
        pytest.importorskip("bm25s")
    task = tasks.get(name, **LIMITED[name])
    installed(task)
    problem = task.problem("train", 0, 0)
    call = formats.write_call(Call("run", {}))
    one, some, many = (task.turns.seconds(problem, call * n) for n in (1, 5, 1000))
    assert 0 < one <= some <= many <= max(definition.MOST_CALLS * one, 20)


@pytest.mark.extra
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


def test_a_dictionary_is_a_file_or_the_bundled_one(tmp_path):
    bundled = toolbox.dictionary()
    assert called(bundled, word="prime").startswith("of a number")
    assert called(bundled, word=" Prime ") == called(bundled, word="prime")
    assert called(bundled, word="xyzzy") == "error: the dictionary has no word 'xyzzy'"
    assert "did you mean 'median'" in called(bundled, word="medain")
    made = tmp_path / "words.json"
    made.write_text(json.dumps({"Zebra": "a striped animal"}))
    assert called(toolbox.dictionary(str(made)), word="zebra") == "a striped animal"
    for n, wrong in enumerate(('["zebra"]', '{"zebra": 1}', "zebra")):
        made = tmp_path / f"{n}words.json"
        made.write_text(wrong)
        with pytest.raises(ValueError, match=r"words\.json.*JSON object of words and meanings"):
            toolbox.dictionary(str(made))
    task = tasks.get("with_tools", tools="dictionary")
    assert task.pure and task.turns.begin(task.problem("train", 0, 0), 0)[1].tools


@contextlib.contextmanager
def served():
    """Address of a server of two models: one answers in capitals, the other one not at all."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = asked["messages"][0]["content"].upper()
            text = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(400 if asked["model"] == "down" else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def models(path, address, **more):
    """A file of the models there, with their prices."""
    rows = [
        {"name": "small", "url": address, "model": "up", "price": 1, "about": "quick"},
        {"name": "large", "url": address, "model": "down", "price": 2.5} | more,
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_router_asks_other_models_and_adds_up_their_prices(tmp_path):
    with served() as url:
        made = router.router(models(tmp_path / "models.jsonl", url))
        assert made.description.endswith("small: costs 1, quick; large: costs 2.5")
        assert made.parts() == {"spent": 0.0}
        assert called(made, model="small", question="why?") == "WHY?"
        assert called(made, model="small", question="how?") == "HOW?"
        assert called(made, model="large", question="?").startswith("error: large gave no reply")
        assert called(made, model="other", question="?").startswith("error: 'other' is not one of")
        assert made.parts() == {"spent": 2.0}


@pytest.mark.parametrize("price", (0.0, 0.1))
def test_what_a_router_spent_is_in_the_episode(tmp_path, price):
    with served() as url:
        task = tasks.get(
            "with_tools", tools="router,calculator", models=models(tmp_path / "m.jsonl", url),
            price=price, calls=2,
        )  # fmt: skip
        problem = task.problem("train", 0, 0)
        inner = tasks.get("arithmetic")
        call = formats.write_call(Call("router", {"model": "small", "question": "1+1"}))
        with scoring.Pool(task, 0, 1.0, None, None) as pool:
            for episode, answer in enumerate((inner.gold(problem), "no idea")):
                said = [pool.act(Turn(episode, problem, 0)).result()]
                for actions in ((call,), (call, call), (call, call, answer)):
                    said.append(pool.act(Turn(episode, problem, 0, actions, tuple(said))).result())
                assert [each.parts["spent"] for each in said[1:]] == [1.0, 2.0, 2.0]
                assert said[-1].done and said[-1].answer == answer
                assert (said[-1].reward or 0) == pytest.approx(-2 * price)
            over = pool.act(Turn(1, problem, 0, (call, call, call), tuple(said[:3]))).result()
        assert over.done and not over.error


@pytest.mark.parametrize(
    ("more", "why"),
    [({"price": -1}, "price"), ({"price": "1"}, "price"), ({"name": "small"}, "name"),
     ({"model": 3}, "model"), ({"cost": 1}, "cost"), ({"url": "ftp://x"}, "url")],
)  # fmt: skip
def test_models_that_cannot_be_asked_are_refused(tmp_path, more, why):
    with pytest.raises(ValueError, match=why):
        router.router(models(tmp_path / "models.jsonl", "http://127.0.0.1:9/v1", **more))


def test_a_task_with_tools():
    """Calls are answered, malformed ones too; the turn without one is scored by the task."""
    made = tasks.get("with_tools", name="arithmetic", args='{"digits": 2}', calls=2)
    assert made.turns and made.pure and "ood" in made.splits
    problem = made.problem("train", 0, 0)
    inner = tasks.get("arithmetic", digits=2)
    player = play.Player(made)
    call = formats.write_call(Call("calculator", {"expression": "2+3"}))
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
    assert last.parts["malformed"] == 1  # of the whole episode, as the parts of its end are its own
    assert played(call, call, call)[-1][1:4:2] == (0.0, True)
    with scoring.Pool(made, 0, 1.0, None, None) as pool:
        assert pool.act(Turn(1, problem, 0)).result() == opening


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"name": "keydoor"}, "one by one"),
        ({"tools": "hammer"}, "'hammer' is none of"),
        ({"tools": "search"}, "name the file"),
        ({"tools": "router"}, "name the file of router"),
        ({"price": 0.1}, "price=0.1 without the tool router"),
        ({"price": -0.1, "tools": "router", "models": "x"}, "price=-0.1"),
        ({"calls": 0}, "allow one"),
    ],
)
def test_tools_that_cannot_be_given_are_refused(params, why):
    with pytest.raises(ValueError, match=why):
        tasks.get("with_tools", **params)
