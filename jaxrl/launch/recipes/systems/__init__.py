"""Schedules of sampling, scoring and training."""
