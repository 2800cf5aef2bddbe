"""Imitation, and what it does beside reinforcement."""
