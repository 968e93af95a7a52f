"""Query environments: questions are rewritten until a model answers them well. Every step asks language models.

    attempt      Question, Attempt, Reward: what a reward is given
    questions    questions from a file
    rewards      exact, numeric, agreement, similarity, judge; or any function
    compare      whether two answers say the same
    judge        the reward of a judge model, and its prompt
    config       options
    encoder      the vectors of queries, for observations
    task         what environments share, and the calls of a step
    lane         one environment as a coroutine
    lanes        many of them at once
    rollout      T steps of every environment, without a barrier between them
    env          QueryMutationEnv, for Gymnasium
    batched      BatchedQueryMutationEnv: step, send and recv, rollout
    scripted     a task without a real model: one mutator is best for each kind of question
    failures     how a step can fail

A call that fails makes its step invalid: truncated, with NaN for a reward and the reason in `info`. No reward is made
up.
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
