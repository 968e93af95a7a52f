"""Rewards for responses: plain functions `(prompt, response, example) -> number`, with weights and time limits.

    function    `reward`, which marks a function as batched or gives it a time limit
    outcome     Rewarded and RewardFailure: what becomes of a sample
    opening     open_rewards: rewards by name, from a module or from a file
    specs       the texts that name a reward, such as "0.2*format"
    builtin     exact, numeric, format, length, math-verify, reasoning-gym, answer
    judge       the reward of a judge model behind a server
    scoring     Rewards and Scoring: samples go in one by one, all results come out
    limits      time limits of functions that are not async
    loop        async functions in an event loop of their own

A function that raises, takes too long or returns no finite number is a failure of its sample, never a reward of 0.
Nothing here imports torch.
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
