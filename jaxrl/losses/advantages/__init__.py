"""From rewards to advantages: baselines, credit, shaping and filters."""
