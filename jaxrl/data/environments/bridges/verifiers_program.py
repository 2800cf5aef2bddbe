"""One rollout of an environment of verifiers, with the policy behind an API as its model.

    python verifiers_program.py '{"taskset": {"id": "my_taskset"}}' < NUMBER

`adapters.verifiers` runs this program for each episode. It reads the number of a task on standard
input, and writes the reward on standard output. Its Python needs the package `verifiers` (0.4 or
later), and nothing of jaxrl, as the requirements of the two may not go together.
"""

import asyncio
import itertools
import json
import os
import sys


async def rollout(env: dict[str, object], number: int) -> dict[str, object]:
    """Play a task of an environment; its reward and metrics, over all its traces.

    Args:
      env: what verifiers' own commands take as `env`: its taskset, its agents, their harnesses.
      number: of the task, in the order of the taskset.
    """
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.utils.loaders import load_environment

    address = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key_var": "OPENAI_API_KEY"}
    config = EvalConfig.model_validate({"env": env, "model": "policy", "client": address})
    environment = load_environment(config.env)
    task = next(itertools.islice(environment.taskset, number, None), None)
    if task is None:
        raise SystemExit(f"task {number}: the taskset has fewer; set `tasks` to how many it has")
    async with environment.serving():
        context = ModelContext(client=config.client, model=config.model, sampling=config.sampling)
        episode = await environment.run_episode(task, context)
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise SystemExit(f"task {number}: {[f'{error.type}: {error.message}' for error in errors]}")
    parts = {k: v for trace in episode.traces for k, v in trace.metrics.items() if v is not None}
    count = len(episode.traces)
    return {"reward": sum(trace.reward for trace in episode.traces) / count, "parts": parts}


if __name__ == "__main__":
    # what the environment prints, or a completion that it prints, can be no report
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as report:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        outcome = asyncio.run(rollout(json.loads(sys.argv[1]), int(sys.stdin.read())))
        report.write(json.dumps(outcome))
