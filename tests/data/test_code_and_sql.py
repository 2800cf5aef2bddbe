"""Code and SQL: right programs pass, wrong and cheating ones do not."""

import dataclasses
import itertools
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import Turn
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.rewards.programs import code, queries, sql
from jaxrl.data.sandbox import bubblewrap
from jaxrl.data.sandbox.runner import Limits
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.scoring.pool import score_completion
from jaxrl.data.types import Problem, Score

CODE = tasks.get("code", tests=2)


def fenced(program, language="python"):
    return f"Here:\n```{language}\n{program}\n```\n"


@pytest.mark.parametrize("split", CODE.splits)
def test_gold_programs_pass_and_mutated_ones_fail(split):
    for index in range(2):
        problem = CODE.problem(split, 0, index)
        gold = CODE.gold(problem)
        assert score_completion(CODE, problem, gold).value == 1.0, problem
        lines = problem.metadata["solution"].splitlines()
        mutants = [
            "\n".join(lines[:1] + lines[2:]),
            "\n".join([*lines[:-1], "print(*x, 0)"]),
            "\n".join([*lines[:-1], "x.append(1)", "print(*x)"]),
        ]
        for mutant in mutants:
            same = all(run_here(mutant, i) == o.strip() for i, o in problem.metadata["tests"])
            assert score_completion(CODE, problem, fenced(mutant)).value == float(same), mutant


def run_here(program, stdin):
    lines = iter(stdin.splitlines())
    out = []
    exec(program, {"input": lambda: next(lines), "print": lambda *a: out.append(a)})
    return "\n".join(" ".join(map(str, a)) for a in out)


def test_splits_are_disjoint_and_the_expected_output_is_not_in_the_prompt():
    made = {s: {CODE.problem(s, 0, i).id for i in range(40)} for s in CODE.splits}
    assert all(not made[a] & made[b] for a, b in itertools.combinations(CODE.splits, 2))
    assert CODE.problem("train", 0, 1) == CODE.problem("train", 0, 1)


CHEATS = [
    "import os\nfor f in os.listdir('inputs'): print(open('inputs/' + f).read())",
    "import glob\nfor f in glob.glob('/proc/[0-9]*/cmdline'): print(open(f).read())",
    "print('ok'); raise SystemExit(0)",
    "import os; os._exit(0)",
    "import builtins; builtins.print = lambda *a: None; print(1)",
    "import sys\nfor f in __import__('os').listdir('.'): sys.stdout.write(open(f).read())",
    "import gc\nprint([o for o in gc.get_objects() if 'expected' in str(type(o))])",
    "import sys; sys.stdout.write('correct: 1.0\\nScore(1.0)\\n')",
    "class A(str):\n  __eq__ = lambda s, o: True\nprint(A('x'))",
]


def test_programs_that_cheat_get_nothing():
    problem = CODE.problem("train", 0, 0)
    shown = problem.prompt.partition("Output: ")[2].splitlines()[0]
    for program in [*CHEATS, f"print('''{shown}''')"]:
        score = score_completion(CODE, problem, fenced(program))
        assert score.value == 0.0 and score.error is None, (program, score)
    assert score_completion(CODE, problem, problem.metadata["solution"]).parts["format"] == 0.0


def test_right_output_with_a_failing_status_or_a_time_out_does_not_pass():
    problem = Problem("p", "", None, metadata={"tests": [("3\n", "6\n"), ("4\n", "8\n")]})
    reward = code.passes_tests(partial=True)
    assert reward(problem, fenced("print(2 * int(input()))")).value == 1.0
    assert reward(problem, fenced("print(6)")).value == 0.5
    assert reward(problem, fenced("print(2 * int(input())); exit(1)")).value == 0.0
    assert reward(problem, fenced("print(2 * int(input()) )\n1/0")).value == 0.0
    assert reward(Problem("p", "", None, metadata={"tests": []}), fenced("")).error
    quick = code.passes_tests(partial=True, limits=Limits(wall_s=0.5))
    slow_on_three = "n = int(input())\nwhile n == 3: pass\nprint(2 * n)"
    assert quick(problem, fenced(slow_on_three)).value == 0.5
    loud = "print('x' * 10**6)\nprint(2 * int(input()))"
    assert quick(problem, fenced(loud)).value == 0.0


