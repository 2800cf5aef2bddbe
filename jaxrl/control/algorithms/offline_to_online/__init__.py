"""Algorithms that begin with logged transitions and go on by acting."""
