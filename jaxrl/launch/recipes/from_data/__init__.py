"""Learning from a file: fine-tuning, preferences, reward models, distillation."""
