"""Tokenizers as GGUF files hold them."""
