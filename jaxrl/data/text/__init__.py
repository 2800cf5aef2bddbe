"""Text and tokens: tokenizers, chat templates, and examples for fine-tuning."""
