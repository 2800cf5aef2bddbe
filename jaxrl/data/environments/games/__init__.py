"""Games and dialogues."""
