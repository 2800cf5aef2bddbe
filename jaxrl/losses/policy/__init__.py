"""Policy objectives: a loss per token from log-probabilities and advantages."""
