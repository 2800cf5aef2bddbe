"""Tools that a policy calls, and the formats of its calls."""
