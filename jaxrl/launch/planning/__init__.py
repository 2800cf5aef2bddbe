"""Estimates of a run on hardware that is not present."""
