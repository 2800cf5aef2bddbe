"""The first messages of rows, environments and agents: one conversation has the same tokens."""

import itertools
import json

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Turn, play, unscored
from jaxrl.data.environments.bridges import dialects
from jaxrl.data.rewards import named
from jaxrl.data.text import dialogue
from jaxrl.data.types import Problem, Task
from jaxrl.rollout import policy
from tests.data.test_entrance import loaded, saved

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools{% for t in tools %}\n{{ t | tojson }}{% endfor %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
ARGUMENTS = {"city": "Århus", "days": 2}
TEXT = json.dumps(ARGUMENTS)
PARTS = ["Is it wärm?", [{"type": "text", "text": "Is it "}, {"type": "text", "text": "wärm?"}]]
RESULTS = ["21 °C", [{"type": "text", "text": "21 "}, {"type": "text", "text": "°C"}]]
NAMES = [
    ("user", "assistant", "tool"),
    ("human", "gpt", "observation"),
    ("User", "bot", "function"),
]
CALLS = [
    {
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": TEXT}}
        ]
    },
    {"tool_calls": [{"function": {"name": "weather", "arguments": ARGUMENTS}}]},
    {"function_call": {"name": "weather", "arguments": TEXT}},
    {
        "content": '<tool_call>\n{"name": "weather", "arguments": {"city": "Århus", "days": 2}}\n'
        "</tool_call>"
    },
]
TOOLS = [
    [{"type": "function", "function": FUNCTION}],
    [FUNCTION],
    [{**FUNCTION, "description": None}],
]


def spellings():
    """A conversation in which the policy writes next, in many spellings."""
    for asked, result, call, (user, assistant, tool), tools in itertools.product(
        PARTS, RESULTS, CALLS, NAMES, TOOLS
    ):
        turns = [
            {"role": user, "content": asked},
            {"role": assistant, "content": None, **call},
            {"role": tool, "content": result, "name": None},
        ]
        yield turns, tools


def of_environment(talk, turns, tools):
    """Tokens of an environment's opening."""
    world = Environment(
        lambda problem, seed: (None, Opening(tuple(turns), tools=tuple(tools))),
        None,
        ("user", "tool"),
    )
    task = Task("t", lambda split, seed, index: None, unscored, turns=world)
    said = play.Player(task).answer(Turn(0, Problem("p", "q", None), 0))
    assert said.error is None, said.error
    return talk.opening(said.messages, said.tools)


def of_row(tokenizer, folder, turns, tools):
    """Tokens of the prompt of a file."""
    path = saved(
        folder, {"prompt": turns, "tools": tools}, {"prompt": [{"role": "user", "content": "x"}]}
    )
    task = tasks.get(
        "file", path=path, rewards=named.to_json([named.parse("none")]), test_path=path
    )
    problem = task.problem("train", 0, 0)
    return tuple(policy.chat(tokenizer, "", problem.messages))


def of_agent(talk, path, body):
    """Tokens of the first request of a program."""
    asked = dialects.DIALECTS[path].read(body)
    messages = [{"role": said.role, "content": dialects.text(said)} for said in asked.messages]
    return talk.opening(messages, asked.tools)


@pytest.mark.exact("first messages of rows, environments and agents have the same tokens")
def test_all_spellings_of_first_messages_have_the_same_tokens(tmp_path):
    tokenizer = loaded(tmp_path / "model", TEMPLATE)
    talk = dialogue.of_model(tokenizer, ("user", "tool"), chat=True, tools=True)
    seen = set()
    for turns, tools in spellings():
        seen.add(of_environment(talk, turns, tools))
        seen.add(of_row(tokenizer, tmp_path, turns, tools))
    for asked, result, call in itertools.product(PARTS, RESULTS, (CALLS[0], CALLS[2])):
        turns = [
            {"role": "user", "content": asked}, {"role": "assistant", "content": None, **call},
            {"role": "tool", "content": result},
        ]  # fmt: skip
        seen.add(of_agent(talk, "chat/completions", {"messages": turns, "tools": TOOLS[0]}))
    for asked, result in itertools.product(PARTS, RESULTS):
        items = [
            {"role": "user", "content": asked},
            {"type": "function_call", "name": "weather", "arguments": TEXT, "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": result},
        ]
        body = {"input": items, "tools": [{"type": "function", **FUNCTION}]}
        seen.add(of_agent(talk, "responses", body))
        use = {"type": "tool_use", "id": "c1", "name": "weather", "input": ARGUMENTS}
        back = {"type": "tool_result", "tool_use_id": "c1", "content": result}
        turns = [
            {"role": "user", "content": asked}, {"role": "assistant", "content": [use]},
            {"role": "user", "content": [back]},
        ]  # fmt: skip
        schema = {"name": "weather", "input_schema": FUNCTION["parameters"]}
        seen.add(of_agent(talk, "messages", {"messages": turns, "tools": [schema]}))
    texts = {tokenizer.spelled(ids) for ids in seen}
    assert len(seen) == 1, "\n\n".join(texts)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "user", "content": [{"type": "image"}]}, "a part of type 'image'"),
        ({"role": "user", "content": 5}, "its content is 5"),
        ({"role": "critic", "content": "x"}, "a role of system, user, assistant"),
        ({"role": "user", "content": "x", "mood": "good"}, "'mood'"),
        ({"role": "assistant", "tool_calls": [{"arguments": {}}]}, "is no call"),
        ("hello", "no message with a role"),
    ],
)
def test_a_message_that_is_none_makes_the_episode_void(message, says):
    world = Environment(lambda problem, seed: (None, Opening((message,))), None)
    task = Task("t", lambda split, seed, index: None, unscored, turns=world)
    said = play.Player(task).answer(Turn(0, Problem("p", "q", None), 0))
    assert said.error.startswith("type: message") and says in said.error


def test_a_role_that_the_environment_names_stays(tmp_path):
    world = Environment(
        lambda p, s: (None, Opening(({"role": "observation", "content": "x"},))),
        None,
        ("observation",),
    )
    task = Task("t", lambda split, seed, index: None, unscored, turns=world)
    said = play.Player(task).answer(Turn(0, Problem("p", "q", None), 0))
    assert said.messages == ({"role": "observation", "content": "x"},)
