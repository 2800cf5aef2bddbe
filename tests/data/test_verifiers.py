"""Environments of verifiers: against a stand-in with the same names, and against the real one."""

import json
import os
import textwrap

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import play
from tests.data.test_bundled_environments import played

NAME = "jaxrl.data.environments.bridges.adapters:verifiers"

MODULES = {
    "clients": """
        class ModelContext:
            def __init__(self, client, model, sampling):
                self.client, self.model = client, model
    """,
    "configs/cli/eval": """
        import types

        class EvalConfig:
            @classmethod
            def model_validate(cls, given):
                made = {"env": given["env"], "model": given["model"], "sampling": None}
                return types.SimpleNamespace(client=given["client"], **made)
    """,
    "utils/loaders": """
        import contextlib, json, os, types, urllib.request

        def load_environment(config):
            assert config == {"taskset": {"id": "sums"}}
            return types.SimpleNamespace(
                taskset=[(1, 2), (3, 4)], serving=serving, run_episode=run_episode
            )

        @contextlib.asynccontextmanager
        async def serving():
            yield

        def ask(ctx, messages):
            request = urllib.request.Request(
                f"{ctx.client['base_url']}/chat/completions",
                json.dumps({"model": ctx.model, "messages": messages}).encode(),
                {"Authorization": f"Bearer {os.environ[ctx.client['api_key_var']]}"},
            )
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["choices"][0]["message"]

        async def run_episode(task, ctx):
            said = [{"role": "user", "content": f"What is {task[0]} + {task[1]}?"}]
            for _ in range(2):
                answer = ask(ctx, said)
                if answer["content"] == "fail":
                    error = types.SimpleNamespace(type="Fault", message="as asked")
                    return types.SimpleNamespace(ok=False, errors=[error], traces=[])
                right = float(answer["content"] == str(sum(task)))
                said += [answer, {"role": "user", "content": "Sure?"}]
            trace = types.SimpleNamespace(reward=right, metrics={"turns": 2.0, "none": None})
            return types.SimpleNamespace(ok=True, errors=[], traces=[trace])
    """,
}


def test_a_rollout_of_verifiers_is_an_episode(tmp_path, monkeypatch):
    for name, source in MODULES.items():
        path = tmp_path / "verifiers/v1" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    env = json.dumps({"taskset": {"id": "sums"}})
    task = tasks.get(NAME, env=env, tasks=2, held_out=1)
    assert task.sizes == {"train": 1, "test": 1}
    first, last = (task.problem(split, 0, 5) for split in ("train", "test"))
    assert (first.prompt, last.prompt) == ("0", "1")
    player = play.Player(task)
    opening, again, end = played(player.answer, last, "6", "7")
    assert opening.messages == ({"role": "user", "content": "What is 3 + 4?"},)
    assert again.messages == ({"role": "user", "content": "Sure?"},) and not again.done
    score = task.reward(last, end.answer)
    assert (score.value, dict(score.parts)) == (1.0, {"turns": 2.0})
    failed = played(player.answer, first, "fail", episode=1)[-1]
    assert "Fault: as asked" in failed.error
    player.close()
    few = tasks.get(NAME, env=env, tasks=3)
    over = played(play.Player(few).answer, few.problem("train", 0, 2), episode=2)[0]
    assert "the taskset has fewer" in over.error


def test_what_names_no_environment_is_refused():
    with pytest.raises(ValueError, match="0 <= held_out < tasks"):
        tasks.get(NAME, env="{}", tasks=2, held_out=2)
    with pytest.raises(ValueError, match="as a JSON object"):
        tasks.get(NAME, env="[]", tasks=2)


TASKSET = """
import verifiers.v1 as vf


class Sums(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        return [Sum(vf.TaskData(prompt=f"What is {n} + 1?")) for n in (1, 2)]


class Sum(vf.Task):
    @vf.reward
    async def right(self, task, trace) -> float:
        return float(trace.last_reply.strip() == str(int(task.prompt.split()[2]) + 1))


__all__ = ["Sums"]
"""


@pytest.mark.broad
@pytest.mark.skipif("VERIFIERS_PYTHON" not in os.environ, reason="names a Python with verifiers")
def test_a_rollout_of_the_real_package_is_an_episode(tmp_path, monkeypatch):
    (tmp_path / "sums_taskset.py").write_text(TASKSET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = json.dumps({"taskset": {"id": "sums_taskset"}, "agent": agent})
    task = tasks.get(NAME, env=env, tasks=2, python=os.environ["VERIFIERS_PYTHON"])
    player = play.Player(task)
    for n, (text, value) in enumerate((("3", 1.0), ("4", 0.0))):
        problem = task.problem("train", 0, 1)
        opening, end = played(player.answer, problem, text, episode=n)
        assert "What is 2 + 1?" in opening.messages[-1]["content"]
        assert task.reward(problem, end.answer).value == value
    player.close()
