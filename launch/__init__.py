"""The door: the command line, configs and recipes."""
