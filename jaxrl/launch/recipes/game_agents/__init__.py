"""Agents in games, worlds and dialogues."""
