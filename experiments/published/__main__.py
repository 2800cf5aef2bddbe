"""Prints the table of published and simulated figures."""

from experiments.published import table

print(table())
