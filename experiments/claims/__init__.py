"""Claims of the recipes: a module each, whose `effect()` says what is compared."""
