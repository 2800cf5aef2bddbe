"""Checks of recorded rollouts, whoever recorded them: readers, and what is wrong with each row."""
