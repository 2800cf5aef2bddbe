"""jaxrl: reinforcement-learning post-training in JAX."""
