"""Commands that look at a run, a model or a file."""
