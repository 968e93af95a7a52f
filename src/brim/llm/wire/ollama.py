"""The protocol of Ollama: a call as a request, a reply as an answer.

Nothing is sent or received here. Ollama streams unless it is told not to; a server that streams all the same is
understood, because an error in the middle of a stream arrives with HTTP 200 and must not pass for an answer.

Durations: `total_duration` begins when the request arrives, so what is left of it after loading, reading the prompt and
writing the answer is the time the request waited. Embeddings report only the total, from which nothing follows.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import orjson

from brim.llm.call import Answer, Call, Kind
from brim.llm.failures import Rejected
from brim.llm.wire.address import Address
from brim.llm.wire.fields import add_extra, amount, bad, count, decoded, encoded, mapping, matrix, names, rows, text
from brim.llm.wire.logprobs import logprobs_of_entries
from brim.llm.wire.statuses import failure_of, failure_within

_PATHS: dict[Kind, str] = {"chat": "/api/chat", "complete": "/api/generate", "embed": "/api/embed"}
_SECOND = 1e9  # nanoseconds


class Ollama:
    """How one Ollama server is spoken to."""

    protocol: Literal["ollama", "openai"] = "ollama"

    def __init__(self, address: Address) -> None:
        self._address = address
        base = unversioned(address.path)
        self._paths = {kind: base + path for kind, path in _PATHS.items()}
        self.models_path = f"{base}/api/tags"
        self.loaded_path: str | None = f"{base}/api/ps"
        self.software: str | None = "ollama"

    def asks_models_before(self, call: Call) -> bool:
        """Whether the request for a call depends on the software of the server, which is not known yet."""
        return False

    def request(self, call: Call) -> tuple[str, bytes]:
        """Return the path and the body of the request.

        Raises:
            Rejected: The call cannot be written as JSON.
        """
        body: dict[str, Any] = {"model": call.model}
        if call.kind == "chat":
            body["messages"] = call.messages
        elif call.kind == "complete":
            body["prompt"] = call.prompt
        else:
            body["input"] = call.inputs
        body["stream"] = False
        if call.sampling.logprobs and call.kind != "embed":
            body["logprobs"] = True  # versions before 0.12.11 ignore it
        add_extra(self._address, call, body)
        if options := _options(call):
            body["options"] = self._merged(options, body.get("options"))
        return self._paths[call.kind], encoded(self._address, body)

    def answer(self, call: Call, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the answer in a reply.

        Raises:
            Failure: There is none.
        """
        if not 200 <= status < 300:
            raise failure_of(self._address, status, headers, body)
        reply = _joined(self._address, call, status, body) or decoded(self._address, body)
        if reply.get("error"):
            raise failure_within(self._address, status, reply)
        return self._embedded(call, reply) if call.kind == "embed" else self._written(call, reply)

    def models(self, status: int, headers: Mapping[str, str], body: bytes) -> list[str]:
        """Return the names in a list of models.

        Raises:
            Failure: There is none.
        """
        if not 200 <= status < 300:
            raise failure_of(self._address, status, headers, body)
        reply = decoded(self._address, body)
        return names(self._address, reply.get("models") or [], ("name", "model"))

    def nearby(self, models: Iterable[str]) -> list[str]:
        """Return the names by which models can be asked for: ":latest" may be left out."""
        return [name for model in models for name in dict.fromkeys((model.removesuffix(":latest"), model))]

    def advice(self, model: str) -> str:
        """Return how to get a model that is missing."""
        return f"Get it with: ollama pull {model}" if model else "Name a model"

    def _merged(self, options: dict[str, Any], given: Any) -> dict[str, Any]:
        """Return the call's own options and those of `extra`, which count more."""
        if given is not None and not isinstance(given, Mapping):
            raise Rejected('the further field "options" (extra) must be an object', server=self._address.name)
        return options | dict(cast(Mapping[str, Any], given or {}))

    def _embedded(self, call: Call, reply: Mapping[str, Any]) -> Answer:
        vectors = rows(reply.get("embeddings"))
        if vectors is None:
            raise bad(self._address, 'it has no "embeddings"')
        return Answer(
            vectors=matrix(self._address, vectors, len(call.inputs)),
            model=text(reply.get("model")) or call.model,
            prompt_tokens=count(reply.get("prompt_eval_count")),
        )

    def _written(self, call: Call, reply: Mapping[str, Any]) -> Answer:
        if reply.get("done") is False:
            raise bad(self._address, "it ends before the answer does")
        reason = text(reply.get("done_reason"))
        if reason in ("load", "unload"):
            raise bad(self._address, "the server took the call for a command to load a model; the prompt is empty")
        message = mapping(reply.get("message"))
        written = text(message.get("content") if call.kind == "chat" else reply.get("response"))
        if call.kind == "chat" and not written and message.get("tool_calls"):
            raise bad(self._address, "the model called a tool and wrote no text")
        if written is None:
            raise bad(self._address, 'it has no "message.content"' if call.kind == "chat" else 'it has no "response"')
        service, queue = _durations(reply)
        generated = count(reply.get("eval_count"))
        asked = call.sampling.logprobs
        return Answer(
            text=written,
            model=text(reply.get("model")) or call.model,
            finish_reason=reason,
            prompt_tokens=count(reply.get("prompt_eval_count")),
            completion_tokens=generated,
            logprobs=logprobs_of_entries(self._address, reply.get("logprobs"), generated) if asked else None,
            service_seconds=service,
            queue_seconds=queue,
        )


