"""Critics and value functions."""
