"""Algorithms that learn from logged transitions."""