def unversioned(path: str) -> str:
    """Return the path before "/api": a URL may end in "/v1" or in "/api" itself."""
    return path.removesuffix("/v1").removesuffix("/api")


def has_model(models: Iterable[str], model: str) -> bool:
    """True if a server with these models can be asked for `model`: ":latest" may be left out."""
    listed = set(models)
    return model in listed or f"{model}:latest" in listed


def _options(call: Call) -> dict[str, Any]:
    sampling = call.sampling
    options: dict[str, Any] = {}
    if call.kind == "embed":
        return options
    if sampling.temperature is not None:
        options["temperature"] = sampling.temperature
    if sampling.seed is not None:
        options["seed"] = sampling.seed
    if sampling.max_tokens is not None:
        options["num_predict"] = sampling.max_tokens
    if sampling.top_p is not None:
        options["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        options["top_k"] = sampling.top_k
    if sampling.min_p is not None:
        options["min_p"] = sampling.min_p
    if sampling.stop:
        options["stop"] = sampling.stop
    return options


def _joined(address: Address, call: Call, status: int, body: bytes) -> dict[str, Any] | None:
    """Return the lines of a stream as one reply; None if the body is anything else, such as one object.

    Raises:
        Failure: A line is an error.
    """
    lines = body.splitlines()
    if len(lines) < 2 or not lines[0].startswith(b"{") or not lines[0].rstrip().endswith(b"}"):
        return None
    written: list[str] = []
    logprobs: list[Any] = []
    message: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for line in filter(bytes.strip, lines):
        try:
            last = mapping(orjson.loads(line))
        except ValueError:
            return None
        if last.get("error"):
            raise failure_within(address, status, last)
        message |= mapping(last.get("message"))
        written.append(text(mapping(last.get("message")).get("content")) or text(last.get("response")) or "")
        logprobs += rows(last.get("logprobs")) or []
    if len(written) == 1:
        return last
    if last.get("done") is not True:
        raise bad(address, "the server streams, although it was asked not to, and the stream ends early")
    whole = "".join(written)
    if logprobs:
        last["logprobs"] = logprobs
    return last | ({"message": message | {"content": whole}} if call.kind == "chat" else {"response": whole})


def _durations(reply: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the seconds of work and of waiting; None where the reply does not tell."""
    total = amount(reply, "total_duration")
    reading, writing = amount(reply, "prompt_eval_duration"), amount(reply, "eval_duration")
    if total is None or (reading is None and writing is None):
        return None, None
    worked = (amount(reply, "load_duration") or 0.0) + (reading or 0.0) + (writing or 0.0)
    return worked / _SECOND, max(total - worked, 0.0) / _SECOND
