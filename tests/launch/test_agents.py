"""Agent programs, unchanged, trained from the command line."""

import json
import sys
import textwrap

import pytest

from jaxrl.data.environments.dialects import Answer
from jaxrl.data.environments.gateway import Gateway
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


def trained(tmp_path, source):
    """Metrics and rollouts of a run of two steps, behind this program."""
    (tmp_path / "agent.py").write_text(source)
    run = tmp_path / "run"
    command = f"{sys.executable} {tmp_path / 'agent.py'}"
    given = ["--task-args.command", command, "--task-args.name", "arithmetic"]
    given += ["--task-args.roles", "user", "--task-args.seconds", "300", "--run-dir", str(run)]
    assert cli.main(["serve", "--train", "quickstart", *TINY, *given]) == 0
    lines = (run / "rollouts" / "000001.jsonl").read_text().splitlines()
    return metrics.read(run), [json.loads(line) for line in lines]


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
@pytest.mark.broad
def test_the_documented_agent_is_trained_with_openais_client(tmp_path):
    pytest.importorskip("openai")
    (source,) = environments("openai.OpenAI()")
    assert len(source.strip().splitlines()) < 45
    rows, _ = trained(tmp_path, source)
    assert all(row["episode/errors"] == 0 and row["episode/turns"] >= 1 for row in rows)


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
