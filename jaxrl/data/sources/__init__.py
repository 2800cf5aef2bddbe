"""Where problems and rows come from: files, generators, and the order in which they are drawn."""
