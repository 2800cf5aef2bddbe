"""Worker processes that score completions and play environments."""
