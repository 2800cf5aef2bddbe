"""Preferences between completions, and reward models."""
