"""Programming languages, a YAML file each."""
