"""The OpenAI protocol, as vLLM, SGLang, llama.cpp, `transformers serve` and hosted servers speak it.

Nothing is sent or received here. Vectors are put in order by their `index`: servers may send them in any order.

Some hosted servers refuse a request with a field that they do not know. Fields beyond the protocol are therefore sent
where a call needs them, and otherwise only to servers whose list of models says which software they are (`SOFTWARE`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from brim.llm.call import Answer, Call, Kind
from brim.llm.wire.address import Address
from brim.llm.wire.fields import (
    add_extra,
    amount,
    bad,
    count,
    decoded,
    encoded,
    mapping,
    matrix,
    names,
    rows,
    text,
    vector,
)
from brim.llm.wire.logprobs import logprobs_of_choice
from brim.llm.wire.statuses import failure_of, failure_within

_PATHS: dict[Kind, str] = {"chat": "/chat/completions", "complete": "/completions", "embed": "/embeddings"}
SOFTWARE = ("vllm", "sglang", "llamacpp")
"""Servers that know `top_k` and `min_p`, as their lists of models name them ("owned_by")."""
TELLS_IDS = ("vllm",)
"""Servers that know `return_token_ids`."""
_VERSION = re.compile(r"/v\d+\w*(/|$)")


class OpenAI:
    """How one server with the OpenAI protocol is spoken to."""

    protocol: Literal["ollama", "openai"] = "openai"

    def __init__(self, address: Address) -> None:
        self._address = address
        base = versioned(address.path)
        self._paths = {kind: base + path for kind, path in _PATHS.items()}
        self.models_path = f"{base}/models"
        self.loaded_path: str | None = None
        self.software: str | None = None
        # Newer models of OpenAI refuse max_tokens; other servers may not know the new name.
        self._chat_limit = "max_completion_tokens" if address.host == "api.openai.com" else "max_tokens"

    def asks_models_before(self, call: Call) -> bool:
        """Whether the request for a call depends on the software of the server, which is not known yet."""
        how = call.sampling
        return self.software is None and call.kind != "embed" and (how.logprobs or how.top_k == 0 or how.min_p == 0)

    def request(self, call: Call) -> tuple[str, bytes]:
        """Return the path and the body of the request.

        Raises:
            Rejected: The call cannot be written as JSON.
        """
        body: dict[str, Any] = {"model": call.model} if call.model else {}
        if call.kind == "embed":
            body["input"] = call.inputs
        else:
            if call.kind == "chat":
                body["messages"] = call.messages
            else:
                body["prompt"] = call.prompt
            body["stream"] = False
            self._add_options(call, body)
        add_extra(self._address, call, body)
        return self._paths[call.kind], encoded(self._address, body)

    def answer(self, call: Call, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the answer in a reply.

        Raises:
            Failure: There is none.
        """
        if not 200 <= status < 300:
            raise failure_of(self._address, status, headers, body)
        if body[:5] == b"data:":
            raise bad(self._address, "the server streams, although it was asked not to")
        reply = decoded(self._address, body)
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
        data = decoded(self._address, body).get("data")
        owners = [text(mapping(row).get("owned_by")) for row in rows(data) or ()]
        self.software = next((owner for owner in owners if owner in SOFTWARE), "")
        return names(self._address, data, ("id",))

    def nearby(self, models: Iterable[str]) -> list[str]:
        """Return the names by which models can be asked for."""
        return list(models)

    def advice(self, model: str) -> str:
        """Return how to get a model that is missing."""
        return "Name one of the models that the server has"

    def _add_options(self, call: Call, body: dict[str, Any]) -> None:
        sampling = call.sampling
        if sampling.max_tokens is not None:
            body[self._chat_limit if call.kind == "chat" else "max_tokens"] = sampling.max_tokens
        if sampling.temperature is not None:
            body["temperature"] = sampling.temperature
        if sampling.top_p is not None:
            body["top_p"] = sampling.top_p
        # Where these are missing, llama.cpp takes 40 and 0.05, and vLLM what the model's own files say.
        if sampling.top_k is not None and (sampling.top_k > 0 or self.software in SOFTWARE):
            body["top_k"] = sampling.top_k or -1  # not all of them take 0 for no limit
        if sampling.min_p is not None and (sampling.min_p > 0 or self.software in SOFTWARE):
            body["min_p"] = sampling.min_p
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = sampling.stop
        if sampling.logprobs and call.kind == "chat":
            # llama.cpp sends none if no alternatives are asked for, and 20 for each token if their number is missing.
            body["logprobs"] = True
            body["top_logprobs"] = 1
        elif sampling.logprobs:
            body["logprobs"] = 1
        if sampling.logprobs and self.software in TELLS_IDS:
            body["return_token_ids"] = True

    def _embedded(self, call: Call, reply: Mapping[str, Any]) -> Answer:
        data = rows(reply.get("data"))
        if data is None:
            raise bad(self._address, 'it has no "data"')
        expected = len(call.inputs)
        if len(data) != expected:
            raise bad(self._address, f"{expected} texts were sent and {len(data)} vectors came back")
        vectors: list[Any] = [None] * expected
        seen: set[int] = set()
        for row in map(mapping, data):
            index = row.get("index")
            if type(index) is not int or not 0 <= index < expected or index in seen:
                raise bad(
                    self._address, f'the "index" of a vector is missing, twice there or out of range: {index!r:.40}'
                )
            seen.add(index)
            vectors[index] = vector(row.get("embedding"))
        return Answer(
            vectors=matrix(self._address, vectors, expected),
            model=text(reply.get("model")) or call.model,
            prompt_tokens=count(mapping(reply.get("usage")).get("prompt_tokens")),
        )

    def _written(self, call: Call, reply: Mapping[str, Any]) -> Answer:
        choices = rows(reply.get("choices"))
        if not choices:
            raise bad(self._address, 'it has no "choices"')
        choice = mapping(choices[0])
        usage = mapping(reply.get("usage"))
        generated = count(usage.get("completion_tokens"))
        return Answer(
            text=self._content(choice) if call.kind == "chat" else self._continued(choice),
            model=text(reply.get("model")) or call.model,
            finish_reason=text(choice.get("finish_reason")),
            stop_reason=_stop_reason(choice),
            prompt_tokens=count(usage.get("prompt_tokens")),
            completion_tokens=generated,
            logprobs=logprobs_of_choice(self._address, choice, generated) if call.sampling.logprobs else None,
            service_seconds=_service(mapping(reply.get("timings"))),
        )

    def _content(self, choice: Mapping[str, Any]) -> str:
        message = mapping(choice.get("message"))
        content = message.get("content")
        if message.get("tool_calls") and not content:
            raise bad(self._address, "the model called a tool and wrote no text")
        if isinstance(content, str):
            return content
        if isinstance(content, list):  # some servers send a list of parts
            parts = [text(mapping(part).get("text")) for part in cast(list[Any], content)]
            if any(part is not None for part in parts):
                return "".join(part or "" for part in parts)
        if message.get("refusal"):
            raise bad(self._address, "the model refused to answer")
        raise bad(self._address, 'it has no "message.content"')

    def _continued(self, choice: Mapping[str, Any]) -> str:
        written = text(choice.get("text"))
        if written is None:
            raise bad(self._address, 'it has no "text"')
        return written


def versioned(path: str) -> str:
    """Return a path with a version, such as "/v1", which is added if none is there."""
    return path if _VERSION.search(path) else f"{path}/v1"


def _stop_reason(choice: Mapping[str, Any]) -> str | int | None:
    """Return what stopped an answer, as vLLM (`stop_reason`) and SGLang (`matched_stop`) tell it."""
    if choice.get("finish_reason") != "stop":
        return None
    for name in ("stop_reason", "matched_stop"):
        if name in choice:
            reason = choice[name]
            if reason is None:
                return ""
            return reason if type(reason) in (str, int) else None
    return None


def _service(timings: Mapping[str, Any]) -> float | None:
    """Return the seconds of work that llama.cpp reports; other servers report nothing."""
    reading, writing = amount(timings, "prompt_ms"), amount(timings, "predicted_ms")
    return None if reading is None and writing is None else ((reading or 0.0) + (writing or 0.0)) / 1000
