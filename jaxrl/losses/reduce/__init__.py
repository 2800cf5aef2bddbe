"""From per-token values to a scalar: masks, aggregation, checks of shapes."""
