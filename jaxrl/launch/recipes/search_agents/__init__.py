"""Agents that search."""
