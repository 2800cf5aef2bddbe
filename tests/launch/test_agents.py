"""Agent programs, unchanged, trained from the command line."""

import json
import re
import sys
import textwrap

import pytest

from jaxrl.data.environments.bridges.dialects import Answer
from jaxrl.data.environments.bridges.gateway import Gateway
from jaxrl.data.environments.tools import formats
from jaxrl.data.environments.tools.formats import Call
from jaxrl.launch import cli
from jaxrl.record import metrics
from tests.data.test_agent_program import CALL, HEAD, TOKENS
from tests.data.test_docs import environments

TINY = [
    *("--model", "fresh", "--steps", "2", "--warm-start.steps", "0", "--eval.problems", "1"),
    *("--fresh.hidden-size", "32", "--fresh.num-layers", "2", "--fresh.intermediate-size", "64"),
    *("--rollout.prompts", "1", "--rollout.group-size", "2", "--rollout.max-prompt-tokens", "600"),
    *("--rollout.max-new-tokens", "64", "--rollout.turn-tokens", "6"),
    *("--sampler.slots", "2", "--sampler.prefill-rows", "2"),
    *("--packing.micro-batch-tokens", "1024", "--packing.row-length", "1024"),
]
TWICE = """
said = [{"role": "user", "content": sys.stdin.read()}]
for _ in range(2):
    said += [ask(said, stop="+")["message"], {"role": "user", "content": "And now?"}]
print(said[-2]["content"])
"""


def trained(tmp_path, source, *more):
    """Metrics and rollouts of a run of two steps, behind this program; `more` are flags."""
    (tmp_path / "agent.py").write_text(source)
    run = tmp_path / "run"
    command = f"{sys.executable} {tmp_path / 'agent.py'}"
    given = ["--task-args.command", command, "--task-args.name", "arithmetic"]
    given += ["--task-args.roles", "user", "--task-args.seconds", "300", "--run-dir", str(run)]
    given += more
    assert cli.main(["serve", "--train", "quickstart", *TINY, *given]) == 0
    lines = (run / "rollouts" / "000001.jsonl").read_text().splitlines()
    return metrics.read(run), [json.loads(line) for line in lines]


@pytest.mark.broad
def test_every_turn_that_a_program_asked_for_is_trained_as_sampled(tmp_path):
    rows, logged = trained(tmp_path, HEAD + textwrap.dedent(TWICE))
    assert len(rows) == 2
    for row in rows:
        assert row["episode/turns"] == 2 and row["episode/errors"] == 0
        assert row["logp_gap_max"] < 1e-4
    for each in logged:
        kinds, tokens = each["source"], each["tokens"]
        seen = "".join(t for t, kind in zip(tokens, kinds, strict=True) if kind == "tool")
        assert seen == "\nAnd now?\n"  # once: it was not read again with the second request
        assert each["error"] is None and each["reward"] is not None


@pytest.mark.parity
@pytest.mark.slow
def test_the_documented_agent_is_trained_with_openais_client(tmp_path):
    pytest.importorskip("openai")
    rows, _ = trained(tmp_path, documented())
    assert all(row["episode/errors"] == 0 and row["episode/turns"] >= 1 for row in rows)


def documented():
    """The program of docs/environments.md."""
    (source,) = environments("openai.OpenAI()")
    return source


def test_the_documented_agent_has_at_most_40_lines():
    assert len(documented().strip().splitlines()) <= 40


def adder(rng):
    """A policy that calls `add` with the numbers of `25-84=`, and then says what it gives."""

    def turn(shown):
        numbers = re.fullmatch(r"(\d+)([+-]\d+)=\n?", shown)
        if numbers is None:
            return shown
        a, b = map(int, numbers.groups())
        return formats.write_call(Call("add", {"a": a, "b": b}))

    return turn


CLIENT = """
import json, os, types, urllib.request

class Message(types.SimpleNamespace):
    tool_calls = None

class OpenAI:
    def __init__(self):
        self.chat = types.SimpleNamespace(completions=self)

    def create(self, **body):
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            choice = json.load(answer)["choices"][0]
        message = json.loads(json.dumps(choice["message"]), object_hook=lambda o: Message(**o))
        message.model_dump = lambda exclude_none: choice["message"]
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])
"""


