"""Measurements on an accelerator, in one command: `python -m tests.accelerator`."""
