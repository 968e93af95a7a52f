"""Waiting for servers, models and disks: the parts that everything which waits is made of.

    lanes          numbers go to workers, results come back in order, nobody runs too far ahead
    backoff        reconnect and retry with jittered exponential backoff, once for all lanes of a server
    clock          deadlines that stand still while the clock is paused
    together       ask once for all who wait: one model call for many lanes
    loop           an event loop in a thread of its own, for code that is not async
    ahead          an iterator that a thread runs a few items ahead
    virtual_time   a test tool: run a coroutine on a clock that jumps to the next timer

Nothing here knows what is being waited for: no games, no HTTP, no tensors. The parts fit together as follows.

Calls to several model servers, each with a limit of its own (`brim.llm`). One worker for every call that a server takes
at once; a call is bound to a server only when one of its workers is free, so a fast server takes more of them:

    workers = [Caller(server, backoff[server]) for server in servers for _ in range(server.limit)]
    lanes = Lanes(workers, stop=len(prompts))
    while (answer := await lanes.next()) is not None:
        number, text = answer

Environments that are stepped by calls to a model (`brim.envs.query`). Episodes are the keys; the model is asked once
for all of them:

    together = Together(model.rewrite, max_batch=32)
    together.begin(episode)
    rewritten = await together.ask(episode, query)
    together.end(episode)

Generation for requests that come whenever they come (`brim.generate`). Nobody begins, so a batch is what arrives within
10 ms:

    together = Together(generate, max_batch=64, max_wait=0.01)
    tokens = await together.ask(request_id, prompt)
"""
