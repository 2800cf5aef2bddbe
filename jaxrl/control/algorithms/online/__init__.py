"""Algorithms that act while they learn."""
