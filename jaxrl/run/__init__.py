"""A run: how it begins, its loop, its stages, and how it ends.

`loop.train` and `step.step` read top to bottom. `assemble` makes what a run consists of, `begin`
makes or restores the first state, `placement` puts batches on the mesh, `context` opens what a
stage works with, `evaluate` measures held-out problems, `guards` refuse bad updates, and
`warm_start` imitates solutions before the RL.
"""
