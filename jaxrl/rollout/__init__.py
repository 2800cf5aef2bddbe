"""Rollouts: from problems to scored groups of completions.

`selection` chooses problems. `programs` says how a group comes about, `driver` runs many of them
over one sampler, and `collect` makes a step's batch. `experience` is that batch, as arrays and as
figures. `policy` holds a model with its tokenizer, and `reshard` brings its weights to the devices
that sample. `history` and `rollout_log` write what happened.
"""
