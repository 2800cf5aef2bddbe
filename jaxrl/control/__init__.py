"""Control on the same core: environments as pure functions, and training wholly inside jit."""
