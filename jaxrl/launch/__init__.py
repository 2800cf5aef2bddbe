"""The command `jaxrl`, the recipes, and the experiments that measure them."""