@pytest.mark.broad
@pytest.mark.parametrize(
    "client",
    [
        pytest.param("stub", marks=pytest.mark.slow),
        pytest.param("openai", marks=pytest.mark.parity),
    ],
)
def test_the_documented_agent_calls_its_tool_and_is_trained(client, tmp_path):
    """The policy is a script. Its calls are run by the program, and the sum earns the reward."""
    if client == "openai":
        pytest.importorskip("openai")
    else:
        (tmp_path / "openai.py").write_text(CLIENT)  # which the program finds beside it
    scripted = ["--with", "logged", "--logged.player", f"{__name__}:adder"]
    scripted += ["--objective.policy", "sft", "--rollout.turn-tokens", "100"]
    scripted += ["--rollout.max-new-tokens", "200", "--task-args.roles", "tool"]
    rows, logged = trained(tmp_path, documented(), *scripted)
    for row in rows:
        assert row["episode/turns"] == 2 and row["episode/tool_calls"] == 1
        assert row["episode/errors"] == 0 and row["reward/mean"] == 1 and row["grad_norm"] > 0
    for each in logged:
        assert set(each["source"]) == {"expert", "tool"} and each["turn_rewards"] == [0, 1]
        called = formats.HERMES.read(each["completion"])[1]
        assert [call.name for call in called] == ["add"]


@pytest.fixture
def base():
    """The address of an episode in which every turn calls a tool."""

    def answer(pending):
        pending.answer.set_result(Answer(1, "I add.", (CALL,), TOKENS))

    gateway = Gateway(answer)
    yield gateway.base
    gateway.close()


ADD = {"name": "add", "description": "sums", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parity
def test_openais_client_reads_answers_whole_and_streamed(base):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        asked = dict(model="policy", messages=[{"role": "user", "content": "Hello"}])
        asked |= dict(tools=[{"type": "function", "function": ADD}], logprobs=True)
        whole = client.chat.completions.create(**asked).choices[0]
        assert whole.message.content == "I add." and whole.finish_reason == "tool_calls"
        assert [e.logprob for e in whole.logprobs.content] == [-0.5, -0.25]
        chunks = [c.choices[0] for c in client.chat.completions.create(**asked, stream=True)]
        (call,) = [call for c in chunks for call in c.delta.tool_calls or ()]
        assert json.loads(call.function.arguments) == CALL.arguments
        assert call.id == whole.message.tool_calls[0].id
        tools = [{"type": "function", **ADD}]
        made = client.responses.create(model="policy", input="Hello", tools=tools)
        assert made.output_text == "I add." and json.loads(made.output[1].arguments) == {
            "a": 2,
            "b": 3,
        }
        with client.responses.stream(model="policy", input="Hello", tools=tools) as stream:
            kinds = [event.type for event in stream]
            assert stream.get_final_response().output_text == "I add."
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


@pytest.mark.parity
def test_anthropics_client_reads_answers_whole_and_streamed(base):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        asked = dict(model="policy", messages=[{"role": "user", "content": "Hello"}], max_tokens=9)
        made = client.messages.create(**asked)
        assert made.stop_reason == "tool_use" and made.content[0].text == "I add."
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        assert final.content[1].input == CALL.arguments == made.content[1].input


@pytest.mark.parity
def test_the_clients_are_told_that_a_turn_was_cut():
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    gateway = Gateway(
        lambda pending: pending.answer.set_result(Answer(1, "I th", (), TOKENS, cut=True))
    )
    base, given = gateway.base, dict(api_key="none", max_retries=0)
    chat = dict(model="policy", messages=[{"role": "user", "content": "Hello"}])
    with openai.OpenAI(base_url=f"{base}/v1", **given) as client:
        made = client.chat.completions.create(**chat)
        assert made.choices[0].finish_reason == "length"
        options = {"include_usage": True}
        chunks = client.chat.completions.create(**chat, stream=True, stream_options=options)
        *parts, last = chunks
        assert parts[-1].choices[0].finish_reason == "length"
        assert not last.choices and last.usage == made.usage
        made = client.responses.create(model="policy", input="Hello")
        assert made.status == made.output[0].status == "incomplete"
        assert made.incomplete_details.reason == "max_output_tokens"
        with client.responses.stream(model="policy", input="Hello") as stream:
            (*_, last) = stream
        assert last.type == "response.incomplete" and last.response.status == "incomplete"
    with anthropic.Anthropic(base_url=base, **given) as client:
        assert client.messages.create(**chat, max_tokens=9).stop_reason == "max_tokens"
        with client.messages.stream(**chat, max_tokens=9) as stream:
            assert stream.get_final_message().stop_reason == "max_tokens"
    gateway.close()
