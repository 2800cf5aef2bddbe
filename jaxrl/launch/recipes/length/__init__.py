"""How long completions are."""
