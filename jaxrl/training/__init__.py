"""Training: from a batch of trajectories to an optimizer update.

`packing` lays sequences out in rows, `placement` puts them on the mesh, `prepare` adds what the
objective needs before the first update, `objective` composes the loss, `train_step` accumulates its
gradient and updates, `optimizer` and `trainable` say how and which parameters. `critic`, `average`,
`kl_control` and `nucleus` carry state of their own beside the policy.
"""
