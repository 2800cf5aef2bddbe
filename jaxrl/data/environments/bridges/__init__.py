"""Environments of other packages, programs and servers."""
