"""Whole runs for this machine, with their model and task."""
