"""An embedder in the place of a server, so that a pool asks a model in this process as it asks any other.

The model runs in one thread of its own: the event loop goes on, and two requests never run at the same time. A request
that is cancelled before its turn is not computed; one that is running is computed to its end, and its result is
dropped.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import BrimError
from brim.llm.call import Answer, Call
from brim.llm.embed.base import Embedder
from brim.llm.failures import ModelMissing, Rejected, ServerFailed, ServerLost


class InProcessEndpoint:
    """An `Endpoint` that answers calls for embeddings by a model in this process."""

    limit = 1
    """Requests at once."""
    embed_batch = 1024
    """Upper limit of the texts in a request. The embedder forms batches by length, and better ones from many texts."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-embed")
        self._closed = False

    @property
    def name(self) -> str:
        return f"in-process:{self.embedder.name}"

    async def ask(self, call: Call) -> Answer:
        """Embed the inputs of a call.

        Raises:
            Rejected: The call does not ask for embeddings, or its inputs are not texts.
            ModelMissing: It asks for another model.
            ServerFailed: The model failed, for want of memory, say.
            ServerLost: The endpoint is closed.
        """
        if self._closed:
            raise ServerLost("the endpoint is closed", server=self.name)
        if call.kind != "embed":
            raise Rejected(f"the model {self.embedder.name} computes embeddings, and this is a {call.kind} call")
        if call.model not in ("", self.embedder.name):
            raise ModelMissing(
                f"there is no model {call.model!r} here, only {self.embedder.name!r}", server=self.name, status=404
            )
        asked = time.monotonic()

        def run() -> tuple[NDArray[np.float32], float, float]:
            began = time.monotonic()
            vectors = self.embedder.encode(call.inputs)
            return vectors, began - asked, time.monotonic() - began

        try:
            vectors, waited, worked = await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except BrimError as error:
            raise Rejected(str(error), server=self.name, status=400) from error
        except Exception as error:  # whatever a model raises: the interface promises a Failure
            reason = (str(error).splitlines() or [""])[0]
            raise ServerFailed(f"the model failed: {type(error).__name__}: {reason}", server=self.name) from error
        return Answer(vectors=vectors, model=self.embedder.name, service_seconds=worked, queue_seconds=waited)

    async def models(self) -> list[str]:
        return [self.embedder.name]

    async def close(self) -> None:
        """End the thread after the requests that it has."""
        self._closed = True
        self._thread.shutdown(wait=False)
