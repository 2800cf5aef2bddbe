"""Objectives on samples of an older policy."""
