"""Environments of work: calculators, databases, forms, repositories, other models."""
