"""Pure objectives: arrays in, unreduced arrays out; no model, no config, no mesh."""