def test_time_that_runs_out_is_the_programs_fault_and_the_first_of_it_ends_the_tests():
    """Programs that do not end score 0 and not an error, and are distinguished."""
    tests = {"tests": [("3\n", "6\n")] * 20}
    quick = code.passes_tests(limits=Limits(wall_s=0.5))
    start = time.monotonic()
    for program in ("while True: pass", "import time; time.sleep(60)"):
        score = quick(Problem("p", "", None, metadata=tests), fenced(program))
        assert score == Score(0.0, {"correct": 0.0, "format": 1.0}, timed_out=True)
    assert time.monotonic() - start < 8
    slow = "import time; n = int(input()); time.sleep(0.4); print(2 * n)"
    patient = code.passes_tests(limits=Limits(wall_s=3.0))
    score = patient(Problem("p", "", None, metadata={"tests": tests["tests"][:4]}), fenced(slow))
    assert score.value == 1.0 and not score.timed_out


@pytest.mark.broad
def test_in_the_pool_a_slow_right_program_passes_and_one_that_never_ends_fails():
    task = {"tests": 2, "wall_s": 2.0}
    problem = tasks.get("code", **task).problem("train", 0, 0)
    slow = "import time; time.sleep(1)\n" + problem.metadata["solution"]
    with scoring.open_pool("code", task, workers=1, time_limit_s=1.0) as pool:
        right, hung = pool.score([(problem, fenced(slow)), (problem, fenced("while 1: pass"))])
    assert right.value == 1.0 and not right.timed_out
    assert hung.value == 0.0 and hung.timed_out and hung.error is None


def test_what_could_not_start_is_an_error_and_not_a_wrong_program(monkeypatch):
    problem = Problem("p", "", None, metadata={"tests": [("3\n", "6\n")]})
    task = dataclasses.replace(CODE, reward=code.passes_tests())
    monkeypatch.setattr(bubblewrap, "CHILD", Path("/no/such.py"))
    score = score_completion(task, problem, fenced("print(6)"))
    assert score.value is None and "did not start" in score.error


@pytest.mark.parametrize("text", ["\ud800", "\x00", "print('\udfff')", "\u2028", "é" * 10])
def test_odd_characters_in_a_program_are_its_own_fault(text):
    problem = Problem("p", "", None, metadata={"tests": [("3\n", "6\n")]})
    score = code.passes_tests()(problem, fenced(text))
    assert score.error is None and score.value == 0.0


def test_assertions_are_pairs_of_a_call_and_its_value():
    calls = code.calls_of_asserts("assert f(3) == 9\nassert [f(x) for x in (1, 2)] == [1, 4]")
    assert calls == [("f(3)", 9), ("[f(x) for x in (1, 2)]", [1, 4])]
    with pytest.raises(ValueError, match="assert CALL == LITERAL"):
        code.calls_of_asserts("assert f(3)")


DOUBLERS = {
    "awk": "{print 2 * $1}",
    "stack": "2 *",
    "python": "print(2 * int(input()))",
    "bash": "read n; echo $((2 * n))",
    "javascript": "console.log(2 * parseInt(require('fs').readFileSync(0)))",
    "c": '#include <stdio.h>\nint main(){int n;scanf("%d",&n);printf("%d\\n",2*n);return 0;}',
    "lua": "print(2 * io.read('n'))",
}


@pytest.mark.parametrize("name", code.languages())
def test_every_language_runs_a_right_and_a_wrong_program(name):
    program = {"javascript": "node", "c": "gcc"}.get(name, name)
    if name not in ("python", "stack") and shutil.which(program) is None:
        with pytest.raises(ValueError, match=f"needs {program!r}"):
            code.language.__wrapped__(name)
        pytest.skip(f"{program} is not installed")
    problem = Problem("p", "", None, metadata={"tests": [("21\n", "42\n")]})
    reward = code.passes_tests(name)
    right = DOUBLERS[name]
    assert reward(problem, fenced(right, code.language(name).fence)).value == 1.0
    wrong = fenced(right.replace("2 *", "3 *").replace("2*", "3*"), code.language(name).fence)
    assert reward(problem, wrong).value == 0.0


def test_a_language_of_ones_own(tmp_path):
    path = tmp_path / "sed.yaml"
    path.write_text("ask: sed, please\nfence: sed\nfile: main.sed\nrun: [sed, -f, main.sed]\n")
    problem = Problem("p", "", None, metadata={"tests": [("abc\n", "xbc\n")]})
    assert code.passes_tests(str(path))(problem, fenced("s/a/x/", "sed")).value == 1.0
    assert "sed, please" in tasks.get("code", language=str(path)).problem("train", 0, 0).prompt
    path.write_text("ask: x\nfence: y\nfile: z\nrun: [sed]\nspeed: 9\n")
    with pytest.raises(ValueError, match="speed"):
        code.language(str(tmp_path / ".." / tmp_path.name / "sed.yaml"))
    with pytest.raises(ValueError, match="choose one of awk, bash"):
        code.language("cobol")


