"""The command `python -m experiments effects`: plans, results and pages of effects."""
