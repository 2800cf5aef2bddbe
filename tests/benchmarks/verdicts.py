"""How often a verifier is wrong about what a real model writes.

    python -m tests.benchmarks.verdicts sample OUT --data DATA
    python -m tests.benchmarks.verdicts judge OUT

`sample` asks SmolLM2-135M-Instruct (the `smollm2` extra) for one completion of each of 300 problems
of a task, temperature 0.7, in its chat template, and writes OUT/TASK.jsonl. `judge` compares the
verifier with a checker that shares no code with it, see `CHECKERS`, and prints each disagreement to
be read: the checker may be the one that is wrong. DATA is a directory with `gsm8k/train.jsonl` (as
published) and `math/problems.jsonl` (fields problem, solution, answer).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from jaxrl.data import tasks

BUDGETS = {
    "arithmetic": 24, "multiple_choice": 32, "json_output": 64, "sql": 40, "countdown": 40,
    "translation": 24, "next_segment": 24, "gsm8k": 120, "random_calculation": 40,
    "shortest_path": 40, "maze": 32, "sat": 40, "format_following": 40, "calibrated": 32,
    "code": 128, "math": 160,
}  # fmt: skip
"""Tasks, and tokens of a completion."""
COUNT = 300


def arguments(name: str, data: Path) -> dict[str, Any]:
    """Parameters of a task."""
    match name:
        case "gsm8k":
            return {"path": str(data / "gsm8k/train.jsonl")}
        case "math":
            return {"path": str(data / "math/problems.jsonl")}
        case "calibrated":
            return {"asks": " State your confidence as <confidence>0.8</confidence> at the end."}
    return {}


def sample(out: Path, data: Path, names: list[str]) -> None:
    """Write completions of each task that has none yet."""
    import jax

    from jaxrl.config import Config
    from jaxrl.mesh import mesh
    from jaxrl.rollout import policy
    from jaxrl.sampling import sampler
    from jaxrl.types import Request

    out.mkdir(parents=True, exist_ok=True)
    actor = policy.create(policy.named("smollm2-135m"), mesh.make(Config().mesh))
    params = policy.sampling_params(actor.params, "float32")
    for name in names:
        path = out / f"{name}.jsonl"
        if path.exists():
            continue
        start = time.monotonic()
        task = tasks.get(name, **arguments(name, data))
        problems = [task.problem("train", 0, i) for i in range(COUNT)]
        requests = []
        for i, problem in enumerate(problems):
            ids = policy.chat(actor.tokenizer, "", [{"role": "user", "content": problem.prompt}])
            requests.append(
                Request(i, prompt=tuple(ids), max_new_tokens=BUDGETS[name], temperature=0.7)
            )
        generated = sampler.generate(
            actor.model,
            params,
            requests,
            stop_ids=actor.tokenizer.eos_ids,
            key=jax.random.key(0),
            sampler=sampler.SamplerConfig(slots=32, chunk=16),
        )
        done = list(generated)
        texts = {c.request.id: actor.tokenizer.decode(c.tokens.tolist()) for c in done}
        lines = [json.dumps({"index": i, "text": texts[i]}) + "\n" for i in range(COUNT)]
        path.with_suffix(".part").write_text("".join(lines))
        path.with_suffix(".part").rename(path)
        tokens = sum(len(c.tokens) for c in done)
        print(f"{name}: {tokens} tokens in {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sample", "judge"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="*", default=list(BUDGETS))
    args = parser.parse_args()
    sample(args.out, args.data, args.tasks)


if __name__ == "__main__":
    main()
