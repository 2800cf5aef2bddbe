"""Weights of the named parts of a reward, as an argument that is a text."""

import math


def part_weights(text: str) -> dict[str, float]:
    """`correct=1,format=0.5` as weights by name, in the order of the names.

    Raises:
      ValueError: an entry of another form, a weight that is no finite number, or a name twice.
    """
    weights: dict[str, float] = {}
    for entry in str(text).split(",") if text != "" else ():
        name, _, number = entry.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name.strip() or not math.isfinite(weight) or name.strip() in weights:
            raise ValueError(
                f"weights={text!r}: {entry!r} is not NAME=NUMBER, or repeats a name; write the "
                "weight of each part of the reward, as in correct=1,format=0.5"
            )
        weights[name.strip()] = weight
    return dict(sorted(weights.items()))
