"""Tables of recipes, tasks, losses and modules."""
