"""Where calls go: the interface of one model server.

`brim.llm.wire` has the endpoints that speak HTTP, `brim.llm.embed` those that compute in this process, and
`brim.llm.testing` those that only pretend, in virtual time. The engine knows nothing but this interface.
"""

from typing import Protocol

from brim.llm.call import Answer, Call


class Endpoint(Protocol):
    """One model server, used from one event loop."""

    @property
    def name(self) -> str:
        """Its address for people: without keys and passwords."""
        ...

    async def ask(self, call: Call) -> Answer:
        """Send one request and return its answer.

        It has no time limit of its own: whoever calls cancels it, and then the connection is closed, so that the server
        stops working on it.

        Raises:
            Failure: There is no answer. Nothing else is raised, whatever the server sends.
        """
        ...

    async def models(self) -> list[str]:
        """Return the names of the models that the server has; empty if it does not say.

        Raises:
            Failure: It cannot be asked.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
