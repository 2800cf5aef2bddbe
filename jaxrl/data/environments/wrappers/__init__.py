"""Environments around another environment."""