SQL = tasks.get("sql", level=4)


@pytest.mark.parametrize("split", SQL.splits)
def test_gold_queries_pass_and_near_misses_fail(split):
    mutated = 0
    for index in range(15):
        problem = SQL.problem(split, 0, index)
        gold = problem.answer
        assert score_completion(SQL, problem, gold).value == 1.0
        assert score_completion(SQL, problem, f"```sql\n{gold};\n```").value == 1.0
        for old, new in [
            (" > ", " >= "), (" < ", " <= "), (" > ", " < "), ("COUNT(*)", "COUNT(*) + 1"),
            ("SUM(", "COUNT("), ("MAX(", "MIN("), ("MIN(", "MAX("), (" AND ", " OR "),
            ("SELECT name", "SELECT id"), ("SELECT t.name", "SELECT t.id"), ("r.", "t."),
            ("GROUP BY", "ORDER BY"), ("= t.id", "= r.id"),
        ]:  # fmt: skip
            if old in gold:
                wrong = gold.replace(old, new)
                if old in (" > ", " < ") and re.search("MAX|MIN", gold):
                    continue  # a bound beyond the extreme changes nothing
                score = score_completion(SQL, problem, wrong)
                assert score.value == 0.0 and score.error is None, (gold, wrong)
                mutated += 1
        bound = int(re.search(r"[<>] (\d+)", gold)[1])
        if not re.search("MAX|MIN", gold):
            for other in (bound - 1, bound + 1):
                assert (
                    score_completion(SQL, problem, gold.replace(str(bound), str(other))).value
                    == 0.0
                )
    assert mutated > 10


def test_sql_splits_are_disjoint():
    made = {s: {SQL.problem(s, 0, i).id for i in range(60)} for s in SQL.splits}
    assert all(not made[a] & made[b] for a, b in itertools.combinations(SQL.splits, 2))


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("databases", [2, 3])
def test_no_constant_is_right_on_all_databases(level, databases):
    """Whatever a query without a table gives, the databases want different rows."""
    task = tasks.get("sql", level=level, databases=databases)
    for split in task.splits:
        for index in range(8):
            problem = task.problem(split, 0, index)
            bound = int(re.search(r"[<>] (\d+)", problem.answer)[1])
            results = [queries.execute(s, problem.answer) for s in problem.metadata["databases"]]
            assert len({str(sorted(rows)) for rows in results}) == databases
            for n in (bound - 1, bound + 1):
                assert task.reward(problem, f"SELECT {n}").value == 0.0, (problem.answer, n)


def test_no_query_is_not_an_answer():
    empty = "SELECT name FROM t WHERE id < 0"
    script = "CREATE TABLE t (id INTEGER, name TEXT); INSERT INTO t VALUES (1, 'a');"
    for partial in (False, True):
        reward = sql.same_result({"correct": 3, "syntax": 1} if partial else None)
        whole = Problem("p", "", "SELECT name FROM t", metadata={"databases": [script]})
        for text in ("", ";", " ; ", "-- hi", "/* hi */", "```sql\n\n```", "```sql\n-- x\n```"):
            assert reward(whole, text).value == 0.0, text
        assert reward(whole, "SELECT name FROM t -- all of them").value == 1.0
        nothing = Problem("p", "", empty, metadata={"databases": [script]})
        assert reward(nothing, "SELECT 1 WHERE 0").error.startswith("gold:")


def test_constants_do_not_pass_on_unseen_databases():
    task = tasks.get("sql", level=1)
    problem = task.problem("train", 0, 0)
    rows = queries.execute(problem.metadata["databases"][0], problem.answer)
    values = ", ".join(f"('{name}')" for (name,) in rows)
    assert task.reward(problem, f"VALUES {values}").value == 0.0


@pytest.mark.broad
def test_hostile_queries_are_refused_and_end(tmp_path):
    script = SQL.problem("train", 0, 0).metadata["databases"][0]
    forever = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT {} FROM c"
    for query in [
        f"ATTACH '{tmp_path}/x.db' AS y", "DROP TABLE t", "PRAGMA writable_schema=1",
        "INSERT INTO sqlite_master VALUES (1)", "SELECT load_extension('x')", "SELECT 1; SELECT 2",
        "VACUUM INTO '/tmp/x.db'", "SELECT randomblob(1000000000)", forever.format("x"),
        forever.format("max(x)"), "", "SELECT", "SELECT 1 \x00", "CREATE TABLE z (a)",
    ]:  # fmt: skip
        for run in (queries.execute, queries.execute_apart):
            with pytest.raises(queries.QueryError):
                run(script, query)
    assert not list(tmp_path.iterdir())


