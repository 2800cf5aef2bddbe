"""Fits a table as a configuration says and predicts another: plain Python, run in a sandbox.

python micro_ml_fit.py FEATURES DEGREE RIDGE   reads train.csv and test.csv, prints predictions
"""

from __future__ import annotations

import csv
import sys


def predictions(
    train: list[list[float]], test: list[list[float]], columns: list[int], degree: int, ridge: float
) -> list[float]:
    """Ridge regression of the last column of `train`, without a penalty on the constant.

    Args:
      train: rows of features and target.
      test: rows of features.
      columns: of the features to use.
      degree: 2 adds their squares.
      ridge: the penalty, in rows; above 0.
    """

    def terms(row: list[float]) -> list[float]:
        return [1.0] + [row[c] ** p for c in columns for p in range(1, degree + 1)]

    width = 1 + len(columns) * degree
    system = [[ridge * (i == j > 0) for j in range(width)] + [0.0] for i in range(width)]
    for row in train:
        values = terms(row)
        for i, left in enumerate(values):
            for j, right in enumerate(values):
                system[i][j] += left * right
            system[i][width] += left * row[-1]
    weights = _solved(system)
    return [sum(w * v for w, v in zip(weights, terms(row), strict=True)) for row in test]


def _solved(system: list[list[float]]) -> list[float]:
    """Of linear equations [N, N + 1], by elimination with pivots."""
    size = len(system)
    for i in range(size):
        best = max(range(i, size), key=lambda r: abs(system[r][i]))
        system[i], system[best] = system[best], system[i]
        for r in range(size):
            if r != i:
                factor = system[r][i] / system[i][i]
                system[r] = [a - factor * b for a, b in zip(system[r], system[i], strict=True)]
    return [system[i][size] / system[i][i] for i in range(size)]


def _table(path: str) -> list[list[float]]:
    with open(path) as file:
        return [[float(value) for value in row] for row in csv.reader(file)]


if __name__ == "__main__":
    letters, power, penalty = sys.argv[1:]
    chosen = ["abcde".index(letter) for letter in letters]
    made = predictions(
        _table("train.csv"), _table("test.csv"), chosen, int(power), 10 ** (int(penalty) - 4)
    )
    print("\n".join(map(repr, made)))
