"""Imitation of data and of teachers."""
