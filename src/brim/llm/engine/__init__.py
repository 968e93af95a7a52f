"""The engine behind `LLMPool`: one queue for all servers.

    engine       calls wait in one queue and are bound to a server when it has a free slot; retries, deadlines, hedging
    routing      which server a call goes to
    job          a call under way, and one attempt to answer it
    waiting      calls that are not in flight, and the budget of retries
    joined       equal calls, of which one is asked
    deadlines    when calls end
    timer        one timer for all of them
    watch        requests that take too long
    results      replies, failures, lines of a trace
    server       one server: its free slots, its pauses, its circuit breaker, its figures
    limit        how many requests a server takes at once, found out while they run
    latencies    medians and their errors, by which the limit of a server is judged that reports nothing
    rates        requests and tokens per minute
    durations    recent latencies: percentiles, and the time after which a request is given up
    coalesce     texts that share a request for embeddings
    stats        counters

Everything runs on one event loop, a real one or one in virtual time, and knows servers only as `Endpoint`s.
"""
