"""Many calls to language models at once, in the order asked.

    call           Call, Reply: a question, its answer, and how the answer came about
    failures       typed failures, as exceptions and as values
    config         options of a server and of a pool
    endpoint       the interface of a model server
    wire/          Ollama and OpenAI-compatible servers, over aiohttp
    embed/         embeddings computed in this process
    engine/        one queue for all servers: adaptive limits, retries, deadlines, hedging, statistics
    cache, trace   what is kept on disk
    pool           LLMPool: the engine behind functions that need no event loop
    ready          results as they are ready; pending: one that is waited for later
    batch_calls    batch_encode_queries, batch_mutate_queries, batch_query_target_model
    mutations/     the prompts by which a query is rewritten
    rating         prompts that ask a model to rate an answer, and the score in its reply
    measure        throughput and latency by requests at once
    checkup        whether a server is there, how fast it is, and what to change
    answers/       the files of `brim llm map` and `brim llm embed`, which resume after a kill
    llama          a real llama.cpp server on this machine
    testing/       a server to test against

Nothing here is made up: a call that failed is a failure, unless a fallback was asked for.
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
