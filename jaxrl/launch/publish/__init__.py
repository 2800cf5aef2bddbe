"""Commands that write a model for others."""
