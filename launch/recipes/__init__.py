"""One file a method or a ready-made run."""
