"""Objectives on a policy's own samples."""
