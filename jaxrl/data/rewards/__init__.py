"""Rewards: one protocol, `jaxrl.data.types.Reward`, and what it is built from.

A reward is `(problem, completion) -> Score`, or a coroutine function of that kind. Combinators take
rewards and give a reward; an error of any part is the error of the whole.
"""
