"""Rewards of rules, references and the policy itself."""
