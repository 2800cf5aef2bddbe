"""Rewards that a language model gives."""
