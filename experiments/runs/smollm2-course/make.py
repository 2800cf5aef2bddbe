"""Write the rows of the course: sums and differences, no problem in two files.

python experiments/runs/smollm2-course/make.py FOLDER
"""

import json
import random
import sys
from pathlib import Path


def wrong(answer: int, rng: random.Random) -> int:
    """An answer beside the right one: a slip in one digit, or the other sign."""
    slips = [answer + by for by in (-10, -2, -1, 1, 2, 10)] + ([-answer] if answer else [])
    return rng.choice(slips)


def main(folder: Path) -> None:
    """Write `sft.jsonl`, `pairs.jsonl`, `prompts.jsonl` and their held-out counterparts."""
    rng = random.Random(0)
    problems = [(a, sign, b) for a in range(1, 100) for sign in "+-" for b in range(1, 100)]
    rng.shuffle(problems)
    rows = ((f"{a} {sign} {b} =", a + b if sign == "+" else a - b) for a, sign, b in problems)
    counts = {
        "sft": 2000,
        "sft-test": 256,
        "pairs": 480,
        "pairs-test": 256,
        "prompts": 2000,
        "prompts-test": 256,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        taken = [next(rows) for _ in range(count)]
        if name.startswith("sft"):
            made = [{"prompt": text, "completion": str(answer)} for text, answer in taken]
        elif name.startswith("pairs"):
            made = [
                {"prompt": text, "chosen": str(answer), "rejected": str(wrong(answer, rng))}
                for text, answer in taken
            ]
        else:
            made = [{"prompt": text, "answer": str(answer)} for text, answer in taken]
        lines = "".join(f"{json.dumps(row)}\n" for row in made)
        (folder / f"{name}.jsonl").write_text(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
