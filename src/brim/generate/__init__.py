"""Generation and log-probabilities: G responses to each prompt, planned by length, and scored exactly.

    config         GenerationConfig, and the distribution that tokens are drawn from
    rollouts       the record: ragged columns of prompts, responses and their log-probabilities
    sequences      BatchedSequences and LogprobResults: the record as padded tensors and nested lists
    processor      SequenceProcessor: everything below behind one interface
    decode/        the loop that generates: a cache of rows that leave when they end and make room for others
    score/         teacher forcing: layouts, exact log-probabilities and entropies, with and without gradients
    stops          what ends a response
    prompts/       data sets of prompts with answers that can be checked
    rewards/       functions that say how good a response is, called with time limits and typed failures
    server         the same responses from a model server

Lengths are stored with the tokens and never inferred from token values.
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
