"""A simulated model server, for our tests and for yours.

    behaviour     options: capacity, latency, answers, faults
    replies       the content of replies: texts and vectors that no model computed
    service       the life of a request under these options, on any asyncio event loop
    virtual       VirtualServer: an endpoint without sockets, for schedulers in virtual time
    wires         what the wire formats have in common; ollama_wire, openai_wire: the two formats
    handler       HTTP requests, replies and faults
    server        ModelServer: the same behaviour behind real HTTP, in both protocols
    fixture       a pytest plugin with the fixture `model_server`

`python -m brim.llm.testing` runs the HTTP server as a process of its own. Nothing here computes with a model.
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
