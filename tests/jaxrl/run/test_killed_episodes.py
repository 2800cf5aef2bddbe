"""A run killed with episodes in flight, of every kind of environment, is continued exactly."""

import dataclasses
import json
import shlex
import sys

import pytest

from jaxrl.data import tasks
from jaxrl.record import checkpoint
from tests.data.test_agent_program import HEAD
from tests.jaxrl import tiny


def waiting(**arguments):
    """`ledger`, each of whose replies is asked on a thread of its own."""
    task = tasks.get("ledger", **arguments)
    own = {"name": f"{__name__}:waiting", "turns": task.turns._replace(waits=True)}
    return dataclasses.replace(task, **own)


AGENT = """
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
said, tries = [{"role": "user", "content": sys.stdin.read()}], 0
while tries < 4:
    choice = ask(said, tools=tools, logprobs=True)
    said.append(choice["message"])
    assert all(each["logprob"] < 0 for each in choice["logprobs"]["content"])
    tries += 1
    if choice["message"]["content"] and choice["message"]["content"][0] < "5":
        said = [*said[:1], {"role": "user", "content": "Again"}]  # another context
    else:
        said.append({"role": "tool", "content": str(len(said))})
print(choice["message"]["content"])
"""


LEDGER = {"task": "ledger", "task_args": {"names": 2, "calls": 6}, "rollout.turn_tokens": 3}
CASES = {
    "pure": {
        "task": "board_game", "rollout.turn_tokens": 2,
        "task_args": {"instructions": False, "symbols": True, "mistakes": 6},
    },
    "worker processes": {"task": "keydoor", "task_args": {"turns": 5}, "score_workers": 2},
    "tools": LEDGER,
    "branches": LEDGER | {"task_args": LEDGER["task_args"] | {"again": 4}, "score_workers": 2},
    "threads": LEDGER | {"task": f"{__name__}:waiting"},
    "curriculum": LEDGER | {"curriculum.choose": "difficulty_targeted", "curriculum.prompts": 16},
    "contexts": {
        "task": "html_form", "rollout.turn_tokens": 2,
        "task_args": {"fields": 1, "compress": True, "symbols": True},
    },
    "agent program": {
        "task": "agent_program", "rollout.turn_tokens": 2,
        "task_args": {
            "command": shlex.join([sys.executable, "-S", "-c", HEAD + AGENT]),
            "args": '{"digits": 1, "operators": "+"}', "seconds": 600,
        },
        "rollout.max_prompt_tokens": 400,
        "packing.row_length": 512, "packing.micro_batch_tokens": 1024,
    },
    "search": {"task": "retrieval", "task_args": {"hops": 1}, "rollout.turn_tokens": 1},
}  # fmt: skip
BROAD = {"branches", "agent program"}
"""Cases that have between them what the others have: tools, worker processes, replies that wait,
branches and contexts. The others are slow."""
SHORT = {
    "steps": 3, "warm_start.steps": 0, "eval.problems": 2, "eval.every": 0, "checkpoint.every": 1,
    "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 60, "rollout.in_flight": 1.5,
    "sampler.slots": 12, "packing.row_length": 128, "optimizer.learning_rate": 3e-3,
}  # fmt: skip


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("a run killed with episodes in flight, of any environment, is continued exactly")
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.broad if c in BROAD else pytest.mark.slow) for c in CASES],
)
def test_a_run_killed_with_episodes_in_flight_is_continued_exactly(case, tmp_path):
    """Tokens, rewards, log-probabilities, and all that is trained with them, byte for byte."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    changes = SHORT | CASES[case]
    tiny.finish(tiny.start(straight, **changes))
    assert tiny.kill_at(tiny.start(killed, **changes), "train 3")
    saved = checkpoint.path(killed, checkpoint.steps(killed)[-1]) / "host.json"
    groups = json.loads(saved.read_text())["rollouts"]["open_groups"]["groups"]
    assert groups, "no episode is in flight"
    assert "continuing" in tiny.finish(tiny.start(killed, **changes))
    made, wanted = tiny.artefacts(killed), tiny.artefacts(straight)
    logged = [json.loads(line) for each in wanted["texts"].values() for line in each.splitlines()]
    assert any(max(row["turn"], default=0) > 1 for row in logged)
    assert case not in ("tools", "branches", "threads") or any(row["tool_calls"] for row in logged)
    assert case not in ("agent program", "branches", "contexts") or any(
        "parent" in row for row in logged
    )
    for part, value in wanted.items():
        assert made[part] == value, part
