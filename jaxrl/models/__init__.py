"""Decoders as Flax NNX modules, and how their weights are read and written."""
