"""Agents that call tools and write programs."""
