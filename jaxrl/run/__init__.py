"""A run: how it begins, its loop, its stages, and how it ends.

`loop.train` reads top to bottom. `begin` makes or restores the first state, `placement` puts
batches on the mesh, `stages` changes the config at declared steps, `evaluate` measures held-out
problems, `guards` and `signals` stop a run safely, and `warm_start` imitates solutions before the
RL.
"""
