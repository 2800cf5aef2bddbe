"""Algorithms for devices and web forms, in text."""
