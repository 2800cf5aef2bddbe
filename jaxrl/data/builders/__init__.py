"""Builders of TFDS data sets."""
