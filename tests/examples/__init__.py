"""Files of a user, outside the package."""
