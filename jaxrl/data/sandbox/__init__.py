"""Running programs that are not trusted."""
