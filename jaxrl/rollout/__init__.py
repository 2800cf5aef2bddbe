"""Rollouts: from problems to scored groups of completions.

`selection` chooses problems. A rollout program in `programs` samples and scores one group,
`drive` runs many programs over one sampler, and `collect` returns the groups of a step.
`experience` turns them into arrays and metrics. `policy` holds a model with its tokenizer, and
`reshard` copies its weights to the devices that sample. `history` and `rollout_log` write files.
"""
