"""Preferences between samples, online."""
