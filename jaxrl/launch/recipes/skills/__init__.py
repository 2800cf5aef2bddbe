"""Mid-training, mixtures and stages before reinforcement."""
