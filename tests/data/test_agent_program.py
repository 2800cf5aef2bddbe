"""Programs behind an API: their protocols, and episodes that go on from what was sampled."""

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from jaxrl import untrusted
from jaxrl.data import tasks
from jaxrl.data.environments import Token, Turn, Written
from jaxrl.data.environments.bridges import adapters, agent_program, dialects
from jaxrl.data.environments.bridges.dialects import DIALECTS, Answer, Said
from jaxrl.data.environments.tools import formats
from jaxrl.data.environments.tools.formats import Call
from jaxrl.data.sandbox import runner
from jaxrl.data.scoring import async_environments
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.types import Problem
from tests.data.test_sandbox import processes_with
from tests.data.test_scoring import running

PROBLEM = Problem("p", "What is 2 + 3?", None)
TOKENS = (Token(7, "5", -0.5), Token(0, "", -0.25))
CALL = Call("add", {"b": 3, "a": 2})
SAID = (Said("system", "Be brief."), Said("user", "Hello"))
SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "add", "description": "sums", "parameters": SCHEMA}
ARGUMENTS = '{"a":2,"b": 3}'  # spelled otherwise than it was answered
CALLED = Said("assistant", "", (("add", '{"a": 2, "b": 3}'),))
RESULT = Said("tool", "5")

