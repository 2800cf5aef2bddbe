"""The command `jaxrl` and the recipes."""
