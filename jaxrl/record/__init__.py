"""The run directory: checkpoints, metrics and every other file that a run writes.

`rundir` makes and locks it, `storage` reaches it on disk or in a bucket, `writer` saves checkpoints
and `checkpoint` reads them, `references` keeps the reference policies, `metrics` and `jsonl` append
rows, `process` watches the process and what asks it to stop, and `runs` reads a finished or live
run as tables.
"""
