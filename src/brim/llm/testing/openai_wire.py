"""The OpenAI-compatible protocol (`/v1/...`), as the test server speaks it.

Errors have the types that Ollama's layer for this protocol uses; `timings` are those of llama.cpp, in milliseconds. A
list of prompts for `/v1/completions` takes one slot, as a list of texts to embed does. `Behaviour.software` decides
what differs between servers: the form of log-probs, ids of tokens, and whether the stop is told.
"""

import base64
import time
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.llm.call import Call
from brim.llm.testing.behaviour import Refusal
from brim.llm.testing.replies import token_facts, token_texts
from brim.llm.testing.service import Request, Service
from brim.llm.testing.wires import message_list, sampling, text_list, to_json


class OpenAIWire:
    """Bodies of requests and replies in the protocol of OpenAI."""

    calls: frozenset[str] = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings"))
    stream_type = "text/event-stream"

    def __init__(self, service: Service) -> None:
        self._service = service

    def call(self, path: str, body: dict[str, Any]) -> Call:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise Refusal("you must provide a model parameter")
        if path == "/v1/embeddings":
            return Call(kind="embed", model=model, inputs=text_list(body.get("input"), "input"))
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        extra = {name: value for name, value in body.items() if name not in _KNOWN}
        how = sampling(body, max_tokens=most, logprobs=_asks_logprobs(path, body), extra=extra)
        if path == "/v1/chat/completions":
            messages = message_list(body.get("messages"))
            if not messages:
                raise Refusal("[] is too short - 'messages'")
            return Call(kind="chat", model=model, messages=messages, sampling=how)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return Call(kind="complete", model=model, prompt=prompt, sampling=how)
        prompts = text_list(prompt, "prompt")
        if not prompts:
            raise Refusal("[] is too short - 'prompt'")
        return Call(kind="complete", model=model, inputs=prompts, sampling=how)

    def streams(self, path: str, body: dict[str, Any]) -> bool:
        return path != "/v1/embeddings" and body.get("stream") is True

    def reply(self, request: Request) -> bytes:
        if request.call.kind == "embed":
            return self._embeddings(request)
        chat = request.call.kind == "chat"
        choices: list[dict[str, Any]] = []
        for index, (text, reason) in enumerate(zip(request.content.texts, request.content.reasons, strict=True)):
            content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            logprobs = self._logprobs(request, token_texts(text))
            choice = {"index": index, **content, "finish_reason": reason, "logprobs": logprobs}
            choices.append(choice | self._vllm(request, index))
        reply = self._head(request, "chat.completion" if chat else "text_completion") | {"choices": choices}
        return to_json(reply | {"usage": _usage(request)} | self._timings(request))

    def pieces(self, request: Request) -> list[bytes]:
        head = self._chunk_head(request)
        chat = request.call.kind == "chat"
        pieces: list[bytes] = []
        for index, text in enumerate(request.content.texts):
            for token in token_texts(text):
                content = {"delta": {"role": "assistant", "content": token}} if chat else {"text": token}
                choice = {"index": index, **content, "finish_reason": None}
                if logprobs := self._logprobs(request, [token]):
                    choice["logprobs"] = logprobs
                pieces.append(_event(head | {"choices": [choice]}))
        return pieces

    def last(self, request: Request) -> bytes:
        head = self._chunk_head(request)
        content: dict[str, Any] = {"delta": {}} if request.call.kind == "chat" else {"text": ""}
        ends = [
            {"index": index, **content, "finish_reason": reason} for index, reason in enumerate(request.content.reasons)
        ]
        events = [_event(head | {"choices": ends} | self._timings(request))]
        if (request.body.get("stream_options") or {}).get("include_usage"):
            events.append(_event(head | {"choices": [], "usage": _usage(request)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error(self, status: int, message: str) -> bytes:
        if status == 401:
            error = _error("Incorrect API key provided.", "invalid_request_error", code="invalid_api_key")
        else:
            kinds = {400: "invalid_request_error", 404: "not_found_error"}
            error = _error(message, kinds.get(status, "api_error"))
        return to_json(error)

    def missing(self, path: str, model: str) -> bytes:
        return self.error(404, f"model '{model}' not found")

    def error_piece(self, message: str) -> bytes:
        return _event(_error(message, "api_error"))

    def information(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        if method not in ("GET", "HEAD"):
            return None
        if path == "/health":
            return 200, to_json({"status": "ok"})
        if path == "/v1/models":
            return 200, to_json({"object": "list", "data": [self._listed(name) for name in self._service.models()]})
        if path.startswith("/v1/models/"):
            name = path.removeprefix("/v1/models/")
            if name and self._service.has(name):
                return 200, to_json(self._listed(name))
            return 404, self.missing(path, name)
        return None

    def _listed(self, name: str) -> dict[str, Any]:
        """Return a model in a list of models."""
        owner = _OWNERS[self._service.behaviour.software]
        return {"id": name, "object": "model", "created": 1767225600, "owned_by": owner}

    def _logprobs(self, request: Request, tokens: list[str]) -> dict[str, Any] | None:
        """Return the log-probs of tokens in the form that the software has for this kind of call."""
        behaviour = self._service.behaviour
        if not request.call.sampling.logprobs or not behaviour.reports_logprobs:
            return None
        if request.call.kind == "chat" or behaviour.software == "llama.cpp":
            return {"content": [_entry(token, with_id=behaviour.software == "llama.cpp") for token in tokens]}
        ends = list(accumulate(map(len, tokens)))
        return {
            "tokens": tokens,
            "token_logprobs": [token_facts(token)[1] for token in tokens],
            "top_logprobs": [{token: token_facts(token)[1]} for token in tokens],
            "text_offset": [end - len(token) for token, end in zip(tokens, ends, strict=True)],
        }

    def _vllm(self, request: Request, index: int) -> dict[str, Any]:
        """Return the fields of a choice that vLLM alone has."""
        if self._service.behaviour.software != "vllm":
            return {}
        tokens = token_texts(request.content.texts[index])
        told = request.body.get("return_token_ids") is True
        ids = [token_facts(token)[0] for token in tokens] if told else None
        return {"stop_reason": request.content.stopped_by[index] or None, "token_ids": ids}

    def _embeddings(self, request: Request) -> bytes:
        vectors = request.content.vectors
        assert vectors is not None, "requests for embeddings have vectors"
        encode = _base64 if request.body.get("encoding_format") == "base64" else _as_is
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ]
        if request.fault == "short_embeddings":
            data = data[:-1]
        if request.fault == "shuffled_embeddings":
            turn = 1 + int(request.luck * (len(data) - 1)) if len(data) > 1 else 0
            data = data[turn:] + data[:turn]
        usage = {"prompt_tokens": request.content.prompt_tokens, "total_tokens": request.content.prompt_tokens}
        return to_json({"object": "list", "data": data, "model": request.call.model, "usage": usage})

    def _head(self, request: Request, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if request.call.kind == "chat" else "cmpl"
        return {
            "id": f"{prefix}-{request.number}",
            "object": kind,
            "created": int(time.time()),
            "model": request.call.model,
            "system_fingerprint": "fp_test",
        }

    def _chunk_head(self, request: Request) -> dict[str, Any]:
        return self._head(request, "chat.completion.chunk" if request.call.kind == "chat" else "text_completion")

    def _timings(self, request: Request) -> dict[str, Any]:
        if not self._service.behaviour.reports_durations:
            return {}
        durations = request.durations()
        timings = {
            "prompt_n": request.content.prompt_tokens,
            "prompt_ms": durations.prompt * 1e3,
            "predicted_n": request.content.completion_tokens,
            "predicted_ms": durations.answer * 1e3,
        }
        return {"timings": timings}


_KNOWN = frozenset(
    (
        "model",
        "prompt",
        "messages",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
    )
)
_OWNERS = {"openai": "test", "vllm": "vllm", "llama.cpp": "llamacpp"}


def _asks_logprobs(path: str, body: dict[str, Any]) -> bool:
    """Whether a request asks for log-probs: a chat by true, a completion by the number of alternatives.

    Raises:
        Refusal: The value is of another type.
    """
    given = body.get("logprobs")
    if path == "/v1/chat/completions":
        if given is not None and not isinstance(given, bool):
            raise Refusal("logprobs must be a boolean")
        return given is True
    if given is not None and type(given) is not int:
        raise Refusal("logprobs must be an integer")
    return given is not None


def _entry(token: str, *, with_id: bool) -> dict[str, Any]:
    """Return a token in the list of log-probs of a chat."""
    number, logprob = token_facts(token)
    spelled = {"token": token, "bytes": list(token.encode("utf-8", "replace")), "logprob": logprob, "top_logprobs": []}
    return {"id": number, **spelled} if with_id else spelled


def _event(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


def _error(message: str, kind: str, *, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _usage(request: Request) -> dict[str, int]:
    prompt, completion = request.content.prompt_tokens, request.content.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _as_is(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector
