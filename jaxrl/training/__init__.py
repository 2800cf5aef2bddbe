"""Training: from a batch of trajectories to an optimizer update.

`packing` packs sequences into rows, `logprobs` scores their actions, `objective` composes the loss,
and `train_step` accumulates its gradient and updates the parameters. `optimizer` makes the
optimizer, and `trainable` selects the trained parameters. `jaxrl.extensions` adds critics, moving
averages and more.
"""
