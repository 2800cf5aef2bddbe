"""Divergences between policies, and their estimators."""
