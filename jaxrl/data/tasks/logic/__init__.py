"""Tasks of logic, paths and facts."""
