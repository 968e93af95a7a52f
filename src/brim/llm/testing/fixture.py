"""A pytest plugin with one fixture, `model_server`, which makes simulated model servers and stops them after the test.

Add `pytest_plugins = ["brim.llm.testing.fixture"]` to a test module or to conftest.py. Nothing else in brim.llm.testing
imports pytest.

Example:
    def test_a_call_is_answered(model_server):
        server = model_server(slots=4, latency=0.01)
        with LLMPool(server.url, model="test") as pool:
            assert pool.map(["hello"])[0].text == "answer to: hello"
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from brim.llm.testing.behaviour import Behaviour
from brim.llm.testing.handler import WIRES, WireName
from brim.llm.testing.server import ModelServer


class MakeServer(Protocol):
    """Starts a server that is stopped when the test ends. The options are those of `ModelServer`."""

    def __call__(
        self,
        behaviour: Behaviour | None = None,
        *,
        port: int = 0,
        protocols: Sequence[WireName] = WIRES,
        require_key: str | None = None,
        **options: Any,
    ) -> ModelServer: ...


@pytest.fixture
def model_server() -> Iterator[MakeServer]:
    """A function that starts a `ModelServer`; call it as often as the test needs servers."""
    with ExitStack() as servers:

        def start(behaviour: Behaviour | None = None, **options: Any) -> ModelServer:
            return servers.enter_context(ModelServer(behaviour, **options))

        yield start
