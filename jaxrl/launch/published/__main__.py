"""Prints the table of published and simulated figures."""

from jaxrl.launch.published import table

print(table())
