"""Sampling: requests in, completions out, by continuous batching over a fixed set of slots.

`sampler` is the interface; `work` is its host-side state, `slots` its device state, `admission`
fills these with prompts that it prefills, and `decode` is the compiled decoding loop. `requests`
checks and resumes requests, `sampling` draws a token from logits, `logits` processes them, `search`
has best-of-n and beam search, and `warm_up` compiles ahead.
"""
