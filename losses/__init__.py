"""Pure objectives: arrays in, unreduced arrays out. Nothing here knows a model, a config or a mesh."""
