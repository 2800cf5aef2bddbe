"""Flax NNX modules and their weights."""
