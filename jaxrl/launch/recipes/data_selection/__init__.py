"""Which prompts a step trains on."""
