"""Environments in which a policy searches or recalls facts."""
