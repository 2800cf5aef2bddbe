"""Reinforcement beside demonstrations, hints and prefixes."""
