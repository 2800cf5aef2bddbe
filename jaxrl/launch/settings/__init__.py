"""From a command line, a file or Python to a config."""
