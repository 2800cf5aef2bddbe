"""Rewards that run programs and queries."""