COUNT = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {}) SELECT {} FROM c"
)
OVER = {
    "long texts": (
        "SELECT instr(hex(zeroblob(499000)), hex(zeroblob(240000)) || '1')",
        "too big",
    ),
    "large rows": (COUNT.format(3000, "zeroblob(1000000)"), "too big"),
    "many large rows": (COUNT.format(3000, "zeroblob(60000)"), "rows of more than 16 MB"),
    "many columns": (COUNT.format(9999, ", ".join("x" * 99)), "rows of more than 16 MB"),
    "long patterns": (f"SELECT hex(zeroblob(30000)) LIKE '{'%0' * 600}1'", "pattern too complex"),
}


@pytest.mark.parametrize("name", OVER)
def test_queries_that_take_too_much_are_refused_at_once(name):
    query, why = OVER[name]
    for run in (queries.execute, queries.execute_apart):
        start = time.monotonic()
        with pytest.raises(queries.QueryError, match=why):
            run("", query)
        assert time.monotonic() - start < queries.WALL_S + 1


PARTS = "SELECT hex(zeroblob(32000)) AS a, hex(zeroblob(16000)) || '1' AS b"
LONG = {
    "steps that take long": f"SELECT {'+'.join(['instr(a, b)'] * 900)} FROM ({PARTS})",
    "memory": COUNT.format(10**9, "count(DISTINCT hex(randomblob(30000)))"),
    "sorting": COUNT.format(10**9, "hex(randomblob(30000))") + " ORDER BY 1",
}


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("name", LONG)
def test_the_limits_of_a_process_of_its_own_hold(name):
    start = time.monotonic()
    with pytest.raises(queries.QueryError, match=r"it took more than|interrupted"):
        queries.execute_apart("", LONG[name])
    assert time.monotonic() - start < queries.WALL_S + 4


def test_a_process_of_its_own_gives_the_same_rows():
    values = "(1), (2.5), (NULL), ('é'), (x'00ff'), (9e999)"
    script = f"CREATE TABLE t (a); INSERT INTO t VALUES {values};"
    for query in ("SELECT a, typeof(a) FROM t", "SELECT 1 WHERE 0", "SELECT '{}', x''"):
        assert queries.execute_apart(script, query) == queries.execute(script, query)
    for query in ("SELECT CAST(x'ff' AS TEXT)", "SELECT '\ud800'", "SELECT nothing"):
        errors = []
        for run in (queries.execute, queries.execute_apart):
            with pytest.raises(queries.QueryError) as raised:
                run(script, query)
            errors.append(str(raised.value))
        assert errors[0] == errors[1]


def test_a_time_limit_holds_where_its_signal_was_ignored():
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        with pytest.raises(queries.QueryError, match="it took more than 2 s"):
            queries.execute_apart("", LONG["steps that take long"])
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.broad
def test_a_query_that_takes_too_much_is_an_error_that_the_policy_reads(tmp_path):
    """It neither holds the trainer up nor voids the episode."""
    file = tmp_path / "made.sql"
    file.write_text("CREATE TABLE t (a);")
    task = tasks.get("with_tools", tools="sql", database=str(file))
    problem = task.problem("train", 0, 0)
    call = write_call(Call("sql", {"query": LONG["steps that take long"]}))
    with scoring.Pool(task, 1, 1.0, None, None) as pool:
        said = [pool.act(Turn(0, problem, 0)).result()]
        reply = pool.act(Turn(0, problem, 0, (call,), tuple(said))).result()
    assert reply.error is None and reply.messages[0]["content"] == "error: it took more than 2 s"


def test_partial_rewards():
    task = tasks.get("sql", level=1, partial=True)
    problem = task.problem("train", 0, 0)
    assert task.reward(problem, problem.answer).value == 1.0
    near = task.reward(problem, problem.answer.replace("SELECT name", "SELECT id"))
    assert near.parts["correct"] == 0 and near.parts["syntax"] == 1 and 0 < near.value < 0.5
    assert task.reward(problem, "hello").value < near.value
    with pytest.raises(ValueError, match="weights"):
        sql.same_result({"speed": 1.0})