BODIES = {
    "chat/completions": {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
            ]},
            {"role": "tool", "tool_call_id": "x", "content": "5"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}], "stop": "\n", "temperature": 9,
    },
    "responses": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "x", "name": "add", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "x", "output": "5"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
    },
    "messages": {
        "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "x", "name": "add", "input": {"b": 3, "a": 2}}
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "x", "content": "5"}
            ]},
        ],
        "tools": [{"name": "add", "description": "sums", "input_schema": SCHEMA}],
        "stop_sequences": ["\n"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_protocol_says_the_same(name):
    """Arguments of a call are compared as values: their spelling and their order do not count."""
    read = DIALECTS[name].read(BODIES[name])
    assert read.messages == (*SAID, CALLED, RESULT)
    assert read.tools == ({"type": "function", "function": FUNCTION},)
    assert read.stop == (() if name == "responses" else ("\n",))
    assert Answer(1, "", (CALL,), ()).said == CALLED


def pieces(name, asked, answer):
    return list(DIALECTS[name].pieces(asked, answer))


ENDINGS = {
    "calls": Answer(1, "", (CALL,), TOKENS, cut=True),
    "cut": Answer(1, "I th", (), TOKENS[:1], cut=True),
    "string": Answer(1, "I think", (), TOKENS[:1], stop="\n"),
    "turn": Answer(1, "I think.", (), TOKENS, read=9),
}
WORDS = {
    "calls": ("tool_calls", "completed", ("tool_use", None)),
    "cut": ("length", "incomplete", ("max_tokens", None)),
    "string": ("stop", "completed", ("stop_sequence", "\n")),
    "turn": ("stop", "completed", ("end_turn", None)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_answer_says_why_it_ended_in_the_words_of_its_protocol(ending):
    """Whole and streamed. A turn that was cut, and whose calls can be read, ends with its calls."""
    answer, (chat, status, reason) = ENDINGS[ending], WORDS[ending]
    asked = dialects.Asked(SAID)
    whole = {name: dialect.whole(asked, answer) for name, dialect in DIALECTS.items()}
    parts = {name: pieces(name, asked, answer) for name in DIALECTS}

    assert whole["chat/completions"]["choices"][0]["finish_reason"] == chat
    given = [data["choices"][0]["finish_reason"] for _, data in parts["chat/completions"]]
    assert given == [None, chat]

    why = {"reason": "max_output_tokens"} if ending == "cut" else None
    event, last = parts["responses"][-1]
    assert event == last["type"] == f"response.{status}"
    for each in (whole["responses"], last["response"]):
        assert (each["status"], each["incomplete_details"]) == (status, why)
        assert [item["status"] for item in each["output"]] == [status]
    begun = parts["responses"][0][1]["response"]
    assert (begun["status"], begun["incomplete_details"]) == ("in_progress", None)

    message = whole["messages"]
    assert (message["stop_reason"], message["stop_sequence"]) == reason
    begun, ended = parts["messages"][0][1]["message"], parts["messages"][-2][1]["delta"]
    assert (begun["stop_reason"], begun["stop_sequence"]) == (None, None)
    assert (ended["stop_reason"], ended["stop_sequence"]) == reason


CHOICES = {
    "chat/completions": {"tool_choice": "none"},
    "responses": {"tool_choice": "none"},
    "messages": {"tool_choice": {"type": "none"}},
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_request_may_choose_no_tool(name):
    read = DIALECTS[name].read
    assert read({**BODIES[name], **CHOICES[name]}).tools == ()
    choice = {"type": "auto"} if name == "messages" else "auto"
    assert len(read({**BODIES[name], "tool_choice": choice}).tools) == 1


def test_a_stream_of_chat_ends_with_the_usage_where_it_is_asked_for():
    dialect, answer = DIALECTS["chat/completions"], ENDINGS["turn"]
    body = {"messages": [], "stream": True}
    for options in (None, {}, {"include_usage": False}):
        asked = dialect.read({**body, "stream_options": options})
        assert all("usage" not in data for _, data in dialect.pieces(asked, answer))
    asked = dialect.read({**body, "stream_options": {"include_usage": True}})
    *parts, last = [data for _, data in dialect.pieces(asked, answer)]
    assert all(data["usage"] is None and len(data["choices"]) == 1 for data in parts)
    assert last["choices"] == [] and last["id"] == parts[0]["id"]
    assert last["usage"] == dialect.whole(asked, answer)["usage"]
    read, written, both = 9, len(TOKENS), 9 + len(TOKENS)
    assert last["usage"] == dict(prompt_tokens=read, completion_tokens=written, total_tokens=both)
    told = DIALECTS["responses"].whole(asked, answer)["usage"]
    assert [told[f"{name}_tokens"] for name in ("input", "output", "total")] == [
        read,
        written,
        both,
    ]
    told = DIALECTS["messages"].whole(asked, answer)["usage"]
    assert told == {"input_tokens": read, "output_tokens": written}


@pytest.mark.parametrize("name", ["chat/completions", "responses"])
def test_a_refusal_is_read_as_what_the_assistant_said(name):
    read, part = DIALECTS[name].read, {"type": "refusal", "refusal": "I cannot."}
    given = {"role": "assistant", "content": [part]}
    said = read({"messages": [given], "input": [given]}).messages
    assert said == (Said("assistant", "I cannot."),)


def test_a_refusal_beside_the_content_is_read_too():
    read = DIALECTS["chat/completions"].read
    given = {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert read({"messages": [given]}).messages == (Said("assistant", "I cannot."),)


def test_streamed_tool_calls_lose_no_token():
    """Every id and log-probability arrives, also those of tokens that are no text."""
    asked = DIALECTS["chat/completions"].read(
        {"messages": [], "logprobs": True, "return_token_ids": True}
    )
    answer = Answer(1, "I add.", (CALL,), TOKENS)
    whole = DIALECTS["chat/completions"].whole(asked, answer)["choices"][0]
    streamed = [data["choices"][0] for _, data in pieces("chat/completions", asked, answer)]
    for ids in (whole["token_ids"], [i for c in streamed for i in c.get("token_ids", [])]):
        assert ids == [7, 0]
    logps = [e["logprob"] for c in streamed for e in (c.get("logprobs") or {}).get("content", [])]
    assert logps == [-0.5, -0.25] == [e["logprob"] for e in whole["logprobs"]["content"]]
    (call,) = streamed[0]["delta"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == CALL.arguments
    assert streamed[-1]["finish_reason"] == "tool_calls"


HEAD = """
import json, os, sys, urllib.request
def ask(messages, **more):
    body = json.dumps({"messages": messages, **more}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        return json.load(answer)["choices"][0]
"""
LOOP = """
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
said = [{"role": "user", "content": sys.stdin.read()}]
while True:
    choice = ask(said, tools=tools, logprobs=True)
    said.append(choice["message"])
    if not choice["message"].get("tool_calls"):
        break
    for call in choice["message"]["tool_calls"]:
        given = json.loads(call["function"]["arguments"])
        result = str(given["a"] + given["b"])
        said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
print(choice["message"]["content"])
assert all(each["logprob"] < 0 for each in choice["logprobs"]["content"])
"""
ENDS = {
    "crash:": "sys.exit(3)",
    "timeout:": "ask(said); import time; time.sleep(60)",
    "output:": "ask(said); print('x' * (1 << 21)); import time; time.sleep(60)",
    "silent:": "",
    "type:": "ask(said); ask([*said, {'role': 'assistant', 'content': 'a b c'},"
    " {'role': 'system', 'content': 'x'}])",
}


@pytest.fixture
def program(tmp_path):
    """`(source) -> environment` of a program."""

    def made(source, seconds=20.0, **given):
        file = tmp_path / "agent.py"
        file.write_text(HEAD + textwrap.dedent(source))
        return agent_program.environment([sys.executable, "-S", str(file)], seconds, **given)

    return made


def pool_of(environment):
    import dataclasses

    inner = tasks.get("arithmetic")
    return scoring.Pool(dataclasses.replace(inner, turns=environment), 0, 1.0, None, None)


def played(pool, *actions, episode=0, tokens=TOKENS):
    said = [pool.act(Turn(episode, PROBLEM, 3)).result()]
    for n in range(len(actions)):
        if said[-1].error:
            break
        written = tuple(Written(tokens, 9) for _ in actions[: n + 1])
        turn = Turn(episode, PROBLEM, 3, actions[: n + 1], tuple(said), written)
        said.append(pool.act(turn).result())
    return said


def test_a_program_plays_an_episode_and_another_process_plays_it_again(program):
    call = formats.write_call(CALL)
    with pool_of(program(LOOP)) as pool:
        opening, result, end = played(pool, call, "It is 5.")
        assert opening.messages == ({"role": "user", "content": PROBLEM.prompt},)
        assert opening.tools[0]["function"]["name"] == "add"
        assert result.messages == ({"role": "tool", "content": "5"},) and result.calls == 1
        assert (end.done, end.answer, end.error) == (True, "It is 5.\n", None)
        odd = played(pool, "<tool_call>2+3", episode=1)  # what is no call stays text
        assert odd[-1].answer == "<tool_call>2+3\n"
    with pool_of(program(LOOP)) as pool:  # which remembers nothing
        turn = Turn(0, PROBLEM, 3, (call, "5"), (opening, result), (Written(TOKENS, 9),) * 2)
        assert pool.act(turn).result().answer == "5\n"


STARTS = """
import fcntl, time
prompt = sys.stdin.read()
if os.environ["JAXRL_SEED"] == "0":
    time.sleep(60)
with open("MACHINE", "w") as machine:
    fcntl.flock(machine, fcntl.LOCK_EX)
    time.sleep(0.25)
ask([{"role": "user", "content": prompt}])
"""


@pytest.mark.broad
def test_many_programs_that_share_a_machine_keep_the_limit_that_one_keeps(
    program, tmp_path, monkeypatch
):
    """Their start-ups take turns here, as on one core; one that hangs is void alone."""
    monkeypatch.setattr(async_environments, "_PLACES", 2)
    made = program(STARTS.replace("MACHINE", str(tmp_path / "machine")), seconds=3.0)
    with pool_of(made) as pool:
        asked = [pool.act(Turn(n, PROBLEM, n)) for n in range(16)]  # 4 s together
        errors = [each.result(60).error for each in asked]
    assert errors == ["timeout: the program was silent for 3 s"] + [None] * 15


CONTEXTS = """
first = [{"role": "user", "content": sys.stdin.read()}]
answer = ask(first)["message"]
short = ask([{"role": "user", "content": "Say it in short."}])["message"]["content"]
said = [*first, answer, {"role": "user", "content": short}]
print(ask([*said, {"role": "assistant", "content": "Well"}, first[0]])["message"]["content"])
"""


REASON = """
choice = ask([{"role": "user", "content": sys.stdin.read()}], stop=["+", "="])
print(choice["message"]["content"], choice["finish_reason"])
"""
STOPPED = """
body = {"messages": [{"role": "user", "content": sys.stdin.read()}], "stop_sequences": ["+", "="]}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
    made = json.load(answer)
print(made["content"][0]["text"], made["stop_reason"], made["stop_sequence"])
"""


def test_a_program_is_told_why_a_turn_ended(program):
    """By its budget of tokens, a string of the request, or a stop token, which has no text."""
    cut = TOKENS[:1]
    with pool_of(program(REASON)) as pool:
        told = [
            played(pool, "2 =", tokens=cut)[-1],
            played(pool, "2 ", episode=1, tokens=cut)[-1],
            played(pool, "2 ", episode=2)[-1],
        ]
    assert [each.answer for each in told] == ["2  stop\n", "2  length\n", "2  stop\n"]
    with pool_of(program(STOPPED)) as pool:
        told = [
            played(pool, "2 = 1 + 1", tokens=cut)[-1],
            played(pool, "2 ", episode=1, tokens=cut)[-1],
        ]
    assert [each.answer for each in told] == ["2  stop_sequence =\n", "2  max_tokens None\n"]


def test_another_conversation_of_a_program_is_another_context_of_its_episode(program):
    """It may go back to an earlier one, where the answers are as the policy wrote them."""
    asked = {"role": "user", "content": PROBLEM.prompt}
    with pool_of(program(CONTEXTS)) as pool:
        opening, other, back, end = played(pool, " 5", "five", "Yes")
    assert opening.messages == (asked,) and (other.messages, back.messages) == ((), ())
    assert other.opening.messages == ({"role": "user", "content": "Say it in short."},)
    kinds = [(each["role"], each["content"]) for each in back.opening.messages[1:4]]
    assert kinds == [("assistant", " 5"), ("user", "five"), ("assistant", "Well")]
    assert back.opening.messages[0] == back.opening.messages[4] == asked
    assert (end.done, end.answer, end.error) == (True, "Yes\n", None)


FEWER = {
    "none": """
said += [ask(said, tools=tools)["message"], {"role": "tool", "tool_call_id": "x", "content": "5"}]
print(json.dumps(ask(said, tools=tools, tool_choice="none")["message"]))
""",
    "summary": """
ask(said, tools=tools)
print(json.dumps(ask([{"role": "user", "content": "Say it in short."}])["message"]))
""",
    "other": """
ask(said, tools=tools)
tools[0]["function"]["name"] = "other"
print(json.dumps(ask([{"role": "user", "content": "Say it in short."}], tools=tools)["message"]))
""",
}


@pytest.mark.parametrize("kind", FEWER)
def test_a_request_has_the_tools_that_it_names_and_no_others(kind, program):
    """Those of an earlier request are not shown again, and without tools no call is read."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    begun = f"tools = [{tool}]\nsaid = [{{'role': 'user', 'content': sys.stdin.read()}}]\n"
    call = formats.write_call(CALL)
    with pool_of(program(begun + FEWER[kind])) as pool:
        opening, other, end = played(pool, call, call)
    names = [[t["function"]["name"] for t in each.tools] for each in (opening, other.opening)]
    assert names == [["add"], ["other"] if kind == "other" else []]
    message = json.loads(end.answer)
    assert ("tool_calls" in message) == (kind == "other")
    assert kind == "other" or message["content"] == call


AFTER = """
def respond(**body):
    url = os.environ["OPENAI_BASE_URL"] + "/responses"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        return json.load(answer)
tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
first = respond(input=sys.stdin.read(), tools=tools, instructions="Be brief.")
result = {"type": "function_call_output", "call_id": "x", "output": "5"}
print(respond(input=[result], previous_response_id=first["id"], **json.loads(sys.argv[1]))["id"])
"""
OFFERED = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
AFTERS = {
    "the same": ({"tools": OFFERED, "instructions": "Be brief."}, None),
    "no tools": ({"instructions": "Be brief."}, (0, ["Be brief."])),
    "no instructions": ({"tools": OFFERED}, (1, [])),
    "others": ({"tools": OFFERED, "instructions": "Be clear."}, (1, ["Be clear."])),
}


@pytest.mark.parametrize("kind", AFTERS)
def test_a_response_that_continues_another_has_its_own_tools_and_instructions(kind, tmp_path):
    """As in the API, which keeps neither of them; the rest of the conversation is kept."""
    given, other = AFTERS[kind]
    (tmp_path / "agent.py").write_text(HEAD + AFTER)
    command = [sys.executable, "-S", str(tmp_path / "agent.py"), json.dumps(given)]
    with pool_of(agent_program.environment(command, 20.0)) as pool:
        opening, result, end = played(pool, formats.write_call(CALL), "5")
    assert opening.messages[0] == {"role": "system", "content": "Be brief."}
    assert end.answer == "resp_2\n"
    if other is None:
        assert result.messages == ({"role": "tool", "content": "5"},) and result.opening is None
    else:
        messages = result.opening.messages
        system = [each["content"] for each in messages if each["role"] == "system"]
        assert (len(result.opening.tools), system) == other
        assert [each["role"] for each in messages][-3:] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("kind", ENDS)
def test_what_is_no_episode_is_an_error_and_never_a_reward(kind, program):
    source = "said = [{'role': 'user', 'content': 'Hello'}]\n" + ENDS[kind]
    start = time.monotonic()
    with pool_of(program(source, seconds=1.0 if kind == "timeout:" else 20.0)) as pool:
        last = played(pool, "a b c")[-1]
    assert last.error.startswith(kind) and getattr(last, "reward", None) is None
    assert time.monotonic() - start < 15


def test_a_program_that_is_left_is_ended(program):
    """As where the budget of tokens is reached: nothing of the episode goes on."""
    with pool_of(program(LOOP)) as pool:
        played(pool)
        (episode,) = pool._player._known.values()
        pool.over(0)
        assert episode.state._process.wait(5) and not pool._player._known


BEGUN = """
example = [{"role": "user", "content": "What is 1 + 1?"},
           {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}]},
           {"role": "tool", "tool_call_id": "x", "content": "2"},
           {"role": "assistant", "content": "It is 2."}]
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
said = [*example, {"role": "user", "content": sys.stdin.read()}]
print(ask(said, tools=tools)["message"]["content"])
"""


def test_a_program_may_begin_with_turns_that_the_policy_did_not_write(program):
    """Examples are read as the rest of the opening is; no action is among them."""
    with pool_of(program(BEGUN)) as pool:
        opening, end = played(pool, "5")
    roles = [message["role"] for message in opening.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"] and end.answer == "5\n"
    call = formats.write_call(Call("add", {"a": 1, "b": 1}))
    assert opening.messages[1]["content"] == call


@pytest.mark.parametrize("arguments", ["{oops", "[" * 50_000, "5", ""])
def test_an_example_may_have_a_call_that_cannot_be_read(arguments, program):
    """As in a history of the program's own; its arguments are shown as they are."""
    source = BEGUN.replace('\'{"a": 1, "b": 1}\'', repr(arguments))
    with pool_of(program(source)) as pool:
        opening, end = played(pool, "5")
    assert opening.error is None and end.answer == "5\n"
    assert arguments in opening.messages[1]["content"]


def gone(pid, seconds=10.0):
    end = time.monotonic() + seconds
    while running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not running(pid)


CHILDREN = """
import subprocess
sleeps = [subprocess.Popen(["sleep", "300"], start_new_session=n) for n in (False, True)]
print(*(each.pid for each in sleeps), flush=True)
answer = ask([{"role": "user", "content": " ".join(str(each.pid) for each in sleeps)}])
if answer["message"]["content"] == "stay":
    ask([{"role": "user", "content": "again"}])
"""


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("ends", ["by itself", "left", "the trainer is killed"])
def test_what_a_program_has_started_ends_with_it(ends, program, tmp_path):
    """Also what is in a session of its own, and holds the output open."""
    made = program(CHILDREN)
    if ends == "the trainer is killed":
        source = (
            "import sys, time; from tests.data import test_agent_program as t\n"
            "from jaxrl.data.environments.bridges import agent_program\n"
            f"file = {str(tmp_path / 'agent.py')!r}\n"
            "made = agent_program.environment([sys.executable, '-S', file], 20.0)\n"
            "pool = t.pool_of(made)\n"
            "print(t.played(pool)[0].messages[0]['content'], flush=True); time.sleep(60)"
        )
        trainer = subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True
        )
        pids = trainer.stdout.readline().split()
        assert len(pids) == 2 and all(map(running, pids))
        trainer.kill()
        trainer.communicate()
    else:
        with pool_of(made) as pool:
            pids = played(pool)[0].messages[0]["content"].split()
            assert len(pids) == 2 and all(map(running, pids))
            if ends == "left":
                pool.over(0)
            else:
                last = played(pool, "go", episode=1)[-1]
                assert last.done and last.error is None
                pids = last.answer.split()
            assert all(map(gone, pids))
    assert all(map(gone, pids))


GROWS = """
import subprocess
grow = "kept = [bytearray(1 << 24)]\\nwhile True: kept.append(bytearray(1 << 24))"
answer = ask([{"role": "user", "content": sys.stdin.read()}])["message"]["content"]
if answer == "grow":
    exec(grow)
if answer == "child":
    answer = str(subprocess.run([sys.executable, "-S", "-c", grow], capture_output=True).returncode)
print(answer)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
@pytest.mark.parametrize("shut_in", [False, True])
def test_a_program_that_takes_memory_without_end_is_an_error(shut_in, program):
    """Its episode is void, and no other; what it starts has the same limit."""
    if shut_in and runner.strongest().kind != "bubblewrap":
        pytest.skip("needs bubblewrap")
    with pool_of(program(GROWS, memory_mb=256, sandbox=shut_in)) as pool:
        played(pool, episode=1)
        grown = played(pool, "grow")[-1]
        assert grown.error.startswith("crash:") and "MemoryError" in grown.error
        assert grown.reward is None
        assert played(pool, "5", episode=1)[-1].answer == "5\n"
        assert played(pool, "child", episode=2)[-1].answer == "1\n"


SHUT_IN = """
import socket, urllib.request
said = [{"role": "user", "content": sys.stdin.read()}]
answer = ask(said)["message"]["content"]
reached = socket.socket().connect_ex(("127.0.0.1", int(answer)))
print(reached != 0, os.path.exists("HERE"), sorted(os.listdir(".")))
"""


def test_a_program_in_the_sandbox_reaches_the_policy_and_nothing_else(tmp_path):
    if runner.strongest().kind != "bubblewrap":
        pytest.skip("needs bubblewrap")
    file = tmp_path / "agent.py"
    file.write_text(HEAD + SHUT_IN.replace("HERE", str(tmp_path)))
    made = agent_program.environment([sys.executable, "-S", str(file)], 60.0, sandbox=True)
    with pool_of(made) as pool, socket.create_server(("127.0.0.1", 0)) as outside:
        opening, end = played(pool, str(outside.getsockname()[1]))
        assert opening.messages == ({"role": "user", "content": PROBLEM.prompt},)
        assert end.answer == "True False ['agent.py', 'gateway.socket', 'relay.py']\n"
        played(pool, episode=1)
        ended = threading.active_count()
        pool.over(1)
        for _ in range(100):
            if threading.active_count() < ended - 2:
                break
            time.sleep(0.1)
        assert threading.active_count() < ended - 2  # so the sandbox has ended


OUTLIVES = {
    "stops its parent": "os.kill(os.getppid(), signal.SIGSTOP)",
    "kills its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "leaves its session": "os.setsid()",
}


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("how", OUTLIVES)
@pytest.mark.parametrize("when", ["silent", "left"])
def test_a_program_in_the_sandbox_does_not_outlive_its_episode(how, when, tmp_path):
    """Whatever it does to the processes beside it there: they are ended from outside."""
    if runner.strongest().kind != "bubblewrap":
        pytest.skip("needs bubblewrap")
    source = "import signal, time\n"
    if when == "left":
        source += "ask([{'role': 'user', 'content': 'Hello'}])\n"
    name = f"{when} {how}.py".replace(" ", "_")
    (tmp_path / name).write_text(HEAD + source + OUTLIVES[how] + "\ntime.sleep(300)\n")
    threads = threading.active_count()
    made = agent_program.environment(
        [sys.executable, "-S", str(tmp_path / name)], 3.0, sandbox=True
    )
    with pool_of(made) as pool:
        said = played(pool, *(["Hi"] if when == "left" else []))
        assert said[0].error is None or when == "silent"
        pool.over(0)
        for _ in range(100):
            if ended := not processes_with(name) and threading.active_count() <= threads + 1:
                break
            time.sleep(0.1)
        assert ended  # one thread is the pool's


def test_the_weak_sandbox_is_refused_unless_it_is_allowed(program, monkeypatch):
    """Whoever plays the episode: a run has asked before, an adapter has not."""
    monkeypatch.setattr(runner, "strongest", lambda: runner.Isolation("rlimits", False))
    monkeypatch.setenv(runner.ALLOW_WEAK, "")
    task = dataclasses.replace(
        tasks.get("arithmetic"), turns=program(BEGUN, sandbox=True), sandboxed=True
    )
    with (
        contextlib.closing(adapters.Gym(task)) as gym,
        pytest.raises(RuntimeError, match=f"bubblewrap.*{runner.ALLOW_WEAK}=1"),
    ):
        gym.reset()
    runner.check(allow_weak=True)  # as a run with --sandbox.allow-weak does
    with contextlib.closing(adapters.Gym(task)) as gym:
        assert gym.reset()[1]["tools"][0]["function"]["name"] == "add"


def test_a_command_of_a_config_needs_trust():
    task_args = {"command": "python agent.py", "name": "gsm8k"}
    needed = {"command='python agent.py'"}
    assert untrusted.foreign({"task": "agent_program", "task_args": task_args}) == needed
    parts = json.dumps({"a": [1, "agent_program", task_args]})
    assert untrusted.foreign({"parts": parts}) == needed


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"command": "no-such-program"}, "is not found"),
        ({"command": ""}, "is not found"),
        ({"name": "keydoor"}, "one by one"),
        ({"seconds": 0}, "must be positive"),
        ({"roles": "assistant"}, "is none of"),
        ({"memory_mb": 0}, "must be positive"),
    ],
)
def test_programs_that_cannot_be_are_refused(params, why):
    with pytest.raises(ValueError, match=why):
        tasks.get("agent_program", **{"command": sys.executable} | params)


def test_the_streams_end_as_the_clients_expect():
    asked = dialects.Asked(SAID)
    names = [name for name, _ in pieces("messages", asked, Answer(2, "", (CALL,), TOKENS))]
    assert names[0] == "message_start" and names[-1] == "message_stop"
    last = pieces("responses", asked, Answer(2, "Hi", (CALL,), TOKENS))[-1]
    assert last[0] == "response.completed" and last[1]["response"]["id"] == "resp_2"


def test_of_equal_answers_each_is_quoted_as_it_was_written():
    """Two turns whose calls are equal but for their spelling; then the conversation is replaced."""
    raws = [f'<tool_call>{{"name": "add", "arguments": {a}}}</tool_call>' for a in
            ('{"a": 2, "b": 3}', '{"a":2,"b":3}')]  # fmt: skip
    episode = agent_program._Episode(["true"], 1.0, 64)
    try:
        asked = dialects.Asked((SAID[1],), tools=(FUNCTION,))
        for raw in raws:
            episode.pending = SimpleNamespace(asked=asked, answer=Future())
            episode.tools = asked.tools
            assert episode.say(raw) == 1
        first, second = episode.conversation
        assert first == second
        quoted = episode.messages([SAID[1], first, RESULT, second, RESULT])
        assert [each["content"] for each in quoted if each["role"] == "assistant"] == raws
    finally:
        episode.close()
