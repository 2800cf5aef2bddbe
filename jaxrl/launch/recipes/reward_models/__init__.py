"""Rewards of models and rubrics."""
